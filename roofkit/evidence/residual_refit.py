"""Residual tables made again: data/roofkit_data/evidence/residual.csv and residual_thresholds.csv from the measured tables. Room: evidence.

refit.py calls `write_residuals`. Operators: the cases of CASES, whole shape families up to MOST rows; what is already done is kept in
OUT_DIR/cases/ and skipped when run again, since nothing in it depends on the shipped constants. Blocks and steps rest on the
shipped constants and are judged anew each time.
"""
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.evidence.cases import Case
from roofkit.evidence.residual import TABLE, summarise
from roofkit.evidence.residual_levels import bench_points, benches
from roofkit.evidence.residual_operators import residual_points
from roofkit.evidence.residual_regimes import SENSITIVITY, sensitivity_table

MOST = 1500  # rows of a case
CASES = (  # op, class, format, devices: each kind of operator, products on GPUs of four kinds
    ("gemm", "", "bf16", ("a100-sxm-80gb", "b200-sxm-180gb", "h100-sxm-80gb", "l40s")), ("attention_decode", "group2-7", "bf16", ("h100-sxm-80gb",)),
    ("attention_decode", "group2-7", "fp8", ("l40s",)), ("attention_prefill", "", "bf16/bf16", ("h100-sxm-80gb",)), ("moe", "cutlass", "bf16", ("h100-sxm-80gb",)),
    ("moe", "cutlass", "fp8_block", ("h100-sxm-80gb",)),
)


def write_residuals(measured_dir, everything: Sequence[Case], out_dir, *, seeds: int = 5, date: str = "2026-11", served: pd.DataFrame | None = None,
                    progress: Callable[[str], None] = print) -> pd.DataFrame:
    """Judge the residual at every level, write OUT_DIR/evidence/residual.csv and residual_thresholds.csv, return the first.

    everything   the cases of the operators' tables; those of CASES are judged, one stack each;  served   see residual_levels.benches
    """
    folder = Path(out_dir) / "evidence"
    folder.mkdir(parents=True, exist_ok=True)
    tables, sensed = [], []
    for case in chosen(everything):
        table, moved = _cached(case, everything, Path(out_dir) / "cases", seeds)
        tables.append(table)
        sensed.append(moved)
        progress(f"residual {case.label()}: {_said(table)}")
    for bench in benches(measured_dir, served=served):
        points = bench_points(bench, seeds=range(seeds))
        if len(points):
            tables.append(summarise(points))
            progress(f"residual {bench.level} {bench.op} {bench.quantity}: {_said(tables[-1])}")
    table = pd.concat(tables, ignore_index=True).reindex(columns=list(TABLE)).assign(date=date)
    table.to_csv(folder / "residual.csv", index=False, float_format="%.4g")
    if sensed:
        pd.concat(sensed, ignore_index=True).reindex(columns=list(SENSITIVITY)).assign(date=date).to_csv(folder / "residual_thresholds.csv", index=False, float_format="%.4g")
    return table


def chosen(everything: Sequence[Case]) -> Iterator[Case]:
    """Of every entry and device of CASES the case with most rows."""
    for op, cls, fmt, devices in CASES:
        for device in devices:
            fitting = [c for c in everything if (c.op, c.cls, c.format, c.device.name) == (op, cls, fmt, device)]
            if fitting:
                yield max(fitting, key=lambda c: len(c.rows))


def _cached(case: Case, everything: Sequence[Case], folder: Path, seeds: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    mark = hashlib.sha1(json.dumps(["residual", case.label(), case.form, seeds, len(case.rows), MOST, list(TABLE), [(p.name, p.low, p.high) for p in case.parameters], sorted(case.kernel.items())]).encode()).hexdigest()[:16]
    path = folder / f"residual-{mark}.json"
    if path.is_file():
        done = json.loads(path.read_text(encoding="utf-8"))
        return tuple(pd.DataFrame(part).replace({None: np.nan}) for part in done)
    points, moved = residual_points(case, everything, seeds=range(seeds), most=MOST, ablate=True)
    found = summarise(points), sensitivity_table(moved)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([part.replace({np.nan: None}).to_dict("records") for part in found], default=float), encoding="utf-8")
    return found


def _said(table: pd.DataFrame) -> str:
    """By the rule that leaves most out: error of the form and of what would be used."""
    whole = (table["class"] == "") | ((table["level"] == "operator") & (table["quantity"] == "time"))
    rows = table[table["rule"].isin(("family", "model")) & whole].set_index("model")["mape"]
    return f"{100 * rows.get('form', np.nan):.1f} -> {100 * rows.get('chosen', np.nan):.1f} %"
