"""Gemma-4 and Gemma-3n: two head geometries, shared caches, per-layer input embeddings, experts beside the dense block.

Source: transformers Gemma4TextConfig, Gemma3nTextConfig and modelling code. Layers that share a cache have no K and V
weights; the per-layer input table is looked up, not multiplied.
"""
from roofkit.architectures.building import FULL, Layer, active_window, check_top_k, decoder, every, layer_kinds
from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("gemma4_text", "gemma3n_text")
# class defaults: hidden, layers, heads, kv heads, width, vocab, head_dim, window, period, shared layers, per-layer input width
DEFAULTS = {
    "gemma4_text": (2304, 30, 8, 4, 9216, 262144, 256, 512, 6, 0, 256),
    "gemma3n_text": (2048, 35, 8, 2, 16384, 262400, 256, 512, 5, 15, 256),
}


def read(keys: Keys):
    d, n, h, kv, width, v, a, window, period, shared, ple = DEFAULTS[keys.model_type]
    four = keys.model_type == "gemma4_text"
    hidden, layers = keys.main("hidden_size", d), keys.main("num_hidden_layers", n)
    shape = {"n_heads": keys.main("num_attention_heads", h), "n_kv_heads": keys.size("num_key_value_heads", kv), "head_dim": keys.size("head_dim", a)}
    kinds = layer_kinds(keys, layers) or every(layers, period)
    if four and kinds[-1] != FULL:
        kinds = [*kinds[:-1], FULL]
    bias = keys.flag("attention_bias")
    shape |= {"qkv_bias": bias, "o_bias": bias, "qk_norm": "head"}
    if keys.raw("use_bidirectional_attention") not in (None, False, "vision"):
        raise keys.refuse("use_bidirectional_attention", "attention in both directions")
    limit = active_window(keys, keys.tokens("sliding_window", window))
    reuse = keys.size("num_kv_shared_layers", shared, least=0)
    if reuse >= layers:
        raise keys.conflict(f"num_kv_shared_layers {reuse} must be below num_hidden_layers {layers}")
    own = [i < layers - reuse for i in range(layers)]
    full = _full_shape(keys, shape) if four else shape
    special = _per_layer(keys, layers) if four else {}
    if special:
        full = shape
    mixers = [Attention(**{**(full if k == FULL else {**shape, "window": limit}), **special.get(i, {})}, kv="own" if own[i] else "shared",
                        k_eq_v=four and k == FULL and own[i] and keys.flag("attention_k_eq_v")) for i, k in enumerate(kinds)]
    ffns = _gemma4_ffn(keys, hidden, width, own) if four else _gemma3n_ffn(keys, width, layers)
    per_layer, outside, table = _per_layer_input(keys, hidden, layers, ple)
    if not four:
        extra, more = _altup(keys, hidden)
        per_layer, outside = per_layer + extra, outside + more
    moe = isinstance(ffns[0], MoE)
    made = [Layer(m, f, 7 if moe else 4, per_layer) for m, f in zip(mixers, ffns, strict=True)]
    return decoder(keys, "gemma", made, tied=keys.tied(True), vocab=keys.main("vocab_size", v), hidden=hidden, other_params=outside,
                   lookup_params=table)


def _per_layer(keys: Keys, layers: int) -> dict[int, dict]:
    """per_layer_config of files saved by newer releases: layer index -> its own head_dim and KV heads."""
    section, found = keys.section("per_layer_config"), {}
    for name in section.data:
        if not name.isdecimal() or int(name) >= layers:
            raise section.bad(name, section.data[name], f"is no layer index below {layers}")
        own = section.section(name)
        unknown = set(own.data) - {"head_dim", "num_key_value_heads"}
        if unknown:
            raise own.refuse(sorted(unknown)[0], "a size that varies by layer")
        sizes = {"head_dim": own.size("head_dim", None, names=("head_dim",)), "n_kv_heads": own.size("num_key_value_heads", None)}
        found[int(name)] = {k: v for k, v in sizes.items() if v is not None}
    return found


def _full_shape(keys: Keys, shape: dict) -> dict:
    """Full layers of Gemma-4: head_dim of their own; KV heads of their own where K equals V."""
    kv = keys.size("num_global_key_value_heads", None)
    found = {**shape, "head_dim": keys.size("global_head_dim", 512)}
    if kv is not None and keys.flag("attention_k_eq_v"):
        found["n_kv_heads"] = kv
    return found


def _gemma4_ffn(keys: Keys, hidden: int, default: int, own: list[bool]) -> list:
    width = keys.main("intermediate_size", default)
    double = keys.flag("use_double_wide_mlp")
    widths = [width * (2 if double and not o else 1) for o in own]
    if not keys.flag("enable_moe_block"):
        keys.note("num_experts", "top_k_experts", "moe_intermediate_size")
        return [Dense(w) for w in widths]
    n, k = keys.size("num_experts"), keys.size("top_k_experts")
    check_top_k(keys, n, k)
    expert = keys.size("moe_intermediate_size", names=("moe_intermediate_size", "expert_intermediate_size"))
    return [MoE(n, k, expert, dense_width=w, extra_params=hidden + n) for w in widths]  # scales of the router and of the experts


def _gemma3n_ffn(keys: Keys, default: int, layers: int) -> list:
    value = keys.raw("intermediate_size")
    if isinstance(value, list):
        widths = keys.items("intermediate_size", int, layers)
        if widths is None or any(not 1 <= w <= 2**24 for w in widths):
            raise keys.bad("intermediate_size", value, "must hold one positive width per layer")
        return [Dense(w) for w in widths]
    return [Dense(keys.size("intermediate_size", default))] * layers


def _per_layer_input(keys: Keys, hidden: int, layers: int, default: int) -> tuple[int, int, int]:
    """(parameters per layer, parameters outside the layers, of those the looked-up table)."""
    width = keys.size("hidden_size_per_layer_input", default, least=0)
    rows = keys.size("vocab_size_per_layer_input", 262144, most=2**26)
    if not width:
        return 0, 0, 0
    table = rows * layers * width
    return 2 * hidden * width + hidden, table + hidden * layers * width + width, table


def _altup(keys: Keys, hidden: int) -> tuple[int, int]:
    """Alternating updates and the low-rank residual of Gemma-3n: (per layer, outside)."""
    streams, rank = keys.size("altup_num_inputs", 4, least=1), keys.size("laurel_rank", 64)
    keys.note("altup_active_idx", "altup_coef_clip", "altup_correct_scale", "altup_lr_multiplier")
    altup = hidden + streams**2 + streams**3 + hidden * streams + hidden
    laurel = 2 * hidden * rank + hidden
    return altup + laurel, 2 * (streams - 1) * hidden * hidden
