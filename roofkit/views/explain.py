"""Explanations: how an operator's time is built, with its numbers, as (term, text) lines. Room: views."""
import math
from collections.abc import Iterator, Mapping

import pandas as pd

from roofkit.cost.hierarchy import hierarchical_roofline
from roofkit.inference.step import Step
from roofkit.ops.kinds import Attention, Elementwise, Gemm, GroupedGemm
from roofkit.units import percent, si

_BOUND_WORDS = {"memory": "reading and writing device memory", "compute": "the arithmetic", "network": "the links between devices",
                "launch": "starting its kernels"}


class Explanations(Mapping):
    """Op name -> explanation, built when it is looked up: a page needs one of them, a slider step none."""

    def __init__(self, step: Step, ops: pd.DataFrame) -> None:
        self._step, self._ops = step, ops

    def __getitem__(self, name: str) -> tuple[tuple[str, str], ...]:
        row = self._ops[self._ops["name"] == name]
        if row.empty:
            raise KeyError(name)
        return explain_op(self._step, row.to_dict("records")[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops["name"])

    def __len__(self) -> int:
        return len(self._ops)


def explain_op(step: Step, row: dict) -> tuple[tuple[str, str], ...]:
    """Lines about one row of Step.ops (as a dict): first the sentence, then size, work, traffic, the terms, the sum, the bound, provenance."""
    calls = row["count"]
    device = step.cluster.device
    lines = [("in short", f"{row['name']} takes {si(row['time_s'], 's')}, {percent(row['share'])} of the step's operators; most of it is "
                          f"{_BOUND_WORDS[row['bound']]}. To change that: {row['hint']}.")]
    if not math.isnan(row["m"]):
        lines.append(("size", f"M × N × K = {row['m']:,.4g} × {row['n']:,.0f} × {row['k']:,.0f}, {calls:,.4g} calls in the step"))
    else:
        lines.append(("size", f"{calls:,.4g} calls in the step"))
    if row["flops"]:
        padded = f"; {si(row['flops_padded'], 'FLOP')} executed with whole tiles" if row["flops_padded"] > row["flops"] * 1.001 else ""
        lines.append(("work", f"{si(row['flops'], 'FLOP')} useful{padded}"))
    if row["hbm_bytes"]:
        lines.append(("traffic", f"{si(row['hbm_bytes'], 'B')}; from device memory at {si(device.hbm_bytes_per_s, 'B/s')} that takes "
                                 f"{si(row['hbm_bytes'] / device.hbm_bytes_per_s, 's')}"))
    if row["network_bytes"]:
        lines.append(("links", f"{si(row['network_bytes'], 'B')} sent by each device, {si(row['network_s'], 's')} on the links"))
    for key, label in (("compute_s", "arithmetic, in whole tiles"), ("memory_s", "memory"), ("launch_s", "launch")):
        if row[key]:
            lines.append((label, si(row[key], "s")))
    lines.append(("form", f"{row['form']} = {si(row['time_s'], 's')}"))
    if row["time_s"]:
        lines.append(("bound", f"datasheet roofline {si(row['ideal_s'], 's')}; the operator takes {row['time_s'] / row['ideal_s']:.2f} times that"
                      if row["ideal_s"] else "no work at datasheet rates: all of it is overhead"))
    lines += _levels(step, row)
    lines.append(("constants", _constants(step, row)))
    return tuple(lines)


def _levels(step: Step, row: dict) -> list[tuple[str, str]]:
    """Least time at each level of the memory hierarchy, one call; the slowest level binds. Nothing for links and scans."""
    op = next(c.op for c in step.costed if c.op.name == row["name"])
    if not isinstance(op, Gemm | GroupedGemm | Attention | Elementwise):
        return []
    levels = hierarchical_roofline(op, step.cluster.device).table
    known = levels[levels["time_s"].notna()]
    times = "; ".join(f"{label} {si(time, 's')}" for label, time in zip(known["label"], known["time_s"], strict=True))
    binding = ", ".join(known.loc[known["binds"], "label"])
    unknown = ", ".join(levels.loc[levels["time_s"].isna(), "label"])
    return [("memory levels", f"one call needs at least: {times}; {binding} binds{f'; no bandwidth known for {unknown}' if unknown else ''}")]


def _constants(step: Step, row: dict) -> str:
    note = next((c.timing.note for c in step.costed if c.op.name == row["name"]), "")
    words = {"fitted": "fitted to measured kernels of this device", "inherited": "fitted on a sibling device or a neighbouring format",
             "generic": "generic: no fit for this device", "bound": "none: a bound"}[row["calibration"]]
    return f"{words}{'; ' + note if note else ''}"
