"""ChatGLM-3, GLM-4, GLM-4-0414, GLM-4.5: few KV heads, q, k, v biases; experts after a dense prefix in GLM-4.5.

Source: ChatGLMConfig (remote code), transformers GlmConfig, Glm4Config, Glm4MoeConfig and modelling code; o_proj has no
bias whatever attention_bias says. The draft layer of GLM-4.5 stores its own copies of both tables.
"""
from roofkit.architectures.building import FULL, Layer, decoder, heads, moe_layers, plain, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("chatglm", "glm", "glm4", "glm4_moe", "glm4v_moe_text")


def read(keys: Keys):
    if keys.model_type == "chatglm":
        return _read_chatglm(keys)
    if keys.model_type in ("glm", "glm4"):
        return _read_dense(keys)
    return _read_moe(keys)


def _read_chatglm(keys: Keys):
    if not keys.flag("rmsnorm", True) or keys.flag("add_bias_linear") or keys.flag("apply_residual_connection_post_layernorm"):
        raise keys.refuse("rmsnorm", "a block of an early ChatGLM")
    if not keys.flag("post_layer_norm", True):
        raise keys.refuse("post_layer_norm", "no final norm")
    hidden, layers, n = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    a = keys.size("kv_channels")
    kv = keys.size("multi_query_group_num", n) if keys.flag("multi_query_attention") else n
    if n % kv:
        raise keys.conflict(f"num_attention_heads {n} is not divisible by multi_query_group_num {kv}")
    mixer = windowed(keys, None, n_heads=n, n_kv_heads=kv, head_dim=a, qkv_bias=keys.flag("add_qkv_bias"))
    return decoder(keys, "glm", plain(keys, layers, mixer(FULL), Dense(keys.size("intermediate_size"))), tied=keys.tied(False),
                   vocab=keys.size("vocab_size"), hidden=hidden)


def _read_dense(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    mixer = windowed(keys, None, **heads(keys, hidden, head_dim=128, kv_default=2), qkv_bias=keys.flag("attention_bias", True))
    norms = 4 if keys.model_type == "glm4" else 2
    return decoder(keys, "glm", plain(keys, layers, mixer(FULL), Dense(keys.size("intermediate_size")), norms=norms), tied=keys.tied(False),
                   vocab=keys.size("vocab_size"), hidden=hidden)


def _read_moe(keys: Keys):
    hidden, layers, vocab = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("vocab_size")
    qk = "head" if keys.flag("use_qk_norm") else "none"
    mixer = windowed(keys, None, **heads(keys, hidden, kv_default=8), qkv_bias=keys.flag("attention_bias"), qk_norm=qk)(FULL)
    width = keys.size("moe_intermediate_size")
    moe = read_moe(keys, width, shared_width=keys.size("n_shared_experts", 1, least=0) * width)
    is_moe = moe_layers(keys, layers, keys.size("first_k_dense_replace", 1, least=0))
    dense = None if all(is_moe) else Dense(keys.size("intermediate_size"))
    made = [Layer(mixer, moe if m else dense) for m in is_moe]
    count = keys.size("num_nextn_predict_layers", 0, least=0)
    return decoder(keys, "glm", made, tied=keys.tied(False), vocab=vocab, hidden=hidden, mtp=[made[-1]] * count,
                   mtp_extra=count * (2 * hidden * hidden + 3 * hidden + 2 * vocab * hidden))
