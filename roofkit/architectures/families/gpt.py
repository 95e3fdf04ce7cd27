"""The GPT-2 era: GPT-2, GPT-BigCode, GPT-J, GPT-NeoX, GPT-Neo, OPT, BLOOM: LayerNorm with bias, plain feed-forward, biases.

Source: transformers configuration and modelling code of each class.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, plain, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("gpt2", "gpt_bigcode", "gptj", "gpt_neox", "gpt_neo", "opt", "bloom")
TIED = {"gptj": False, "gpt_neox": False}


def read(keys: Keys):
    hidden, layers, n = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    if hidden % n:
        raise keys.conflict(f"hidden_size {hidden} is not divisible by {n} heads")
    if keys.flag("add_cross_attention"):
        raise keys.refuse("add_cross_attention", "cross-attention")
    kind = keys.model_type
    facts = READERS[kind](keys, hidden, n)
    a = {"n_heads": n, "n_kv_heads": facts.pop("kv", n), "head_dim": hidden // n, "rope": kind in ("gptj", "gpt_neox")}
    kinds, window = facts.pop("kinds", None), facts.pop("window", None)
    mixer = windowed(keys, window, **a, **facts.pop("bias"))
    made = plain(keys, layers, mixer if kinds else mixer(FULL), facts.pop("ffn"), kinds, norms=facts.pop("norms", 2))
    return decoder(keys, kind, made, tied=keys.tied(TIED.get(kind, True)), vocab=keys.size("vocab_size"), hidden=hidden, norm="layer", **facts)


def _inner(keys: Keys, hidden: int) -> int:
    return keys.size("intermediate_size", 4 * hidden)


def _gpt2(keys: Keys, hidden: int, n: int) -> dict:
    positions = keys.size("n_positions", 1024) * hidden
    kv = 1 if keys.model_type == "gpt_bigcode" and keys.flag("multi_query", True) else n
    return {"kv": kv, "bias": {"qkv_bias": True, "o_bias": True}, "ffn": Dense(_inner(keys, hidden), gated=False, bias=True),
            "other_params": positions, "lookup_params": positions}


def _gptj(keys: Keys, hidden: int, n: int) -> dict:
    keys.note("n_positions", "rotary_dim")
    return {"bias": {}, "ffn": Dense(_inner(keys, hidden), gated=False, bias=True), "norms": 1, "head_bias": True}


def _gpt_neox(keys: Keys, hidden: int, n: int) -> dict:
    keys.flag("use_parallel_residual", True)
    bias = keys.flag("attention_bias", True)
    return {"bias": {"qkv_bias": bias, "o_bias": bias}, "ffn": Dense(keys.size("intermediate_size"), gated=False, bias=True)}


def _gpt_neo(keys: Keys, hidden: int, n: int) -> dict:
    layers = keys.size("num_hidden_layers")
    kinds = keys.items("attention_layers", str, layers)
    kinds = _expand(keys, layers) if kinds is None else kinds
    keys.note("attention_types")
    if any(k not in ("global", "local") for k in kinds):
        raise keys.bad("attention_layers", kinds, "must name global and local layers")
    positions = keys.size("max_position_embeddings", 2048) * hidden
    return {"bias": {"o_bias": True}, "ffn": Dense(_inner(keys, hidden), gated=False, bias=True), "other_params": positions,
            "lookup_params": positions, "window": keys.tokens("window_size", 256), "kinds": [FULL if k == "global" else SLIDING for k in kinds]}


def _expand(keys: Keys, layers: int) -> list[str]:
    """attention_types [[["global", "local"], 12]] -> one kind per layer."""
    found: list[str] = []
    for entry in keys.items("attention_types", list) or [[["global", "local"], layers // 2]]:
        if len(entry) != 2 or not isinstance(entry[0], list) or not isinstance(entry[1], int) or not 0 <= entry[1] <= 4096 or len(entry[0]) > 64:
            raise keys.bad("attention_types", entry, "must be a list of kinds and a repeat count")
        found.extend(entry[0] * entry[1])
    if len(found) != layers:
        raise keys.conflict(f"attention_types describes {len(found)} layers, num_layers says {layers}")
    return found


def _opt(keys: Keys, hidden: int, n: int) -> dict:
    if not keys.flag("enable_bias", True) or not keys.flag("layer_norm_elementwise_affine", True):
        raise keys.refuse("enable_bias", "an OPT block without biases")
    width = keys.size("word_embed_proj_dim", hidden)
    positions = (keys.size("max_position_embeddings") + 2) * hidden
    final = keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm")
    around = 0 if width == hidden else 2 * width * hidden
    return {"bias": {"qkv_bias": True, "o_bias": True}, "ffn": Dense(keys.size("intermediate_size"), gated=False, bias=True),
            "final_norms": int(final), "embed_width": width, "other_params": positions + around, "lookup_params": positions}


def _bloom(keys: Keys, hidden: int, n: int) -> dict:
    keys.note("n_positions")
    return {"bias": {"qkv_bias": True, "o_bias": True}, "ffn": Dense(4 * hidden, gated=False, bias=True), "final_norms": 2}


READERS = {"gpt2": _gpt2, "gpt_bigcode": _gpt2, "gptj": _gptj, "gpt_neox": _gpt_neox, "gpt_neo": _gpt_neo, "opt": _opt, "bloom": _bloom}
