"""DBRX: sizes of attention and experts in nested dictionaries, LayerNorm without bias, every layer sparse.

Source: transformers DbrxConfig and modelling code. A tie_word_embeddings inside attn_config or ffn_config means nothing.
"""
from roofkit.architectures.building import check_top_k, decoder, plain
from roofkit.architectures.feed_forward import MoE
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("dbrx",)


def read(keys: Keys):
    hidden, layers, n = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    attn, ffn = keys.section("attn_config"), keys.section("ffn_config")
    kv = attn.size("kv_n_heads")
    if hidden % n or n % kv:
        raise keys.conflict(f"d_model {hidden}, n_heads {n} and attn_config.kv_n_heads {kv} do not divide")
    experts, top_k = ffn.size("moe_num_experts"), ffn.size("moe_top_k")
    check_top_k(keys, experts, top_k)
    act = ffn.section("ffn_act_fn").text("name", "silu")
    if act != "silu":
        raise keys.refuse("ffn_config", f"experts with activation {act}")
    mixer = Attention(n, kv, hidden // n)
    return decoder(keys, "dbrx", plain(keys, layers, mixer, MoE(experts, top_k, ffn.size("ffn_hidden_size"))), tied=keys.tied(False),
                   vocab=keys.size("vocab_size"), hidden=hidden)
