"""The learned residual as tables: every bench at its level, soft thresholds moved, features left out. Room: widgets (imports units, theme).

Draws a roofkit.views.validation_values.Learned; computes nothing.
"""
from collections.abc import Mapping

import pandas as pd

from roofkit.units import percent
from roofkit_widgets.theme import esc, records

LEVELS = {"operator": "operators", "block": "blocks", "step": "whole steps"}
QUANTITIES = {"time": "in time", "energy": "in energy"}
USES = {"pays": "✓ pays", "off": "– stays off"}
FULL = 0.30  # error at the right end of a bar
COLUMNS = (("what", "what"), ("use", "verdict"), ("unseen", "shapes or models left out"), ("gain", "error saved, 95 %"), ("random", "random rows"), ("gpu", "carried to another GPU"))
ROWS = {"all": "all rows", "near ridge": "rows within 10 % of the ridge", "near launch": "rows within 10 % of the launch"}


def learned(view) -> str:
    """The card: finding, benches, thresholds, ablation."""
    if view.levels.empty:
        return f"<p class='rk-note'>{esc(view.said)}</p>"
    how = ("Form → form with the correction, mean error. A ridge or boosted trees on logs of sizes, of datasheet times and of the prediction, chosen on folds inside the training part; at most a factor of two; "
           "off outside the box of its training rows. “Pays”: the error saved on what was left out is above zero at 95 %. Estimates of the package never contain it: it shows what is left to gain.")
    return (f"<p>{esc(view.said)}</p>{_benches(view.levels)}<p class='rk-note rk-v-after'>{esc(how)}</p>"
            f"<div class='rk-v-pair'>{_thresholds(view.thresholds)}{_ablation(view.ablation)}</div>")


def _benches(table: pd.DataFrame) -> str:
    head = "".join(f"<th role='columnheader' scope='col' class='rk-l-{k}'>{t}</th>" for k, t in COLUMNS)
    body, group = [], None
    for r in records(table):
        if group != (r["level"], r["quantity"]):
            group = (r["level"], r["quantity"])
            title = f"{LEVELS.get(r['level'], r['level'])} {QUANTITIES.get(r['quantity'], r['quantity'])}"
            body.append(f"<tr role='row' class='rk-l-level'><th role='rowheader' scope='rowgroup' colspan='{len(COLUMNS)}'>{esc(title[:1].upper() + title[1:])}</th></tr>")
        body.append(_bench(r))
    return (f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-learned' role='table'><thead role='rowgroup'><tr role='row'>{head}</tr></thead>"
            f"<tbody role='rowgroup'>{''.join(body)}</tbody></table></div>")


def _bench(r: Mapping) -> str:
    unseen = f"{_bar(r['form'], r['chosen'])}<span><b>{percent(r['form'])} → {percent(r['chosen'])}</b> <small>{esc(r['held_out'])}, on {percent(r['applied'], 0)} of the rows</small></span>"
    known = r["gain_low"] == r["gain_low"] and r["gain_high"] == r["gain_high"]
    gain = f"{100 * r['gain']:+.1f}" + (f" <small>({100 * r['gain_low']:+.1f} to {100 * r['gain_high']:+.1f})</small>" if known else "")
    cells = {"use": USES.get(r["use"], esc(r["use"])), "unseen": unseen, "gain": gain if r["applied"] > 0 else "–", "random": _arrow(r["random_form"], r["random"]), "gpu": _arrow(r["gpu_form"], r["gpu_carried"])}
    body = "".join(f"<td role='cell' class='rk-l-{k}' data-head='{t}'>{cells[k]}</td>" for k, t in COLUMNS[1:])
    small = f"{r['classes']:,} kernel classes, " if r["classes"] > 1 else ""
    return f"<tr role='row' class='rk-l-{esc(r['use'])}'><th role='rowheader' scope='row'>{esc(r['what'])} <small>{small}{r['n']:,.0f} rows</small></th>{body}</tr>"


def _bar(form: float, chosen: float) -> str:
    wide, narrow = (min(100 * v / FULL, 100) for v in (form, chosen))
    return f"<span class='rk-v-bar' aria-hidden='true'><i style='width:{wide:.1f}%'></i><b style='width:{narrow:.1f}%'></b></span>"


def _arrow(before: float, after: float) -> str:
    return f"{percent(before)} → {percent(after)}" if before == before and after == after else "–"


def _thresholds(table: pd.DataFrame) -> str:
    if table.empty:
        return ""
    order = [k for k in ROWS if k in set(table["rows"])]
    head = "".join(f"<th scope='col'>{t}</th>" for t in ("ridge correction", "thresholds chosen", *(ROWS[k] for k in order)))
    body = []
    for what, part in table.groupby("what", sort=False):
        by = {r["rows"]: r for r in records(part)}
        first = by.get("all", next(iter(by.values())))
        cells = "".join(f"<td>{_moved(by[k]) if k in by else '–'}</td>" for k in order)
        body.append(f"<tr><th scope='row'>{esc(what)}</th><td>{first['ridge']:.2g} × ridge, {first['launch_us']:.2g} µs</td>{cells}</tr>")
    return ("<section><h3>Soft thresholds moved by 20 %</h3><p class='rk-note'>Chosen on the training part: arithmetic intensity in datasheet ridge points, and the ideal time at which the launch weighs half. "
            "Form → form with the ridge correction; in brackets what it becomes when either threshold is moved by 20 %, and the rows judged.</p>"
            f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-small'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div></section>")


def _moved(r: Mapping) -> str:
    return f"{percent(r['form'], 2)} → <b>{percent(r['chosen'], 2)}</b> <small>({percent(r['low'], 2)} to {percent(r['high'], 2)}; {r['n']:,.0f})</small>"


def _ablation(table: pd.DataFrame) -> str:
    if table.empty:
        return ""
    groups = [c for c in table.columns if c not in ("what", "form", "full")]
    head = "".join(f"<th scope='col'>{esc(t)}</th>" for t in ("ridge correction", "error", *groups))
    rows = "".join(f"<tr><th scope='row'>{esc(r['what'])}</th><td>{percent(r['full'])}</td>{_left_out(r, groups)}</tr>" for r in records(table))
    return ("<section><h3>Features left out</h3><p class='rk-note'>Points of error that leaving out a group of features adds, on the shapes or models left out.</p>"
            f"<div class='rk-scroll' tabindex='0'><table class='rk-table rk-v-small'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>")


def _left_out(r: Mapping, groups: list[str]) -> str:
    known = [r[g] for g in groups if r[g] == r[g]]
    if abs(r["full"] - r["form"]) < 1e-9 and not any(abs(v) > 1e-9 for v in known):
        return f"<td colspan='{len(groups)}' class='rk-l-quiet'>the ridge stays off with and without any of them</td>"
    return "".join(f"<td>{100 * r[g]:+.1f}</td>" if r[g] == r[g] else "<td>–</td>" for g in groups)
