"""Eager steps: an engine of 2023 without graphs, where the host launches every kernel. Room: evidence.

    decode   t = max(device, h0 + h1 batch)          prefill   t = max(device / s, hp)
The host works beside the device, so a step lasts as long as the longer of the two (with graphs the two add, see
roofkit.inference.engines). s: share of today's kernels' speed that those of 2023 reached on prompts. Constants: h0, h1, hp [us]
and s in data/roofkit_data/calibration/eager.toml, fitted to whole steps of Llama-2-70B in vLLM, github Mutinifni/splitwise-sim
@ 8f99e7dc (MIT). Errors on the tensor-parallel size that the fit did not see.
"""
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.cost import calibration as book
from roofkit.evidence.names import usual_cluster
from roofkit.hardware.device import Device
from roofkit.hardware.presets import load_device
from roofkit.inference.step import Step, estimate
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, Prefill


@lru_cache(maxsize=1)
def shipped() -> dict[str, dict[str, float]]:
    """Constants by device."""
    return {fit.cls: dict(fit.constants) for fit in book.read_fits(Path(str(files("roofkit_data") / "calibration" / "eager.toml")))}


def constants_of(device: Device) -> dict[str, float]:
    """The device's constants, else those of the measured device whose memory is nearest in speed."""
    known = shipped()
    name = min(known, key=lambda k: (k != device.name, abs(np.log(load_device(k).hbm_bytes_per_s / device.hbm_bytes_per_s))))
    return known[name]


def eager_s(step_s, decodes: bool, batch, c: dict[str, float]) -> np.ndarray:
    """Time of an eager step whose device part takes step_s [s]."""
    return np.maximum(step_s, (c["h0"] + c["h1"] * batch) * 1e-6) if decodes else np.maximum(step_s / c["s"], c["hp"] * 1e-6)


def device_steps(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple[pd.DataFrame, bool, Step]]:
    """(rows, whether they decode, their step) by plan and phase; rows of other engines or phases are left out."""
    for (tp, dtype, phase, engine), part in rows.groupby(["tp", "dtype", "phase", "engine"]):
        if phase not in ("prefill", "decode") or not str(engine).startswith("vllm"):
            continue
        batch = part["batch"].to_numpy(float)
        work = Decode(batch, part["ctx_len"].to_numpy(float)) if phase == "decode" else Prefill(batch, part["in_len"].to_numpy(float))
        yield part, phase == "decode", estimate(arch, usual_cluster(device, int(tp)), Plan(tp=int(tp), weights=dtype, activations=dtype, kv=dtype), work)
