"""Component bars: parameters by component, all of them and those a token uses. Room: widgets."""
import bqplot as bq
import ipywidgets as ipw
import numpy as np
import pandas as pd

from roofkit.units import params, percent
from roofkit_widgets.architecture_look import part_color, part_order
from roofkit_widgets.theme import axis, caption, card, esc, figure, legend_item, nice_axis

ROWS = ("active", "total")  # the first category is the lowest bar
UNITS = (("trillion", 1e12), ("billion", 1e9), ("million", 1e6), ("thousand", 1e3))
HEADS = (("total", "total"), ("active", "active"), ("idle", "idle per token"), ("share", "share"))


class ComponentBars:
    """Two stacked bars in one scale, and the exact counts as a table."""

    def __init__(self, side: str = "a") -> None:
        self.count, self.rows = bq.LinearScale(min=0.0, max=1.0), bq.OrdinalScale(domain=list(ROWS))
        self.tip = ipw.HTML()
        order = part_order(())
        self.bars = bq.Bars(x=list(ROWS), y=np.zeros((len(order), len(ROWS))), scales={"x": self.rows, "y": self.count}, type="stacked",
                            orientation="horizontal", colors=[part_color(k) for k in order], stroke="#ffffff", padding=0.25, tooltip=self.tip,
                            interactions={"hover": "tooltip"})
        self.bars.on_hover(self._hover)
        axes = [axis(self.rows, "", "left", "0px", ""), axis(self.count, "parameters", "bottom", "34px", "~g")]
        axes[0].grid_lines = "none"
        self.figure = figure([self.bars], axes, 168, {"top": 6, "bottom": 48, "left": 48, "right": 16})
        self.table = ipw.HTML()
        self.widget = card(f"components-{side}", "Parameters by component", self.figure, self.table,
                           note="Upper bar: all that must be stored. Lower bar: what one token uses.")
        self._order: list[str] = order
        self._shown = pd.DataFrame()

    def update(self, components: pd.DataFrame, alt: str = "", end: float | None = None, shares: bool = False, download: str = "") -> None:
        """components: columns of values.ArchitectureView and views.architecture.

        end      parameters at the right end of the scale, for two cards in one scale; None = this model's own
        shares   draw each bar as shares of itself; download: a link, HTML already
        """
        self._shown, self._order = components.set_index("component"), part_order(components["component"].tolist())
        columns = ("active_share", "share") if shares else ROWS
        values = self._shown[list(columns)].reindex(self._order, fill_value=0.0).to_numpy(float)
        self._draw(values, float(components["total"].sum()) if end is None else end, shares)
        value = f"{_legend(components)}{_table(components)}<div class='rk-hidden'>{caption(alt)}</div><p class='rk-a-links'>{download}</p>"
        if self.table.value != value:
            self.table.value = value

    def _draw(self, values: np.ndarray, top: float, shares: bool) -> None:
        name, factor = ("share of the bar (%)", 0.01) if shares else next(((f"parameters ({u})", f) for u, f in UNITS if top >= f), ("parameters", 1.0))
        end, ticks = (100.0, [0.0, 25.0, 50.0, 75.0, 100.0]) if shares else nice_axis(top / factor)
        if self.count.max != end or self.figure.axes[1].label != name:
            self.count.max = end
            self.figure.axes[1].tick_values, self.figure.axes[1].label = ticks, name
        with self.bars.hold_sync():
            self.bars.colors = [part_color(k) for k in self._order]
            self.bars.x, self.bars.y = list(ROWS), values / factor

    def _hover(self, _mark: bq.Mark, content: dict) -> None:
        at = content.get("data") or content.get("point") or {}
        part, bar = at.get("sub_index", -1), at.get("x")
        if not (0 <= part < len(self._order)) or self._order[part] not in self._shown.index or bar not in ROWS:
            return
        row = self._shown.loc[self._order[part]]
        self.tip.value = (f"<div class='rk-tip'><b>{esc(row['label'])}</b><br>{int(row[bar]):,} {bar}, "
                          f"{percent(row['share' if bar == 'total' else 'active_share'])} of the bar</div>")


def _legend(components: pd.DataFrame) -> str:
    keys = (legend_item(part_color(r.component), f"{esc(r.label)} {params(r.total)}") for r in components.itertuples(index=False))
    return f"<div class='rk-legend'>{''.join(keys)}</div>"


def _table(components: pd.DataFrame) -> str:
    heads = [(key, text) for key, text in HEADS if key != "idle" or components["idle"].any()]
    head = "".join(f"<th role='columnheader' scope='col' class='rk-c-{key}'>{text}</th>" for key, text in heads)
    rows = [_row(esc(r.label), {"total": f"{r.total:,}", "active": f"{r.active:,}", "idle": f"{r.idle:,}" if r.idle else "–", "share": percent(r.share, 2) if r.share >= 5e-5 else "< 0.01 %"}, heads)
            for r in components.itertuples(index=False)]
    sums = {k: f"{int(components[k].sum()):,}" for k in ("total", "active", "idle")}
    rows.append(_row("All", {**sums, "share": "100 %"}, heads, "rk-sum"))
    return (f"<table class='rk-table rk-a-parts' role='table'><caption>Parameters, exactly</caption><thead role='rowgroup'><tr role='row'>"
            f"<th role='columnheader' scope='col'>component</th>{head}</tr></thead><tbody role='rowgroup'>{''.join(rows)}</tbody></table>")


def _row(name: str, cells: dict[str, str], heads: list[tuple[str, str]], mark: str = "") -> str:
    body = "".join(f"<td role='cell' class='rk-c-{key}'>{cells[key]}</td>" for key, _ in heads)
    return f"<tr role='row' class='{mark}'><th role='rowheader' scope='row' data-share='{cells['share']}'>{name}</th>{body}</tr>"
