"""Operator table: the roofline as an HTML table, slowest first, and as CSV. Room: widgets (imports tables, units, theme)."""
import base64
import csv
import io
from collections.abc import Mapping

import ipywidgets as ipw
import pandas as pd

from roofkit.tables import CSV_UNITS, OPS_COLUMNS
from roofkit.units import percent, si
from roofkit_widgets.theme import card, color, esc, legend_item, number, records

FEW = 10
NEEDED = ("name", "category", "count", "time_s", "share", "bound", "intensity", "hint")


class OpTable:
    """Sorted by time; shows the ten slowest operators until "all" is asked for; marks the selected one."""

    def __init__(self) -> None:
        self.html = ipw.HTML()
        self.more = ipw.ToggleButton(value=False, description="Show all operators", layout=ipw.Layout(width="auto"))
        self.more.observe(self._toggled, "value")
        self.widget = card("ops", "Slowest operators", self.html, self.more)
        self.names: list[str] = []
        self._last: tuple = ([], "", None, None)

    def update(self, ops: pd.DataFrame, alt: str = "", pinned: pd.DataFrame | None = None, selected: str | None = None) -> None:
        """ops, pinned: tables.OPS_COLUMNS; alt: the table's caption."""
        rows = sorted(records(ops, NEEDED), key=lambda r: -r["time_s"])
        before = dict(zip(pinned["name"], pinned["time_s"], strict=True)) if pinned is not None and len(pinned) else None
        self._last, self.names = (rows, alt, before, selected), [r["name"] for r in rows]
        self._draw()

    def select(self, name: str | None) -> None:
        self._last = (*self._last[:3], name)
        self._draw()

    def _toggled(self, _change: dict) -> None:
        self.more.description = "Show the slowest only" if self.more.value else "Show all operators"
        self._draw()

    def _draw(self) -> None:
        rows, alt, before, selected = self._last
        shown = rows if self.more.value else rows[:FEW] + [r for r in rows[FEW:] if r["name"] == selected]
        display = None if len(rows) > FEW else "none"
        if self.more.layout.display != display:
            self.more.layout.display = display
        columns = ["operator", "calls", "time", *(["vs A"] if before is not None else []), "share", "bound by", "FLOP/byte", "what would help"]
        head = "".join(f"<th role='columnheader' scope='col' class='rk-c-{c.split()[0].replace('/', '-')}'>{c}</th>" for c in columns)
        body = "".join(_row(row, before, row["name"] == selected) for row in shown)
        summary = f"<caption>{esc(alt)}</caption>" if alt else ""
        self.html.value = (f"<table class='rk-table rk-ops' role='table'>{summary}<thead role='rowgroup'><tr role='row'>{head}</tr></thead>"
                           f"<tbody role='rowgroup'>{body}</tbody></table>")


def _row(row: Mapping, before: Mapping[str, float] | None, selected: bool) -> str:
    share = max(0.0, min(1.0, float(row["share"])))
    cells = [("calls", f"×{int(row['count'])}"), ("time", si(row["time_s"], "s"))]
    if before is not None:
        old = before.get(row["name"], 0.0)
        cells.append(("vs", f"{row['time_s'] / old:.2f}×" if old > 0 else "new"))
    intensity = number(row["intensity"]) if pd.notna(row["intensity"]) and row["intensity"] > 0 else "–"
    cells += [("share", f"<span class='rk-share'><i style='width:{100 * share:.1f}%;background:{color(row['category'])}'></i></span>{percent(share)}"),
              ("bound", esc(row["bound"])), ("FLOP-byte", intensity), ("what", esc(row["hint"]))]
    name = f"<th role='rowheader' scope='row' class='rk-c-operator'>{legend_item(color(row['category']), esc(row['name']))}</th>"
    mark = " aria-selected='true' class='rk-selected'" if selected else ""
    return f"<tr role='row' data-op='{esc(row['name'])}'{mark}>{name}" + "".join(f"<td role='cell' class='rk-c-{c}'>{v}</td>" for c, v in cells) + "</tr>"


def csv_text(ops: pd.DataFrame, selection: Mapping[str, str | int]) -> str:
    """The table as CSV: the full configuration as comment lines, units in the headers, base units in the cells."""
    out = io.StringIO()
    out.write("# roofkit step explorer\n")
    for key, value in selection.items():
        text = f"pasted config.json, {len(str(value))} characters" if key == "config" else str(value)
        out.write(f"# {' '.join(str(key).split())} = {' '.join(text.split())}\n")
    columns = [c for c in OPS_COLUMNS if c in ops.columns]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"{c} [{CSV_UNITS[c]}]" if c in CSV_UNITS else c for c in columns])
    for row in records(ops, columns):
        writer.writerow(["" if v is None or v != v else v for v in row.values()])  # NaN is an empty cell
    return out.getvalue()


def csv_link(ops: pd.DataFrame, selection: Mapping[str, str | int], label: str = "Operators as CSV") -> str:
    """A link that downloads the CSV: a data: address, so the server keeps no file."""
    data = base64.b64encode(csv_text(ops, selection).encode()).decode()
    return f"<a class='rk-button' download='roofkit-operators.csv' href='data:text/csv;charset=utf-8;base64,{data}'>{esc(label)}</a>"
