"""Points of the validation page: measured rows beside what roofkit says of them. Room: views.

Measured tables of third parties stay where the server's owner has them: ROOFKIT_MEASURED names one folder or several, set
when the server starts, never by a visitor. Of a selection that holds few kernel classes the constants are fitted anew on
part of the sampled rows and judged on the rest; of a wide one the shipped constants are judged, and a row counts as held
out only where no fit of ours has seen it. `points.csv` of a refit brings held-out predictions for every class.
"""
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.errors import RoofkitError
from roofkit.evidence.cases import COLLECTIVE_OPS, Case, cases
from roofkit.evidence.measurements import read_measurements, resolve_device
from roofkit.evidence.predict import predict
from roofkit.evidence.refit import TABLES
from roofkit.evidence.refit_parts import TABLES as PARTS
from roofkit.evidence.splits import splits
from roofkit.evidence.validate import regime
from roofkit.hardware.presets import list_devices, load_device
from roofkit.views import validation_data as data
from roofkit.views.validation_data import cpu_points, is_collective, split_label

FOLDERS = "ROOFKIT_MEASURED"
MOST = 1500  # points on the picture
FEW_CASES, CASE_ROWS = 4, 400  # classes that are refitted for one picture, and rows of each
KINDS = ("gemm", "attention", "mla", "mixed_attention", "moe", "collective", "elementwise")
SHOWN = ["device", "op", "class", "format", "stack", "regime", "what", "measured_us", "predicted_us", "held_out"]
SIZES = ("m", "n", "k", "phase", "batch", "heads", "kv_heads", "head_dim", "window", "q_len", "kv_len", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep",
         "ranks", "nodes", "bytes", "rows", "cols", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


@dataclass(frozen=True)
class Points:
    """frame: columns SHOWN; said: which points these are and how they were held out."""

    frame: pd.DataFrame
    said: str


def points_of(device: str, op: str, number_format: str, split: str, regime_wanted: str) -> Points:
    """Points that a selection picks ("all" = any), at most MOST; without any, those of our own CPU, and `said` says so."""
    wanted = {"device": device, "op": op, "format": number_format}
    found = _points(*wanted.values(), split) if device != "cpu" else Points(pd.DataFrame(columns=SHOWN), "")
    frame = found.frame[found.frame["regime"] == regime_wanted] if regime_wanted != "all" else found.frame
    if len(frame):
        return Points(frame.reset_index(drop=True), found.said)
    return _of_cpu(wanted, found, regime_wanted)


@lru_cache(maxsize=1)
def tables() -> dict[str, pd.DataFrame]:
    """File stem -> measured rows of known devices, with op, format and class; {} where the owner named no folder."""
    known = list_devices()["name"].tolist()
    out: dict[str, pd.DataFrame] = {}
    for path in _files():
        try:
            frame = read_measurements(path)
        except RoofkitError:
            continue  # a file of another make, or of a kind without columns of ours
        if frame["kind"].iloc[0] not in KINDS:
            continue
        presets = {name: resolve_device(name, known) for name in frame["device"].unique()}
        frame = frame.assign(device=frame["device"].map(presets))
        frame = frame[frame["device"].notna()].reset_index(drop=True)
        if len(frame):
            out[path.stem] = frame.assign(op=_ops(frame), format=_formats(frame))
    return out


@lru_cache(maxsize=1)
def refit_points() -> pd.DataFrame:
    """Held-out predictions that a refit wrote (points.csv in one of the folders, or shipped); empty where there are none."""
    for path in (p for folder in (*_folders(), data.evidence_folder()) for p in [folder / "points.csv"] if p.is_file()):
        with path.open(encoding="utf-8") as lines:
            frame = pd.read_csv(lines, keep_default_na=False, na_values=[""], dtype={"class": str, "format": str, "stack": str})
        if {"device", "op", "format", "split", "measured_us", "predicted_us"} <= set(frame):
            frame = frame.fillna({"class": "", "regime": "", "stack": ""})
            return frame.assign(held_out=True, what=frame["family"].astype(str) if "family" in frame else "")
    return pd.DataFrame()


def clear_caches() -> None:
    for function in (tables, refit_points, _points):
        function.cache_clear()


def _folders() -> list[Path]:
    return [Path(p) for p in os.environ.get(FOLDERS, "").split(os.pathsep) if p and Path(p).is_dir()]


def _files() -> list[Path]:
    return [path for folder in _folders() for path in sorted(folder.glob("*.csv")) if path.name != "points.csv"]


def _ops(frame: pd.DataFrame) -> pd.Series:
    kind = frame["kind"].iloc[0]
    if kind in ("attention", "mla"):
        return kind + "_" + frame["phase"].astype(str)
    return frame["op"].replace(COLLECTIVE_OPS) if kind == "collective" else pd.Series(kind, index=frame.index)


def _formats(frame: pd.DataFrame) -> pd.Series:
    """As the fits are keyed: decode attention by its cache, prefill by arithmetic and cache."""
    if frame["kind"].iloc[0] == "collective":
        return pd.Series("bf16", index=frame.index)
    if "kv_dtype" not in frame:
        return frame["dtype"].astype(str)
    kv = frame["kv_dtype"].astype(str)
    return kv.where(frame["phase"] == "decode", frame["dtype"].astype(str) + "/" + kv)


def _match(frame: pd.DataFrame, wanted: dict[str, str]) -> pd.DataFrame:
    for column, value in wanted.items():
        if value != "all":
            frame = frame[frame[column] == value]
    return frame


@lru_cache(maxsize=24)
def _points(device: str, op: str, number_format: str, split: str) -> Points:
    wanted = {"device": device, "op": op, "format": number_format}
    picked = {stem: rows for stem, frame in tables().items() if len(rows := _match(frame, wanted))}
    ours = refit_points()
    ours = _match(ours, wanted) if len(ours) else ours
    if not picked and not len(ours):
        return Points(pd.DataFrame(columns=SHOWN), "")
    if not len(ours) and op != "all" and device != "all":
        found = _refitted(picked, split)
        if found is not None:
            return found
    return _shipped(picked, ours, split)


def _shipped(picked: dict[str, pd.DataFrame], ours: pd.DataFrame, split: str) -> Points:
    """Shipped constants on a sample of the rows, and a refit's held-out predictions beside them."""
    strata = sum(rows.groupby(["device", "op", "format"]).ngroups for rows in picked.values())
    most = MOST // 2 if len(ours) else MOST
    each = max(most // max(strata, 1), 6)
    frames, parts = [], []
    for stem, rows in picked.items():
        sample = rows.groupby(["device", "op", "format"], group_keys=False)[rows.columns.tolist()].apply(lambda part: part.sample(min(each, len(part)), random_state=0))
        try:
            priced = predict(sample.drop(columns=["op"]) if sample["kind"].iloc[0] not in ("collective", "elementwise") else sample)
        except RoofkitError:
            continue
        source = (priced["source"] if "source" in priced else pd.Series("", index=priced.index)).astype(str)
        seen = priced["calibration"].eq("fitted") & (stem in PARTS or stem in TABLES and ~source.str.contains("eager|vidur"))
        frames.append(_labelled(priced.assign(op=_ops(priced), format=_formats(priced)), priced["predicted_us"], ~seen, _regimes(priced)))
    said = "Shipped constants on a sample of the measured rows. Dots: rows the fit has seen. Diamonds: rows of tables, stacks or devices that no fit of ours has seen."
    if len(ours):
        rule = split if split == "worst" or (ours["split"] == split).any() else "family"
        held = _worst(ours) if rule == "worst" else ours[ours["split"] == rule] if (ours["split"] == rule).any() else ours
        held = held.sample(min(MOST - most, len(held)), random_state=0)
        parts = [held.reindex(columns=SHOWN)]
        frames = [f[~f["held_out"]] for f in frames]
        said = f"Dots: shipped constants on rows the fit has seen. Diamonds: cross-validation, held out by {'the worst split of each class' if rule == 'worst' else split_label(rule)}, so their constants never saw them."
    whole = [f for f in (*frames, *parts) if len(f)]
    return Points(_clean(pd.concat(whole, ignore_index=True)), said) if whole else Points(pd.DataFrame(columns=SHOWN), "")


def _worst(ours: pd.DataFrame) -> pd.DataFrame:
    """Of every kernel class the points of the split with the largest mean error."""
    error = (ours["predicted_us"] / ours["measured_us"] - 1).abs().replace(np.inf, np.nan)
    means = error.groupby([ours[c] for c in (*data.CASE, "split")], dropna=False).mean().fillna(0.0)
    worst = means.reset_index(name="error").sort_values("error").drop_duplicates(data.CASE, keep="last")
    return ours.merge(worst[[*data.CASE, "split"]], on=[*data.CASE, "split"])


def _rule(case: Case, split: str) -> str:
    """The way of holding out that a picture of one class uses; for "worst" the one with the largest shipped error."""
    if split == "worst":
        errors = data.shipped_errors()
        mine = errors[(errors[["device", "op", "format", "stack", "class"]] == list(case.key)).all(axis=1) & (errors["regime"] == "all")]
        split = mine.loc[mine["mape"].idxmax(), "split"] if len(mine) else "family"
    rule = split if split in ("family", "head_dim", "sizes", "every_fourth") else "family"
    return "sizes" if is_collective(case.op) and rule in ("family", "head_dim") else rule


def _regimes(rows: pd.DataFrame) -> np.ndarray:
    """Regime of every row where a form knows it, else ""."""
    out = np.full(len(rows), "", object)
    for name, part in rows.reset_index(drop=True).groupby("device"):
        try:
            for case in cases(part, load_device(name)):
                out[case.rows.index] = regime(case.rows, case)
        except (RoofkitError, KeyError):
            continue
    return out


def _refitted(picked: dict[str, pd.DataFrame], split: str) -> Points | None:
    """Every class of the selection fitted on part of its sampled rows; None where there are too many classes, or none."""
    found: list[Case] = []
    for rows in picked.values():
        try:
            for name, part in rows.groupby("device"):
                found += [c for c in cases(part, load_device(name)) if len(c.rows) >= 3 * len(c.parameters)]
        except (RoofkitError, KeyError):
            continue
        if len(found) > FEW_CASES:
            return None
    frames, said = [], []
    for case in found:
        try:
            frame, words = _refit(case, split)
        except RoofkitError:
            return None  # no scipy here, or nothing to leave out
        frames.append(frame)
        said.append(words)
    if not frames:
        return None
    return Points(_clean(pd.concat(frames, ignore_index=True)), f"Fitted anew for this picture. {'; '.join(dict.fromkeys(said))}. Diamonds: the rows left out of that fit.")


def _refit(case: Case, split: str) -> tuple[pd.DataFrame, str]:
    rows = case.rows.sample(min(CASE_ROWS, len(case.rows)), random_state=0).sort_index()
    try:
        part = next(splits(rows, _rule(case, split)))
    except RoofkitError:
        part = next(splits(rows, "every_fourth"))
    constants = case.fit(rows[part.train], starts=1).constants
    predicted = case.bound_form(rows).seconds(constants) * 1e6
    head = {"device": case.device.name, "class": case.cls, "stack": case.stack}
    frame = _labelled(rows.assign(**head, op=case.op, format=case.format), predicted, part.test, regime(rows, case))
    return frame, f"{case.label()}: {int(part.train.sum()):,} of {len(rows):,} sampled rows, left out by {split_label(part.rule)} ({part.held_out})"


def _labelled(rows: pd.DataFrame, predicted, held_out, regimes) -> pd.DataFrame:
    stack = rows["algo"] if "algo" in rows else rows["source"] if "source" in rows else ""
    return pd.DataFrame({
        "device": rows["device"], "op": rows["op"], "class": rows["class"] if "class" in rows else rows["kernel"] if "kernel" in rows else "", "format": rows["format"],
        "stack": rows["stack"] if "stack" in rows else stack, "regime": regimes, "what": _shapes(rows), "measured_us": rows["time_us"].to_numpy(float),
        "predicted_us": np.asarray(predicted, float), "held_out": np.asarray(held_out, bool)})


def _shapes(rows: pd.DataFrame) -> list[str]:
    names = [c for c in SIZES if c in rows]
    return [", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in zip(names, values, strict=True)) for values in rows[names].itertuples(index=False)]


def _clean(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with two finite times above zero, the only ones that log axes show; held-out rows last, on top."""
    both = frame[["measured_us", "predicted_us"]].to_numpy(float)
    kept = frame[(np.isfinite(both) & (both > 0)).all(axis=1)]
    if len(kept) > MOST:
        kept = kept.sample(MOST, random_state=0)
    return kept.sort_values("held_out", kind="stable").reset_index(drop=True)[SHOWN]


def _of_cpu(wanted: dict[str, str], found: Points, regime_wanted: str) -> Points:
    points = cpu_points()
    if points.empty:
        return found
    said = "Our own measurement of a CPU; every fourth point was held out of the fit."
    mine = points[points["op"] == wanted["op"]] if wanted["device"] == "cpu" and wanted["op"] != "all" else points
    if mine.empty:
        mine, said = points, "This operator was not measured on the CPU. Shown instead: all that was, with every fourth point held out of the fit."
    if wanted["device"] != "cpu":
        why = "has no measured rows for this selection" if _folders() else "has no measured GPU rows: their licences keep them out of the package"
        if len(found.frame) and regime_wanted != "all":
            why = "has no measured rows in this regime for this selection"
        said = f"This server {why}. Shown instead: {said[0].lower()}{said[1:]}"
    return Points(_clean(mine.reindex(columns=SHOWN)), said)
