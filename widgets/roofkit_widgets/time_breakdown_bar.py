"""Time breakdown bar: where the step's time goes. Room: widgets (imports tables, units, theme)."""
import math

import bqplot as bq
import ipywidgets as ipw
import numpy as np
import pandas as pd

from roofkit.tables import BREAKDOWN
from roofkit.units import percent, si
from roofkit_widgets.theme import axis, caption, card, category_label, color, esc, figure, legend_item, nice_axis

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


class TimeBreakdownBar:
    """One stacked bar by category, in the colours of the roofline; a second one when a page is pinned as A."""

    def __init__(self) -> None:
        self.time, self.rows = bq.LinearScale(min=0.0, max=1.0), bq.OrdinalScale(domain=["now"])
        self.tip = ipw.HTML()
        self.bars = bq.Bars(x=["now"], y=np.zeros((len(BREAKDOWN), 1)), scales={"x": self.rows, "y": self.time}, type="stacked",
                            orientation="horizontal", colors=[color(k) for k in BREAKDOWN], stroke="#ffffff", padding=0.25,
                            tooltip=self.tip, interactions={"hover": "tooltip"})
        self.bars.on_hover(self._hover)
        # for horizontal bars the category axis is the vertical one
        axes = [axis(self.rows, "", "left", "0px", ""), axis(self.time, "time (ms)", "bottom", "34px", "~g")]
        axes[0].grid_lines = "none"
        self.figure = figure([self.bars], axes, 150, {"top": 6, "bottom": 48, "left": 40, "right": 16})
        self.legend = ipw.HTML()
        self.widget = card("breakdown", "Where time goes", self.figure, self.legend)
        self._shown: list[tuple[str, dict[str, float]]] = []
        self._unit_s = math.inf  # no axis yet

    def update(self, breakdown: pd.Series, alt: str = "", pinned: pd.Series | None = None) -> None:
        """breakdown, pinned: index tables.BREAKDOWN [s]; they sum to the step."""
        pages = [("now", breakdown)] + ([("A", pinned)] if pinned is not None else [])
        self._shown = [(name, {k: float(s.get(k, 0.0)) for k in BREAKDOWN}) for name, s in pages]
        longest = max(sum(parts.values()) for _, parts in self._shown)
        scale = self._fit_axis(longest)
        names = [n for n, _ in self._shown][::-1]  # the first category is the lowest
        if list(self.rows.domain) != names:
            self.rows.domain = names
        with self.bars.hold_sync():
            self.bars.x = names
            self.bars.y = np.array([list(parts.values()) for _, parts in self._shown[::-1]]).T / scale
        self._draw_legend(alt)

    def _fit_axis(self, longest: float) -> float:
        """Seconds of the axis unit; the axis stands still while the bar fits it and fills a third of it."""
        if not 0.34 * self.time.max <= longest / self._unit_s <= self.time.max:
            unit, self._unit_s = next(((u, f) for u, f in UNITS if longest >= f), UNITS[-1])
            self.time.max, self.figure.axes[1].tick_values = nice_axis(longest / self._unit_s)
            if self.figure.axes[1].label != f"time per step ({unit})":
                self.figure.axes[1].label = f"time per step ({unit})"
        return self._unit_s

    def _draw_legend(self, alt: str) -> None:
        now = self._shown[0][1]
        before = self._shown[1][1] if len(self._shown) > 1 else None
        total = sum(now.values())
        rows = []
        for key in BREAKDOWN:
            if now[key] <= 0 and (before is None or before[key] <= 0):
                continue
            ratio = f"<td>{_ratio(now[key], before[key])}</td>" if before is not None else ""
            rows.append(f"<tr><th scope='row'>{legend_item(color(key), esc(category_label(key)))}</th><td>{si(now[key], 's')}</td>"
                        f"<td>{percent(now[key] / total) if total > 0 else '-'}</td>{ratio}</tr>")
        head = "<tr><th scope='col'>part</th><th scope='col'>time</th><th scope='col'>share</th>" + (
            "<th scope='col'>vs A</th>" if before is not None else "") + "</tr>"
        sums = f"<tr class='rk-sum'><th scope='row'>Step</th><td>{si(total, 's')}</td><td>100 %</td>" + (
            f"<td>{_ratio(total, sum(before.values()))}</td>" if before is not None else "") + "</tr>"
        self.legend.value = f"<table class='rk-table rk-parts'><thead>{head}</thead><tbody>{''.join(rows)}{sums}</tbody></table>{caption(alt)}"

    def _hover(self, _mark: bq.Mark, content: dict) -> None:
        at = content.get("data") or content.get("point") or {}
        part = at.get("sub_index", -1)
        page = next((parts for name, parts in self._shown if name == at.get("x")), None)
        if page is not None and 0 <= part < len(BREAKDOWN) and sum(page.values()) > 0:
            seconds = page[BREAKDOWN[part]]
            self.tip.value = (f"<div class='rk-tip'><b>{esc(category_label(BREAKDOWN[part]))}</b><br>{si(seconds, 's')}, "
                              f"{percent(seconds / sum(page.values()))} of the step</div>")


def _ratio(now: float, before: float) -> str:
    return f"{now / before:.2f}×" if before > 0 else "new"
