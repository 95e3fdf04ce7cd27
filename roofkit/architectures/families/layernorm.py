"""StableLM, StarCoder2, Nemotron-4, Cohere, Orion: LayerNorm instead of RMSNorm, otherwise Llama's layout with variations.

Source: transformers StableLmConfig, Starcoder2Config, NemotronConfig, CohereConfig, Cohere2Config and modelling code;
OrionConfig (remote code). Cohere's LayerNorm has no bias and its two halves run in parallel under one norm.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, every, heads, layer_kinds, plain, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("stablelm", "stablelm_epoch", "starcoder2", "nemotron", "cohere", "cohere2", "orion")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    kind = "stablelm" if keys.model_type == "stablelm_epoch" else keys.model_type
    window, kinds, shape, ffn, facts = READERS[kind](keys, hidden, layers)
    mixer = windowed(keys, window, **shape)
    norms = facts.pop("norms", 2)
    return decoder(keys, kind.removesuffix("2") if kind == "cohere2" else kind, plain(keys, layers, mixer, ffn, kinds or [FULL] * layers, norms=norms),
                   vocab=keys.size("vocab_size"), hidden=hidden, **facts)


def _stablelm(keys: Keys, hidden: int, layers: int):
    parallel = keys.flag("use_parallel_residual")
    if keys.size("head_dim", hidden // keys.size("num_attention_heads")) * keys.size("num_attention_heads") != hidden:
        raise keys.conflict(f"head_dim {keys.data['head_dim']} x heads is not hidden_size {hidden}, which StableLM fixes")
    shape = {**heads(keys, hidden, kv_default=32), "qkv_bias": keys.flag("use_qkv_bias"), "qk_norm": "full" if keys.flag("qk_layernorm") else "none"}
    return None, None, shape, Dense(keys.size("intermediate_size")), {"tied": keys.tied(False), "norm": "layer", "norms": 1 if parallel else 2}


def _starcoder2(keys: Keys, hidden: int, layers: int):
    bias = keys.flag("use_bias", True)
    if keys.text("mlp_type", "default") != "default" or keys.text("norm_type", "layer_norm") != "layer_norm":
        raise keys.refuse("mlp_type", "a StarCoder2 block of another kind")
    window = keys.tokens("sliding_window")
    shape = {**heads(keys, hidden, kv_default=2), "qkv_bias": bias, "o_bias": bias}
    kinds = layer_kinds(keys, layers) or [FULL if window is None else SLIDING] * layers
    return window, kinds, shape, Dense(keys.size("intermediate_size"), gated=False, bias=bias), {"tied": keys.tied(True), "norm": "layer"}


def _nemotron(keys: Keys, hidden: int, layers: int):
    bias = keys.flag("attention_bias")
    shape = {**heads(keys, hidden), "qkv_bias": bias, "o_bias": bias}
    if keys.text("hidden_act", "relu2") != "relu2":
        raise keys.refuse("hidden_act", "another activation than squared ReLU")
    ffn = Dense(keys.size("intermediate_size"), gated=False, bias=keys.flag("mlp_bias"))
    return None, None, shape, ffn, {"tied": keys.tied(False), "norm": "layer"}


def _cohere(keys: Keys, hidden: int, layers: int):
    bias = keys.flag("attention_bias")
    second = keys.model_type == "cohere2"
    shape = {**heads(keys, hidden), "qkv_bias": bias, "o_bias": bias}
    if not second and keys.flag("use_qk_norm"):
        shape["qk_norm"] = "full"
    window, kinds = None, None
    if second:
        window = keys.tokens("sliding_window", 4096)
        period = keys.size("sliding_window_pattern", 4)
        kinds = layer_kinds(keys, layers) or every(layers, period)
        kinds = kinds if window is not None else [FULL] * layers
    facts = {"tied": keys.tied(True), "norm": "layer_no_bias", "norms": 1}
    keys.note("use_parallel_block", "use_gated_activation", "use_embedding_sharing", "order_of_interleaved_layers", "rotary_pct", "position_embedding_type")
    return window, kinds, shape, Dense(keys.size("intermediate_size")), facts


def _orion(keys: Keys, hidden: int, layers: int):
    bias = keys.flag("attention_bias")
    return None, None, {**heads(keys, hidden), "qkv_bias": bias, "o_bias": bias}, Dense(keys.size("intermediate_size")), {"tied": keys.tied(False), "norm": "layer"}


READERS = {"stablelm": _stablelm, "starcoder2": _starcoder2, "nemotron": _nemotron, "cohere": _cohere, "cohere2": _cohere, "orion": _orion}
