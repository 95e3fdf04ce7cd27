"""Llama-4: three chunked layers to one full without rope, one routed expert and one shared expert that has no key.

Source: transformers Llama4TextConfig and modelling code; the q/k norm of use_qk_norm has no weights.
"""
from roofkit.architectures.building import CHUNKED, FULL, Layer, decoder, heads, layer_kinds, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("llama4_text",)


def read(keys: Keys):
    hidden, layers = keys.main("hidden_size", 5120), keys.main("num_hidden_layers", 48)
    bias = keys.flag("attention_bias")
    unit = "unit" if keys.flag("use_qk_norm", True) else "none"
    shape = heads(keys, hidden, head_dim=128, kv_default=8, heads_default=40)
    window = keys.tokens("attention_chunk_size", 8192)
    rope = _rope(keys, layers)
    kinds = layer_kinds(keys, layers, (FULL, CHUNKED)) or [CHUNKED if r and window is not None else FULL for r in rope]
    fields = {"qkv_bias": bias, "o_bias": bias, "qk_norm": unit, **shape}
    width = keys.size("intermediate_size", 8192 if keys.nested else None)
    if width is None:
        raise keys.missing(("intermediate_size",))
    moe = read_moe(keys, width, shared_width=width)
    sparse = _moe_layers(keys, layers)
    dense = Dense(keys.size("intermediate_size_mlp", 16384)) if len(sparse) < layers else None
    keys.note("intermediate_size_mlp")
    made = [Layer(windowed(keys, window, **fields, rope=rope[i])(kinds[i]), moe if i in sparse else dense) for i in range(layers)]
    return decoder(keys, "llama4", made, tied=keys.tied(False), vocab=keys.main("vocab_size", 202048), hidden=hidden)


def _rope(keys: Keys, layers: int) -> list[bool]:
    marks = keys.items("no_rope_layers", int, layers)
    period = keys.size("no_rope_layer_interval", 4, names=("no_rope_layer_interval", "nope_layer_interval"))
    return [m == 1 for m in marks] if marks else [(i + 1) % period != 0 for i in range(layers)]


def _moe_layers(keys: Keys, layers: int) -> set[int]:
    step = keys.size("interleave_moe_layer_step", 1)
    listed = keys.raw("moe_layers")
    if listed is not None:
        at = set(keys.items("moe_layers", int) or ())
        if any(not 0 <= i < layers for i in at):
            raise keys.conflict(f"moe_layers names a layer outside 0..{layers - 1}")
        return at
    return set(range(step - 1, layers, step))
