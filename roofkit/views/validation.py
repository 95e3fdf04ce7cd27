"""Validation: how far predictions were from measured times that no fit had seen, worst first. Room: views.

`validation_controls` and `validation_view` make the page of a selection `{device, op, format, split, regime}`; "all" is any
value, and split "worst" takes of every kernel class the split with the largest error. Figures come from the files the
package ships (validation_data) and points from what the server's owner has (validation_points).
"""
import os
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd

from roofkit.errors import RoofkitError
from roofkit.evidence.validate import REGIMES as REGIME_ORDER
from roofkit.units import percent
from roofkit.views import validation_data as data
from roofkit.views import validation_points
from roofkit.views.validation_data import CASE, CPU, device_label, op_label, pooled, regime_label, split_label
from roofkit.views.validation_points import Points, points_of
from roofkit.views.validation_residual import learned
from roofkit.views.validation_targets import targets
from roofkit.views.validation_values import ValidationView
from roofkit.views.values import Control, Problem, Statement, Tile

__all__ = ["clear_caches", "validation_controls", "validation_view"]

ALLOW = "ROOFKIT_ALLOW_MEASURE"
KEYS = ("device", "op", "format", "split", "regime")
EDGES = np.array([-np.inf, -0.5, -0.4, -0.3, -0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, np.inf])
BAND = 0.2  # the band that the scatter draws
EXPECTED = ("gemm", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "mixed_attention", "moe", "all_reduce", "all_gather", "reduce_scatter",
            "all_to_all", "elementwise", "step", "serving", "energy", "energy_token")
Selection = Mapping[str, str | int]


def validation_controls(selection: Selection) -> tuple[Control, ...]:
    """The filters; their options are what the shipped files hold, so a combination may still have no rows."""
    return _controls()


@lru_cache(maxsize=1)
def _controls() -> tuple[Control, ...]:
    errors = data.all_errors()
    gpus = sorted(set(errors["device"]) - {CPU}, key=device_label)
    first = "all" if gpus else CPU
    devices = ((("all GPUs", "all"),) if gpus else ()) + tuple((device_label(d), d) for d in gpus) + ((device_label(CPU), CPU),)
    ops = [o for o in data.OPS if o in set(errors["op"])] + sorted(set(errors["op"]) - set(data.OPS))
    splits = [s for s in data.SPLITS if s in set(errors["split"])] + sorted(set(errors["split"]) - set(data.SPLITS))
    regimes = [r for r in REGIME_ORDER if r in set(errors["regime"])]
    every = ("all", "all")
    return (
        Control("device", "Device", "choice", devices, first, "Whose measured times the predictions are judged on"),
        Control("op", "Operator", "choice", (every, *((op_label(o), o) for o in ops)), "all", "Kind of kernel"),
        Control("format", "Number format", "choice", (every, *((f, f) for f in sorted(set(errors["format"])))), "all",
                "Of the arithmetic and, after a slash, of the KV cache; decode attention: of the KV cache"),
        Control("split", "Held out", "choice", (("worst of each class", "worst"), *((split_label(s), s) for s in splits)), "worst",
                "What the fit did not see: a shape family, a head width, a whole GPU"),
        Control("regime", "Regime", "choice", (every, *((regime_label(r), r) for r in regimes)), "all", "What binds the kernel on the datasheet"),
    )


def validation_view(selection: Selection) -> ValidationView:
    """The page of a selection; never raises for values of the controls, whatever their combination."""
    chosen = _chosen(selection)
    errors, cpu = data.all_errors(), data.cpu_errors()
    matched = _matched(errors, chosen)
    cases = _of_split(matched, chosen["split"]).sort_values("mape", ascending=False, kind="stable", ignore_index=True)
    problem = None if len(cases) else _problem(errors, chosen)
    points = points_of(chosen["device"], chosen["op"], chosen["format"], chosen["split"], chosen["regime"])
    by_op, spread = _by_op(points.frame), _residuals(points.frame)
    against, missing = _standing()
    overview = _overview(errors, chosen)
    return ValidationView(
        selection=chosen, title=_title(chosen), tiles=_tiles(matched, cases, chosen, cpu), statements=_statements(errors, matched, cases, against, chosen),
        cases=_worded(cases), overview=overview, by_op=by_op, points=_worded(points.frame), points_said=points.said, residuals=spread, targets=against,
        missing=missing, learned=learned(), cpu=cpu.assign(op=cpu["op"].map(op_label)) if len(cpu) else cpu, cpu_said=_cpu_said(), measure_said=_measure_said(),
        may_measure=os.environ.get(ALLOW) == "1", badges=_badges(errors), notes=_notes(errors), alt=_alt(points, spread, cases, overview, against), problem=problem)


