"""MiniMax-Text-01 and M1 (lightning attention with some softmax layers) and M2 (softmax attention, full-width q/k norms).

Source: transformers MiniMaxConfig, MiniMaxM2Config and modelling code; MiniMaxM1Config (remote code): attn_type_list 0 =
lightning, 1 = softmax. Reports: arXiv 2501.08313, 2506.13585.
"""
from dataclasses import replace

from roofkit.architectures.building import FULL, Layer, decoder, heads, layer_kinds, read_moe
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, LightningAttention

MODEL_TYPES = ("minimax", "minimax_m1", "minimax_text_01", "minimax_m2")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    second = keys.model_type == "minimax_m2"
    shape = heads(keys, hidden, head_dim=128 if second else None, kv_default=8)
    if keys.tokens("sliding_window") is not None:
        raise keys.refuse("sliding_window", "a window beside lightning attention")
    if keys.size("shared_intermediate_size", 0, least=0, names=("shared_intermediate_size",)):
        raise keys.refuse("shared_intermediate_size", "a shared expert")
    keys.note("linear_attn_alpha_factor", "linear_attn_beta_factor")
    keys.note("shared_moe_mode", "rotary_dim", "mtp_transformer_layers", "use_mtp", "num_mtp_modules")
    moe = read_moe(keys, keys.size("intermediate_size"))
    if second:
        return _read_m2(keys, hidden, layers, shape, moe)
    full, linear = Attention(**shape), LightningAttention(shape["n_heads"], shape["head_dim"])
    made = [Layer(full if f else linear, moe) for f in _softmax_layers(keys, layers)]
    return decoder(keys, "minimax", made, tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)


def _read_m2(keys: Keys, hidden: int, layers: int, shape: dict, moe):
    if not keys.flag("use_qk_norm", True) or keys.text("qk_norm_type", "per_layer") != "per_layer":
        raise keys.refuse("qk_norm_type", "another norm on q and k than one over the whole projection")
    if any(t != 1 for t in keys.items("attn_type_list", int, layers) or ()):
        raise keys.refuse("attn_type_list", "linear attention in an M2")
    made = [Layer(Attention(**shape, qk_norm="full"), moe)] * layers
    arch = decoder(keys, "minimax", made, tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
    if keys.data.get("num_mtp_modules"):
        return replace(arch, assumptions=("multi-token-prediction modules are in the checkpoint and not counted",))
    return arch


def _softmax_layers(keys: Keys, layers: int) -> list[bool]:
    marks = keys.items("attn_type_list", int, layers)
    kinds = layer_kinds(keys, layers, (FULL, "linear_attention"))
    by_list = None if marks is None else [m == 1 for m in marks]
    if marks is not None and any(m not in (0, 1) for m in marks):
        raise keys.bad("attn_type_list", marks, "must hold 0 (lightning) and 1 (softmax)")
    by_kind = None if kinds is None else [k == FULL for k in kinds]
    if by_list is not None and by_kind is not None and by_list != by_kind:
        raise keys.conflict("attn_type_list and layer_types disagree; remove the wrong one")
    found = by_list or by_kind
    if found is None:
        if keys.model_type != "minimax":
            raise keys.missing(("attn_type_list", "layer_types"))
        return [(i + 1) % 2 != 0 for i in range(layers)]
    return found
