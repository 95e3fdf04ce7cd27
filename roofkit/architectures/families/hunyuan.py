"""Hunyuan dense and A13B: q/k norms per head, a shared expert beside the routed ones, sizes written as one entry per layer.

Source: transformers HunYuanDenseV1Config, HunYuanMoEV1Config and modelling code.
"""
from roofkit.architectures.building import FULL, decoder, heads, plain, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("hunyuan_v1_dense", "hunyuan_v1_moe")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    if not keys.flag("use_qk_norm", True):
        raise keys.refuse("use_qk_norm", "attention without q/k norms")
    if keys.flag("mlp_bias"):
        raise keys.refuse("mlp_bias", "biases in the feed-forward")
    bias = keys.flag("attention_bias")
    mixer = windowed(keys, None, **heads(keys, hidden), qkv_bias=bias, o_bias=bias, qk_norm="head")
    keys.note("num_experts", "moe_intermediate_size", "moe_topk", "num_shared_expert") if keys.model_type == "hunyuan_v1_dense" and keys.data.get(
        "num_experts") in (None, 1) else None
    ffn = _moe(keys) if keys.model_type == "hunyuan_v1_moe" else Dense(keys.size("intermediate_size"))
    return decoder(keys, "hunyuan", plain(keys, layers, mixer(FULL), ffn), tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)


def _moe(keys: Keys):
    if keys.size("moe_layer_num_skipped", 0, least=0):
        raise keys.refuse("moe_layer_num_skipped", "dense layers before the experts")
    base = keys.size("intermediate_size")
    if keys.size("num_experts") == 1:
        return Dense(base)
    width = keys.size("moe_intermediate_size", base)
    shared = keys.size("n_shared_experts", 1, least=0) * width if keys.flag("use_mixed_mlp_moe", True) else 0
    keys.note("n_shared_experts", "num_shared_expert")
    return read_moe(keys, width, shared_width=shared)
