"""Look of the architecture card: colours of kinds and components, its style sheet. Room: widgets (imports theme)."""
from collections.abc import Sequence

from roofkit_widgets.theme import MUTED, asset, stylesheet

SIDES = {"a": "#0072B2", "b": "#D55E00"}  # model A, model B
NOTHING = "#ffffff"
MIXER_COLORS = {  # Okabe-Ito and two neighbours; the words stand beside them in the legend and in the table
    "full attention": "#0072B2", "sliding-window attention": "#56B4E9", "chunked attention": "#8fd0f5", "shared-cache attention": "#b7c9d6",
    "cross-attention": "#332288", "latent attention": "#CC79A7", "sparse latent attention": "#882255", "linear attention": "#009E73",
    "state space": "#E69F00", "short convolution": "#D55E00", "no mixer": NOTHING}
FFN_COLORS = {"dense feed-forward": "#8a8a8a", "experts": "#F0E442", "experts beside dense": "#b3a600", "no feed-forward": NOTHING}
PART_COLORS = {  # order of the stack: tables outside, what mixes tokens, what acts on each
    "embedding": "#CC79A7", "attention": "#0072B2", "linear_attention": "#009E73", "state_space": "#E69F00", "convolution": "#D55E00",
    "dense_ffn": "#56B4E9", "routed_experts": "#F0E442", "shared_experts": "#b3a600", "router": "#5c5c5c", "norms": "#9a9a9a",
    "layer_extras": "#c2c2c2", "ffn_extras": "#d6c9b0", "outside_layers": "#2b2b2b", "head": "#882255"}


def mixer_color(kind: str) -> str:
    return MIXER_COLORS.get(kind, MUTED)


def ffn_color(kind: str) -> str:
    return FFN_COLORS.get(kind, MUTED)


def part_color(component: str) -> str:
    return PART_COLORS.get(component, MUTED)


def part_order(components: Sequence[str]) -> list[str]:
    """Every component of the palette, so that a mark keeps its series, then those that are new."""
    return [*PART_COLORS, *(c for c in components if c not in PART_COLORS)]


def styles() -> str:
    """The apps' style sheet and what the architecture card adds."""
    return f"{stylesheet()}<style>{asset('architecture.css')}</style>"
