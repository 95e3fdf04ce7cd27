"""Refit: every shipped constant and every shipped error, made again from the shared measurements. Room: evidence.

    python -m roofkit.evidence.refit MEASURED_DIR OUT_DIR [--seeds 5]

Constants come from all rows of MEASURED_DIR; errors from cross-validation by shape family over several seeds, plus an
unseen head width and an unseen GPU. What is already done is kept in OUT_DIR/cases/ and skipped when run again.
"""
import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.cost import calibration as book
from roofkit.errors import DataError, MeasurementError
from roofkit.evidence import domains
from roofkit.evidence.calibrate import _COMMENT, ceilings
from roofkit.evidence.cases import Case, cases
from roofkit.evidence.eager_fit import refit_eager
from roofkit.evidence.energy_rows import refit_energy
from roofkit.evidence.measurements import device_name, read_measurements, resolve_device
from roofkit.evidence.power import fit_power, write_power
from roofkit.evidence.refit_parts import refit_parts, write_parts
from roofkit.evidence.residual_refit import write_residuals
from roofkit.evidence.rows import check_rows
from roofkit.evidence.splits import families
from roofkit.evidence.serving import bound_ms
from roofkit.evidence.serving_fit import refit_serving
from roofkit.evidence.validate import GROUP, Validation, _other_gpu, _refitted, error_table, validate
from roofkit.hardware.presets import list_devices, load_device

TABLES = ("gemm_a100-sxm-80gb", "gemm_h100-sxm", "gemm_b200-sxm", "gemm_l40s", "gemm_rtx-pro-6000", "attention_decode", "attention_prefill",
          "attention_mla", "moe", "collectives")
SOURCE = "fit to AIConfigurator collector tables, github ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA)"
END_TO_END = ("layer_profile", "e2e_steps", "serving_points")
POWER, LOAD, STEPS = "gemm_power.csv", "serving_points.csv", "e2e_steps.csv"
EACH = 18  # points of a kernel class that ship
SERVED_ENERGY = "energy_mlenergy.csv"
POWER_SOURCE = ("fit to board power of AIConfigurator GEMM loops on B200 (TensorRT-LLM 1.3.0rc15), github ai-dynamo/aiconfigurator @ 095f58a5 "
                "(Apache-2.0, NVIDIA)")
SHIPPED = ["device", "op", "class", "format", "stack", "split", "regime", "n", "families", "mape", "low", "high", "median", "bias", "p90", "seed_sd", "date"]


def refit_all(measured_dir, out_dir, *, seeds: int = 5, date: str = "2026-11", progress: Callable[[str], None] = print) -> pd.DataFrame:
    """Fit every case, judge it, and write OUT_DIR/calibration/<device>.toml, OUT_DIR/evidence/validation.csv and domains.csv.

    Returns the validation table. Passes, mixed launches and the expert exchange: roofkit.evidence.refit_parts.
    Raises MeasurementError for a missing table or missing scipy.
    """
    measured_dir, out_dir = Path(measured_dir), Path(out_dir)
    (out_dir / "cases").mkdir(parents=True, exist_ok=True)
    everything = [case for name in TABLES for case in _cases_of(measured_dir / f"{name}.csv")]
    results = []
    for number, case in enumerate(everything):
        done = _cached(case, out_dir / "cases", seeds)
        results.append(done)
        progress(f"{number + 1}/{len(everything)} {case.label()}: {100 * done['errors'][0]['mape']:.1f} %")
    points = [pd.DataFrame(r["points"]) for r in results if r["points"]]
    shipped = _shipped_errors(measured_dir)
    parts = [pd.DataFrame(e for r in results for e in r["errors"]), _gpu_errors(everything, results), *(v.table for v in shipped.values())]
    small, errors = refit_parts(measured_dir, out_dir / "cases", progress=progress)
    parts.append(errors)
    if (measured_dir / POWER).is_file():
        parts.append(_energy(measured_dir / POWER, out_dir / "energy", date))
    if (measured_dir / SERVED_ENERGY).is_file():
        parts.append(refit_energy(measured_dir / SERVED_ENERGY, out_dir / "energy", date=date))
    if (measured_dir / STEPS).is_file():
        parts.append(_eager(measured_dir / STEPS, out_dir / "calibration", date))
    if (measured_dir / LOAD).is_file():
        parts.append(refit_serving(measured_dir / LOAD, out_dir, date=date, progress=progress))
    table = pd.concat(parts, ignore_index=True).assign(date=date)
    evidence = out_dir / "evidence"
    evidence.mkdir(exist_ok=True)
    table.reindex(columns=SHIPPED).to_csv(evidence / "validation.csv", index=False, float_format="%.4g")
    pd.concat(points).to_csv(out_dir / "points.csv", index=False, float_format="%.5g")
    _thin_points(points, out_dir / "serving_points.csv").to_csv(evidence / "points.csv", index=False, float_format="%.4g")
    pd.concat([domains.ranges(_known_devices(read_measurements(measured_dir / f"{name}.csv"))) for name in TABLES]).to_csv(
        evidence / "domains.csv", index=False, float_format="%.6g")
    served = shipped["serving_points"].points if "serving_points" in shipped else None
    write_residuals(measured_dir, everything, out_dir, seeds=seeds, date=date, served=served, progress=progress)
    for device in sorted({case.device.name for case in everything}):
        _write_device(device, [(c, r) for c, r in zip(everything, results, strict=True) if c.device.name == device], out_dir / "calibration", date)
    write_parts(small, out_dir / "calibration", date=date)
    return table