def clear_caches() -> None:
    """Read the files and the folder of measured tables anew."""
    data.clear_caches()
    validation_points.clear_caches()
    _standing.cache_clear()
    learned.cache_clear()
    _controls.cache_clear()


@lru_cache(maxsize=1)
def _standing() -> tuple[pd.DataFrame, tuple[tuple[str, str], ...]]:
    """What no filter changes: targets beside what is reached, and what is not validated."""
    errors = data.all_errors()
    return targets(errors), _missing(errors)


def _chosen(selection: Selection) -> dict[str, str]:
    """Every filter, unknown values replaced by the default; text only."""
    return {c.key: str(selection.get(c.key)) if str(selection.get(c.key)) in {str(v) for _, v in c.options} else str(c.default) for c in validation_controls(selection)}


def _matched(errors: pd.DataFrame, chosen: Selection) -> pd.DataFrame:
    """Rows of the error table that the filters but `split` pick; "all" GPUs leave the CPU aside."""
    keep = errors["regime"] == chosen["regime"]
    keep &= errors["device"] != CPU if chosen["device"] == "all" else errors["device"] == chosen["device"]
    for key in ("op", "format"):
        if chosen[key] != "all":
            keep &= errors[key] == chosen[key]
    return errors[keep]


def _of_split(matched: pd.DataFrame, split: str) -> pd.DataFrame:
    return data.worst_of_each(matched) if split == "worst" else matched[matched["split"] == split]


def _by_split(matched: pd.DataFrame) -> pd.DataFrame:
    """Pooled error per split, worst first: split, n, mape, low, high."""
    rows = [{"split": split, **pooled(part)} for split, part in matched.groupby("split")]
    return pd.DataFrame(rows, columns=["split", "n", "mape", "low", "high", "median", "bias"]).sort_values("mape", ascending=False, ignore_index=True)


def _worded(rows: pd.DataFrame) -> pd.DataFrame:
    words = {"device": device_label, "op": op_label, "split": split_label, "regime": regime_label}
    return rows.assign(**{k: rows[k].map(f) for k, f in words.items() if k in rows}) if len(rows) else rows


# ---- figures --------------------------------------------------------------------------------------------------------


def _overview(errors: pd.DataFrame, chosen: Selection) -> pd.DataFrame:
    """Pooled error of every operator and format on every GPU under the chosen split and regime."""
    rows = _of_split(errors[(errors["regime"] == chosen["regime"]) & (errors["device"] != CPU)], chosen["split"])
    devices = sorted(set(errors["device"]) - {CPU}, key=device_label)
    sums = rows.assign(weighted=rows["n"] * rows["mape"]).groupby(["op", "format", "device"])[["weighted", "n"]].sum()
    cells = (sums["weighted"] / sums["n"]).unstack("device").reindex(columns=devices)
    order = {o: i for i, o in enumerate(data.OPS)}
    keys = sorted(cells.index, key=lambda key: (order.get(key[0], len(order)), key[1]))
    out = [(op_label(op), fmt, *cells.loc[(op, fmt)].tolist()) for op, fmt in keys]
    return pd.DataFrame(out, columns=["op", "format", *map(device_label, devices)])


def _by_op(points: pd.DataFrame) -> pd.DataFrame:
    """Errors of the drawn held-out points per operator, bootstrap intervals over points."""
    held = points[points["held_out"].astype(bool)] if len(points) else points
    rows = []
    for op, part in held.groupby("op"):
        ratio = (part["predicted_us"] / part["measured_us"]).to_numpy(float)
        error = np.abs(ratio - 1)
        draws = np.random.default_rng(0).choice(error, (400, len(error))).mean(axis=1)
        rows.append({"op": op_label(op), "n": len(part), "mape": error.mean(), "low": np.quantile(draws, 0.025), "high": np.quantile(draws, 0.975),
                     "median": np.median(error), "bias": np.median(ratio) - 1, "p90": np.quantile(error, 0.9)})
    return pd.DataFrame(rows, columns=["op", "n", "mape", "low", "high", "median", "bias", "p90"]).sort_values("mape", ascending=False, ignore_index=True)


