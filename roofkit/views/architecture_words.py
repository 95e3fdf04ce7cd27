"""Layers in the field's words: kinds, labels, positions, sentences. Room: views."""
from collections.abc import Sequence

from roofkit.architectures.architecture import LayerGroup
from roofkit.architectures.feed_forward import Dense, FeedForward, MoE
from roofkit.architectures.mixers import MLA, Attention, GatedDeltaNet, LightningAttention, Mamba1, Mamba2, Mixer, ShortConv

COMPONENT_WORDS = {"dense_ffn": "dense feed-forward", "head": "output head", "outside_layers": "outside the layers", "layer_extras": "other parts of layers",
                   "ffn_extras": "other parts of feed-forwards", "embedding": "input embedding"}
MANY = 4  # positions that are named one by one


def component_words(component: str) -> str:
    """`routed_experts` -> `routed experts`."""
    return COMPONENT_WORDS.get(component, component.replace("_", " "))


def mixer_kind(mixer: Mixer) -> str:
    """The kind of a mixer, whatever its sizes."""
    match mixer:
        case Attention(kv="shared"):
            return "shared-cache attention"
        case Attention(kv="cross"):
            return "cross-attention"
        case Attention():
            return "full attention" if mixer.window is None else "chunked attention" if mixer.chunked else "sliding-window attention"
        case MLA():
            return "sparse latent attention" if mixer.indexer else "latent attention"
        case GatedDeltaNet() | LightningAttention():
            return "linear attention"
        case Mamba1() | Mamba2():
            return "state space"
        case ShortConv():
            return "short convolution"
    return "no mixer"


def ffn_kind(ffn: FeedForward) -> str:
    """The kind of a feed-forward, whatever its sizes."""
    match ffn:
        case Dense():
            return "dense feed-forward"
        case MoE():
            return "experts beside dense" if ffn.dense_width else "experts"
    return "no feed-forward"


def mixer_label(mixer: Mixer) -> str:
    """A mixer with its sizes: `GQA 32/8 × 128, window 4,096`."""
    match mixer:
        case Attention():
            kind = "MQA" if mixer.n_kv_heads == 1 else "MHA" if mixer.n_kv_heads == mixer.n_heads else "GQA"
            width = f"{mixer.head_dim}" if mixer.value_dim == mixer.head_dim else f"{mixer.head_dim} (values {mixer.value_dim})"
            extras = [f"{'chunk' if mixer.chunked else 'window'} {mixer.window:,}"] if mixer.window else []
            extras += [{"shared": "cache of an earlier layer", "cross": "cross-attention"}[mixer.kv]] if mixer.kv != "own" else []
            extras += ["no rope"] if not mixer.rope else []
            extras += ["output gate"] if mixer.output_gate else []
            extras += ["sinks"] if mixer.sinks else []
            return ", ".join([f"{kind} {mixer.n_heads}/{mixer.n_kv_heads} × {width}", *extras])
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


def ffn_label(ffn: FeedForward) -> str:
    """A feed-forward with its sizes: `MoE 8 of 256 × 2,048 + shared 2,048`."""
    match ffn:
        case Dense():
            return f"{'gated' if ffn.gated else 'plain'} {ffn.width:,}"
        case MoE():
            shared = f" + shared {ffn.shared_width:,}" if ffn.shared_width else ""
            beside = f" + dense {ffn.dense_width:,}" if ffn.dense_width else ""
            latent = f" on {ffn.latent_width:,}" if ffn.latent_width else ""
            return f"MoE {ffn.top_k} of {ffn.n_experts} × {ffn.expert_width:,}{latent}{shared}{beside}"
    return "no feed-forward"


def positions_words(positions: Sequence[int]) -> str:
    """Layer indices, short: `0–2, 5`; `3, 7, … 59 (every 4th)`."""
    steps = {b - a for a, b in zip(positions, positions[1:], strict=False)}
    if len(steps) == 1 and len(positions) > MANY and (step := steps.pop()) > 1:
        return f"{positions[0]}, {positions[1]}, … {positions[-1]} (every {ordinal(step)})"
    runs: list[list[int]] = []
    for p in positions:
        if runs and p == runs[-1][1] + 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    words = [f"{a}–{b}" if b > a else f"{a}" for a, b in runs]
    return ", ".join(words) if len(words) <= 2 * MANY else f"{', '.join(words[:MANY])}, … {words[-1]}"


def ordinal(n: int) -> str:
    """2 -> `2nd`."""
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def count_words(group: LayerGroup) -> str:
    """`1 layer`, `58 layers`."""
    return f"{group.count} layer{'' if group.count == 1 else 's'}"
