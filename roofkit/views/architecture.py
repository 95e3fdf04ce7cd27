"""The architecture card: one model's layers, parameters and cache, in figures and words. Room: views."""
import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture, LayerGroup
from roofkit.architectures.counting import active_params_by_convention, inactive_params, kv_elements, layer_params, parameter_table
from roofkit.architectures.mixers import MLA, Attention, GatedDeltaNet, LightningAttention, Mamba1, Mamba2, ShortConv
from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.errors import RoofkitError
from roofkit.units import gb, params, percent, si
from roofkit.views.choices import Selection, architecture_of, step_controls
from roofkit.views.values import ArchitectureView, Control, Problem, Statement, Tile

STATE_BYTES = 4.0  # recurrent states are mostly kept in fp32


def architecture_controls(selection: Selection) -> tuple[Control, ...]:
    """The model, as in the step explorer."""
    return tuple(c for c in step_controls(selection) if c.key == "model")


def architecture_view(selection: Selection) -> ArchitectureView:
    """The card of a selection `{model, config?}`; a problem with its reason when the config is refused."""
    control = architecture_controls(selection)[0]
    chosen = {"model": selection.get("model", control.default), **({"config": selection["config"]} if selection.get("config") else {})}
    try:
        arch = architecture_of(chosen)
    except RoofkitError as err:
        return ArchitectureView(chosen, "Not readable", problem=Problem(str(err)))
    return card(arch, chosen)


def card(arch: Architecture, selection: Selection | None = None) -> ArchitectureView:
    """The card of an architecture."""
    groups, parts = _groups(arch), parameter_table(arch)
    components = parts.assign(share=parts["total"] / arch.text_params).sort_values("total", ascending=False, ignore_index=True)
    badges = () if arch.confidence == "exact" else (("generic", "Unknown model_type, read by common rules: see the notes"),)
    return ArchitectureView(
        selection=selection or {"model": arch.name}, title=f"{arch.name}: {params(arch.text_params)} parameters in {arch.n_layers} layers",
        tiles=_tiles(arch), statements=_statements(arch, components), layers=_layers(arch), components=components, groups=groups, kv=_cache(arch),
        badges=badges, notes=tuple(arch.assumptions), alt=_alt(arch, groups, components))


def mixer_label(mixer) -> str:
    """A mixer in the field's words: `GQA 32/8 x 128, window 4,096`."""
    match mixer:
        case Attention():
            kind = "MQA" if mixer.n_kv_heads == 1 else "MHA" if mixer.n_kv_heads == mixer.n_heads else "GQA"
            extras = [f"{'chunk' if mixer.chunked else 'window'} {mixer.window:,}"] if mixer.window else []
            extras += [{"shared": "shared KV", "cross": "cross-attention"}[mixer.kv]] if mixer.kv != "own" else []
            extras += ["output gate"] if mixer.output_gate else []
            extras += ["sinks"] if mixer.sinks else []
            return ", ".join([f"{kind} {mixer.n_heads}/{mixer.n_kv_heads} × {mixer.head_dim}", *extras])
        case MLA():
            sparse = f", sparse top {mixer.indexer.top_k:,}" if mixer.indexer else ""
            return f"MLA {mixer.n_heads} heads, latent {mixer.kv_lora_rank} + {mixer.qk_rope_head_dim}{sparse}"
        case GatedDeltaNet():
            return f"gated delta net {mixer.n_v_heads} × {mixer.k_head_dim} × {mixer.v_head_dim}"
        case LightningAttention():
            return f"lightning attention {mixer.n_heads} × {mixer.head_dim}"
        case Mamba1():
            return f"Mamba, inner {mixer.d_inner:,}, state {mixer.d_state}"
        case Mamba2():
            return f"Mamba-2 {mixer.n_heads} × {mixer.head_dim}, state {mixer.d_state}"
        case ShortConv():
            return f"short convolution, kernel {mixer.kernel}"
    return "no mixer"


def ffn_label(ffn) -> str:
    """A feed-forward in words: `MoE 8 of 256 × 2,048 + shared 2,048`."""
    match ffn:
        case Dense():
            return f"{'gated' if ffn.gated else 'plain'} {ffn.width:,}"
        case MoE():
            shared = f" + shared {ffn.shared_width:,}" if ffn.shared_width else ""
            beside = f" + dense {ffn.dense_width:,}" if ffn.dense_width else ""
            return f"MoE {ffn.top_k} of {ffn.n_experts} × {ffn.expert_width:,}{shared}{beside}"
    return "no feed-forward"


