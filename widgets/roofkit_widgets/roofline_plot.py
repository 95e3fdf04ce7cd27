"""Roofline plot: one dot per operator under the roofs. Room: widgets (imports tables, units, values, theme).

Never set `names` on the Scatter: bqplot then keeps the old SVG order of re-sorted data, and colours and clicks go to the
wrong operator. `shown` is the list parallel to the mark's arrays.
"""
import math
from collections.abc import Callable, Mapping, Sequence

import bqplot as bq
import ipywidgets as ipw
import numpy as np
import pandas as pd

from roofkit.tables import CATEGORIES
from roofkit.units import percent, si
from roofkit.views.values import Roof
from roofkit_widgets.theme import (COLORS, INK, MUTED, caption, card, category_label, color, decades, esc, figure, legend_item, log_ticks,
                                   number, positive, records)
from roofkit_widgets.theme import axis as make_axis

HEIGHT, MARGIN = 470, {"top": 16, "bottom": 50, "left": 64, "right": 20}
FULL_AREA = 5200.0  # px2 of a dot that is the whole step
LARGEST_PAD = 0.2  # share whose dot sets bqplot's margin around the data; a larger dot may reach over the axis
FLOOR = 0.006  # share that gets the smallest area, so that small operators stay clickable
BEYOND = 1e3  # lines go on beyond the axis limits, into the margin, and are clipped there


