"""gpt-oss: biases on every projection, attention sinks, a 128-token window in every other layer, experts with biases.

Source: transformers GptOssConfig and modelling code; model card arXiv 2508.10925.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, heads, layer_kinds, plain, read_moe, windowed
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("gpt_oss",)


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", True)
    kinds = layer_kinds(keys, layers) or [SLIDING if (i + 1) % 2 else FULL for i in range(layers)]
    window = keys.tokens("sliding_window", 128)
    if window is None and SLIDING in kinds:
        raise keys.conflict("layer_types names sliding layers but sliding_window is null; set the window")
    mixer = windowed(keys, window, **heads(keys, hidden, head_dim=64, kv_default=8), qkv_bias=bias, o_bias=bias, sinks=True)
    moe = read_moe(keys, keys.size("intermediate_size"), expert_bias=True, router_bias=True)
    return decoder(keys, "gpt_oss", plain(keys, layers, mixer, moe, kinds), tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
