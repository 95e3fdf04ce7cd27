"""LFM2 and LFM2-MoE: gated short convolutions with some attention layers; the written width is shrunk to two thirds.

Source: transformers Lfm2Config, Lfm2MoeConfig and modelling code.
"""
from roofkit.architectures.building import FULL, Layer, decoder, heads, layer_kinds, read_moe
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, ShortConv

MODEL_TYPES = ("lfm2", "lfm2_moe")
CONV = "conv"


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    keys.note("conv_dim", "conv_dim_out", "block_dim", "conv_use_xavier_init", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale",
              "block_use_swiglu", "block_use_xavier_init", "num_heads", "use_pos_enc")
    for name in ("conv_dim", "block_dim"):
        if keys.data.get(name) not in (None, hidden):
            raise keys.conflict(f"{name} {keys.data[name]} differs from hidden_size {hidden}")
    kinds = layer_kinds(keys, layers, (FULL, CONV)) or _by_index(keys, layers)
    attention = Attention(**heads(keys, hidden, kv_default=8), qk_norm="head")
    conv = ShortConv(hidden, keys.size("conv_L_cache", 3), keys.flag("conv_bias"))
    ffns = _feed_forwards(keys, layers)
    made = [Layer(attention if k == FULL else conv, f) for k, f in zip(kinds, ffns, strict=True)]
    tied = keys.flag("tie_embedding", keys.tied(True))
    return decoder(keys, "lfm2", made, tied=tied, vocab=keys.size("vocab_size"), hidden=hidden)


def _by_index(keys: Keys, layers: int) -> list[str]:
    at = keys.items("full_attn_idxs", int)
    if at is None:
        raise keys.missing(("layer_types", "full_attn_idxs"))
    if any(not 0 <= i < layers for i in at):
        raise keys.conflict(f"full_attn_idxs names a layer outside 0..{layers - 1}")
    return [FULL if i in set(at) else CONV for i in range(layers)]


def _feed_forwards(keys: Keys, layers: int) -> list:
    if keys.model_type == "lfm2_moe":
        dense = Dense(keys.size("intermediate_size"))
        moe = read_moe(keys, keys.size("moe_intermediate_size"))
        first = keys.size("num_dense_layers", 2, least=0)
        keys.note("use_expert_bias")
        return [dense if i < first else moe for i in range(layers)]
    width = keys.size("block_ff_dim", None) or keys.size("intermediate_size")
    keys.note("intermediate_size")
    multiple = keys.size("block_multiple_of", 256)
    if keys.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        width = int(keys.number("block_ffn_dim_multiplier", 1.0) * width)
        width = multiple * ((width + multiple - 1) // multiple)
    keys.note("block_ffn_dim_multiplier", "block_multiple_of")
    return [Dense(width)] * layers
