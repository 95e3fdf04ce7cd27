"""The architecture card: one model's layers, parameters and cache, in figures and words. Room: views.

`architecture_view` makes the card of one selection, `architecture_facts` the table of figures of one model, or of two with
their ratios. Beside the columns named in values.ArchitectureView the tables carry:

layers      mixer_kind, ffn_kind (words, what the map is coloured by), state_bytes, sentence (the layer in words)
groups      layers (their indices in words), mixer_kind, ffn_kind, active_params (one layer), kv_bytes_per_token, state_bytes
components  label (words), idle (total - active), active_share (of active_params, 0..1)
kv          total_bytes: cache and state
"""
import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture, LayerGroup
from roofkit.architectures.counting import active_params_by_convention, inactive_params, kv_elements, layer_params, mixer_state, parameter_table
from roofkit.errors import RoofkitError
from roofkit.units import gb, params, percent, si
from roofkit.views.architecture_words import component_words, count_words, ffn_kind, ffn_label, mixer_kind, mixer_label, positions_words
from roofkit.views.choices import Selection, architecture_of, step_controls
from roofkit.views.values import ArchitectureView, Control, Problem, Statement, Tile

__all__ = ["architecture_controls", "architecture_facts", "architecture_view", "card", "ffn_label", "mixer_label"]

KV_BYTES, STATE_BYTES = 2.0, 4.0  # bytes of one element: cache at 16 bit; recurrent states are mostly kept in fp32
FULL_WINDOWS = 1 << 62  # a context that fills every window
SHOWN_CONTEXT = 32768  # the length that sentences speak of
LONGEST = 1 << 24


def architecture_controls(selection: Selection) -> tuple[Control, ...]:
    """The model, as in the step explorer."""
    return tuple(c for c in step_controls(selection) if c.key == "model")


def architecture_view(selection: Selection) -> ArchitectureView:
    """The card of a selection `{model, config?}`; a problem with its reason when the config is refused."""
    chosen = _chosen(selection)
    try:
        return card(architecture_of(chosen), chosen)
    except RoofkitError as err:
        return ArchitectureView(chosen, "Not readable", problem=Problem(f"{str(err).rstrip('. ')}."))


def architecture_facts(selection: Selection, other: Selection | None = None) -> pd.DataFrame:
    """Figures of a model as text, beside those of another and the ratio other / model: columns figure, a, b, ratio.

    Without `other`, or when it cannot be read, b and ratio are empty; no rows when the model itself cannot be read.
    """
    found = []
    for one in (selection, other):
        try:
            found.append(None if one is None else _figures(architecture_of(_chosen(one))))
        except RoofkitError:
            found.append(None)
    a, b = found
    rows = [] if a is None else [(name, a[name][0], b[name][0] if b else "", _ratio(a[name][1], b[name][1]) if b else "") for name in a]
    return pd.DataFrame([r for r in rows if r[1] != "none" or r[2] not in ("", "none")], columns=["figure", "a", "b", "ratio"])


def card(arch: Architecture, selection: Selection | None = None) -> ArchitectureView:
    """The card of an architecture."""
    groups, components = _groups(arch), _components(arch)
    badges = () if arch.confidence == "exact" else (("generic", f"model_type {arch.model_type!r} has no reader of its own: it was read by common rules, "
                                                                "so check the assumptions below."),)
    return ArchitectureView(
        selection=selection or {"model": arch.name}, title=f"{arch.name}: {params(arch.text_params)} parameters in {arch.n_layers} layers",
        tiles=_tiles(arch), statements=_statements(arch, components), layers=_layers(arch), components=components, groups=groups, kv=_cache(arch),
        badges=badges, notes=_notes(arch), alt=_alt(arch, components))


def _chosen(selection: Selection) -> dict[str, str | int]:
    control = architecture_controls(selection)[0]
    chosen = {"model": selection.get("model", control.default)}
    return {**chosen, "config": selection["config"]} if selection.get("config") else chosen


