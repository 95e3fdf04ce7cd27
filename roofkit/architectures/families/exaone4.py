"""EXAONE-4 and EXAONE-MoE: q/k norms per head, two norms after the sublayers (4.0), windows in a written or spelled pattern.

Source: transformers Exaone4Config, ExaoneMoeConfig and modelling code.
"""
from roofkit.architectures.building import FULL, SLIDING, Layer, decoder, heads, layer_kinds, moe_layers, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("exaone4", "exaone_moe")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    window = keys.tokens("sliding_window", 4096)
    mixer = windowed(keys, window, **heads(keys, hidden, kv_default=32), qk_norm="head")
    kinds = _kinds(keys, layers, window)
    dense = Dense(keys.size("intermediate_size"))
    ffns: list = [dense] * layers
    if keys.model_type == "exaone_moe":
        width = keys.size("moe_intermediate_size")
        moe = read_moe(keys, width, shared_width=keys.size("n_shared_experts", 1, least=0) * width)
        marks = keys.items("mlp_layer_types", str, layers) or keys.items("is_moe_layer", bool, layers)
        sparse = moe_layers(keys, layers, keys.size("first_k_dense_replace", 1, least=0)) if marks is None else [m in ("sparse", True) for m in marks]
        ffns = [moe if s else dense for s in sparse]
        keys.note("first_k_dense_replace")
    made = [Layer(mixer(k), f) for k, f in zip(kinds, ffns, strict=True)]
    count = keys.size("num_nextn_predict_layers", 0, least=0)
    arch = decoder(keys, "exaone", made, tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
    if count:
        from dataclasses import replace
        return replace(arch, assumptions=("multi-token-prediction layers are in the checkpoint and not counted",))
    return arch


def _kinds(keys: Keys, layers: int, window: int | None) -> list[str]:
    pattern = keys.raw("sliding_window_pattern")
    kinds = layer_kinds(keys, layers)
    if window is None:
        return [FULL] * layers
    if kinds is not None:
        return kinds
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise keys.bad("sliding_window_pattern", pattern, "must consist of L (window) and G (full)")
        return [FULL if pattern[i % len(pattern)] == "G" else SLIDING for i in range(layers)]
    period = keys.size("sliding_window_pattern", 4)
    return [FULL if (i + 1) % period == 0 else SLIDING for i in range(layers)]
