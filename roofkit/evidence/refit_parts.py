"""Refit of parts: passes, mixed launches and the expert exchange, fitted, judged and written. Room: evidence.

    python -m roofkit.evidence.refit_parts MEASURED_DIR OUT_DIR      only these parts, into a copy of the shipped files;
                                                                     roofkit.evidence.refit runs them with all others

Passes stand in the device files, each kernel class in every file of OUT_DIR/calibration: fitted where its device was measured (or
a sibling that has no file of its own), else inherited from the fitted device of the same maker whose memory bandwidth is nearest
(`donor`). Only blocks of op "elementwise" are replaced; fp32 rows and devices without a file are not shipped, `rk.calibrate` fits
them. Mixed launches and the exchange have a file each. Errors: every family left out once (passes widths, mixed launches model x TP,
exchange layers); alternate sizes of the exchange and of passes with one or two widths; hidden widths of the exchange. The stated
error of a fit is the worst, but with two widths that of sizes: left out, one width would be predicted from the other alone (the
validation table has both).
"""
import hashlib
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.cost import calibration as book
from roofkit.cost.mixed import FIT_OP
from roofkit.errors import MeasurementError
from roofkit.evidence import exchange_cases, pass_cases
from roofkit.evidence.cases import Case
from roofkit.evidence.fitted_cases import BUILDERS
from roofkit.evidence.measurements import read_measurements, resolve_device
from roofkit.evidence.splits import Split, families, splits
from roofkit.evidence.validate import error_table, regime
from roofkit.hardware.device import Device
from roofkit.hardware.presets import list_devices, load_device

TABLES = ("elementwise", "layer_profile", "attention_mixed_batch", "moe_all2all_deepep")
MOST_FOLDS = 13  # so many families are left out one by one
SOURCES = {  # stack -> source of a block
    "vidur": "fit to Vidur profiles, github microsoft/vidur @ 7d475133 (MIT, Microsoft)",
    "vllm-0.19": "fit to vLLM 0.19 layer profiles of the RTX PRO 6000 workstation card, github casys-kaist/LLMServingSim @ 5daddb21 (MIT)",
    "deepep-sglang-0.5.12": "fit to AIConfigurator collector tables (aic:deepep-sglang-0.5.12), github ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA)",
}
MIXED, EXCHANGE = "mixed.toml", "expert_exchange.toml"
COMMENTS = {
    MIXED: """Constants of one attention launch that holds prefill chunks and decodes: roofkit/cost/mixed.py.
mape, median: errors [0..1] on models and TP sizes the fit never saw. Refit: make refit (roofkit.evidence.refit_parts).""",
    EXCHANGE: """Constants of dispatch and combine inside one machine: roofkit/cost/expert_exchange.py. class = device/mode.
mape, median: errors [0..1] of what pricing uses (low latency up to 256 tokens per rank, normal on 20 SMs beyond), the worst of
left-out layers, left-out hidden widths and every other token count. Refit: make refit (roofkit.evidence.refit_parts).""",
}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A fitted case: its block of a calibration file, its rows of the validation table."""

    device: Device
    fit: book.Fit
    errors: pd.DataFrame


def refit_parts(measured_dir, cache_dir, *, progress: Callable[[str], None] = print) -> tuple[list[Part], pd.DataFrame]:
    """Fit and judge every case of the tables that are there; what is done is kept in `cache_dir` and read from it again.

    Returns the parts and rows of the validation table: op `elementwise` of devices whose constants ship, `mixed_attention`,
    `dispatch`, `combine`; split "family", "sizes", "width" (hidden width), "gpu" (passes: constants as `donor` inherits them).
    """
    everything = [case for name in TABLES for case in _cases_of(Path(measured_dir) / f"{name}.csv")]
    parts = [_fitted(case, Path(cache_dir)) for case in everything]
    for part in parts:
        progress(f"{part.device.name} {part.fit.op} {part.fit.cls} {part.fit.format}: {100 * part.fit.mape:.1f} %")
    errors = [part.errors for part in parts] + [_from_donors(everything, parts)]
    return parts, pd.concat([e for e in errors if len(e)], ignore_index=True) if parts else pd.DataFrame()


def write_parts(parts: list[Part], folder, *, date: str) -> list[Path]:
    """Write mixed.toml and expert_exchange.toml and the pass blocks of every device file that `folder` holds; returns what was written."""
    folder, written = Path(folder), []
    for name, ops in ((MIXED, (FIT_OP,)), (EXCHANGE, tuple(exchange_cases.MEASURED_BYTES))):
        fits = sorted((p.fit for p in parts if p.fit.op in ops), key=lambda f: (f.cls, f.op))
        if fits:
            book.write_fits(folder / name, [replace(f, source="") for f in fits], fits[0].source, date, COMMENTS[name])
            written.append(folder / name)
    known, passes = list_devices()["name"].tolist(), [p for p in parts if p.fit.op == "elementwise"]
    for path in sorted(folder.glob("*.toml")) if passes else ():
        if path.stem in known:
            replace_blocks(path, "elementwise", pass_fits(load_device(path.stem), passes))
            written.append(path)
    return written


def pass_fits(device: Device, passes: list[Part]) -> list[book.Fit]:
    """Blocks of a device's file: every kernel class known anywhere, fitted or inherited."""
    out = []
    for cls in sorted({p.fit.cls for p in passes}):
        own = next((p for p in passes if p.fit.cls == cls and _home(p.device) == device.name), None)
        given = None if own else donor(device, [p for p in passes if p.fit.cls == cls])
        if own:
            out.append(own.fit)
        elif given:
            out.append(replace(given.fit, kind="inherited", source=f"{given.fit.source}; constants of {given.device.label}"))
    return out