# ---- tables ---------------------------------------------------------------------------------------------------------


def _active(group: LayerGroup, hidden: int) -> int:
    return layer_params(group, hidden) - inactive_params(group.ffn, hidden)


def _one_layer(group: LayerGroup, hidden: int) -> tuple[int, int, float, float]:
    """Parameters, active parameters, cache bytes per token, state bytes of one layer."""
    return layer_params(group, hidden), _active(group, hidden), KV_BYTES * kv_elements(group.mixer), STATE_BYTES * mixer_state(group.mixer)


def _sizes_words(group: LayerGroup, hidden: int) -> str:
    total, active, kv, state = _one_layer(group, hidden)
    words = f"{params(total)} parameters" + (f", {params(active)} active" if active != total else "")
    words += f"; {kv:,.0f} bytes of cache per token" if kv else "; no cache of its own"
    return words + (f"; {si(state, 'B')} of state" if state else "")


def _layers(arch: Architecture) -> pd.DataFrame:
    rows = []
    for i, g in enumerate(arch.groups):
        total, active, kv, state = _one_layer(g, arch.hidden)
        kinds, sizes = (mixer_kind(g.mixer), ffn_kind(g.ffn)), _sizes_words(g, arch.hidden)
        labels = (mixer_label(g.mixer), ffn_label(g.ffn))
        rows += [(p, i, *labels, total, active, kv, *kinds, state, f"Layer {p}: {labels[0]}; {labels[1]}. {sizes}.") for p in g.positions]
    columns = ["layer", "group", "mixer", "ffn", "params", "active_params", "kv_bytes_per_token", "mixer_kind", "ffn_kind", "state_bytes", "sentence"]
    return pd.DataFrame(rows, columns=columns).sort_values("layer", ignore_index=True)


def _groups(arch: Architecture) -> pd.DataFrame:
    rows = []
    for i, g in enumerate(arch.groups):
        total, active, kv, state = _one_layer(g, arch.hidden)
        rows.append((i, g.count, g.positions[0], mixer_label(g.mixer), ffn_label(g.ffn), total, positions_words(g.positions),
                     mixer_kind(g.mixer), ffn_kind(g.ffn), active, kv, state))
    columns = ["group", "count", "first", "mixer", "ffn", "params", "layers", "mixer_kind", "ffn_kind", "active_params", "kv_bytes_per_token", "state_bytes"]
    return pd.DataFrame(rows, columns=columns)


def _components(arch: Architecture) -> pd.DataFrame:
    parts = parameter_table(arch)
    parts = parts.assign(share=parts["total"] / arch.text_params, label=parts["component"].map(component_words), idle=parts["total"] - parts["active"],
                         active_share=parts["active"] / arch.active_params)
    return parts.sort_values("total", ascending=False, kind="stable", ignore_index=True)


def _cache(arch: Architecture) -> pd.DataFrame:
    """Powers of two up to the longest context of the config, and that context itself."""
    longest = min(arch.max_context or 1 << 20, LONGEST)
    powers = [float(1 << k) for k in range(7, 25) if 1 << k < longest]
    contexts = np.array([*powers, float(longest)])
    cache, state = arch.kv_bytes(contexts, KV_BYTES), STATE_BYTES * arch.state_elements
    return pd.DataFrame({"context_tokens": contexts, "kv_bytes": cache, "state_bytes": state, "total_bytes": cache + state})


def _at(arch: Architecture, tokens: int) -> float:
    """Cache and state of one sequence [bytes]."""
    return arch.kv_bytes(tokens, KV_BYTES) + STATE_BYTES * arch.state_elements


# ---- words ----------------------------------------------------------------------------------------------------------


