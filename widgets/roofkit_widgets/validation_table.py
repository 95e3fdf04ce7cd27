"""Tables of the validation page: kernel classes, overview, targets, CPU, what is missing; and their CSV. Room: widgets (imports units, theme)."""
import base64
import csv
import io
from collections.abc import Mapping, Sequence

import ipywidgets as ipw
import pandas as pd

from roofkit.units import percent
from roofkit_widgets.theme import card, esc, records

FEW = 12
FULL = 0.5  # error at the right end of the bar in a row
SHADES = ((0.05, 1), (0.10, 2), (0.15, 3), (0.25, 4))  # error up to -> shade; beyond: 5
COLUMNS = (("op", "kernel class"), ("device", "device, software"), ("split", "held out"), ("n", "rows"), ("mape", "mean error"), ("range", "95 % interval"), ("median", "median"),
           ("bias", "bias"))
MARKS = {"reached": "✓ reached", "missed": "✗ missed", "open": "– no rows yet"}
UNITS = {"mape": "0..1", "low": "0..1", "high": "0..1", "median": "0..1", "bias": "predicted/measured - 1", "p90": "0..1", "measured_us": "us", "predicted_us": "us", "n": "rows"}
LONGEST = 3000


class CasesTable:
    """Kernel classes of the selection, weakest first; the twelve weakest until "all" is asked for."""

    def __init__(self) -> None:
        self.html, self.foot = ipw.HTML(), ipw.HTML()
        self.more = ipw.ToggleButton(value=False, description="Show all kernel classes", layout=ipw.Layout(width="auto"))
        self.more.observe(lambda _: self._draw(), "value")
        row = ipw.HBox([self.more, self.foot])
        row.add_class("rk-actions")
        self.widget = card("cases", "Held-out error of every kernel class", self.html, row)
        self._rows: list[dict] = []
        self._alt = ""

    def update(self, cases: pd.DataFrame, alt: str = "", download: str = "") -> None:
        """cases: columns of validation_values.ValidationView.cases; download: a link, HTML already."""
        self._rows, self._alt = records(cases), alt
        if self.foot.value != download:
            self.foot.value = download
        self._draw()

    def _draw(self) -> None:
        rows = self._rows if self.more.value else self._rows[:FEW]
        self.more.layout.display = None if len(self._rows) > FEW else "none"
        self.more.description = "Show the weakest only" if self.more.value else f"Show all {len(self._rows)} kernel classes"
        head = "".join(f"<th role='columnheader' scope='col' class='rk-c-{k}'>{t}</th>" for k, t in COLUMNS)
        body = "".join(_case(r) for r in rows)
        value = (f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-cases' role='table'><caption>{esc(self._alt)}</caption><thead role='rowgroup'><tr role='row'>{head}</tr></thead>"
                 f"<tbody role='rowgroup'>{body}</tbody></table></div>") if rows else "<p>No kernel class fits these filters; the message above says which rows there are.</p>"
        if self.html.value != value:
            self.html.value = value


def _case(r: Mapping) -> str:
    known = r["low"] == r["low"] and r["high"] == r["high"]
    left, right = (min(100 * v / FULL, 100) for v in ((r["low"], r["high"]) if known else (r["mape"], r["mape"])))
    bar = (f"<span class='rk-v-bar' aria-hidden='true'><i style='width:{min(100 * r['mape'] / FULL, 100):.1f}%'></i>"
           f"<u style='left:{left:.1f}%;width:{max(right - left, 0.5):.1f}%'></u></span>")
    small = {k: f" <small>{esc(text)}</small>" if text else "" for k, text in (("op", ", ".join(str(r[k]) for k in ("class", "format") if r[k])), ("device", r["stack"]))}
    cells = {"device": f"{esc(r['device'])}{small['device']}", "split": esc(r["split"]), "n": f"{r['n']:,.0f}", "mape": f"{bar}<b>{percent(r['mape'])}</b>",
             "range": f"{percent(r['low'])} – {percent(r['high'])}" if known else "one family", "median": percent(r["median"]), "bias": f"{100 * r['bias']:+.1f} %"}
    body = "".join(f"<td role='cell' class='rk-c-{k}' data-head='{t}'>{cells[k] or '–'}</td>" for k, t in COLUMNS[1:])
    return f"<tr role='row'><th role='rowheader' scope='row' class='rk-c-op'>{esc(r['op'])}{small['op']}</th>{body}</tr>"


