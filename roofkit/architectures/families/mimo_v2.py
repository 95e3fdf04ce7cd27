"""MiMo-V2-Flash: windowed layers with twice the KV heads and sinks, values narrower than keys, experts after one dense layer.

Source: transformers MiMoV2FlashConfig and modelling code; spellings of the published file: hybrid_layer_pattern 1 = window,
moe_layer_freq as a list. The draft layers are not decomposed.
"""
from dataclasses import replace

from roofkit.architectures.building import FULL, SLIDING, Layer, active_window, decoder, layer_kinds, moe_layers, read_moe
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("mimo_v2_flash",)


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    n, kv = keys.size("num_attention_heads"), keys.size("num_key_value_heads", 4)
    a, v = keys.size("head_dim", 192, names=("head_dim",)), keys.size("v_head_dim", 128)
    same = {"swa_num_attention_heads": n, "swa_num_key_value_heads": 2 * kv, "swa_head_dim": a, "swa_v_head_dim": v}
    for name, value in same.items():
        if keys.size(name, value) != value:
            raise keys.refuse(name, f"windowed layers of another shape than {value}")
    if keys.flag("add_full_attention_sink_bias") or not keys.flag("add_swa_attention_sink_bias", True):
        raise keys.refuse("add_swa_attention_sink_bias", "sinks in other layers than the windowed ones")
    if keys.size("n_shared_experts", 0, least=0):
        raise keys.refuse("n_shared_experts", "a shared expert")
    if n % (2 * kv):
        raise keys.conflict(f"num_attention_heads {n} is not divisible by {2 * kv} KV heads of the windowed layers")
    bias = keys.flag("attention_bias")
    window = active_window(keys, keys.tokens("sliding_window", 128))
    keys.note("sliding_window_size", "attention_chunk_size")
    full = Attention(n, kv, a, v_head_dim=v, qkv_bias=bias)
    local = Attention(n, 2 * kv, a, v_head_dim=v, qkv_bias=bias, window=window, sinks=True)
    moe, dense = read_moe(keys, keys.size("moe_intermediate_size")), Dense(keys.size("intermediate_size"))
    made = [Layer(full if k == FULL else local, moe if s else dense) for k, s in zip(_kinds(keys, layers), _sparse(keys, layers), strict=True)]
    arch = decoder(keys, "mimo", made, tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
    if keys.size("num_nextn_predict_layers", 0, least=0):
        return replace(arch, assumptions=("multi-token-prediction layers are in the checkpoint and not counted",))
    return arch


def _kinds(keys: Keys, layers: int) -> list[str]:
    pattern = keys.items("hybrid_layer_pattern", int, layers)
    kinds = layer_kinds(keys, layers)
    if pattern is not None:
        if any(p not in (0, 1) for p in pattern):
            raise keys.bad("hybrid_layer_pattern", pattern, "must hold 0 (full) and 1 (window)")
        found = [SLIDING if p else FULL for p in pattern]
        if kinds is not None and kinds != found:
            raise keys.conflict("hybrid_layer_pattern and layer_types disagree; remove the wrong one")
        return found
    return kinds or [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(layers)]


def _sparse(keys: Keys, layers: int) -> list[bool]:
    kinds = keys.items("mlp_layer_types", str, layers)
    if kinds is not None:
        return [k == "sparse" for k in kinds]
    if isinstance(keys.raw("moe_layer_freq"), list):
        return moe_layers(keys, layers, 0)
    return [i > 0 for i in range(layers)]