def _residuals(points: pd.DataFrame) -> pd.DataFrame:
    """Share of the fitted and of the held-out points in every bin of the signed error."""
    out = {"low": EDGES[:-1], "high": EDGES[1:]}
    for name, held in (("fitted", False), ("held_out", True)):
        part = points[points["held_out"].astype(bool) == held] if len(points) else points
        signed = (part["predicted_us"] / part["measured_us"] - 1).to_numpy(float) if len(part) else np.array([])
        count = np.histogram(signed, EDGES)[0].astype(float)
        out[name] = count / count.sum() if count.sum() else count
    return pd.DataFrame(out)


# ---- words ----------------------------------------------------------------------------------------------------------


def _title(chosen: Selection) -> str:
    parts = [device_label(chosen["device"]) if chosen["device"] != "all" else "All GPUs", op_label(chosen["op"]) if chosen["op"] != "all" else "all operators"]
    parts += [chosen["format"]] if chosen["format"] != "all" else []
    parts += [regime_label(chosen["regime"])] if chosen["regime"] != "all" else []
    return ", ".join(parts)


def _range(figure: Mapping[str, float]) -> str:
    known = np.isfinite(figure["low"]) and np.isfinite(figure["high"])
    return f"95 % interval {percent(figure['low'])} to {percent(figure['high'])}" if known else "too few families for an interval"


def _tiles(matched: pd.DataFrame, cases: pd.DataFrame, chosen: Selection, cpu: pd.DataFrame) -> tuple[Tile, ...]:
    tiles = []
    if len(matched):
        worst = _by_split(matched).iloc[0]
        tiles.append(Tile("worst", f"worst split: {split_label(worst['split'])}", percent(worst["mape"]), f"mean error; {_range(worst)}", number=float(worst["mape"]), better="lower"))
    if len(cases):
        whole = pooled(cases)
        said = "worst split of each class" if chosen["split"] == "worst" else split_label(chosen["split"])
        tiles += [Tile("mape", f"mean error, {said}", percent(whole["mape"]), _range(whole), number=whole["mape"], better="lower"),
                  Tile("median", "median error", percent(whole["median"]), "mean of the classes' medians, by rows", number=whole["median"], better="lower"),
                  Tile("bias", "bias", f"{100 * whole['bias']:+.1f} %", "median of predicted / measured - 1: above 0 is too slow", number=whole["bias"]),
                  Tile("rows", "rows judged", f"{whole['n']:,}", f"{(n := cases[CASE].drop_duplicates().shape[0])} kernel class{'es' if n > 1 else ''}", number=whole["n"])]
    if len(cpu) and chosen["device"] != CPU:
        parts = {p: pooled(cpu[cpu["part"] == p])["mape"] for p in ("held out", "fitted")}
        tiles.append(Tile("cpu", "CPU we measured, held out", percent(parts["held out"]), f"fitted points {percent(parts['fitted'])}", number=parts["held out"], better="lower"))
    return tuple(tiles)


def _statements(errors: pd.DataFrame, matched: pd.DataFrame, cases: pd.DataFrame, against: pd.DataFrame, chosen: Selection) -> tuple[Statement, ...]:
    found = [Statement(_headline(matched), "cases")] if len(matched) else []
    if len(cases):
        top = cases.iloc[0]
        name = " ".join(x for x in (op_label(top["op"]), top["class"], top["format"]) if x)
        found.append(Statement(f"Weakest kernel class: {name} on {device_label(top['device'])}"
                               f"{' (' + top['stack'] + ')' if top['stack'] else ''}, {percent(top['mape'])} with {split_label(top['split'])}.", "cases"))
        whole = pooled(cases)
        lean = "on the whole neither too fast nor too slow" if abs(whole["bias"]) < 0.01 else f"{'too slow' if whole['bias'] > 0 else 'too fast'} by {percent(abs(whole['bias']))} in the middle"
        found.append(Statement(f"Predictions are {lean}.", "residuals"))
    counts = against["met"].value_counts()
    missed = against[against["met"] == "missed"]
    names = "; ".join(f"{r.what} {percent(r.reached)} against {percent(r.target)}" for r in missed.head(3).itertuples())
    said = f"{counts.get('reached', 0)} of {len(against)} targets are reached, {counts.get('missed', 0)} are missed, rows are missing for {counts.get('open', 0)}."
    found.append(Statement(f"{said}{' Missed: ' + names + ('; and others' if len(missed) > 3 else '') + '.' if len(missed) else ''}", "targets"))
    if len(learned().levels):
        found.append(Statement(learned().said, "learned"))
    judged = sorted(set(errors["device"]) - {CPU})
    found.append(Statement(f"{len(judged)} GPUs are validated; an estimate on any other of the {len(data.device_labels()) - 1} devices is not.", "missing"))
    return tuple(found)


