"""Jamba: one attention layer in eight, Mamba-1 with inner norms otherwise, experts in every other layer.

Source: transformers JambaConfig and modelling code; arXiv 2403.19887.
"""
from roofkit.architectures.building import Layer, decoder, heads, read_moe
from roofkit.architectures.families.mamba import time_step_rank
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, Mamba1

MODEL_TYPES = ("jamba",)


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    attention = Attention(**heads(keys, hidden, kv_default=8), rope=False)
    if keys.tokens("sliding_window") is not None:
        raise keys.refuse("sliding_window", "a window on Jamba's attention")
    keys.note("mamba_dt_rank", "use_mamba_kernels")
    mamba = Mamba1(keys.size("mamba_expand", 2) * hidden, keys.size("mamba_d_state", 16), keys.size("mamba_d_conv", 4),
                   time_step_rank(keys, "mamba_dt_rank", hidden), keys.flag("mamba_conv_bias", True), keys.flag("mamba_proj_bias"), True)
    if not keys.flag("mamba_inner_layernorms", True):
        raise keys.refuse("mamba_inner_layernorms", "a mixer without inner norms")
    dense = Dense(keys.size("intermediate_size"))
    experts = keys.size("num_experts", 16)
    moe = read_moe(keys, dense.width) if experts > 1 else dense
    keys.note("num_experts_per_tok")
    attn_every, attn_at = keys.size("attn_layer_period", 8), keys.size("attn_layer_offset", 4, least=0)
    moe_every, moe_at = keys.size("expert_layer_period", 2), keys.size("expert_layer_offset", 1, least=0)
    made = [Layer(attention if i % attn_every == attn_at else mamba, moe if i % moe_every == moe_at else dense) for i in range(layers)]
    return decoder(keys, "jamba", made, tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
