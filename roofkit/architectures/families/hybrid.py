"""Granite-4 hybrid and Bamba: Mamba-2 layers with some attention layers; experts and a dense block side by side in Granite.

Source: transformers GraniteMoeHybridConfig, BambaConfig and modelling code.
"""
from roofkit.architectures.building import Layer, check_top_k, decoder, heads
from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, Mamba2

MODEL_TYPES = ("granitemoehybrid", "bamba")
KINDS = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    bamba = keys.model_type == "bamba"
    bias = keys.flag("attention_bias")
    rope = bamba or keys.text("position_embedding_type", "rope") == "rope"
    attention = Attention(**heads(keys, hidden, kv_default=8 if bamba else None), qkv_bias=bias, o_bias=bias, rope=rope)
    recurrent = _recurrent(keys, layers)
    mamba = _mamba(keys, hidden) if any(recurrent) else None
    keys.note(*(k for k in keys.data if k.startswith("mamba_")))
    ffn = Dense(keys.size("intermediate_size"), bias=keys.flag("mlp_bias")) if bamba else _granite_ffn(keys)
    return decoder(keys, "bamba" if bamba else "granite", [Layer(mamba if r else attention, ffn) for r in recurrent], tied=keys.tied(False),
                   vocab=keys.size("vocab_size"), hidden=hidden)


def _recurrent(keys: Keys, layers: int) -> list[bool]:
    kinds = keys.items("layer_types", str, layers) or keys.items("layers_block_type", str, layers)
    keys.note("layers_block_type")
    at = keys.items("attn_layer_indices", int)
    if kinds is None:
        if keys.model_type == "bamba" and at is not None:
            return [i not in set(at) for i in range(layers)]
        raise keys.missing(("layer_types", "layers_block_type", "attn_layer_indices"))
    for kind in kinds:
        if kind not in KINDS:
            raise keys.bad("layer_types", kind, f"is not a layer kind of this family; known: {', '.join(KINDS)}")
    found = [KINDS[k] for k in kinds]
    if at is not None and found != [i not in set(at) for i in range(layers)]:
        raise keys.conflict("layer_types and attn_layer_indices disagree; remove the wrong one")
    return found


def _mamba(keys: Keys, hidden: int) -> Mamba2:
    n, inner = keys.size("mamba_n_heads", 128), keys.size("mamba_expand", 2) * hidden
    width = inner // n if keys.raw("mamba_d_head") in (None, "auto") else keys.size("mamba_d_head")
    if n * width != inner:
        raise keys.conflict(f"mamba_n_heads {n} x mamba_d_head {width} is not mamba_expand x hidden_size = {inner}")
    return Mamba2(n, width, keys.size("mamba_d_state", 256), keys.size("mamba_n_groups", 1), keys.size("mamba_d_conv", 4),
                  keys.flag("mamba_conv_bias", True), keys.flag("mamba_proj_bias"))


def _granite_ffn(keys: Keys):
    """The dense block is always there; without experts it is the whole feed-forward."""
    shared = keys.size("shared_intermediate_size", names=("shared_intermediate_size",))
    experts = keys.size("num_local_experts", 0, least=0, names=("num_local_experts",))
    if not experts:
        keys.note("intermediate_size", "num_experts_per_tok")
        return Dense(shared)
    k = keys.size("num_experts_per_tok")
    check_top_k(keys, experts, k)
    return MoE(experts, k, keys.size("intermediate_size"), shared_width=shared)