class RooflinePlot:
    """Dots: operators at their intensity and achieved FLOP/s; area: share of the step; colour: category.

    Build the marks once; `update` changes data, never rebuilds. `pin` keeps a page's dots as hollow diamonds, each joined to
    today's dot of the same operator. `on_select` hears the name of the clicked operator, or None.
    """

    def __init__(self, on_select: Callable[[str | None], None] | None = None) -> None:
        self.x, self.y = bq.LogScale(min=0.1, max=1e4), bq.LogScale(min=1e10, max=1e16)
        self.area = bq.LinearScale(min=0.0, max=LARGEST_PAD)  # without limits the smallest dot gets area 0
        self.shown: list[str] = []
        self._rows: list[dict] = []
        self._pinned: list[dict] = []
        self._roofs: tuple = ()
        self._select, self._quiet = on_select, False
        self._build()

    def _build(self) -> None:
        scales, ends = {"x": self.x, "y": self.y}, [self.x.min, self.x.max]
        line = dict(x=ends, y=[self.y.min, self.y.max], scales=scales, visible=False)
        self.peak = bq.Lines(**line, colors=[MUTED], line_style="dashed", stroke_width=1.5)
        self.achievable = bq.Lines(**line, colors=[INK], stroke_width=2)
        self.ridge = bq.Lines(**line, colors=[MUTED], line_style="dotted", stroke_width=1)
        self.moves = bq.Lines(**line, colors=[MUTED], stroke_width=1)
        self.tip, self.ghost_tip = ipw.HTML(), ipw.HTML()
        empty = dict(x=np.array([]), y=np.array([]), display_names=False)
        self.dots = bq.Scatter(
            **empty, size=np.array([]), scales={**scales, "size": self.area}, default_size=int(FULL_AREA * LARGEST_PAD), stroke="#ffffff", stroke_width=1,
            default_opacities=[0.9], tooltip=self.tip, interactions={"hover": "tooltip", "click": "select"},
            selected_style={"stroke": INK, "stroke-width": 3}, unselected_style={"opacity": 0.55})
        self.ghosts = bq.Scatter(**empty, scales=scales, marker="diamond", fill=False, stroke_width=1.5, default_size=70,
                                 tooltip=self.ghost_tip, interactions={"hover": "tooltip"})
        text = dict(x=np.array([]), y=np.array([]), text=[], scales=scales, default_size=12)
        self.names = {a: bq.Label(**text, colors=[INK], align=a, font_weight="bold") for a in ("start", "end")}
        self.roof_names = bq.Label(**text, colors=["#555555"], align="end", font_weight="normal")
        self.dots.on_hover(self._hover)
        self.ghosts.on_hover(self._hover_ghost)
        self.dots.observe(self._clicked, "selected")
        axes = [make_axis(self.x, "arithmetic intensity (FLOP/byte)", "bottom", "36px", "~g"),
                make_axis(self.y, "achieved FLOP/s", "left", "48px", "~s")]
        marks = [self.ridge, self.peak, self.achievable, self.moves, self.dots, self.ghosts, self.roof_names, *self.names.values()]
        self.figure = figure(marks, axes, HEIGHT, MARGIN)
        self.note = ipw.HTML()
        self.widget = card("roofline", "Roofline", self.figure, self.note,
                           note="Each dot is an operator; its area is its share of the step. Left of the ridge, memory sets the pace; right of it, arithmetic.")

    # --- data ---------------------------------------------------------------------------------------------------
    def update(self, ops: pd.DataFrame, roofs: Sequence[Roof], alt: str = "", selected: str | None = None) -> None:
        """ops: tables.OPS_COLUMNS; roofs: what bounds them; alt: the picture in words; selected: operator to mark."""
        every = records(ops)
        rows = sorted(filter(_plottable, every), key=lambda r: -r["time_s"])  # biggest first: small ones on top
        self._rows, self.shown = rows, [r["name"] for r in rows]
        self._limits(rows, roofs)
        self._quiet = True
        try:
            with self.dots.hold_sync():
                self.dots.x, self.dots.y = _column(rows, "intensity"), _column(rows, "flops_per_s")
                self.dots.size = np.maximum(_column(rows, "share"), FLOOR)
                self.dots.colors = [color(r["category"]) for r in rows] or [MUTED]
                self.dots.selected = self._index(selected)
        finally:
            self._quiet = False
        self._draw_roofs(tuple(roofs))
        self._draw_names(rows)
        self._draw_pin()
        self._draw_note(every, roofs, alt)

    def select(self, name: str | None) -> None:
        """Mark one operator, or none, without telling `on_select`."""
        self._quiet = True
        try:
            self.dots.selected = self._index(name)
        finally:
            self._quiet = False

    def pin(self, ops: pd.DataFrame | None) -> None:
        """Keep these operators as the ghosts of page A; None removes them."""
        self._pinned = [] if ops is None else [r for r in records(ops) if _plottable(r)]
        self._draw_pin()

    def _index(self, name: str | None) -> np.ndarray | None:
        return np.array([self.shown.index(name)]) if name in self.shown else None

    # --- drawing ------------------------------------------------------------------------------------------------
    def _limits(self, rows: list[dict], roofs: Sequence[Roof]) -> None:
        """Explicit, strictly positive limits; one zero or NaN would ruin the figure. They stand still while the data fit them."""
        x = positive([r["intensity"] for r in rows + self._pinned] + [r.ridge * 8 for r in roofs]) or [1.0]
        y = positive(r["flops_per_s"] for r in rows + self._pinned) or [1e12]
        top = max([r.flops_per_s * 4 for r in roofs] or [max(y) * 4])
        low = self.y.min if self.y.min * 1.3 <= min(y) <= self.y.min * 300 else decades(min(y) / 2, 1.0)[0]
        for scale, ax, (start, end) in ((self.x, self.figure.axes[0], decades(min(*x, 0.5), max(*x, 1e3))), (self.y, self.figure.axes[1], (low, top))):
            if (scale.min, scale.max) != (start, end) or ax.tick_values is None:
                with scale.hold_sync():
                    scale.min, scale.max = start, end
                ax.tick_values = log_ticks(start, end)
                self._roofs = ()  # their names stand relative to the limits

    def _draw_roofs(self, roofs: tuple[Roof, ...]) -> None:
        if roofs == self._roofs:
            return
        self._roofs = roofs
        for mark, kind in ((self.peak, "peak"), (self.achievable, "achievable")):
            lines = [(np.array([self.x.min / BEYOND, r.ridge, self.x.max * BEYOND]), r) for r in roofs if r.kind == kind]
            _set_lines(mark, [x for x, _ in lines], [np.minimum(r.flops_per_s, x * r.bytes_per_s) for x, r in lines])
        chosen = next((r for r in roofs if r.kind == "achievable"), roofs[0] if roofs else None)
        if chosen is None:
            _set_lines(self.ridge, [], [])
            return
        _set_lines(self.ridge, [np.array([chosen.ridge, chosen.ridge])], [np.array([chosen.flops_per_s / 1e12, chosen.flops_per_s])])
        step = (self.y.max / self.y.min) ** (14 / self._plot_px)  # factor that is 14 px up
        named = _one_per_kind(roofs)
        above = max(r.flops_per_s for r in named) * step ** 0.75  # over the lines: below them are the dots
        texts = [(self.x.max * 0.9, above * step ** (1.05 * (len(named) - 1 - i)), f"{'– –' if r.kind == 'peak' else '—'} {r.kind} {si(r.flops_per_s, 'FLOP/s')}")
                 for i, r in enumerate(named)]
        texts.append((chosen.ridge * 0.93, self.y.min * step ** 0.4, f"ridge {number(chosen.ridge)} FLOP/byte"))
        with self.roof_names.hold_sync():
            self.roof_names.x, self.roof_names.y = np.array([t[0] for t in texts]), np.array([t[1] for t in texts])
            self.roof_names.text = [t[2] for t in texts]

    @property
    def _plot_px(self) -> float:
        return HEIGHT - MARGIN["top"] - MARGIN["bottom"]

    def _draw_names(self, rows: list[dict]) -> None:
        """Name the largest dots; dots too close to a named one are counted in its name."""
        px = self._plot_px / math.log10(self.y.max / self.y.min)
        span = math.log10(self.x.max / self.x.min)
        placed: list[list] = []
        for row in rows:
            x, y = math.log10(row["intensity"]), math.log10(row["flops_per_s"])
            below = y - self._radius(row["share"]) / px
            near = next((p for p in placed if abs(p[0] - x) < 0.22 * span and abs(p[1] - y) * px < 46), None)
            if near is not None:
                near[3] += 1
                near[4] = min(near[4], below)
            elif len(placed) < 5:
                placed.append([x, y, row["name"], 0, below])
        middle = math.log10(self.x.min) + 0.66 * span
        for align, mark in self.names.items():  # names run to the right, near the right edge to the left
            mine = [p for p in placed if (p[0] > middle) == (align == "end")]
            if not mine and not len(mark.x):
                continue
            with mark.hold_sync():
                mark.x = np.array([10 ** p[0] for p in mine])
                mark.y = np.array([max(10 ** (p[4] - 9 / px), self.y.min * 1.02) for p in mine])
                mark.text = [p[2] + (f" +{p[3]}" if p[3] else "") for p in mine]

    @staticmethod
    def _radius(share: float) -> float:
        return math.sqrt(FULL_AREA * max(share, FLOOR) / math.pi)

    def _draw_pin(self) -> None:
        ghosts, now = self._pinned, {r["name"]: r for r in self._rows}
        if not ghosts and not len(self.ghosts.x):
            return
        with self.ghosts.hold_sync():
            self.ghosts.x, self.ghosts.y = _column(ghosts, "intensity"), _column(ghosts, "flops_per_s")
            self.ghosts.colors = [color(r["category"]) for r in ghosts] or [MUTED]
        both = [(g, now[g["name"]]) for g in ghosts if g["name"] in now]
        _set_lines(self.moves, *([[_column(pair, key) for pair in both] for key in ("intensity", "flops_per_s")]))

    def _draw_note(self, every: list[dict], roofs: Sequence[Roof], alt: str) -> None:
        shown = {r["category"] for r in self._rows}
        keys = [legend_item(COLORS[c], esc(category_label(c))) for c in CATEGORIES if c in shown]
        for roof in _one_per_kind(roofs):
            style = "dashed" if roof.kind == "peak" else "solid"
            keys.append(f"<span class='rk-key'><i class='rk-line' style='border-top-style:{style}'></i>{esc(roof.label)}</span>")
        if self._pinned:
            keys.append("<span class='rk-key'>&#9671; the same operator on page A</span>")
        left_out = [r["name"] for r in every if r["name"] not in self.shown]
        note = ""
        if left_out:
            names = ", ".join(esc(n) for n in left_out[:4]) + (f" and {len(left_out) - 4} more" if len(left_out) > 4 else "")
            note = f"<p class='rk-alt'>Without arithmetic, so not on this chart but in the bar and the table: {names}.</p>"
        value = f"<div class='rk-legend'>{''.join(keys)}</div>{caption(alt)}{note}"
        if value != self.note.value:
            self.note.value = value

    # --- events -------------------------------------------------------------------------------------------------
    def _hover(self, _mark: bq.Mark, content: dict) -> None:
        row = _at(self._rows, content)
        if row is not None:
            self.tip.value = tooltip(row)

    def _hover_ghost(self, _mark: bq.Mark, content: dict) -> None:
        row = _at(self._pinned, content)
        if row is None:
            return
        now = next((r["time_s"] for r in self._rows if r["name"] == row["name"]), None)
        change = f"<br>now {si(now, 's')}, {now / row['time_s']:.2f}× A" if now is not None else "<br>not in this step"
        self.ghost_tip.value = f"<div class='rk-tip'><b>A: {esc(row['name'])}</b><br>{si(row['time_s'], 's')}{change}</div>"

    def _clicked(self, change: dict) -> None:
        if self._quiet or self._select is None:
            return
        picked = change["new"]
        index = int(picked[-1]) if picked is not None and len(picked) else -1  # a click may be older than the data
        self._select(self.shown[index] if 0 <= index < len(self.shown) else None)


