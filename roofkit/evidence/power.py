"""Power: energy constants from measured board power, and how well they carry to unseen shapes. Room: evidence.

The tables give mean board power over a loop of one product. How long the loop lasted depends on m in steps (at most 1,024,
2,048, 4,096, more), and short loops read low because the sensor averages: each step has a run-in time of its own, and above
4,096 a duty factor. These describe the protocol, not the device, and are not shipped. Rows of vLLM 0.22 in the same table
contradict themselves (products with m and m + 1 differ by 33-42 % on average, against 7-13 % for TensorRT-LLM): not used.
"""
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.cost.energy import PowerModel
from roofkit.errors import MeasurementError
from roofkit.evidence.cases import GEMM_FORMATS, stack_of
from roofkit.evidence.fit import Fit, Form, Parameter, fit
from roofkit.evidence.measurements import read_measurements
from roofkit.evidence.splits import families, splits
from roofkit.hardware.device import Device
from roofkit.hardware.presets import load_device

M_STEPS = (1024, 2048, 4096)
LAUNCH_US = {"bf16": 1.8, "fp8": 13.0, "fp8_block": 5.0, "nvfp4": 5.0}  # start of a product: smallest times in these tables
HIGHEST_PJ = {"fp32": 2.0, "bf16": 0.8, "fp16": 0.8, "fp8": 0.5, "int8": 0.5, "fp4": 0.3}  # bounds of the fit: half the width costs less [pJ/FLOP]
SHARED = (Parameter("floor", 150, 330, 260, unit="W"), Parameter("hbm_path", 5, 60, 30, unit="pJ/B"), Parameter("l2_path", 0.05, 20, 2, unit="pJ/B"),
          Parameter("busy", 1, 500, 150, unit="W"), Parameter("sharpness", 1.2, 20, 2.5), Parameter("duty", 0.4, 1, 0.8))


def power_form(rows: pd.DataFrame, device: Device) -> Form:
    """Board power of every row [W] as a form; rows of one stack, any number formats."""
    m, n, k, t = (rows[c].to_numpy(float) for c in ("m", "n", "k", "time_us"))
    t = t * 1e-6
    names = sorted(rows["dtype"].unique())
    which = rows["dtype"].map({name: i for i, name in enumerate(names)}).to_numpy()
    formats = [GEMM_FORMATS[name] for name in names]
    weight, act = (np.array([getattr(f, key) for f in formats])[which] for key in ("weight_bytes_per_el", "act_bytes_per_el"))
    quant = np.array([{"fp8": 5.0, "fp8_block": 3.03, "nvfp4": 2.56}.get(name, 0.0) for name in names])[which] * m * k
    flops, weights, acts = 2 * m * n * k, n * k * weight, m * (k * act + 2 * n)
    kept = 1 / (1 + np.minimum((np.minimum(5, np.ceil(device.l2_bytes / weights)) * weights + acts) / device.l2_bytes, 20) ** 8)
    from_hbm, from_l2 = (1 - kept) * (weights + acts) + quant, flops / 128 * act + weights + acts
    tiles = np.ceil(m / 128) * np.ceil(n / 128)
    occupied = np.minimum(1, tiles * np.clip(np.minimum(np.floor(device.sm_count / tiles), k / 256), 1, 16) / device.sm_count)
    active = 1 - np.minimum(np.array([LAUNCH_US.get(name, 3.0) for name in names])[which] * 1e-6 / t, 0.98)
    step = np.searchsorted(M_STEPS, m)
    maths = [f.math for f in formats]
    limit = float(rows["power_limit_w"].iloc[0])
    parameters = SHARED + tuple(Parameter(f"flop_{name}", 0.02, HIGHEST_PJ[f.math], 0.2, unit="pJ/FLOP") for name, f in zip(names, formats, strict=True)) \
        + tuple(Parameter(f"run_in_{name}_{i}", 0.01, 300, 5.0 * (i + 1), unit="us") for name in names for i in range(4))

    def watts(c: Mapping[str, float]) -> np.ndarray:
        model = _model(c, device, maths, limit)
        per_flop = np.array([c[f"flop_{name}"] for name in names])[which] * 1e-12
        demand = (flops * per_flop + from_hbm * c["hbm_path"] * 1e-12 + from_l2 * c["l2_path"] * 1e-12) / t + c["busy"] * occupied * active
        run_in = np.array([[c[f"run_in_{name}_{i}"] for i in range(4)] for name in names])[which, step] * 1e-6
        seen = t / (t + run_in) * np.where(step == 3, c["duty"], 1.0)
        return c["floor"] + (model.power_w(demand) - c["floor"]) * seen

    return Form("power", parameters, watts)


