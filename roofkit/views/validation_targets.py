"""Targets: the errors that roofkit set itself as bars, and what it reaches. Room: views.

Targets speak of the mean absolute error on rows the fit never saw. A bar over several devices or classes is judged on the
mean of them, or of their rows; "each" is judged on the worst. What has no rows yet is open, never met.
"""
from dataclasses import dataclass

import pandas as pd

from roofkit.units import percent
from roofkit.views.validation_data import device_label

H100, L40S, RTX = "h100-sxm-80gb", "l40s", "rtx-pro-6000-server"
FULL = ("unpacked", "group2-7", "group8+")  # decode classes without a window
BY_FAMILY = ("family", "sizes")


@dataclass(frozen=True)
class Target:
    """what is said, the bar [0..1], and the rows it speaks of; empty tuples mean any. statistic "mape" | "median".

    each      judged on the worst class;  by_rows   classes weighted by their rows, where some hold a handful
    """

    what: str
    bar: float
    ops: tuple[str, ...]
    formats: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    not_devices: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    splits: tuple[str, ...] = BY_FAMILY
    each: bool = False
    statistic: str = "mape"
    by_rows: bool = False


TARGETS = (
    Target("Matrix products, bf16", 0.09, ("gemm",), ("bf16",)),
    Target("Matrix products, bf16, H100", 0.065, ("gemm",), ("bf16",), (H100,)),
    Target("Matrix products, bf16, L40S", 0.14, ("gemm",), ("bf16",), (L40S,)),
    Target("Matrix products, fp8", 0.06, ("gemm",), ("fp8",), not_devices=(L40S, RTX)),
    Target("Matrix products, fp8, L40S and RTX PRO 6000", 0.10, ("gemm",), ("fp8",), (L40S, RTX)),
    Target("Matrix products, block-scaled fp8", 0.095, ("gemm",), ("fp8_block",)),
    Target("Matrix products, nvfp4", 0.07, ("gemm",), ("nvfp4",)),
    Target("Prefill attention, bf16", 0.09, ("attention_prefill",), ("bf16/bf16",)),
    Target("Prefill attention, fp8 cache", 0.14, ("attention_prefill",), ("bf16/fp8", "fp8/fp8")),
    Target("Decode attention, mean of its classes", 0.10, ("attention_decode",)),
    Target("Decode attention, each full-attention class", 0.125, ("attention_decode",), classes=FULL, each=True),
    Target("Expert blocks, mean", 0.16, ("moe",)),
    Target("All-reduce over NVLink", 0.08, ("all_reduce",), not_devices=(L40S, RTX)),
    Target("Mixed prefill and decode attention", 0.17, ("mixed_attention",)),
    Target("Matrix products on an unseen sibling GPU", 0.10, ("gemm",), splits=("sibling",)),
    Target("Attention on an unseen sibling GPU", 0.15, ("attention_prefill", "attention_decode"), splits=("sibling",)),
    Target("Time per output token, mean, dense models", 0.08, ("serving",), splits=("group",), by_rows=True),
    Target("Time per output token, median, dense models", 0.06, ("serving",), splits=("group",), statistic="median", by_rows=True),
    Target("Time per output token on a new GPU", 0.12, ("serving",), splits=("gpu",), by_rows=True),
    Target("Energy of products", 0.15, ("energy", "gemm_power"), splits=("family", "gpu", "shipped")),
    Target("Board power of served models, unseen model or GPU", 0.15, ("energy_power",), splits=("model", "gpu"), by_rows=True),
    Target("Energy per output token, unseen model or GPU", 0.15, ("energy_token",), splits=("model", "gpu"), by_rows=True),
)


def chosen(target: Target, errors: pd.DataFrame) -> pd.DataFrame:
    """Rows of the error table that a target speaks of."""
    keep = errors["regime"].eq("all") & errors["op"].isin(target.ops) & errors["split"].isin(target.splits)
    for column, wanted in (("format", target.formats), ("device", target.devices), ("class", target.classes)):
        if wanted:
            keep &= errors[column].isin(wanted)
    return errors[keep & ~errors["device"].isin(target.not_devices)]


def targets(errors: pd.DataFrame) -> pd.DataFrame:
    """what, target, reached, met ("reached" | "missed" | "open"), said: every bar beside what is reached. Missed first."""
    rows = []
    for target in TARGETS:
        found = chosen(target, errors)
        if found.empty:
            rows.append((target.what, target.bar, float("nan"), "open", "No held-out rows are shipped for it yet: nothing is claimed."))
            continue
        values = found[target.statistic]
        average = (values * found["n"]).sum() / found["n"].sum() if target.by_rows else values.mean()
        reached = float(values.max() if target.each else average)
        worst = found.loc[values.idxmax()]
        where = " ".join(x for x in (device_label(worst["device"]), worst["class"], worst["format"], f"({worst['stack']})" if worst["stack"] else "") if x)
        kinds = f"{len(found)} kernel classes, " if len(found) > 1 else ""
        said = f"{kinds}worst {percent(values.max())} on {where}" if len(found) > 1 else where
        met = "reached" if reached <= target.bar else "missed"
        if met == "missed":
            said = f"Missed by {100 * (reached - target.bar):.1f} points; {said}"
        rows.append((target.what, target.bar, reached, met, f"{said[0].upper()}{said[1:]}."))
    table = pd.DataFrame(rows, columns=["what", "target", "reached", "met", "said"])
    order = {"missed": 0, "reached": 1, "open": 2}
    return table.sort_values("met", key=lambda c: c.map(order), kind="stable", ignore_index=True)