def _tiles(arch: Architecture) -> tuple[Tile, ...]:
    counts, per_token = active_params_by_convention(arch), arch.kv_bytes_per_token(KV_BYTES)
    beyond = arch.kv_bytes_per_token(KV_BYTES, context_tokens=FULL_WINDOWS)
    stored = f"the checkpoint stores {arch.quantization.weights} ({arch.quantization.method})" if arch.quantization else ""
    tiles = [Tile("total", "parameters", params(arch.text_params, 4), f"{arch.text_params:,}", number=arch.text_params),
             Tile("active", "active per token", params(arch.active_params, 4),
                  f"{params(counts['excl_embedding_and_head'])} without embedding and head", number=arch.active_params),
             Tile("kv", "KV cache per token, 16 bit", si(per_token, "B", 4),
                  f"{si(beyond, 'B')} once windows are full" if beyond != per_token else f"{per_token:,.0f} bytes", number=per_token, better="lower"),
             Tile("weights", "weights at 16 bit", gb(2.0 * arch.text_params), stored, number=2.0 * arch.text_params)]
    if arch.state_elements:
        tiles.append(Tile("state", "recurrent state per sequence", si(STATE_BYTES * arch.state_elements, "B"),
                          f"{arch.state_elements:,} elements, fp32", number=STATE_BYTES * arch.state_elements, better="lower"))
    if arch.vision_params:
        tiles.append(Tile("vision", "vision tower", params(arch.vision_params), "not part of the counts", number=arch.vision_params))
    if arch.mtp_params:
        tiles.append(Tile("mtp", "multi-token prediction", params(arch.mtp_params), "not part of the counts", number=arch.mtp_params))
    return tuple(tiles)


def _statements(arch: Architecture, components: pd.DataFrame) -> tuple[Statement, ...]:
    top, kinds = components.iloc[0], _kinds(arch)
    found = [Statement(f"{arch.n_layers} layers: {kinds}." if ";" in kinds else f"All {kinds.replace(' ×', ' layers:')}.", "layers"),
             Statement(f"{percent(top['share'], 0)} of the parameters are {top['label']}.", "components")]
    if arch.active_params != arch.text_params:
        found.append(Statement(f"A token uses {params(arch.active_params)} of {params(arch.text_params)} parameters ({percent(arch.active_params / arch.text_params)}): "
                               f"the routed experts it does not choose stay idle, but must be stored.", "components"))
    else:
        found.append(Statement("Every token uses every parameter: a dense model.", "components"))
    length = min(arch.max_context or SHOWN_CONTEXT, SHOWN_CONTEXT)
    found.append(Statement(f"One sequence of {length:,} tokens holds {si(_at(arch, length), 'B')} of cache and state.", "kv"))
    per_token, beyond = arch.kv_bytes_per_token(KV_BYTES), arch.kv_bytes_per_token(KV_BYTES, context_tokens=FULL_WINDOWS)
    if not per_token:
        found.append(Statement("No layer keeps a KV cache: a sequence costs the same memory at any length.", "kv"))
    elif not beyond:
        found.append(Statement("Every layer's cache is bounded by its window: past it a sequence costs the same memory at any length.", "kv"))
    elif beyond < per_token:
        found.append(Statement(f"Once its windows are full, a further token adds {si(beyond, 'B')} instead of {si(per_token, 'B')} ({percent(beyond / per_token, 0)}).", "kv"))
    return tuple(found)


def _kinds(arch: Architecture) -> str:
    """How many layers of each kind, in words: `48 × linear attention, experts; 12 × full attention, experts`."""
    counts: dict[str, int] = {}
    for g in arch.groups:
        pair = ", ".join(w for w in (mixer_kind(g.mixer), ffn_kind(g.ffn)) if not w.startswith("no "))
        counts[pair or "empty"] = counts.get(pair or "empty", 0) + g.count
    return "; ".join(f"{n} × {words}" for words, n in counts.items())


