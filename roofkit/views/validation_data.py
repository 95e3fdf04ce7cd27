"""Data of the validation page: shipped held-out errors, our own CPU measurement, words for their keys. Room: views.

Pooling: the mean error of several cases is that of all their rows; half-widths of their intervals add in quadrature, since
cases were fitted apart. One case alone keeps the interval that was shipped.
"""
import tomllib
from functools import lru_cache
from importlib.resources import files

import numpy as np
import pandas as pd

from roofkit.evidence.bands import read_errors
from roofkit.evidence.calibrate import COLLECTIVES
from roofkit.evidence.refit import SHIPPED
from roofkit.evidence.validate import error_table
from roofkit.hardware.presets import list_devices

CPU = "cpu"  # device key of our own CPU measurement
CASE = ["device", "op", "class", "format", "stack"]
OPS = {
    "gemm": "matrix product", "attention_prefill": "prefill attention", "attention_decode": "decode attention", "mla_prefill": "latent attention, prefill",
    "mla_decode": "latent attention, decode", "mixed_attention": "mixed prefill + decode attention", "moe": "expert block (MoE)", "all_reduce": "all-reduce",
    "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_to_all": "all-to-all", "elementwise": "norms and activations",
    "layer": "layers inside an engine", "step": "whole steps", "serving": "time per output token", "serving_ttft": "time to first token",
    "dispatch": "expert dispatch", "combine": "expert combine", "energy": "energy of products",
    "energy_power": "board power of served models", "energy_token": "energy per output token",
}
SPLITS = {  # what is left out of the fit
    "gpu": "constants of another generation or class", "sibling": "unseen sibling GPU", "head_dim": "unseen head width", "model": "unseen model", "half": "half of the models", "family": "unseen shape family", "sizes": "alternate sizes",
    "group": "unseen model, engine and format", "tables": "kernel tables alone", "tp": "unseen tensor-parallel size", "width": "unseen width",
    "every_fourth": "every fourth point", "random": "random rows", "shipped": "shipped constants",
}
REGIMES = {"launch": "launch decides", "memory": "memory-bound", "balanced": "balanced", "compute": "compute-bound", "network": "network", "step": "whole step"}
CPU_OPS = {"gemm": "gemm", "prefill": "attention_prefill", "decode": "attention_decode", "step": "step"}


def evidence_folder():
    """Where the package keeps its evidence; a Traversable."""
    return files("roofkit_data") / "evidence"


@lru_cache(maxsize=1)
def shipped_errors() -> pd.DataFrame:
    """Held-out errors of the package, columns evidence.refit.SHIPPED; empty where none are shipped."""
    found = read_errors(evidence_folder())
    return found if len(found) else pd.DataFrame(columns=SHIPPED)


@lru_cache(maxsize=1)
def cpu_points() -> pd.DataFrame:
    """Our own measurement of a CPU, every point with its prediction; empty where none is shipped."""
    path = evidence_folder() / "measured_cpu.csv"
    if not path.is_file():
        return pd.DataFrame()
    with path.open(encoding="utf-8") as lines:
        table = pd.read_csv(lines)
    return table.assign(**{"device": CPU, "op": table["kind"].map(CPU_OPS), "class": "", "format": "fp32", "stack": "numpy", "split": "every_fourth", "regime": "",
                           "seed": 0, "family": table.index.astype(str), "what": [_cpu_shape(r) for r in table.itertuples()]})


@lru_cache(maxsize=1)
def cpu_environment() -> dict:
    """What is recorded of that CPU and of the timing; {} where none is shipped."""
    path = evidence_folder() / "measured_cpu.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@lru_cache(maxsize=1)
def cpu_errors() -> pd.DataFrame:
    """Errors of the CPU per kind and part ("fitted", "held out"), recomputed from its points; intervals: bootstrap over points."""
    points = cpu_points()
    if points.empty:
        return pd.DataFrame(columns=[*SHIPPED, "part"])
    parts = [error_table(points.assign(held_out=points["held_out"] == held)).assign(part=part) for part, held in (("fitted", False), ("held out", True))]
    order = {op: i for i, op in enumerate(CPU_OPS.values())}
    return pd.concat(parts, ignore_index=True).sort_values("op", key=lambda c: c.map(order), kind="stable", ignore_index=True)


@lru_cache(maxsize=1)
def all_errors() -> pd.DataFrame:
    """Shipped errors and the held-out errors of the CPU in one table, columns SHIPPED."""
    cpu = cpu_errors()
    cpu = cpu[cpu["part"] == "held out"].reindex(columns=SHIPPED)
    found = [t for t in (shipped_errors(), cpu) if len(t)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=SHIPPED)


@lru_cache(maxsize=1)
def device_labels() -> dict[str, str]:
    table = list_devices()
    labels = dict(zip(table["name"], table["label"], strict=True))
    processor = cpu_environment().get("processor", "")
    return {**labels, CPU: f"{processor} CPU, measured by us".strip()}


def op_label(op: str) -> str:
    return OPS.get(op, op.replace("_", " "))


def split_label(split: str) -> str:
    return SPLITS.get(split, split.replace("_", " "))


def regime_label(regime: str) -> str:
    return REGIMES.get(regime, regime)


def device_label(device: str) -> str:
    return device_labels().get(device, device)


def pooled(rows: pd.DataFrame) -> dict[str, float]:
    """n, mape, low, high, median, bias of several cases together; NaN without rows. Medians: their mean, weighted by rows."""
    weight = rows["n"].to_numpy(float)
    total = weight.sum()
    if not total > 0:
        return {"n": 0, **dict.fromkeys(("mape", "low", "high", "median", "bias"), np.nan)}
    share = weight / total
    mean = {k: _weighted(rows[k].to_numpy(float), share) for k in ("mape", "median", "bias")}
    known = rows["low"].notna().to_numpy() & rows["high"].notna().to_numpy()
    if share[known].sum() < 0.5:
        return {"n": int(total), **mean, "low": np.nan, "high": np.nan}
    half = {k: float(np.sqrt(np.sum((share * (rows[k] - rows["mape"]).abs().to_numpy(float))[known] ** 2))) for k in ("low", "high")}
    return {"n": int(total), **mean, "low": max(mean["mape"] - half["low"], 0.0), "high": mean["mape"] + half["high"]}


def _weighted(values: np.ndarray, share: np.ndarray) -> float:
    """Weighted mean of the values that are there."""
    known = np.isfinite(values)
    return float(share[known] @ values[known] / share[known].sum()) if known.any() else np.nan


def worst_of_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Of every case and regime the split with the largest error."""
    return rows.loc[rows.groupby([*CASE, "regime"], sort=False)["mape"].idxmax()] if len(rows) else rows


def is_collective(op: str) -> bool:
    return op in COLLECTIVES


def clear_caches() -> None:
    """Read the data anew: for tests that put other files in place."""
    for function in (shipped_errors, cpu_points, cpu_environment, cpu_errors, all_errors, device_labels):
        function.cache_clear()


def _cpu_shape(row) -> str:
    if row.kind == "gemm":
        return f"M={row.m:.0f}, N={row.n:.0f}, K={row.k:.0f}"
    phase = f"{row.phase} step, " if row.kind == "step" else ""
    return f"{phase}batch {row.batch:.0f}, {row.q_len:.0f} new tokens on {row.kv_len:.0f}"
