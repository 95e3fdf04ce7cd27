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
from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.cost import calibration as book
from roofkit.evidence.calibrate import summary
from roofkit.evidence.fit import Form, Parameter
from roofkit.evidence.fit import fit as robust_fit
from roofkit.evidence.names import resolve_model, usual_cluster
from roofkit.hardware.device import Device
from roofkit.hardware.presets import load_device
from roofkit.inference.step import Step, estimate
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, Prefill

CONSTANTS = (Parameter("h0", 1e3, 2e5, 3e4, unit="us"), Parameter("h1", 1, 5e3, 300, unit="us"), Parameter("hp", 1e3, 2e5, 5e4, unit="us"), Parameter("s", 0.3, 1, 0.8))
HELD_OUT_TP = 4
SOURCE = "fit to whole steps of Llama-2-70B in vLLM of 2023, Splitwise, github Mutinifni/splitwise-sim @ 8f99e7dc (MIT)"
_COMMENT = """Steps of an engine without graphs: roofkit/evidence/eager.py. class = device.
mape, median: errors [0..1] on the tensor-parallel size that the fit did not see."""


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


def fit_eager(rows: pd.DataFrame, device: Device) -> book.Fit | None:
    """Constants from rows of all but one tp, judged on that one; None when the device has too few rows. Rows below their bound are left out."""
    parts = []
    for model, own in rows.groupby("model"):
        arch = resolve_model(model, list_architectures()["name"].tolist())
        if arch is None:
            continue
        for part, decodes, step in device_steps(own, device, load_architecture(arch)):
            good = part["time_ms"].to_numpy() * 1e-3 >= step.ideal_s
            parts.append(pd.DataFrame({"tp": part["tp"].to_numpy(), "batch": part["batch"].to_numpy(float), "decodes": decodes, "step_s": step.time_s,
                                       "measured_s": part["time_ms"].to_numpy() * 1e-3})[good])
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    seen = (table["tp"] != HELD_OUT_TP).to_numpy()
    if seen.sum() < 20 or seen.all():
        return None

    def found(some: pd.DataFrame) -> dict[str, float]:
        return robust_fit(Form("eager step", CONSTANTS, lambda c: _seconds(some, c)), some["measured_s"].to_numpy()).constants

    log = np.log(_seconds(table[~seen], found(table[seen])) / table.loc[~seen, "measured_s"].to_numpy())
    error = summary(log)
    constants = {k: float(f"{v:.4g}") for k, v in found(table).items()}
    return book.Fit("eager_step", "fp16", "vllm-2023", "longer of device and host", constants, device.name, {}, len(table), round(error["mape"], 4), round(error["median"], 4))


def _seconds(table: pd.DataFrame, c: dict[str, float]) -> np.ndarray:
    step, batch = table["step_s"].to_numpy(float), table["batch"].to_numpy(float)
    return np.where(table["decodes"], eager_s(step, True, batch, c), eager_s(step, False, batch, c))


def refit_eager(frame: pd.DataFrame, path, *, date: str) -> list[book.Fit]:
    """Fit every device of a table of whole steps and write the file of data/calibration."""
    fits = [f for name, rows in frame.groupby("device") if (f := fit_eager(rows, load_device(name))) is not None]
    book.write_fits(path, fits, SOURCE, date, _COMMENT)
    return fits
