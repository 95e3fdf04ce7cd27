"""Mixture-of-experts decoders in Llama's layout: dots.llm1, Hunyuan-3, Solar-Open, FlexOLMo; latent ones: GLM-4.7-Flash, Mistral-4, Youtu.

Source: transformers Dots1Config, HYV3Config, SolarOpenConfig, FlexOlmoConfig, Glm4MoeLiteConfig, Mistral4Config, YoutuConfig
and modelling code; each count checked against an instantiated model.
"""
from dataclasses import replace

from roofkit.architectures.building import FULL, SLIDING, Layer, decoder, heads, layer_kinds, moe_layers, read_mla, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("dots1", "hy_v3", "solar_open", "flex_olmo", "glm4_moe_lite", "mistral4", "youtu")
LATENT = ("glm4_moe_lite", "mistral4", "youtu")
# q/k norm, dense layers before the experts when no key says, shared experts when no key says
FACTS = {"dots1": ("head", 0, 0), "hy_v3": ("head", 1, 1), "solar_open": ("none", 0, 1), "flex_olmo": ("full", 0, 0), "glm4_moe_lite": (None, 1, 1),
         "mistral4": (None, 0, 1), "youtu": (None, None, 0)}


def read(keys: Keys):
    kind = keys.model_type
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    qk, first, shared = FACTS[kind]
    bias = False if kind in LATENT else keys.flag("attention_bias")
    if keys.flag("mlp_bias"):
        raise keys.refuse("mlp_bias", "biases in the feed-forward")
    if kind in LATENT:
        mixers = [read_mla(keys)] * layers
    else:
        if kind == "solar_open" and keys.flag("use_qk_norm"):
            raise keys.refuse("use_qk_norm", "q/k norms")
        keys.note("use_qk_norm", "qk_norm")
        window, kinds = _window(keys, kind, layers)
        make = windowed(keys, window, **heads(keys, hidden, head_dim=128 if kind in ("hy_v3", "solar_open") else None), qkv_bias=bias, o_bias=bias, qk_norm=qk)
        mixers = [make(k) for k in kinds]
    ffns = _feed_forwards(keys, layers, first, shared)
    arch = decoder(keys, {"hy_v3": "hunyuan", "glm4_moe_lite": "glm", "mistral4": "mistral", "flex_olmo": "olmo"}.get(kind, kind),
                   [Layer(m, f) for m, f in zip(mixers, ffns, strict=True)], tied=keys.tied(kind == "youtu"), vocab=keys.size("vocab_size"), hidden=hidden)
    if keys.size("num_nextn_predict_layers", 0, least=0):
        return replace(arch, assumptions=("multi-token-prediction layers are in the checkpoint and not counted",))
    return arch


def _window(keys: Keys, kind: str, layers: int) -> tuple[int | None, list[str]]:
    if kind != "dots1":
        return None, [FULL] * layers
    window, first = keys.tokens("sliding_window", 4096), keys.size("max_window_layers", 62, least=0)
    kinds = layer_kinds(keys, layers) or [SLIDING if i >= first else FULL for i in range(layers)]
    return window, [FULL] * layers if window is None else kinds


def _feed_forwards(keys: Keys, layers: int, first: int | None, shared: int) -> list:
    if first is None:
        return [Dense(keys.size("intermediate_size"))] * layers
    flex = keys.model_type == "flex_olmo"
    width = keys.size("intermediate_size" if flex else "moe_intermediate_size")
    moe = read_moe(keys, width, shared_width=keys.size("n_shared_experts", shared, least=0) * width)
    marks = keys.items("mlp_layer_types", str, layers)
    if marks is not None and set(marks) - {"dense", "sparse"}:
        raise keys.bad("mlp_layer_types", marks, "must hold dense and sparse")
    # a written mlp_layer_types rules: classes that have it ignore first_k_dense_replace
    start = keys.size("first_k_dense_replace", first, least=0)
    if marks is None and start != first and keys.model_type in ("glm4_moe_lite", "hy_v3"):
        raise keys.refuse("first_k_dense_replace", "a dense prefix that its published class ignores")
    is_moe = moe_layers(keys, layers, start) if marks is None else [m == "sparse" for m in marks]
    if marks is not None and keys.data.get("first_k_dense_replace") is not None and is_moe != moe_layers(keys, layers, start):
        raise keys.conflict("mlp_layer_types and first_k_dense_replace disagree; remove the wrong one")
    dense = None if all(is_moe) else Dense(keys.size("intermediate_size"))
    keys.note("intermediate_size")
    return [moe if m else dense for m in is_moe]
