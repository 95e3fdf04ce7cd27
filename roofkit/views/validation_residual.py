"""The learned residual on the validation page: what it saves at every level, where it stays off, and what it rests on. Room: views.

From data/roofkit_data/evidence/residual.csv and residual_thresholds.csv. A bench is worth its residual when the error it saves on
shapes or models left out is above zero at 95 %; what it would do on another GPU is shown and never used. Several kernel classes
of one operator are pooled by their rows, half-widths of their intervals in quadrature.
"""
from functools import lru_cache

import numpy as np
import pandas as pd

from roofkit.units import percent
from roofkit.views import validation_data as data
from roofkit.views.validation_data import op_label
from roofkit.views.validation_values import Learned

KEYS = ["level", "quantity", "op"]
ORDER = {"operator": 0, "block": 1, "step": 2}
HONEST = ("family", "model")  # rules that leave whole shapes or models out
GROUPS = {"size": "sizes", "compute": "compute time", "memory": "memory time", "time": "time", "prediction": "prediction", "regime": "soft regimes", "bound": "step bound", "format": "format",
          "engine": "engine"}
OPS = {"layer": "layers of a block", "moe": "expert block", "step_decode": "decode steps", "step_prefill": "prefill steps", "serving": "time per output token", "energy_token": "energy per output token"}
POWER = "board power of products"
LEFT_OUT = {"layer": "one model and TP", "mixed_attention": "one model and TP", "moe": "expert shapes", "step_decode": "one GPU and TP", "step_prefill": "one GPU and TP"}  # of benches above operators
MOVED = ("ridge -20 %", "ridge +20 %", "launch -20 %", "launch +20 %")


@lru_cache(maxsize=1)
def learned() -> Learned:
    """The card: benches, thresholds, ablation, said; empty tables where the package ships none."""
    table = read("residual.csv")
    if table.empty:
        return Learned(said="The package ships no table of the residual.")
    levels = _levels(table)
    return Learned(levels=levels, thresholds=_thresholds(read("residual_thresholds.csv")), ablation=_ablation(table), said=_said(levels))


def read(name: str) -> pd.DataFrame:
    """One shipped table of the residual; empty without it or with columns of an older one."""
    path = data.evidence_folder() / name
    if not path.is_file():
        return pd.DataFrame()
    with path.open(encoding="utf-8") as lines:
        found = pd.read_csv(lines, keep_default_na=False, na_values=[""], dtype={"class": str, "format": str})
    return found.fillna({"class": "", "format": ""}) if {*KEYS, "rule", "model"} <= set(found) else pd.DataFrame()