def _headline(matched: pd.DataFrame) -> str:
    """The worst split in words, beside the mildest of the very same kernel classes."""
    by_split = _by_split(matched)
    worst = by_split.iloc[0]
    said = f"The worst split is {split_label(worst['split'])}: {percent(worst['mape'])} mean error over {worst['n']:,.0f} rows ({_range(worst)})"
    same = matched.merge(matched.loc[matched["split"] == worst["split"], CASE].drop_duplicates(), on=CASE)
    others = _by_split(same[same["split"] != worst["split"]])
    if others.empty:
        return f"{said}; it is the only one these kernels were judged on."
    mild = others.iloc[-1]
    return f"{said}; the same kernels by {split_label(mild['split'])}: {percent(mild['mape'])}."


def _problem(errors: pd.DataFrame, chosen: Selection) -> Problem:
    """Why nothing is left, which rows there are, and the one filter whose release brings some back."""
    defaults = {"device": "all" if set(errors["device"]) - {CPU} else CPU, "op": "all", "format": "all", "split": "worst", "regime": "all"}
    for keys in [(k,) for k in ("regime", "split", "format", "op", "device")] + [("regime", "split"), ("regime", "split", "format"), ("regime", "split", "format", "op")]:
        if any(chosen[k] != defaults[k] for k in keys):
            freed = {**chosen, **{k: defaults[k] for k in keys}}
            rows = _of_split(_matched(errors, freed), freed["split"])
            if len(rows):
                there = {k: sorted(set(rows[k])) for k in keys if k in rows}
                words = {"device": device_label, "op": op_label, "split": split_label, "regime": regime_label}
                listed = "; ".join(f"{k}: {', '.join(words.get(k, str)(v) for v in values[:6])}{' and others' if len(values) > 6 else ''}" for k, values in there.items())
                return Problem(f"Nothing was judged for {_title(chosen)}, held out by {_split_words(chosen)}. Rows do exist with another {listed}.",
                               {k: freed[k] for k in keys}, f"any {' and '.join(k.replace('split', 'hold-out') for k in keys)}")
    return Problem("Nothing was judged for this selection.", defaults, "show everything")


def _split_words(chosen: Selection) -> str:
    return "any rule" if chosen["split"] == "worst" else split_label(chosen["split"])


