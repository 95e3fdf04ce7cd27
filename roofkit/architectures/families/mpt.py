"""MPT: ALiBi, weights without biases, LayerNorm without bias, feed-forward four times as wide.

Source: transformers MptConfig and modelling code; learned positions exist only when ALiBi is off, which the class does not model.
"""
from roofkit.architectures.building import decoder, plain
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("mpt",)


def read(keys: Keys):
    hidden, layers, n = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    if hidden % n:
        raise keys.conflict(f"d_model {hidden} is not divisible by {n} heads")
    if not keys.flag("no_bias", True):
        raise keys.refuse("no_bias", "biases in every matrix")
    attn = keys.section("attn_config")
    if attn.flag("qk_ln") or (attn.text("attn_type", "multihead_attention") != "multihead_attention") or not attn.flag("alibi", True):
        raise keys.refuse("attn_config", "attention other than multi-head with ALiBi")
    if keys.section("ffn_config").text("ffn_type", "mptmlp") != "mptmlp":
        raise keys.refuse("ffn_config", "a feed-forward of another kind")
    width = keys.number("expansion_ratio", 4.0) * hidden
    if width % 1:
        raise keys.bad("expansion_ratio", keys.data["expansion_ratio"], "gives a fractional width")
    mixer = Attention(n, n, hidden // n, rope=False)
    return decoder(keys, "mpt", plain(keys, layers, mixer, Dense(int(width), gated=False)), tied=keys.tied(True), vocab=keys.size("vocab_size"),
                   hidden=hidden, norm="layer_no_bias")
