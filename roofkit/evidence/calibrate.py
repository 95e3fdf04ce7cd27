"""Calibrate: constants of a device's closed forms from measured rows, with standard errors and held-out errors. Room: evidence.

Robust least squares on log time (fit.py) on the training families only; the held-out families judge it. `refit_all`
makes every shipped file again: constants from all shared rows, errors from five-fold cross-validation by shape family.
Needs scipy (the `calibrate` extra).
"""
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.cost import calibration as book
from roofkit.errors import MeasurementError
from roofkit.evidence.cases import Case
from roofkit.evidence.fit import Fit
from roofkit.evidence.fitted_cases import fitted_cases
from roofkit.evidence.measurements import read_measurements, resolve_device
from roofkit.evidence.splits import Split, families, splits
from roofkit.hardware.device import Device
from roofkit.hardware.presets import list_devices, load_device

FITTED_KINDS = ("gemm", "attention", "mla", "moe", "collective", "elementwise", "layer", "mixed_attention", "moe_all2all")
KEY = ("device", "op", "class", "format", "stack")
LEAST_ROWS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Constants of one device.

    device      preset name
    fits        roofkit.cost.calibration.Fit, one per operator, kernel class, format and stack, with its held-out error
    constants   one row each: op, class, format, stack, form, constant, value, error (standard), unit, at_bound
    errors      one row per fit: n rows fitted, n_held_out, mape, median, bias, p90 on held-out families [0..1]
    source      which measurements;  skipped   what could not be fitted and why
    """

    device: str
    fits: tuple[book.Fit, ...]
    constants: pd.DataFrame
    errors: pd.DataFrame
    source: str
    skipped: tuple[str, ...] = ()

    def write(self, path, *, date: str | None = None) -> Path:
        """Write a calibration file in the layout of data/roofkit_data/calibration; returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        book.write_fits(path, self.fits, self.source, date or datetime.date.today().strftime("%Y-%m"), _COMMENT, ceilings=ceilings(load_device(self.device)))
        return path


_COMMENT = """Constants of the closed forms in roofkit/cost, units in roofkit/cost/calibration.py, fitted by roofkit.evidence.calibrate.
mape, median: errors [0..1] on shapes of families the fit never saw. Timed on an idle GPU; standard errors: rk.calibrate(...).constants."""


def calibrate(measurements, device: Device | str | None = None, *, starts: int = 4, seed: int = 0, folds: int = 5, source: str | None = None,
              train: str = "split") -> Calibration:
    """Fit every form that the rows of a device can constrain.

    measurements   path or DataFrame in the uniform schema, or several of them (one kind each)
    device         preset, its name, or None when the rows are of one device only; rows of other devices are ignored
    train          "split": one of `folds` folds of shape families is held out, constants come from the others and the errors from
                   the one;  "all": constants from all rows, errors from cross-validation over all folds
    Raises MeasurementError for rows of several or unknown devices, too few rows, unknown kinds, or missing scipy.
    """
    if train not in ("split", "all"):
        raise MeasurementError(f"train={train!r} is not known; use 'split' or 'all'")
    frames = [read_measurements(m) for m in (measurements if isinstance(measurements, list | tuple) else [measurements])]
    target = _target(frames, device)
    fits, constants, errors, skipped = [], [], [], []
    for frame in frames:
        rows = frame[frame["device"].map(lambda name: resolve_device(name, [target.name]) is not None)]
        if rows.empty:
            continue
        for case in fitted_cases(rows, target):
            if len(case.rows) < max(LEAST_ROWS, 2 * len(case.parameters)):
                skipped.append(f"{case.label()}: {len(case.rows)} rows are too few for {len(case.parameters)} constants")
                continue
            found, held_out = _fit_case(case, starts, seed, folds, train)
            fits.append(_entry(case, found, held_out))
            constants += _constant_rows(case, found)
            errors.append({**dict(zip(KEY, _key(case), strict=True)), "form": case.form, "n": found.n, "n_held_out": len(held_out), **summary(held_out)})
    if not fits:
        raise MeasurementError(f"no row of {target.name} could be fitted" + (": " + "; ".join(skipped) if skipped else ""))
    said = source or "fit to rows tagged " + ", ".join(sorted({str(s) for f in frames if "source" in f for s in f["source"].unique()})[:6])
    return Calibration(target.name, tuple(fits), pd.DataFrame(constants), pd.DataFrame(errors), said, tuple(skipped))