def _active(group: LayerGroup, hidden: int) -> int:
    return layer_params(group, hidden) - inactive_params(group.ffn, hidden)


def _layers(arch: Architecture) -> pd.DataFrame:
    rows = []
    for i, g in enumerate(arch.groups):
        total, active, kv = layer_params(g, arch.hidden), _active(g, arch.hidden), 2.0 * kv_elements(g.mixer)
        rows += [(p, i, mixer_label(g.mixer), ffn_label(g.ffn), total, active, kv) for p in g.positions]
    columns = ["layer", "group", "mixer", "ffn", "params", "active_params", "kv_bytes_per_token"]
    return pd.DataFrame(rows, columns=columns).sort_values("layer", ignore_index=True)


def _groups(arch: Architecture) -> pd.DataFrame:
    rows = [(i, g.count, g.positions[0], mixer_label(g.mixer), ffn_label(g.ffn), layer_params(g, arch.hidden)) for i, g in enumerate(arch.groups)]
    return pd.DataFrame(rows, columns=["group", "count", "first", "mixer", "ffn", "params"])


def _cache(arch: Architecture) -> pd.DataFrame:
    contexts = 2.0 ** np.arange(7, 21)
    if arch.max_context:
        contexts = contexts[contexts <= max(arch.max_context, 128)]
    return pd.DataFrame({"context_tokens": contexts, "kv_bytes": arch.kv_bytes(contexts), "state_bytes": STATE_BYTES * arch.state_elements})


def _tiles(arch: Architecture) -> tuple[Tile, ...]:
    counts, per_token = active_params_by_convention(arch), arch.kv_bytes_per_token()
    beyond = arch.kv_bytes_per_token(context_tokens=1 << 62)
    tiles = [Tile("total", "parameters", params(arch.text_params, 4), f"{arch.text_params:,}", number=arch.text_params, better="lower"),
             Tile("active", "active per token", params(arch.active_params, 4),
                  f"{params(counts['excl_embedding_and_head'])} without embedding and head", number=arch.active_params, better="lower"),
             Tile("kv", "KV cache per token, 16 bit", si(per_token, "B", 4),
                  f"{si(beyond, 'B')} once windows are full" if beyond != per_token else f"{per_token:,.0f} bytes", number=per_token, better="lower"),
             Tile("weights", "weights at 16 bit", gb(2.0 * arch.text_params), number=2.0 * arch.text_params, better="lower")]
    if arch.state_elements:
        tiles.append(Tile("state", "recurrent state per sequence", si(STATE_BYTES * arch.state_elements, "B"), f"{arch.state_elements:,} elements"))
    if arch.vision_params:
        tiles.append(Tile("vision", "vision tower", params(arch.vision_params), "not part of the counts"))
    if arch.mtp_params:
        tiles.append(Tile("mtp", "multi-token prediction", params(arch.mtp_params), "not part of the counts"))
    return tuple(tiles)


def _statements(arch: Architecture, components: pd.DataFrame) -> tuple[Statement, ...]:
    top = components.iloc[0]
    found = [Statement(f"{percent(top['share'], 0)} of the parameters are {top['component'].replace('_', ' ')}.", "components")]
    if arch.active_params != arch.text_params:
        found.append(Statement(f"A token uses {params(arch.active_params)} of {params(arch.text_params)} parameters ({percent(arch.active_params / arch.text_params)}): "
                               f"the routed experts it does not choose stay idle, but must be stored.", "components"))
    else:
        found.append(Statement("Every token uses every parameter: a dense model.", "components"))
    length = min(arch.max_context or 32768, 32768)
    cache = arch.kv_bytes(length) + STATE_BYTES * arch.state_elements
    found.append(Statement(f"One sequence of {length:,} tokens holds {si(cache, 'B')} of cache and state.", "kv"))
    return tuple(found)


def _alt(arch: Architecture, groups: pd.DataFrame, components: pd.DataFrame) -> dict[str, str]:
    kinds = "; ".join(f"{r['count']} layers from {r['first']}: {r['mixer']}, {r['ffn']}" for _, r in groups.iterrows())
    parts = "; ".join(f"{r['component'].replace('_', ' ')} {params(r['total'])}" for _, r in components.iterrows())
    return {"layers": f"Layer map of {arch.n_layers} layers. {kinds}.", "components": f"Parameters: {parts}.",
            "kv": f"Cache of one sequence: {si(arch.kv_bytes(1024), 'B')} at 1,024 tokens, {si(arch.kv_bytes(32768), 'B')} at 32,768."}