def _thin_points(points: list[pd.DataFrame], served: Path) -> pd.DataFrame:
    """At most EACH held-out points of every kernel class and of every group of load points, for pictures where no table is at hand."""
    parts = [part.drop(columns=["seed", "row"], errors="ignore") for part in points]
    if served.is_file():
        load = pd.read_csv(served)
        load = load[load["split"] == "group"].rename(columns={"preset": "device", "model": "class", "weights": "format", "engine": "stack"})
        family = [f"{r.isl} in, {r.osl} out, {r.concurrency:.0f} clients, tp {r.tp:.0f}" for r in load.itertuples()]
        parts += [load.assign(op=op, family=family, regime="step", measured_us=load[f"{name}_ms"] * 1e3, predicted_us=load[f"{name}_ms"] * 1e3 * np.exp(load[name]))
                  for op, name in (("serving", "tpot"), ("serving_ttft", "ttft"))]
    whole = pd.concat(parts, ignore_index=True)
    each = whole.groupby(GROUP, dropna=False)
    thin = whole[each.cumcount() % np.ceil(each["op"].transform("size") / EACH) == 0]
    return thin[[*GROUP, "family", "regime", "measured_us", "predicted_us"]].sort_values(GROUP, kind="stable")


def _known_devices(frame: pd.DataFrame) -> pd.DataFrame:
    known = list_devices()["name"].tolist()
    return frame.assign(device=frame["device"].map({name: resolve_device(name, known) for name in frame["device"].unique()}))


def _cases_of(path: Path) -> Iterator[Case]:
    frame = _known_devices(read_measurements(path))
    for name, rows in frame.groupby("device"):
        for case in cases(rows, load_device(name)):
            if len(case.rows) >= 3 * len(case.parameters) and not case.stack.endswith("-eager") and not case.stack.startswith("vidur"):
                yield case