def _model(c: Mapping[str, float], device: Device, maths, limit: float) -> PowerModel:
    return PowerModel(device.name, c["floor"], limit, c["busy"], dict.fromkeys(maths, 0.0), 0.0, 0.0, 0.0, c["sharpness"], 0.0, "fitted", "")


def fit_power(measurements, *, stack: str = "trtllm", device: Device | None = None, folds: int = 5, seed: int = 0, every: int = 3) -> tuple[Fit, pd.DataFrame]:
    """Energy constants of one stack's rows and the error on held-out shapes.

    measurements   path or table of kind gemm_power;  stack   start of the stack's name;  every   fit to every n-th row
    Returns (Fit, table of dtype, n, mape, median, bias over the held-out rows). power times measured time is energy, so the
    error of power is that of energy. Raises MeasurementError for another kind of table or no row of that stack.
    """
    frame = read_measurements(measurements)
    if frame["kind"].iloc[0] != "gemm_power":
        raise MeasurementError(f"energy needs a table with power_w and power_limit_w; this one is of kind {frame['kind'].iloc[0]!r}")
    rows = frame[frame["source"].map(stack_of).str.startswith(stack)].reset_index(drop=True)
    if rows.empty:
        raise MeasurementError(f"no rows of stack {stack!r}; there are {', '.join(sorted(frame['source'].unique()))}")
    device = device or load_device(rows["device"].iloc[0])
    predicted = np.full(len(rows), np.nan)
    for part in splits(rows, "family", folds=folds, seed=seed):
        train = rows[part.train].iloc[::every]
        found = fit(power_form(train, device), train["power_w"].to_numpy(), starts=1)
        predicted[part.test] = power_form(rows, device).seconds(found.constants)[part.test]
    sample = rows.iloc[::every]
    final = fit(power_form(sample, device), sample["power_w"].to_numpy(), starts=1, families=families(sample).to_numpy())
    ratio = np.log(predicted / rows["power_w"])
    table = ratio.groupby(rows["dtype"]).agg(n="size", mape=lambda r: np.abs(np.expm1(r)).mean(), median=lambda r: np.abs(np.expm1(r)).median(),
                                             bias=lambda r: np.expm1(r.median())).reset_index()
    return final, table


def write_power(path, found: Fit, table: pd.DataFrame, device: Device, *, source: str, date: str) -> Path:
    """Write data/roofkit_data/energy/<device>.toml: path-level figures fitted here, the DRAM die's published one beside them."""
    note = f"held-out shapes: mean error of power {100 * np.average(table.mape, weights=table.n):.1f} %"
    lines = ["# Energy of one device: roofkit/cost/energy.py. Path-level figures include everything that moves with a byte or a FLOP.", "schema = 1",
             f'source = "{source}"', f'date = "{date}"', 'kind = "fitted"', f'note = "{note}"']
    fitted = {"floor": "W", "busy": "W", "hbm_path": "pJ/B", "l2_path": "pJ/B"}
    for key, unit in fitted.items():
        lines += ["", f"[{key}]", f"value = {found.constants[key]:.4g}", f'unit = "{unit}"', 'kind = "fitted"', f'source = "{source}"']
        if key in found.at_bound:
            lines.append('note = "at the bound of the fit: not identified alone"')
    lines += ["", "[sharpness]", f"value = {found.constants['sharpness']:.4g}", 'unit = "ratio"', 'kind = "fitted"', f'source = "{source}"']
    lines += ["", "[limit]", f"value = {device.tdp_w:g}", 'unit = "W"', 'kind = "published"', 'source = "power_limit_w of the measured rows"']
    lines += ["", "[hbm_device]", "value = 3.9", 'unit = "pJ/bit"', 'kind = "published"',
              'source = "O\'Connor et al. 2017, Fine-Grained DRAM, MICRO-50: HBM2 device energy"', 'note = "the DRAM die alone; never added to path-level figures"']
    per_math: dict[str, list[float]] = {}
    for name in sorted(k[5:] for k in found.constants if k.startswith("flop_")):
        per_math.setdefault(GEMM_FORMATS[name].math, []).append(found.constants[f"flop_{name}"])
    for math, values in per_math.items():  # formats of one arithmetic: their mean
        lines += ["", f"[flop.{math}]", f"value = {np.mean(values):.4g}", 'unit = "pJ/FLOP"', 'kind = "fitted"', f'source = "{source}"']
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Path(path)