def by_operator(table: pd.DataFrame) -> str:
    """Errors of the held-out points of the picture, operator by operator."""
    if table.empty:
        return ("<p>None of these points was held out, so there is no error to count. Choose one device, operator and format: then part of its rows is left out "
                "of a fresh fit; the table of kernel classes has the cross-validated errors.</p>")
    head = "".join(f"<th scope='col'>{t}</th>" for t in ("operator", "points", "mean error", "95 % interval", "median", "bias", "9 of 10 below"))
    rows = "".join(f"<tr><th scope='row'>{esc(r['op'])}</th><td>{r['n']:,}</td><td><b>{percent(r['mape'])}</b></td><td>{_range(r)}</td>"
                   f"<td>{percent(r['median'])}</td><td>{100 * r['bias']:+.1f} %</td><td>{percent(r['p90'])}</td></tr>" for r in records(table))
    return f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-small'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def overview(table: pd.DataFrame) -> str:
    """Operators and formats by devices; every cell its error in figures and as a shade."""
    if table.empty:
        return "<p class='rk-note'>The package ships no held-out errors of GPUs under this rule and regime.</p>"
    devices = [c for c in table.columns if c not in ("op", "format")]
    head = "".join(f"<th scope='col'>{esc(c)}</th>" for c in ("operator, format", *devices))
    rows = []
    for r in records(table):
        cells = "".join(f"<td class='rk-v-s{_shade(r[d])}'>{percent(r[d])}</td>" if r[d] == r[d] else "<td class='rk-v-none'><span title='not validated'>–</span></td>" for d in devices)
        rows.append(f"<tr><th scope='row'>{esc(r['op'])} <small>{esc(r['format'])}</small></th>{cells}</tr>")
    return f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-overview'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _shade(error: float) -> int:
    return next((shade for end, shade in SHADES if error <= end), len(SHADES) + 1)


def targets(table: pd.DataFrame) -> str:
    """Bars beside what is reached; misses first, in words."""
    rows = "".join(f"<tr class='rk-v-{esc(r['met'])}'><th scope='row'>{esc(r['what'])}</th><td>≤ {percent(r['target'])}</td><td><b>{percent(r['reached']) if r['reached'] == r['reached'] else '–'}</b></td>"
                   f"<td class='rk-v-met'>{MARKS.get(r['met'], esc(r['met']))}</td><td class='rk-v-words'>{esc(r['said'])}</td></tr>" for r in records(table))
    head = "".join(f"<th scope='col'>{t}</th>" for t in ("mean error on rows the fit never saw", "target", "reached", "", "which"))
    return f"<table class='rk-table rk-v-targets'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def cpu(table: pd.DataFrame, said: str) -> str:
    """Errors on fitted and held-out points of a CPU."""
    head = "<th scope='col'>kernel</th><th scope='col' class='rk-v-part'>part</th>" + "".join(f"<th scope='col'>{t}</th>" for t in ("points", "mean error", "95 % interval", "median", "bias"))
    rows = "".join(f"<tr><th scope='row'>{esc(r['op'])}</th><td class='rk-v-part'><i class='rk-v-{'held_out' if r['part'] == 'held out' else 'fitted'}'></i>{esc(r['part'])}</td><td>{r['n']:,.0f}</td>"
                   f"<td><b>{percent(r['mape'])}</b></td><td>{_range(r)}</td><td>{percent(r['median'])}</td><td>{100 * r['bias']:+.1f} %</td></tr>" for r in records(table))
    body = f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-small'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>" if rows else ""
    return f"{body}<p class='rk-note rk-v-after'>{esc(said)}</p>"


def _range(r: Mapping) -> str:
    return f"{percent(r['low'])} – {percent(r['high'])}" if r["low"] == r["low"] and r["high"] == r["high"] else "–"


def missing(items: Sequence[tuple[str, str]]) -> str:
    """What could not be validated; the long first list folded."""
    rows = "".join(f"<li><b>{esc(what)}</b>: {esc(said)}</li>" if len(said) < 260 else f"<li><details class='rk-details'><summary><b>{esc(what)}</b>: {esc(said[:said.find(':')])}</summary>{esc(said)}</details></li>"
                   for what, said in items)
    return f"<ul class='rk-says'>{rows}</ul>"


def csv_text(table: pd.DataFrame, title: str, selection: Mapping[str, str | int]) -> str:
    """The table with units in its headers; title and selection as comment lines."""
    out = io.StringIO()
    out.write(f"# roofkit validation: {' '.join(title.split())}\n")
    for key, value in selection.items():
        out.write(f"# {' '.join(str(key).split())} = {' '.join(str(value).split())}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"{c} [{UNITS[c]}]" if c in UNITS else c for c in table.columns])
    for values in table.head(LONGEST).itertuples(index=False, name=None):
        writer.writerow(["" if pd.isna(v) else f"{v:.5g}" if isinstance(v, float) else v for v in values])
    return out.getvalue()


def csv_link(table: pd.DataFrame, what: str, title: str, selection: Mapping[str, str | int]) -> str:
    """A link that downloads the table: a data: address, so the server keeps no file; "" without rows."""
    if table.empty:
        return ""
    data = base64.b64encode(csv_text(table, title, selection).encode()).decode()
    return f"<a class='rk-button' download='roofkit-validation-{esc(what)}.csv' href='data:text/csv;charset=utf-8;base64,{data}'>{esc(what.capitalize())} as CSV</a>"
