"""Look: colours, axis ticks, escaping, the style sheet. Room: widgets (imports tables only).

Every text that comes from data goes through `esc` before it is put into HTML: strangers may paste configs.
"""
import html
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files

import bqplot as bq
import ipywidgets as ipw
import pandas as pd

from roofkit.tables import CATEGORY_LABELS

INK, MUTED, GRID, ACCENT = "#1b1b1b", "#767676", "#e4e4e4", "#0b5cad"
COLORS = {  # Okabe-Ito, told apart with the common colour-vision deficiencies; overheads are greys
    "attention": "#D55E00", "projections": "#0072B2", "experts": "#009E73", "ffn": "#56B4E9", "norm_elementwise": "#E69F00",
    "embedding_head": "#CC79A7", "collectives": "#2b2b2b",
    "launch": "#767676", "host": "#9a9a9a", "exposed_host": "#5c5c5c", "pipeline_bubble": "#c2c2c2",
}
MEMORY_COLORS = {"weights": "#0072B2", "kv_cache": "#D55E00", "state": "#009E73", "activations": "#E69F00", "reserve": "#9a9a9a"}
MEMORY_LABELS = {"weights": "weights", "kv_cache": "KV cache", "state": "state", "activations": "activations", "reserve": "reserve"}


def esc(value: object) -> str:
    """Any value as text that is safe inside HTML, also inside a quoted attribute."""
    return html.escape(str(value), quote=True)


def asset(name: str) -> str:
    """Text of a file in assets/."""
    return (files("roofkit_widgets") / "assets" / name).read_text(encoding="utf-8")


def stylesheet() -> str:
    return f"<style>{asset('style.css')}</style>"


def category_label(category: str) -> str:
    return CATEGORY_LABELS.get(category, category)


def color(category: str) -> str:
    return COLORS.get(category, MUTED)


def legend_item(paint: str, text: str) -> str:
    """One entry of a legend; `text` is HTML already."""
    return f"<span class='rk-key'><i style='background:{paint}'></i>{text}</span>"


def nice_axis(top: float, most: int = 6) -> tuple[float, list[float]]:
    """End and round ticks of an axis [0, top]; bqplot's num_ticks gives evenly spaced but odd numbers."""
    if not (top > 0 and math.isfinite(top)):
        return 1.0, [0.0, 1.0]
    magnitude = 10.0 ** math.floor(math.log10(top / most))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= top / most * 0.999)
    end = math.ceil(top / step * 0.999) * step
    return end, [step * k for k in range(round(end / step) + 1)]


def decades(low: float, high: float) -> tuple[float, float]:
    """Whole powers of ten around [low, high], so that an axis rarely jumps while a slider moves."""
    return 10.0 ** math.floor(math.log10(low) + 1e-9), 10.0 ** math.ceil(math.log10(high) - 1e-9)


def log_ticks(low: float, high: float) -> list[float]:
    """Decades in [low, high]; bqplot's own log ticks overlap on a phone."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**k for k in range(first, last + 1)]


def positive(values: Iterable[float]) -> list[float]:
    """Finite values above zero: the only ones a log axis survives."""
    return [float(v) for v in values if v is not None and math.isfinite(v) and v > 0]


def number(value: float) -> str:
    """A plain number with three digits that say something and no exponent: 0.75, 31.7, 2,290."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def records(frame: pd.DataFrame, columns: Iterable[str] | None = None) -> list[dict]:
    """Rows as dicts; several times faster than to_dict("records") on a small table."""
    names = [c for c in (frame.columns if columns is None else columns) if c in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*(frame[c].tolist() for c in names), strict=True)]


def axis(scale: bq.Scale, label: str, side: str, offset: str, tick_format: str) -> bq.Axis:
    return bq.Axis(scale=scale, label=label, side=side, orientation="vertical" if side in ("left", "right") else "horizontal",
                   label_offset=offset, tick_format=tick_format, grid_color=GRID, label_color=INK, color=MUTED,
                   tick_style={"font-size": "12px"})


def figure(marks: Sequence[bq.Mark], axes: Sequence[bq.Axis], height: int, margin: dict[str, int]) -> bq.Figure:
    """A figure as wide as its card. No padding (bars must start at their axis) and no floating toolbar."""
    fig = bq.Figure(marks=list(marks), axes=list(axes), padding_x=0.0, padding_y=0.0, animation_duration=0, fig_margin=margin,
                    layout=ipw.Layout(width="100%", height=f"{height}px", min_width="0"))
    fig.display_toolbar = False
    fig.add_class("rk-figure")
    return fig


def card(anchor: str, title: str, *children: ipw.Widget, note: str = "") -> ipw.VBox:
    """A titled block that a statement can link to by #rk-<anchor>; title and note are ours, not data."""
    small = f"<p class='rk-note'>{note}</p>" if note else ""
    box = ipw.VBox([ipw.HTML(f"<h2 id='rk-{anchor}' tabindex='-1'>{title}</h2>{small}"), *children])
    box.add_class("rk-card").add_class(f"rk-card-{anchor}")
    return box


def caption(alt: str) -> str:
    """What a figure shows, in words, beside the figure: bqplot's own marks are invisible to a screen reader."""
    return f"<p class='rk-alt'>{esc(alt)}</p>" if alt else ""
