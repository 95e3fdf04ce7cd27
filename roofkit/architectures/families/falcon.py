"""Falcon 7B, 40B, 180B (and their first releases as RefinedWeb): one or eight KV heads, attention and feed-forward in parallel.

Source: transformers FalconConfig and modelling code. multi_query wins over num_kv_heads; the 40B release (new decoder
architecture, or n_head_kv in the first files) has two norms per layer. tiiuae publishes falcon3 as llama.
"""
from roofkit.architectures.building import decoder, plain
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("falcon", "RefinedWeb", "RefinedWebModel")


def read(keys: Keys):
    hidden, layers, n = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    if hidden % n:
        raise keys.conflict(f"hidden_size {hidden} is not divisible by {n} heads")
    new = keys.flag("new_decoder_architecture", keys.model_type == "RefinedWeb" or keys.data.get("n_head_kv") is not None)
    multi_query = keys.flag("multi_query", True)
    written = keys.find(("num_kv_heads", "n_head_kv", "num_key_value_heads"))[0]
    if new:
        if written is None:
            raise keys.missing(("num_kv_heads", "n_head_kv"))
        kv = keys.size(written, names=(written,))
    else:
        kv = 1 if multi_query else n
    if n % kv:
        raise keys.conflict(f"num_attention_heads {n} is not divisible by {kv} KV heads")
    bias = keys.flag("bias")
    parallel = keys.flag("parallel_attn", True)
    norms = 2 if not parallel else keys.size("num_ln_in_parallel_attn", 2 if new else 1)
    ffn = Dense(keys.size("intermediate_size", 4 * hidden), gated=False, bias=bias)
    mixer = Attention(n, kv, hidden // n, qkv_bias=bias, o_bias=bias, rope=not keys.flag("alibi"))
    return decoder(keys, "falcon", plain(keys, layers, mixer, ffn, norms=norms), tied=keys.tied(True), vocab=keys.size("vocab_size"),
                   hidden=hidden, norm="layer")
