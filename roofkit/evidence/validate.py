"""Validate: held-out errors of the cost forms, by operator, device, format and regime, on several kinds of split. Room: evidence.

A split that leaves out shape families flatters attention (families lie on one grid), so the headline is the worst split:
an unseen head width or GPU is the honest test. Intervals: bootstrap over families, because rows of one shape err together.
"""
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofkit.cost.calibration import OF_THE_DIE, carried, figures
from roofkit.cost.collectives import NVLINK_BYTES_PER_S
from roofkit.cost.expert_exchange import MEASURED_BYTES
from roofkit.cost.mixed import FIT_OP
from roofkit.errors import MeasurementError
from roofkit.evidence.calibrate import COLLECTIVES, summary
from roofkit.evidence.cases import Case, cases, engine_of
from roofkit.evidence.fitted_cases import fitted_cases
from roofkit.evidence.measurements import TARGET, read_measurements, resolve_device
from roofkit.evidence.predict import predict
from roofkit.evidence.splits import RULES, families, splits
from roofkit.hardware.presets import list_devices, load_device

SPLITS = (*RULES, "shipped")
LAUNCH_US = 3.0  # both ideal times below this: the launch decides
REGIMES = ("launch", "memory", "balanced", "compute", "network", "step")
GROUP = ["device", "op", "class", "format", "stack", "split"]


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """Held-out errors.

    table    per device, op, class, format, stack, split and regime ("all" first): n rows, families, mape, low and high (95 % of
             bootstraps over families), median, bias, p90, seed_sd [0..1]
    points   every row once per seed: measured_us, predicted_us (ms for steps: *_ms in measured columns), held_out, family, regime, seed
    worst    the table's row with the largest mape over all regimes: the headline
    """

    table: pd.DataFrame
    points: pd.DataFrame
    split: str

    @property
    def worst(self) -> pd.Series:
        return self.table[self.table["regime"] == "all"].sort_values("mape").iloc[-1]


def validate(measurements, split: str = "family", *, device: str | None = None, seeds: Sequence[int] = (0,), folds: int = 5, starts: int = 2) -> Validation:
    """Errors on rows that the fit never saw.

    measurements   path or DataFrame in the uniform schema
    split          "family" | "head_dim" | "sizes" | "random" | "every_fourth": refit on the training part, judge on the rest;
                   "gpu": constants of another GPU with the same operator, format and engine, datasheet figures of this one;
                   "shipped": the constants in the package as they are, every row (held-out only for rows nobody fitted)
    device         only rows of this preset; None = all
    Raises MeasurementError for an unknown split or device, or a table the split cannot divide.
    """
    if split not in SPLITS:
        raise MeasurementError(f"split {split!r} is not known; use one of {', '.join(SPLITS)}")
    frame = read_measurements(measurements)
    known = list_devices()["name"].tolist()
    frame["device"] = frame["device"].map({name: resolve_device(name, known) for name in frame["device"].unique()})
    frame = frame[frame["device"].notna() if device is None else frame["device"] == load_device(device).name].reset_index(drop=True)
    if frame.empty:
        raise MeasurementError(f"no rows of a known device{f' {device!r}' if device else ''} in this table")
    if split == "shipped":
        points = _shipped(frame)
    elif split == "gpu":
        points = _other_gpu(_all_cases(frame), starts)
    else:
        points = _refitted(_all_cases(frame), split, seeds, folds, starts)
    if points.empty:
        raise MeasurementError(f"nothing to judge with split {split!r} in a table of kind {frame['kind'].iloc[0]!r}")
    return Validation(error_table(points), points, split)


def error_table(points: pd.DataFrame, draws: int = 400) -> pd.DataFrame:
    """Errors of the held-out points per group and regime, with bootstrap intervals over families."""
    rows = []
    held = points[points["held_out"] & points["predicted_us"].notna()]
    for key, part in held.groupby(GROUP, sort=True):
        for regime in ("all", *[r for r in REGIMES if (part["regime"] == r).any()]):
            chosen = part if regime == "all" else part[part["regime"] == regime]
            log = np.log(chosen["predicted_us"] / chosen["measured_us"]).to_numpy()
            low, high = _interval(np.abs(np.expm1(log)), chosen["family"].to_numpy(), draws)
            by_seed = [np.abs(np.expm1(log[(chosen["seed"] == s).to_numpy()])).mean() for s in chosen["seed"].unique()]
            rows.append({**dict(zip(GROUP, key, strict=True)), "regime": regime, "n": len(chosen) // max(chosen["seed"].nunique(), 1),
                         "families": chosen["family"].nunique(), **summary(log), "low": low, "high": high,
                         "seed_sd": float(np.std(by_seed)) if len(by_seed) > 1 else np.nan})
    return pd.DataFrame(rows, columns=[*GROUP, "regime", "n", "families", "mape", "low", "high", "median", "bias", "p90", "seed_sd"])


