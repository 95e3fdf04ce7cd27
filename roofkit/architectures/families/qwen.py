"""Qwen 1, 2, 2.5 and 3, dense and mixture of experts, and their vision-language text towers.

Source: transformers Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig and modelling code (q, k, v biases of
Qwen2 are fixed in the code); QWenConfig (remote code): intermediate_size counts gate and up together.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, heads, layer_kinds, plain, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("qwen", "qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen3", "qwen3_moe",
               "qwen3_vl_text", "qwen3_vl_moe_text")
# class defaults: hidden, layers, heads, kv heads, width, vocab, head_dim (None = hidden / heads)
DEFAULTS = {
    "qwen2": (4096, 32, 32, 32, 22016, 151936, None), "qwen2_moe": (2048, 24, 16, 16, 5632, 151936, None),
    "qwen2_vl_text": (8192, 80, 64, 8, 29568, 152064, None), "qwen2_5_vl_text": (8192, 80, 64, 8, 29568, 152064, None),
    "qwen3": (4096, 32, 32, 32, 22016, 151936, 128), "qwen3_moe": (2048, 24, 32, 4, 6144, 151936, None),
    "qwen3_vl_text": (4096, 32, 32, 32, 22016, 151936, 128), "qwen3_vl_moe_text": (2048, 24, 16, 16, 5632, 151936, None),
}
SAME_AS = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}


def read(keys: Keys):
    if keys.model_type == "qwen":
        return _read_qwen1(keys)
    kind = SAME_AS.get(keys.model_type, keys.model_type)
    d, n, h, kv, width, v, a = DEFAULTS[kind]
    hidden, layers = keys.main("hidden_size", d), keys.main("num_hidden_layers", n)
    third = kind.startswith("qwen3")
    bias = keys.flag("attention_bias") if third else keys.flag("qkv_bias", True) if kind == "qwen2_moe" else True
    shape = heads(keys, hidden, head_dim=a, kv_default=kv, heads_default=h)
    mixer = windowed(keys, keys.tokens("sliding_window", 4096), **shape, qkv_bias=bias, o_bias=bias and third, qk_norm="head" if third else "none")
    ffn = _feed_forward(keys, kind, layers, width, hidden)
    return decoder(keys, _family(kind), plain(keys, layers, mixer, ffn, _kinds(keys, layers)), tied=keys.tied(False),
                   vocab=keys.main("vocab_size", v), hidden=hidden)


def _family(kind: str) -> str:
    return {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"}.get(kind, kind)


def _kinds(keys: Keys, layers: int) -> list[str]:
    """Windows only when use_sliding_window is true: then in the layers from max_window_layers on."""
    on = keys.flag("use_sliding_window")
    first = keys.size("max_window_layers", 28, least=0)
    kinds = layer_kinds(keys, layers)
    if not on:
        if kinds and SLIDING in kinds:
            raise keys.conflict("layer_types names sliding layers but use_sliding_window is false; one of the two is wrong")
        return [FULL] * layers
    if keys.data.get("sliding_window", 4096) is None:
        return [FULL] * layers
    return kinds or [SLIDING if i >= first else FULL for i in range(layers)]


def _feed_forward(keys: Keys, kind: str, layers: int, width: int, hidden: int) -> list:
    if "moe" not in kind:
        return [Dense(keys.main("intermediate_size", width))] * layers
    shared = keys.size("shared_expert_intermediate_size", 5632 if keys.nested else None, least=0) if kind == "qwen2_moe" else 0
    if shared is None:
        raise keys.missing(("shared_expert_intermediate_size",))
    moe = read_moe(keys, keys.size("moe_intermediate_size"), shared_width=shared, shared_gate=kind == "qwen2_moe")
    step = keys.size("decoder_sparse_step", 1)
    dense_layers = set(keys.items("mlp_only_layers", int) or ())
    is_moe = [i not in dense_layers and (i + 1) % step == 0 for i in range(layers)]
    other = None if all(is_moe) else Dense(keys.size("intermediate_size"))
    keys.note("intermediate_size")  # present and unused when every layer is MoE
    return [moe if m else other for m in is_moe]


def _read_qwen1(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    n = keys.size("num_attention_heads")
    a = keys.size("kv_channels", None)
    if a is None and hidden % n:
        raise keys.conflict(f"hidden_size {hidden} is not divisible by {n} heads and kv_channels is absent; add kv_channels")
    width = keys.size("intermediate_size")
    if width % 2:
        raise keys.conflict(f"intermediate_size {width} is gate and up together in Qwen-1 and must be even")
    keys.flag("no_bias", True)  # the q, k, v bias stays whatever it says
    a = a or hidden // n
    mixer = windowed(keys, None, n_heads=n, n_kv_heads=n, head_dim=a, qkv_bias=True)
    return decoder(keys, "qwen", plain(keys, layers, mixer(FULL), Dense(width // 2)), tied=keys.tied(False),
                   vocab=keys.size("vocab_size"), hidden=hidden)