def _notes(arch: Architecture) -> tuple[str, ...]:
    """What was assumed for this model, then what the figures take for granted."""
    ours = ["Cache at 16 bit per element." + (" Recurrent states at 32 bit." if arch.state_elements else "")]
    ours += ["The output head is the input embedding (tied): it is counted once."] if arch.tied else []
    outside = [w for w, n in (("vision tower", arch.vision_params), ("multi-token-prediction layers", arch.mtp_params)) if n]
    ours += [f"Outside the counts: {' and '.join(outside)}."] if outside else []
    ours += [] if arch.max_context else ["The config names no longest context: the cache is drawn up to 1,048,576 tokens."]
    return (*arch.assumptions, *ours)


def _alt(arch: Architecture, components: pd.DataFrame) -> dict[str, str]:
    kinds = "; ".join(f"{count_words(g)} ({positions_words(g.positions)}): {mixer_label(g.mixer)}, {ffn_label(g.ffn)}" for g in arch.groups[:12])
    more = f"; and {len(arch.groups) - 12} further kinds" if len(arch.groups) > 12 else ""
    parts = "; ".join(f"{r['label']} {params(r['total'])}" + (f", {params(r['active'])} of it active" if r["idle"] else "") for _, r in components.iterrows())
    lengths = [n for n in (1024, SHOWN_CONTEXT, arch.max_context or 0) if n and n <= (arch.max_context or n)]
    cache = ", ".join(f"{si(_at(arch, n), 'B')} at {n:,} tokens" for n in dict.fromkeys(lengths))
    return {"layers": f"Layer map of {arch.n_layers} layers. {kinds}{more}.", "components": f"Parameters: {parts}.", "kv": f"Cache and state of one sequence: {cache}."}


# ---- figures of one model, and their ratios ----------------------------------------------------------------------------


def _figures(arch: Architecture) -> dict[str, tuple[str, float | None]]:
    """Figure -> (text, number; None where a ratio says nothing)."""
    counts = active_params_by_convention(arch)
    per_token, beyond = arch.kv_bytes_per_token(KV_BYTES), arch.kv_bytes_per_token(KV_BYTES, context_tokens=FULL_WINDOWS)
    state = STATE_BYTES * arch.state_elements
    stored = f"{arch.quantization.weights} ({arch.quantization.method})" if arch.quantization else arch.dtype

    def whole(n: int | None) -> tuple[str, float | None]:
        return (f"{n:,}", float(n)) if n else ("none", None)

    def size(n_bytes: float) -> tuple[str, float | None]:
        return (si(n_bytes, "B", 4), float(n_bytes)) if n_bytes else ("none", None)

    def text(value: str) -> tuple[str, None]:
        return value or "none", None

    return {
        "family": text(arch.family), "released": text(arch.released), "read": text(arch.confidence), "layers": whole(arch.n_layers),
        "kinds of layers": text(_kinds(arch)), "hidden width": whole(arch.hidden), "vocabulary": whole(arch.vocab),
        "longest context": whole(arch.max_context) if arch.max_context else text("not said"),
        "parameters": whole(arch.text_params), "active parameters": whole(arch.active_params),
        "active share": (percent(arch.active_params / arch.text_params), arch.active_params / arch.text_params),
        "active, without input embedding": whole(counts["excl_input_embedding"]),
        "active, without embedding and head": whole(counts["excl_embedding_and_head"]),
        "input embedding": whole(arch.embed_params), "output head": text("tied to the embedding") if arch.tied else whole(arch.head_params + arch.head_bias),
        "vision tower": whole(arch.vision_params), "multi-token prediction": whole(arch.mtp_params),
        "number format of the checkpoint": text(stored), "weights at 16 bit": (gb(2.0 * arch.text_params), 2.0 * arch.text_params),
        "KV cache per token": size(per_token), "KV cache per token, windows full": size(beyond) if beyond != per_token else text(""), "recurrent state": size(state),
        **{f"cache and state at {n:,} tokens": size(_at(arch, n)) if n <= (arch.max_context or n) else text("too long") for n in (4096, 32768, 131072)}}


def _ratio(a: float | None, b: float | None) -> str:
    if not a or not b:
        return ""
    return "same" if a == b else f"{b / a:,.0f}×" if b >= 100 * a else f"{b / a:.3g}×"