def donor(device: Device, passes: Iterable[Part]) -> Part | None:
    """Whose constants a pass takes where it was not measured: of the same maker, nearest in memory bandwidth, since that is what it uses."""
    others = [p for p in passes if p.device.maker == device.maker and _home(p.device) != _home(device)]
    return min(others, key=lambda p: abs(np.log(p.device.hbm_bytes_per_s / device.hbm_bytes_per_s)), default=None)


def replace_blocks(path: Path, op: str, fits: list[book.Fit]) -> None:
    """Replace the blocks of one operator in a calibration file; every other line stays as it is."""
    head, *blocks = path.read_text(encoding="utf-8").rstrip("\n").split("\n[[fit]]\n")
    mine = [bool((found := book._OP.search(block)) and found[1] == op) for block in blocks]
    shared = tomllib.loads(head)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "blocks.toml"
        book.write_fits(made, fits, shared["source"], shared["date"], kind=shared.get("kind", "fitted"))
        fresh = made.read_text(encoding="utf-8").rstrip("\n").split("\n[[fit]]\n")[1:]
    at = mine.index(True) if True in mine else len(blocks)
    kept = [block.rstrip("\n") for block, is_mine in zip(blocks, mine, strict=True) if not is_mine]
    kept[at:at] = [block.rstrip("\n") for block in fresh]
    path.write_text("\n\n[[fit]]\n".join([head.rstrip("\n"), *kept]) + "\n", encoding="utf-8")


def _cases_of(path: Path) -> Iterator[Case]:
    """Cases whose constants ship: 16-bit rows of devices with a file of their own or of a sibling."""
    if not path.is_file():
        return
    frame, known = read_measurements(path), list_devices()["name"].tolist()
    for name, rows in frame.groupby("device"):
        preset = resolve_device(name, known)
        if preset is None:
            continue
        device = load_device(preset)
        for case in BUILDERS[frame["kind"].iloc[0]](rows, device):
            if case.format != "fp32" and (case.op != "elementwise" or book._book(_home(device))):
                yield case


def _home(device: Device) -> str:
    """Device whose calibration file holds the constants fitted on `device`."""
    return device.name if book._book(device.name) else book._siblings().get(device.name, device.name)