def what(level: str, quantity: str, op: str) -> str:
    """A bench in words."""
    return POWER if (level, quantity) == ("operator", "energy") else OPS.get(op, op_label(op)) if level != "operator" else op_label(op)


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of whole benches: operators keep their kernel classes, other rows by model are left out."""
    return table[(table["class"] == "") | ((table["level"] == "operator") & (table["quantity"] == "time"))]


def _pooled(rows: pd.DataFrame) -> dict[str, float]:
    """Means over kernel classes, weighted by rows; intervals of mape and gain from half-widths in quadrature. NaN without rows."""
    weight = rows["n"].to_numpy(float)
    if not weight.sum() > 0:
        return dict.fromkeys(("mape", "gain", "gain_low", "gain_high", "applied"), np.nan) | {"n": 0}
    share = weight / weight.sum()
    out = {k: float(share @ rows[k].to_numpy(float)) for k in ("mape", "gain", "applied")} | {"n": int(weight.sum())}
    for end in ("gain_low", "gain_high"):
        half = float(np.sqrt(np.sum((share * (rows[end] - rows["gain"]).to_numpy(float)) ** 2)))
        out[end] = out["gain"] + (half if end == "gain_high" else -half)
    return out


def _levels(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (level, quantity, op), part in _whole(table).groupby(KEYS):
        by = {(rule, model): _pooled(some) for (rule, model), some in part.groupby(["rule", "model"])}
        rule = next((r for r in HONEST if (r, "chosen") in by), None)
        if rule is None:
            continue
        unseen, form = by[(rule, "chosen")], by[(rule, "form")]
        get = lambda r, m, by=by: by.get((r, m), {}).get("mape", np.nan)  # noqa: E731
        good = unseen["gain_low"] > 0
        rows.append({"level": level, "quantity": quantity, "what": what(level, quantity, op), "classes": part[["class", "device", "format"]].drop_duplicates().shape[0], "n": form["n"],
                     "held_out": "shape families" if level == "operator" else LEFT_OUT.get(op, "one model"), "random_form": get("random", "form"),
                     "random": get("random", "chosen"), "form": form["mape"], "ridge": get(rule, "ridge"), "chosen": unseen["mape"], "gain": unseen["gain"], "gain_low": unseen["gain_low"],
                     "gain_high": unseen["gain_high"], "applied": unseen["applied"], "gpu_form": get("gpu", "form"), "gpu_carried": get("gpu", "chosen carried"),
                     "use": "pays" if good else "off"})
    found = pd.DataFrame(rows)
    return found.sort_values(["level", "quantity", "form"], key=lambda c: c.map(ORDER) if c.name == "level" else c.map({"time": 0, "energy": 1}) if c.name == "quantity" else c, ignore_index=True)


def _thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """what, ridge, launch_us (thresholds chosen, geometric means), rows ("all" | near a threshold), form, chosen, low, high (least and largest error of the moved ones), n."""
    if table.empty:
        return table
    rows = []
    for (op, near), part in table.groupby(["op", "rows"], sort=False):
        errors = {(moved, model): np.average(some["mape"], weights=some["n"]) for (moved, model), some in part.groupby(["moved", "model"])}
        if any((moved, "ridge") not in errors for moved in ("chosen", *MOVED)):
            continue
        at = part[(part["moved"] == "chosen") & (part["model"] == "ridge")]
        other = [errors[(moved, "ridge")] for moved in MOVED]
        rows.append({"what": op_label(op), "rows": near, "n": int(at["n"].sum()), "form": errors[("chosen", "form")], "chosen": errors[("chosen", "ridge")], "low": min(other), "high": max(other),
                     "ridge": float(np.exp(np.average(np.log(at["ridge"]), weights=at["n"]))), "launch_us": float(np.exp(np.average(np.log(at["launch_us"]), weights=at["n"])))})
    order = {o: i for i, o in enumerate(dict.fromkeys(r["what"] for r in rows))}
    found = pd.DataFrame(rows)
    return found.sort_values(["what", "rows"], key=lambda c: c.map(order) if c.name == "what" else c, ignore_index=True) if rows else found


def _ablation(table: pd.DataFrame) -> pd.DataFrame:
    """what, full (error of the ridge with all features) and, by group of features, the error added by leaving it out; NaN where there is none."""
    rows = []
    whole = _whole(table)
    for (level, quantity, op), part in whole[whole["rule"].isin(HONEST)].groupby(KEYS):
        left = part[part["model"].str.startswith("ridge without ")]
        if left.empty:
            continue
        same = part[part[["class", "device", "format"]].apply(tuple, axis=1).isin(left[["class", "device", "format"]].apply(tuple, axis=1))]
        full = _pooled(same[same["model"] == "ridge"])["mape"]
        rows.append({"level": level, "what": what(level, quantity, op), "form": _pooled(same[same["model"] == "form"])["mape"], "full": full}
                    | {GROUPS.get(m.split()[-1], m.split()[-1]): _pooled(some)["mape"] - full for m, some in left.groupby("model")})
    found = pd.DataFrame(rows)
    if found.empty:
        return found
    groups = [g for g in GROUPS.values() if g in found]
    return found.sort_values("level", key=lambda c: c.map(ORDER), kind="stable", ignore_index=True)[["what", "form", "full", *groups]]


def _said(levels: pd.DataFrame) -> str:
    used = levels[levels["use"] == "pays"]
    best = used.loc[used["gain"].idxmax()] if len(used) else None
    start = f"On shapes and models left out, a small learned correction on top of the forms saves error for {len(used)} of {len(levels)} benches and stays off for the others."
    most = f" It saves most for {best['what']}: {percent(best['form'])} to {percent(best['chosen'])}." if best is not None else ""
    carried = levels[levels["gpu_carried"] > levels["gpu_form"] + 0.001]
    other = f" Carried to another GPU it would harm {len(carried)} of the {levels['gpu_carried'].notna().sum()} benches that have one, so it is never carried." if levels["gpu_carried"].notna().any() else ""
    return f"{start}{most}{other}"