def _cached(case: Case, folder: Path, seeds: int) -> dict:
    mark = hashlib.sha1(json.dumps([case.label(), case.form, seeds, len(case.rows), [(p.name, p.low, p.high) for p in case.parameters], sorted(case.kernel.items())]).encode()).hexdigest()[:16]
    path = folder / f"{mark}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    found = case.fit(case.rows, families=families(case.rows).to_numpy(), starts=4)
    parts = [_refitted([case], "family", range(seeds), 5, 2)]
    if "head_dim" in case.rows and case.rows["head_dim"].nunique() > 1:
        parts.append(_refitted([case], "head_dim", (0,), 5, 2))
    errors = pd.concat([error_table(p) for p in parts if len(p)], ignore_index=True)
    kept = parts[0][parts[0]["seed"] == 0]
    sample = kept.iloc[:: max(1, len(kept) // 150)]  # ratios of some points for pictures, without the third party's rows
    result = {"constants": found.constants, "std": found.errors, "at_bound": list(found.at_bound), "n": found.n, "errors": errors.replace({np.nan: None}).to_dict("records"),
              "points": sample.drop(columns=["what", "held_out"]).to_dict("records")}
    path.write_text(json.dumps(result, default=float), encoding="utf-8")
    return result


def _gpu_errors(everything: list[Case], results: list[dict]) -> pd.DataFrame:
    """Errors with another GPU's constants: no fit is needed again."""
    points = _other_gpu(everything, 0, found={id(c): r["constants"] for c, r in zip(everything, results, strict=True)})
    return error_table(points) if len(points) else pd.DataFrame(columns=[*GROUP])


def _shipped_errors(measured_dir: Path) -> dict[str, Validation]:
    """Errors of what the package ships by table, nothing refitted: layers, whole steps, load points."""
    out = {}
    for name in END_TO_END:
        path = measured_dir / f"{name}.csv"
        if path.is_file():
            rows = check_rows(path, bound_ms=bound_ms(_keep_all(path)))[0] if name == "serving_points" else path
            out[name] = validate(rows, split="shipped")
    return out


def _keep_all(path: Path) -> pd.DataFrame:
    """Every row, repeats too, with its device, so that positions stay those of the file."""
    raw = pd.read_csv(path)
    return raw.assign(device=raw["gpu"].map(device_name))


def _energy(path: Path, folder: Path, date: str) -> pd.DataFrame:
    """Fit energy constants, write their file, return rows of the validation table. Energy = power x measured time."""
    found, errors = fit_power(path)
    device = load_device("b200-sxm-180gb")
    write_power(folder / f"{device.name}.toml", found, errors, device, source=POWER_SOURCE, date=date)
    return pd.DataFrame([{"device": device.name, "op": "energy", "class": "gemm", "format": row.dtype, "stack": "trtllm-1.3.0rc15", "split": "family", "regime": "all",
                          "n": row.n, "mape": row.mape, "median": row.median, "bias": row.bias} for row in errors.itertuples()])


def _eager(path: Path, folder: Path, date: str) -> pd.DataFrame:
    """Fit steps of an engine without graphs, write their file, return rows of the validation table: another size of tensor parallelism."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = _known_devices(read_measurements(path))
    return refit_eager(rows[rows["device"].notna()], folder / "eager.toml", date=date)


def _write_device(device: str, done: list[tuple[Case, dict]], folder: Path, date: str) -> None:
    folder.mkdir(exist_ok=True)
    fresh = {}
    for case, result in done:
        error = result["errors"][0]
        fresh[(case.op, case.cls, case.format, case.stack)] = book.Fit(
            case.op, case.format, case.stack, case.form, {k: float(f"{v:.5g}") for k, v in result["constants"].items()}, case.cls, dict(case.kernel),
            result["n"], round(error["mape"], 4), round(error["median"], 4))
    ordered: list[book.Fit] = []
    for old in _shipped_fits(device):
        new = fresh.pop((old.op, old.cls, old.format, old.stack), None)
        if new is not None:
            ordered.append(new)
        elif old.op not in {c.op for c, _ in done} or old.op in ("elementwise",):
            ordered.append(old)
    book.write_fits(folder / f"{device}.toml", [*ordered, *fresh.values()], SOURCE, date, _COMMENT, ceilings=ceilings(load_device(device)))


def _shipped_fits(device: str) -> tuple[book.Fit, ...]:
    try:
        return book.read_fits(str(book._root() / f"{device}.toml"))
    except (OSError, DataError):
        return ()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roofkit.evidence.refit", description=__doc__.splitlines()[0])
    parser.add_argument("measured_dir")
    parser.add_argument("out_dir")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args(argv)
    try:
        table = refit_all(args.measured_dir, args.out_dir, seeds=args.seeds)
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    print(table[table["regime"] == "all"][["device", "op", "class", "format", "stack", "split", "n", "mape", "low", "high"]].round(3).to_string(index=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
