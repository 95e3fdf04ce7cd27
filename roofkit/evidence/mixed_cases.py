"""Mixed cases: attention launches that hold prefill chunks and decodes, bound to roofkit.cost.mixed.launch_us. Room: evidence.

Rows of one phase only are left out: other kernels. Family = model x TP; rows of models without a preset are left
out. Times are fitted before the bound of the product, as its form states them.
Source: shared table `attention_mixed_batch`, vLLM 0.19 layer profiles, github casys-kaist/LLMServingSim @ 5daddb21 (MIT).
"""
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.cost.mixed import FIT_OP, KEYS, ROWS, launch_us
from roofkit.evidence.cases import Case, stack_of
from roofkit.evidence.fit import Parameter
from roofkit.evidence.names import resolve_model
from roofkit.hardware.device import Device
from roofkit.ops.inventory import inventory
from roofkit.ops.kinds import Attention
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Prefill

P = Parameter
PARAMETERS = (P("t0", 0.5, 15, 3, unit="us"), P("ec", 0.2, 1, 0.56), P("c0", 0.1, 15, 3, unit="us"), P("ce", 1e-3, 3, 0.3, unit="us"), P("em", 0.3, 1, 0.7),
              P("c2", 0.05, 10, 1), P("p", 0.05, 30, 3), P("w", 0.02, 1, 0.7))


def mixed_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    """Every case of a table of kind mixed_attention and one device."""
    known = list_architectures()["name"]
    frame = frame[(frame["prefill_chunk"] > 0) & (frame["n_decode"] > 0) & frame["model"].map(lambda name: resolve_model(name, known) is not None)]
    frame = frame.assign(source=frame["source"] if "source" in frame else "")
    for (dtype, source), rows in frame.groupby(["dtype", "source"], sort=True):
        if device.has_math(dtype):
            yield Case(FIT_OP, dtype, stack_of(source), "mixed launch", device, rows, PARAMETERS, _prepare, kernel={"rows": ROWS, "keys": KEYS})


def launches(rows: pd.DataFrame, math: str) -> tuple[Attention, Attention]:
    """(prefill, decode) of rows of one model and TP: the attention op that the inventory gives the model, at these sizes."""
    arch = load_architecture(resolve_model(rows["model"].iloc[0], list_architectures()["name"]))
    one = next(op for op in inventory(arch, Plan(tp=int(rows["tp"].iloc[0])), Prefill(1, 1)) if isinstance(op, Attention))
    q, past, n, context = (rows[c].to_numpy(float) for c in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
    return (replace(one, phase="prefill", batch=1.0, q_tokens=q, kv_tokens=past + q, math=math, count=1),
            replace(one, phase="decode", batch=n, q_tokens=1.0, kv_tokens=context, math=math, count=1))


def _prepare(rows: pd.DataFrame, case: Case):
    parts = [(index, launches(rows.iloc[index], case.format)) for index in rows.groupby(["model", "tp"]).indices.values()]

    def seconds(constants: Mapping[str, float]) -> np.ndarray:
        fits, out = case.fits(constants), np.empty(len(rows))
        for index, both in parts:
            out[index] = launch_us(*both, constants, fits)
        return out * 1e-6

    return seconds
