"""Llama and the models that share its block: RMSNorm, rotary GQA, gated MLP.

Source: transformers LlamaConfig, MistralConfig, Ministral3Config, ExaoneConfig (remote code) and their modelling code;
exact counts of Llama, Yi, Mistral, EXAONE-3 files in the test table.
"""
from roofkit.architectures.building import FULL, SLIDING, active_window, decoder, dense, heads, layer_kinds, plain, windowed
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("llama", "mistral", "ministral3", "ministral", "exaone", "smollm3", "seed_oss", "arcee", "granite", "mimo")
# defaults of the class: hidden, layers, heads, kv heads (None = heads), width, vocab, head_dim, tied, attention bias
DEFAULTS = {
    "llama": (4096, 32, 32, None, 11008, 32000, None, False, False),
    "mistral": (4096, 32, 32, 8, 14336, 32000, None, False, False),
    "ministral3": (4096, 34, 32, 8, 14336, 131072, 128, False, False),
    "ministral": (4096, 32, 32, 8, 14336, 32000, None, False, False),
    "exaone": (4096, 32, 32, None, 16384, 102400, None, False, False),
    "smollm3": (2048, 36, 16, 4, 11008, 128256, None, True, False),
    "seed_oss": (4096, 64, 80, 8, 27648, 155136, 128, False, True),
    "arcee": (2560, 32, 32, None, 18432, 32000, None, False, False),
    "granite": (4096, 32, 32, None, 11008, 32000, None, False, False),
    "mimo": (4096, 32, 32, None, 22016, 151936, None, False, False),
}
WINDOW_WHEN_ABSENT = {"mistral": 4096, "ministral": 4096}


def read(keys: Keys):
    kind = keys.model_type
    d, n, h, kv, width, v, a, tied, bias = DEFAULTS[kind]
    hidden, layers = keys.main("hidden_size", d), keys.main("num_hidden_layers", n)
    shape = heads(keys, hidden, head_dim=a, kv_default=kv, heads_default=h)
    bias = keys.flag("attention_bias", bias)
    o_bias = keys.flag("attention_out_bias", False) if kind == "seed_oss" else bias and kind != "mimo"
    window, kinds = _window(keys, kind, layers)
    mixer = windowed(keys, window, **shape, qkv_bias=bias, o_bias=o_bias)
    if not keys.nested:
        ffn = dense(keys, gated=kind != "arcee", bias=keys.flag("mlp_bias"))
    else:
        from roofkit.architectures.feed_forward import Dense
        ffn = Dense(keys.main("intermediate_size", width), gated=kind != "arcee", bias=keys.flag("mlp_bias"))
    draft, extra = [], 0
    if kind == "mimo" and (count := keys.size("num_nextn_predict_layers", 0, least=0)):
        draft = plain(keys, count, mixer(FULL), ffn)
        extra = count * (2 * hidden * hidden + 3 * hidden)
    keys.note("num_experts") if keys.data.get("num_experts") == 0 else None
    return decoder(keys, FAMILY.get(kind, kind), plain(keys, layers, mixer, ffn, kinds), tied=keys.tied(tied),
                   vocab=keys.main("vocab_size", v), hidden=hidden, mtp=draft, mtp_extra=extra)


FAMILY = {"mistral": "mistral", "ministral3": "mistral", "ministral": "mistral"}


def _window(keys: Keys, kind: str, layers: int) -> tuple[int | None, list[str]]:
    if kind in ("llama", "exaone", "seed_oss", "arcee", "granite"):
        return None, [FULL] * layers
    window = keys.tokens("sliding_window", WINDOW_WHEN_ABSENT.get(kind))
    if not keys.flag("use_sliding_window", kind not in ("smollm3", "mimo")):
        window = None
    kinds = layer_kinds(keys, layers)
    if kinds is None:
        kinds = [SLIDING if window is not None else FULL] * layers
    if window is None:
        if SLIDING in kinds:
            raise keys.conflict("layer_types names sliding layers but sliding_window is null or off; set the window")
    elif active_window(keys, window) is None:
        kinds = [FULL] * layers
    return window, kinds
