"""OLMo 1 to 3 and OLMoE: norms without weights (1), full-width q/k norms and norms after the sublayers (2, 3), experts (OLMoE).

Source: transformers OlmoConfig, Olmo2Config, Olmo3Config, OlmoeConfig and modelling code.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, heads, layer_kinds, plain, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("olmo", "olmo2", "olmo3", "olmoe")


def read(keys: Keys):
    kind = keys.model_type
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias")
    window = keys.tokens("sliding_window", 4096) if kind == "olmo3" else None
    kinds = [FULL] * layers
    if kind == "olmo3" and window is not None:
        kinds = layer_kinds(keys, layers) or [SLIDING if (i + 1) % 4 else FULL for i in range(layers)]
    mixer = windowed(keys, window, **heads(keys, hidden), qkv_bias=bias, o_bias=bias, qk_norm="none" if kind == "olmo" else "full")
    ffn = read_moe(keys, keys.size("intermediate_size")) if kind == "olmoe" else Dense(keys.size("intermediate_size"))
    return decoder(keys, "olmo", plain(keys, layers, mixer, ffn, kinds), tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden,
                   norm="unit" if kind == "olmo" else "rms")
