"""Apertus and CWM: Llama's attention; Apertus has a plain feed-forward whose activation learns two scalars, CWM a window schedule.

Source: transformers ApertusConfig, CwmConfig and modelling code.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, heads, layer_kinds, plain, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("apertus", "cwm")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    apertus = keys.model_type == "apertus"
    bias = keys.flag("attention_bias") if apertus else False
    if keys.flag("mlp_bias"):
        raise keys.refuse("mlp_bias", "biases in the feed-forward")
    window, kinds = None, [FULL] * layers
    if apertus:
        if keys.text("hidden_act", "xielu") != "xielu" or not keys.flag("qk_norm", True) or keys.flag("post_norm"):
            raise keys.refuse("hidden_act", "another Apertus block than the published one")
    else:
        window = keys.tokens("sliding_window", 8192)
        kinds = layer_kinds(keys, layers) or [SLIDING if i % 4 else FULL for i in range(layers)]
        kinds = kinds if window is not None else [FULL] * layers
    mixer = windowed(keys, window, **heads(keys, hidden, head_dim=None if apertus else 128, kv_default=None if apertus else 8), qkv_bias=bias, o_bias=bias,
                     qk_norm="head" if apertus else "none")
    ffn = Dense(keys.size("intermediate_size"), gated=not apertus, extra_params=2 if apertus else 0)
    return decoder(keys, keys.model_type, plain(keys, layers, mixer, ffn, kinds), tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
