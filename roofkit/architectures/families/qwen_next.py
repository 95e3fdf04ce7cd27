"""Qwen3-Next and Qwen3.5: three gated-delta-net layers to one of full attention with an output gate.

Source: transformers Qwen3NextConfig, Qwen3_5TextConfig, Qwen3_5MoeTextConfig and modelling code. The draft layer is a
full-attention block without copies of the tables.
"""
from roofkit.architectures.building import FULL, Layer, decoder, heads, layer_kinds, read_moe
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, GatedDeltaNet

MODEL_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
LINEAR = "linear_attention"
# class defaults: hidden, layers, heads, kv heads, vocab, width, expert width, shared width, experts, per token
DEFAULTS = {"qwen3_next": (2048, 48, 16, 2, 151936, 5632), "qwen3_5_text": (4096, 32, 16, 4, 248320, 12288),
            "qwen3_5_moe_text": (2048, 40, 16, 2, 248320, None)}


def read(keys: Keys):
    d, n, h, kv, v, width = DEFAULTS[keys.model_type]
    hidden, layers = keys.main("hidden_size", d), keys.main("num_hidden_layers", n)
    bias = keys.flag("attention_bias")
    if not keys.flag("attn_output_gate", True):
        raise keys.refuse("attn_output_gate", "attention without its output gate")
    full = Attention(**heads(keys, hidden, head_dim=256, kv_default=kv, heads_default=h), qkv_bias=bias, o_bias=bias, qk_norm="head", output_gate=True)
    linear = GatedDeltaNet(keys.size("linear_num_key_heads", 16), keys.size("linear_num_value_heads", 32), keys.size("linear_key_head_dim", 128),
                           keys.size("linear_value_head_dim", 128), keys.size("linear_conv_kernel_dim", 4))
    if linear.n_v_heads % linear.n_k_heads:
        raise keys.conflict(f"linear_num_value_heads {linear.n_v_heads} is not divisible by linear_num_key_heads {linear.n_k_heads}")
    period = keys.size("full_attention_interval", 4)
    kinds = layer_kinds(keys, layers, (FULL, LINEAR)) or [FULL if (i + 1) % period == 0 else LINEAR for i in range(layers)]
    ffns = _feed_forwards(keys, layers, width)
    made = [Layer(full if k == FULL else linear, f) for k, f in zip(kinds, ffns, strict=True)]
    count = keys.size("num_nextn_predict_layers", 0, least=0)
    if count and keys.flag("mtp_use_dedicated_embeddings"):
        raise keys.refuse("mtp_use_dedicated_embeddings", "draft layers with tables of their own")
    return decoder(keys, "qwen3_next" if keys.model_type == "qwen3_next" else "qwen3_5", made, tied=keys.tied(False), vocab=keys.main("vocab_size", v),
                   hidden=hidden, mtp=[Layer(full, ffns[-1])] * count, mtp_extra=count * (2 * hidden * hidden + 3 * hidden))


def _feed_forwards(keys: Keys, layers: int, width: int | None) -> list:
    if keys.model_type == "qwen3_5_text":
        if keys.items("mlp_only_layers", int):
            raise keys.refuse("mlp_only_layers", "a mixture of dense and sparse layers in a dense model")
        return [Dense(keys.main("intermediate_size", width))] * layers
    nested = keys.nested
    moe = read_moe(keys, keys.size("moe_intermediate_size", 512 if nested else None) or keys.size("moe_intermediate_size"),
                   shared_width=keys.size("shared_expert_intermediate_size", 512, least=0), shared_gate=True)
    step = keys.size("decoder_sparse_step", 1)
    dense_at = set(keys.items("mlp_only_layers", int) or ())
    is_moe = [i not in dense_at and (i + 1) % step == 0 for i in range(layers)]
    dense = None if all(is_moe) else Dense(keys.size("intermediate_size"))
    keys.note("intermediate_size")
    return [moe if m else dense for m in is_moe]
