"""Refits data/roofkit_data/calibration/mixed.toml to measured mixed attention launches, left-out unit = model x TP.

    python tools/fit_mixed_attention.py MIXED_CSV

MIXED_CSV has the columns of `mixed_attention` in roofkit/evidence/measurements.py. Rows of one phase only are left out: other kernels.
Prints the error on every left-out unit, then writes the constants of the fit to all rows.
"""
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.cost.calibration import Fit, device_fits, write_fits
from roofkit.cost.mixed import MEASURED_ON, launch_us
from roofkit.evidence.fit import Form, Parameter
from roofkit.evidence.fit import fit as robust_fit
from roofkit.hardware.presets import load_device
from roofkit.ops.kinds import Attention

PARAMETERS = (
    Parameter("t0", 0.5, 15, 3, unit="us"), Parameter("ec", 0.2, 1, 0.56), Parameter("c0", 0.1, 15, 3, unit="us"), Parameter("ce", 1e-3, 3, 0.3, unit="us"),
    Parameter("em", 0.3, 1, 0.7), Parameter("c2", 0.05, 10, 1), Parameter("p", 0.05, 30, 3), Parameter("w", 0.02, 1, 0.7),
)
HEADS = {"Llama-3.1-8B": (32, 8), "Qwen3-30B-A3B": (32, 4)}  # query and kv heads of the measured models; head width 128
TARGET = Path(__file__).parents[1] / "data" / "roofkit_data" / "calibration" / "mixed.toml"
SOURCE = "vLLM 0.19 layer profiles of an RTX PRO 6000 workstation card, github casys-kaist/LLMServingSim @ 5daddb21 (MIT)"


def launches(rows: pd.DataFrame) -> tuple[Attention, Attention]:
    """(prefill, decode) ops of every row; the heads of a model are arrays, which a preset's ops never need."""
    shape = np.array([next(h for name, h in HEADS.items() if name in model) for model in rows["model"]])
    heads, kv = shape[:, 0] // rows["tp"].to_numpy(), shape[:, 1] // rows["tp"].to_numpy()
    q, past, n, context = (rows[c].to_numpy(float) for c in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
    made = []
    for phase, batch, new, tokens in (("prefill", 1.0, q, past + q), ("decode", n, 1.0, context)):
        op = Attention(phase, "attention", phase, batch, new, tokens, 1, 1, 128, 128, 256)
        object.__setattr__(op, "n_heads", heads)
        object.__setattr__(op, "n_kv_heads", kv)
        made.append(op)
    return made[0], made[1]


def form(rows: pd.DataFrame) -> Form:
    prefill, decode = launches(rows)
    fits = device_fits(load_device(MEASURED_ON))

    def seconds(constants: Mapping[str, float]) -> np.ndarray:
        return launch_us(prefill, decode, constants, fits) * 1e-6

    return Form("mixed", PARAMETERS, seconds)


def main(path: str) -> None:
    table = pd.read_csv(path)
    table = table[(table["prefill_chunk"] > 0) & (table["n_decode"] > 0)]
    units = table["model"] + " tp" + table["tp"].astype(str)
    errors = pd.Series(np.nan, table.index)
    for unit in sorted(units.unique()):
        train, test = table[units != unit], table[units == unit]
        found = robust_fit(form(train), train["time_us"].to_numpy() * 1e-6, starts=1)
        errors[test.index] = form(test).seconds(found.constants) * 1e6 / test["time_us"] - 1
        print(f"{unit}: {100 * errors[test.index].abs().mean():.1f} % mean, {100 * errors[test.index].abs().median():.1f} % median, n={len(test)}")
    found = robust_fit(form(table), table["time_us"].to_numpy() * 1e-6, starts=1, families=units.to_numpy())
    print({k: f"{v:.4g} +- {found.errors[k]:.2g}" for k, v in found.constants.items()})
    print(f"left out: {100 * errors.abs().mean():.1f} % mean, {100 * errors.abs().median():.1f} % median, 90 % below {100 * errors.abs().quantile(0.9):.1f} %")
    kept = Fit("attention_mixed", "bf16", "vllm-0.19", "mixed launch", found.constants, kernel={"rows": 64, "keys": 64}, n=len(table),
               mape=float(errors.abs().mean()), median=float(errors.abs().median()))
    write_fits(TARGET, [kept], SOURCE, "2026-11", "Constants of one attention launch that holds prefill chunks and decodes: roofkit/cost/mixed.py.\n"
               "Errors: on models and TP sizes the fit never saw. Refit: python tools/fit_mixed_attention.py MIXED_CSV.")


if __name__ == "__main__":
    main(sys.argv[1])