def tooltip(row: Mapping) -> str:
    """An operator's facts as HTML: name, shape, work, bytes, time, what binds it."""
    shape = " × ".join(f"{int(row[k]):,}" for k in ("m", "n", "k") if pd.notna(row[k]))
    lines = [f"<b>{esc(row['name'])}</b> ×{int(row['count'])} calls"]
    if shape:
        letters = ", ".join(k.upper() for k in ("m", "n", "k") if pd.notna(row[k]))
        lines.append(f"{letters} = {shape}")
    lines += [f"{si(row['flops'], 'FLOP')}, {si(row['hbm_bytes'], 'B')} of memory traffic",
              f"{number(row['intensity'])} FLOP/byte, {si(row['flops_per_s'], 'FLOP/s')}",
              f"<b>{si(row['time_s'], 's')}</b>, {percent(row['share'])} of the step, <b>{esc(row['bound'])}-bound</b>"]
    return f"<div class='rk-tip'>{'<br>'.join(lines)}</div>"


def _plottable(row: Mapping) -> bool:
    """Can a log-log chart show it? Collectives and pure copies have no FLOPs and stay out."""
    return row["category"] != "collectives" and len(positive((row["intensity"], row["flops_per_s"]))) == 2


def _column(rows: Sequence[Mapping], key: str) -> np.ndarray:
    return np.array([r[key] for r in rows], dtype=float)


def _at(rows: list[dict], content: dict) -> dict | None:
    """The row a hover message speaks of; the message may be older than the data."""
    index = (content.get("data") or content.get("point") or {}).get("index", -1)
    return rows[index] if 0 <= index < len(rows) else None


def _one_per_kind(roofs: Sequence[Roof]) -> list[Roof]:
    """The first two roofs at most of each kind: more labels than that cannot be read."""
    return [r for kind in ("peak", "achievable") for r in [r for r in roofs if r.kind == kind][:1]]


def _set_lines(mark: bq.Lines, xs: list[np.ndarray], ys: list[np.ndarray]) -> None:
    with mark.hold_sync():
        mark.visible = bool(xs)
        if xs:
            mark.x, mark.y = np.array(xs), np.array(ys)
