"""Eager fit: constants of steps without graphs from measured whole steps, judged on a tensor-parallel size left out. Room: evidence."""
import numpy as np
import pandas as pd

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.cost import calibration as book
from roofkit.evidence.calibrate import summary
from roofkit.evidence.eager import device_steps, eager_s
from roofkit.evidence.fit import Form, Parameter
from roofkit.evidence.fit import fit as robust_fit
from roofkit.evidence.names import resolve_model
from roofkit.evidence.validate import error_table
from roofkit.hardware.device import Device
from roofkit.hardware.presets import load_device

CONSTANTS = (Parameter("h0", 1e3, 2e5, 3e4, unit="us"), Parameter("h1", 1, 5e3, 300, unit="us"), Parameter("hp", 1e3, 2e5, 5e4, unit="us"), Parameter("s", 0.3, 1, 0.8))
HELD_OUT_TP = 4
SOURCE = "fit to whole steps of Llama-2-70B in vLLM of 2023, Splitwise, github Mutinifni/splitwise-sim @ 8f99e7dc (MIT)"
_COMMENT = """Steps of an engine without graphs: roofkit/evidence/eager.py. class = device.
mape, median: errors [0..1] on the tensor-parallel size that the fit did not see."""


def fit_eager(rows: pd.DataFrame, device: Device) -> tuple[book.Fit, pd.DataFrame] | None:
    """(constants, points of the tp left out) of a device; None when it has too few rows. Rows below their bound are left out."""
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

    said, measured = _seconds(table[~seen], found(table[seen])), table.loc[~seen, "measured_s"].to_numpy()
    error = summary(np.log(said / measured))
    constants = {k: float(f"{v:.4g}") for k, v in found(table).items()}
    fit = book.Fit("eager_step", "fp16", "vllm-2023", "longer of device and host", constants, device.name, {}, len(table), round(error["mape"], 4), round(error["median"], 4))
    phase = np.where(table.loc[~seen, "decodes"], "decode", "prefill")
    return fit, pd.DataFrame({"device": device.name, "op": "step", "class": "", "format": fit.format, "stack": fit.stack, "split": "tp", "seed": 0, "family": phase, "regime": "step",
                              "measured_us": measured * 1e6, "predicted_us": said * 1e6, "held_out": True})


def _seconds(table: pd.DataFrame, c: dict[str, float]) -> np.ndarray:
    step, batch = table["step_s"].to_numpy(float), table["batch"].to_numpy(float)
    return np.where(table["decodes"], eager_s(step, True, batch, c), eager_s(step, False, batch, c))


def refit_eager(frame: pd.DataFrame, path, *, date: str) -> pd.DataFrame:
    """Fit every device of a table of whole steps, write the file of data/calibration, return rows of the validation table."""
    found = [f for name, rows in frame.groupby("device") if (f := fit_eager(rows, load_device(name))) is not None]
    book.write_fits(path, [fit for fit, _ in found], SOURCE, date, _COMMENT)
    table = error_table(pd.concat([points for _, points in found], ignore_index=True))
    return table[table["regime"] == "all"]