def _missing(errors: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """What no held-out row speaks for."""
    known, seen = {d: label for d, label in data.device_labels().items() if d != CPU}, set(errors["device"])
    judged, others = [d for d in known if d in seen], [label for d, label in known.items() if d not in seen]
    gpus = errors[errors["device"] != CPU]
    found = [(f"{len(others)} of {len(known)} devices", f"not validated on this device: {', '.join(sorted(others))}. Their figures are estimates from datasheets and siblings.")]
    done = {d: set(part["op"]) for d, part in gpus.groupby("device")}
    none = [o for o in EXPECTED if not any(o in ops for ops in done.values())]
    if none:
        found.append(("On no GPU", f"{'; '.join(op_label(o) for o in none)}: no held-out error is shipped."))
    for device in judged:
        lacks = [op_label(o) for o in EXPECTED if o not in none and o not in done[device]]
        if lacks:
            found.append((device_label(device), f"not validated on this device: {'; '.join(lacks)}."))
    return tuple(found)


def _cpu_said() -> str:
    env, points = data.cpu_environment(), data.cpu_points()
    if points.empty:
        return "No measurement of a CPU is shipped."
    rule = env.get("rule", {})
    return (f"{env.get('processor', 'a CPU')}, {env.get('threads_used', '?')} thread, {env.get('backend', 'numpy')} {env.get('numpy', '')} with {env.get('blas', '?')}, {env.get('dtype', 'fp32')}: "
            f"{len(points)} points, {env.get('rounds', '?')} rounds in random order, at least {rule.get('samples', '?')} samples of {1e3 * rule.get('sample_s', 0):g} ms a point after "
            f"{rule.get('warm_calls', '?')} warm-up calls or {1e3 * rule.get('warm_s', 0):g} ms; the quietest round counts. Clock as found. {env.get('note', '')} Measured by roofkit, {env.get('date', '')}.")


def _measure_said() -> str:
    if os.environ.get(ALLOW) == "1":
        return "The button times this server's processor for about 40 seconds, with every fourth point held out."
    return ("Your own machine: run `roofkit measure` in a terminal; it needs scipy (pip install 'roofkit[calibrate]'). A server times itself for visitors only where "
            f"its owner has set {ALLOW}=1.")


def _badges(errors: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    dates = sorted(set(errors.loc[errors["device"] != CPU, "date"].dropna().astype(str))) if "date" in errors else []
    if not dates:
        return (("no GPU errors shipped", "The package holds no table of held-out GPU errors yet; only our own CPU measurement is shown."),)
    return (("held out", "Every error here is of rows that the fit behind the prediction had not seen."),
            (f"judged {dates[-1]}", "When the shipped error table was made; `make refit` makes it again from measured tables you have."))


def _notes(errors: pd.DataFrame) -> tuple[str, ...]:
    return ("Error: |predicted - measured| / measured, averaged over rows. Intervals: 95 % of bootstraps over whole shape families; for several classes their half-widths are added in quadrature.",
            "Folds by shape family flatter attention, whose families lie on one grid: an unseen head width or GPU is the honest test, so the worst split leads.",
            "Measured rows: AIConfigurator collector tables (Apache-2.0, NVIDIA) and others named in the documentation; the package ships errors and fits, not their rows.") if len(errors) else ()


def _alt(points: Points, spread: pd.DataFrame, cases: pd.DataFrame, overview: pd.DataFrame, against: pd.DataFrame) -> dict[str, str]:
    frame = points.frame
    found = {"targets": f"{(against['met'] == 'reached').sum()} of {len(against)} targets reached.", "overview": f"Mean error of {len(overview)} operators and formats on {max(overview.shape[1] - 2, 0)} GPUs."}
    if len(frame):
        ratio = frame["predicted_us"] / frame["measured_us"]
        held = frame["held_out"].astype(bool)
        inside = (ratio - 1).abs() <= BAND
        parts = [f"{percent(inside[mask].mean(), 0)} of {mask.sum():,} {name} points" for name, mask in (("fitted", ~held), ("held-out", held)) if mask.any()]
        found["scatter"] = f"Predicted against measured time of {len(frame):,} points: within 20 % of the measured time lie {' and '.join(parts)}."
        found["residuals"] = f"Signed errors: half of the held-out points lie between {_quartiles(ratio[held] if held.any() else ratio)}."
    if len(cases):
        found["cases"] = (f"{len(cases)} kernel classes, weakest first: mean errors from {percent(cases['mape'].iloc[-1])} to {percent(cases['mape'].iloc[0])}." if len(cases) > 1
                          else f"One kernel class, mean error {percent(cases['mape'].iloc[0])}.")
    return found


def _quartiles(ratio: pd.Series) -> str:
    low, high = np.quantile(ratio - 1, [0.25, 0.75])
    return f"{100 * low:+.1f} % and {100 * high:+.1f} %"


def measure_here(progress=None) -> tuple[pd.DataFrame, str]:
    """Time this machine and fit it: (errors per kind and part, words). Raises RoofkitError unless the owner allows it."""
    if os.environ.get(ALLOW) != "1":
        raise RoofkitError(f"this server does not measure itself for visitors; its owner would set {ALLOW}=1")
    from roofkit.evidence.measure import measure_this_machine

    report = measure_this_machine(progress=progress)
    table = report.errors.rename(columns={"kind": "op"}).assign(low=np.nan, high=np.nan)
    table["op"] = table["op"].map(lambda k: op_label(data.CPU_OPS.get(k, k)))
    table["part"] = table["part"].replace({"train": "fitted"})
    env = report.environment
    return table, f"{env['processor']}, {env['cores']} cores, {env['backend']}: {len(report.points)} points in {report.wall_s:.0f} s."
