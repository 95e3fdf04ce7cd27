"""Mixtral and Granite-MoE: Llama's attention, every layer a mixture of gated experts as wide as intermediate_size.

Source: transformers MixtralConfig, GraniteMoeConfig, GraniteMoeSharedConfig and modelling code.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, heads, plain, read_moe, windowed
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("mixtral", "granitemoe", "granitemoeshared")


def read(keys: Keys):
    mixtral = keys.model_type == "mixtral"
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    bias = False if mixtral else keys.flag("attention_bias")
    window = keys.tokens("sliding_window") if mixtral else None
    mixer = windowed(keys, window, **heads(keys, hidden, kv_default=8 if mixtral else None), qkv_bias=bias, o_bias=bias)
    shared = keys.size("shared_intermediate_size", 0, least=0) if keys.model_type == "granitemoeshared" else 0
    moe = read_moe(keys, keys.size("intermediate_size"), shared_width=shared)
    return decoder(keys, "mixtral" if mixtral else "granite", plain(keys, layers, mixer(SLIDING if window else FULL), moe),
                   tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