def summary(ratio_log: np.ndarray) -> dict[str, float]:
    """mape, median, bias, p90 [0..1] of log(predicted / measured)."""
    error = np.abs(np.expm1(ratio_log))
    if not len(error):
        return dict.fromkeys(("mape", "median", "bias", "p90"), np.nan)
    return {"mape": float(error.mean()), "median": float(np.median(error)), "bias": float(np.expm1(np.median(ratio_log))), "p90": float(np.quantile(error, 0.9))}


def held_out_ratio(case: Case, split: Split, *, starts: int, seed: int = 0) -> np.ndarray:
    """log(predicted / measured) on the split's test rows after a fit on its training rows."""
    found = case.fit(case.rows[split.train], starts=starts, seed=seed)
    test = case.rows[split.test]
    return np.log(case.bound_form(test).seconds(found.constants) / (test.time_us.to_numpy() * 1e-6))


def case_splits(case: Case, folds: int, seed: int) -> Iterable[Split]:
    """Folds of shape families; alternate sizes for collectives, whose families are sizes."""
    if case.divide is not None:
        return case.divide(case, folds, seed)
    return splits(case.rows, "sizes" if case.op in COLLECTIVES else "family", folds=folds, seed=seed)


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def ceilings(device: Device) -> dict[str, float]:
    """Datasheet figures that the constants are fractions of, for the record; 0 where the preset has none."""
    peaks = {f"{math}_t": device.peak_flops_per_s(math) / 1e12 for math in ("bf16", "fp8", "fp4", "int8") if device.has_math(math)}
    names = {"bf16_t": "bf16_tflops", "fp8_t": "fp8_tflops", "fp4_t": "fp4_tflops", "int8_t": "int8_tops"}
    link = device.value("scaleup_bandwidth_per_direction") or device.value("pcie_bandwidth_per_direction") or 0.0
    rest = {"memory_gb_s": device.hbm_bytes_per_s / 1e9, "sms": device.sm_count, "l2_mb": device.l2_bytes / 1e6, "clock_mhz": device.clock_hz / 1e6,
            "link_gb_s": link / 1e9}
    return {**{names[k]: v for k, v in peaks.items()}, **rest}


def _fit_case(case: Case, starts: int, seed: int, folds: int, train: str) -> tuple[Fit, np.ndarray]:
    parts = list(case_splits(case, folds, seed))
    if train == "split":
        found = case.fit(case.rows[parts[0].train], families=families(case.rows[parts[0].train]).to_numpy(), starts=starts, seed=seed)
        test = case.rows[parts[0].test]
        return found, np.log(case.bound_form(test).seconds(found.constants) / (test.time_us.to_numpy() * 1e-6))
    found = case.fit(case.rows, families=families(case.rows).to_numpy(), starts=starts, seed=seed)
    return found, np.concatenate([held_out_ratio(case, part, starts=2, seed=seed) for part in parts])


def _key(case: Case) -> tuple[str, ...]:
    return case.device.name, case.op, case.cls, case.format, case.stack


def _entry(case: Case, found: Fit, held_out: np.ndarray) -> book.Fit:
    error = summary(held_out)
    constants = {k: float(f"{v:.6g}") for k, v in found.constants.items()}
    return book.Fit(case.op, case.format, case.stack, case.form, constants, case.cls, dict(case.kernel), len(case.rows), round(error["mape"], 4),
                    round(error["median"], 4))


def _constant_rows(case: Case, found: Fit) -> list[dict]:
    units = {p.name: p.unit for p in case.parameters}
    head = dict(zip(KEY, _key(case), strict=True))
    return [{**head, "form": case.form, "constant": k, "value": v, "error": found.errors[k], "unit": units[k], "at_bound": k in found.at_bound}
            for k, v in found.constants.items()]


def _target(frames: list[pd.DataFrame], device: Device | str | None) -> Device:
    if isinstance(device, Device):
        return device
    if device is not None:
        return load_device(device)
    names = sorted({name for frame in frames for name in frame["device"].unique()})
    if len(names) != 1:
        raise MeasurementError(f"rows of {len(names)} devices ({', '.join(names[:6])}); say which with device=")
    preset = resolve_device(names[0], list_devices()["name"].tolist())
    if preset is None:
        raise MeasurementError(f"no device preset for {names[0]!r}; add one under data/roofkit_data/hardware or give device=")
    return load_device(preset)