def _fitted(case: Case, folder: Path) -> Part:
    rows = [len(case.rows), float(case.rows["time_us"].sum())]
    said = [case.label(), case.form, rows, [(p.name, p.low, p.high) for p in case.parameters], sorted(case.kernel.items())]
    path = folder / f"part-{hashlib.sha1(json.dumps(said).encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        found = case.fit(case.rows, families=families(case.rows).to_numpy(), starts=4, most=len(case.rows))
        errors = error_table(_judged(case)).replace({np.nan: None})
        path.write_text(json.dumps({"constants": found.constants, "errors": errors.to_dict("records")}, default=float), encoding="utf-8")
    done = json.loads(path.read_text(encoding="utf-8"))
    errors = pd.DataFrame(done["errors"])
    errors = errors.astype(dict.fromkeys(errors.columns[errors.columns.get_loc("n"):], float))
    stated = errors[errors["regime"] == "all"]
    if case.op == "elementwise":
        stated = stated[stated["split"] == pass_cases.rule_of(case)]
    worst = stated.sort_values("mape").iloc[-1]
    fit = book.Fit(case.op, case.format, case.stack, case.form, {k: float(f"{v:.6g}") for k, v in done["constants"].items()}, case.cls,
                   dict(case.kernel), len(case.rows), round(worst["mape"], 4), round(worst["median"], 4), source=SOURCES.get(case.stack, case.stack))
    return Part(case.device, fit, errors)


def _judged(case: Case) -> pd.DataFrame:
    """Points of every way of holding out, in the columns of roofkit.evidence.validate."""
    count = families(case.rows).nunique()
    folds = count if count <= MOST_FOLDS else 5
    if case.op in exchange_cases.MEASURED_BYTES:
        ways = {rule: list(exchange_cases.divide(case, folds, 0, rule)) for rule in ("family", "sizes", "width")}
    else:
        ways = {} if count < 2 else {"family": list(splits(case.rows, "family", folds=folds))}
        if case.op == "elementwise" and count < 3:
            ways["sizes"] = list(splits(case.rows, "sizes"))
    return pd.concat([_points(case, rule, *_held_out(case, parts)) for rule, parts in ways.items()], ignore_index=True)


def _held_out(case: Case, parts: list[Split]) -> tuple[np.ndarray, np.ndarray]:
    """(predicted [s], judged) of every row: each by the fit to the other families."""
    predicted, judged = np.full(len(case.rows), np.nan), np.zeros(len(case.rows), bool)
    for part in parts:
        found = case.fit(case.rows[part.train], starts=2)
        predicted[part.test] = case.bound_form(case.rows[part.test]).seconds(found.constants)
        judged |= part.test
    return predicted, judged


def _points(case: Case, split: str, predicted_s: np.ndarray, judged: np.ndarray) -> pd.DataFrame:
    mixed, exchange = case.op == FIT_OP, case.op in exchange_cases.MEASURED_BYTES
    cls = exchange_cases.mode_of(case) if exchange else case.cls
    return pd.DataFrame({"device": case.device.name, "op": "mixed_attention" if mixed else case.op, "class": cls, "format": case.format, "stack": case.stack,
                         "split": split, "seed": 0, "family": families(case.rows).to_numpy(), "regime": regime(case.rows, case), "measured_us": case.rows["time_us"].to_numpy(),
                         "predicted_us": predicted_s * 1e6, "held_out": judged})


def _from_donors(everything: list[Case], parts: list[Part]) -> pd.DataFrame:
    """Passes with the constants that `donor` would give their device, had it not been measured: those of the same stack, other GPU."""
    out = []
    for case in everything:
        same = [p for p in parts if p.fit.op == "elementwise" and (p.fit.cls, p.fit.stack) == (case.cls, case.stack)]
        given = donor(case.device, same) if case.op == "elementwise" else None
        if given:
            predicted = replace(case, kernel=given.fit.kernel).bound_form(case.rows).seconds(given.fit.constants)
            out.append(_points(case, "gpu", predicted, np.ones(len(case.rows), bool)))
    return error_table(pd.concat(out, ignore_index=True)) if out else pd.DataFrame()


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    if len(args) != 2:
        print("usage: python -m roofkit.evidence.refit_parts MEASURED_DIR OUT_DIR", file=sys.stderr)
        return 2
    try:
        parts, table = refit_parts(args[0], Path(args[1]) / "cases")
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    folder = Path(args[1]) / "calibration"
    if not folder.is_dir():
        shutil.copytree(str(book._root()), folder)
    written = write_parts(parts, folder, date="2026-11")
    print(table[table["regime"] == "all"].drop(columns=["regime", "seed_sd"]).round(3).to_string(index=False))
    print("written: " + ", ".join(str(path) for path in written))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