def regime(rows: pd.DataFrame, case: Case | None) -> np.ndarray:
    """launch | memory | balanced | compute from datasheet times alone; `network` for collectives."""
    if case is None or case.op in COLLECTIVES or case.op in MEASURED_BYTES:
        return np.full(len(rows), "network" if case is not None else "step")
    if case.op == FIT_OP:
        return np.full(len(rows), "balanced")
    if case.op == "elementwise":
        return np.where(rows["moved"] / (case.device.hbm_bytes_per_s * 1e-6) < LAUNCH_US, "launch", "memory")
    compute, memory = _ideal_us(rows, case)
    bound = np.where(memory >= 2 * compute, "memory", np.where(compute >= 2 * memory, "compute", "balanced"))
    return np.where(np.maximum(compute, memory) < LAUNCH_US, "launch", bound)


def _ideal_us(rows: pd.DataFrame, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(arithmetic, traffic) of every row at datasheet rates [us]."""
    device = case.device
    get = lambda name: rows[name].to_numpy(float)  # noqa: E731
    if case.op == "gemm":
        from roofkit.evidence.cases import GEMM_FORMATS
        fmt = GEMM_FORMATS[case.format]
        m, n, k = get("m"), get("n"), get("k")
        flops, moved, math = 2 * m * n * k, n * k * fmt.weight_bytes_per_el + m * (k * fmt.act_bytes_per_el + 2 * n), fmt.math
    elif case.op == "moe":
        from roofkit.evidence.cases import GEMM_FORMATS
        fmt, mats = GEMM_FORMATS[case.format], 2 if case.cls == "nongated" else 3
        pairs, local = get("tokens") * get("topk") / get("ep"), get("experts") / get("ep")
        width = mats * get("hidden") * get("inter") / get("tp")
        flops, math = 2 * pairs * width, fmt.math
        moved = np.minimum(local, pairs) * width * fmt.weight_bytes_per_el + pairs * get("hidden") * 4
    else:
        latent = case.op.startswith("mla")
        q, kv, heads = get("q_len"), get("kv_len"), get("heads")
        limit = np.where(get("window") > 0, get("window"), np.inf) if "window" in rows else np.inf
        qk, v = (576, 512) if case.op == "mla_decode" else (192, 128) if latent else (get("head_dim"), get("head_dim"))
        cached = (1, 576) if case.op == "mla_decode" else (heads, 320) if latent else (get("kv_heads"), 2 * get("head_dim"))
        decode = case.op.endswith("decode")
        reach = np.minimum(kv, limit)
        pairs = reach if decode else q * reach - reach**2 / 2
        math = case.format.split("/")[0] if not decode else "bf16"
        flops = 2 * get("batch") * heads * pairs * (qk + v)
        moved = get("batch") * (reach if decode else kv) * cached[0] * cached[1] * (1 if case.format.endswith("fp8") else 2) + 2 * get("batch") * q * heads * (qk + v)
    return flops / (device.peak_flops_per_s(math) * 1e-6), moved / (device.hbm_bytes_per_s * 1e-6)


def _all_cases(frame: pd.DataFrame) -> list[Case]:
    return [case for name, rows in frame.groupby("device") for case in fitted_cases(rows, load_device(name)) if len(case.rows) >= 3 * len(case.parameters)]


def _points(case: Case, split: str, held_out: str, predicted_s: np.ndarray, test: np.ndarray, seed: int) -> pd.DataFrame:
    rows = case.rows
    head = {"device": case.device.name, "op": case.op, "class": case.cls, "format": case.format, "stack": case.stack, "split": split, "what": held_out, "seed": seed}
    return pd.DataFrame({**head, "family": families(rows).to_numpy(), "regime": regime(rows, case), "measured_us": rows.time_us.to_numpy(),
                         "predicted_us": predicted_s * 1e6, "held_out": test, "row": rows.index})


def _refitted(all_cases: list[Case], split: str, seeds: Sequence[int], folds: int, starts: int) -> pd.DataFrame:
    out = []
    for case in all_cases:
        rule = "sizes" if split == "family" and case.op in COLLECTIVES else split
        for seed in seeds if rule in ("family", "random") else seeds[:1]:
            predicted, test = np.full(len(case.rows), np.nan), np.zeros(len(case.rows), bool)
            try:
                parts = list(splits(case.rows, rule, folds=folds, seed=seed))
            except MeasurementError:
                continue  # one head width, one size: nothing to leave out in this class
            for part in parts:
                found = case.fit(case.rows[part.train], starts=starts, seed=seed)
                chosen = part.test if len(parts) > 1 else np.ones(len(case.rows), bool)
                predicted[chosen] = case.bound_form(case.rows[chosen]).seconds(found.constants)
                test |= part.test
            out.append(_points(case, rule, split, predicted, test, seed))
    return pd.concat(out, ignore_index=True) if out else pd.DataFrame()


def _other_gpu(all_cases: list[Case], starts: int, found: dict | None = None) -> pd.DataFrame:
    """Every case with the constants of the nearest other device: same operator, class, format, engine, fast links or none."""
    found = found or {id(case): case.fit(case.rows, starts=starts).constants for case in all_cases}
    out = []
    for case in all_cases:
        for donor in all_cases:
            if donor is not _donor(case, all_cases):
                continue
            constants = {**{p.name: p.start for p in case.parameters}, **_taken(case, donor, found[id(donor)])}
            predicted = case.bound_form(case.rows).seconds({k: v for k, v in constants.items() if k in {p.name for p in case.parameters}})
            out.append(_points(case, "gpu", f"constants of {donor.device.name}", predicted, np.ones(len(case.rows), bool), 0))
    return pd.concat(out, ignore_index=True) if out else pd.DataFrame()


def _taken(case: Case, donor: Case, constants: dict) -> dict:
    """The donor's constants as this device takes them: by the rule of siblings."""
    return carried(constants, figures(donor.device), figures(case.device)) if case.op in OF_THE_DIE else constants


def _donor(case: Case, all_cases: list[Case]) -> Case | None:
    """The case of another device with the same operator, class, format, engine and kind of link whose peak is nearest; None without one."""
    def same(other: Case) -> bool:
        return (other.op, other.cls, other.format, engine_of(other.stack)) == (case.op, case.cls, case.format, engine_of(case.stack)) \
            and other.device.name != case.device.name and fast(other) == fast(case) and ("custom" in other.stack) == ("custom" in case.stack)

    def fast(some: Case) -> bool:
        return (some.device.value("scaleup_bandwidth_per_direction") or 0.0) > NVLINK_BYTES_PER_S

    return min(filter(same, all_cases), key=lambda o: abs(np.log(o.device.peak_flops_per_s() / case.device.peak_flops_per_s())), default=None)


def _shipped(frame: pd.DataFrame) -> pd.DataFrame:
    """Points of the shipped constants; one class per kind, since nothing is refitted. Steps: milliseconds stand in the *_us columns x 1000."""
    priced = predict(frame)
    kind = frame["kind"].iloc[0]
    target = TARGET.get(kind, "time_us")
    scale = 1e3 if target.endswith("_ms") else 1.0
    predicted = priced["predicted_ms"] if target.endswith("_ms") else priced["predicted_us"]
    label = lambda *names: next((priced[n].astype(str) for n in names if n in priced), pd.Series("", index=priced.index))  # noqa: E731
    op = priced["phase"].radd(f"{kind}_") if "phase" in priced else label("op") if kind in ("collective", "elementwise") else pd.Series(kind, index=priced.index)
    fmt = label("dtype", "precision") if "precision" not in priced else priced["precision"].astype(object).fillna("bf16")
    if "kv_dtype" in priced:
        fmt = fmt + "/" + priced["kv_dtype"]
    stack = label("algo", "engine", "source").str.rsplit(":", n=1).str[-1]
    cls = label("kernel", "model", "layer")
    out = pd.DataFrame({"device": priced["device"], "op": op, "class": cls, "format": fmt, "stack": stack, "split": "shipped", "what": priced["calibration"], "seed": 0,
                        "family": families(priced).to_numpy(), "regime": "step" if scale > 1 else _regimes_by_case(frame), "measured_us": priced[target] * scale,
                        "predicted_us": predicted * scale, "held_out": True, "row": priced.index})
    if kind != "serving":
        return out
    first = out.assign(op="serving_ttft", measured_us=priced["ttft_ms"] * 1e3, predicted_us=priced["predicted_ttft_ms"] * 1e3)
    return pd.concat([out, first], ignore_index=True)


def _regimes_by_case(frame: pd.DataFrame) -> np.ndarray:
    out = np.full(len(frame), "balanced", object)
    if frame["kind"].iloc[0] == "collective":
        return np.full(len(frame), "network", object)
    try:
        for name, rows in frame.groupby("device"):
            for case in cases(rows, load_device(name)):
                out[frame.index.get_indexer(case.rows.index)] = regime(case.rows, case)
    except MeasurementError:
        pass  # kinds without a fitted form of their own have no regimes
    return out


def _interval(error: np.ndarray, family: np.ndarray, draws: int) -> tuple[float, float]:
    """95 % bootstrap interval of the mean error, whole families drawn."""
    _, index = np.unique(family, return_inverse=True)
    total, count = np.bincount(index, error), np.bincount(index)
    if len(count) < 2:
        return np.nan, np.nan
    pick = np.random.default_rng(0).integers(0, len(count), (draws, len(count)))
    means = total[pick].sum(axis=1) / count[pick].sum(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))
