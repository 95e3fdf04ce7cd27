"""Refits data/roofkit_data/calibration/expert_exchange.toml to measured DeepEP dispatch and combine times.

    python tools/fit_expert_exchange.py DEEPEP_CSV

DEEPEP_CSV has the columns of `moe_all2all` in roofkit/evidence/measurements.py: tokens per rank, one machine, 8 ranks.
Normal mode is fitted to rows of 16 to 24 SMs: engines take 20, and fewer hide the link. Prints errors on left-out layers
(hidden, top_k, experts), left-out hidden widths and every other token count, over the rows that pricing uses (low latency up to
its limit, normal beyond it on 20 SMs), as priced, bound included; the worst of the three is stored. Then writes the constants.
"""
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.cost.calibration import Fit, write_fits
from roofkit.cost.expert_exchange import LOW_LATENCY_TOKENS, MEASURED_BYTES, MEASURED_RANKS, MODES, NORMAL_SMS, Exchange, parts_us
from roofkit.evidence.fit import Form, Parameter
from roofkit.evidence.fit import fit as robust_fit
from roofkit.evidence.measurements import device_name
from roofkit.hardware.presets import load_device

COMMON = (Parameter("t0", 1, 60, 15, unit="us"), Parameter("th", 0.01, 20, 0.5, unit="us"), Parameter("eb", 0.2, 1, 0.6), Parameter("p", 0.05, 30, 2))
NORMAL = (*COMMON, Parameter("cn", 1e-3, 10, 0.3, unit="us"), Parameter("cs", 1, 80, 25, unit="GB/s"), Parameter("sh", 0.1, 5e4, 100, unit="kB"))
PARAMETERS = {
    ("dispatch", "low_latency"): (*COMMON, Parameter("te", 1e-3, 1, 0.1, unit="us"), Parameter("ct", 1e-3, 20, 1, unit="us")),
    ("dispatch", "normal"): (*NORMAL, Parameter("cc", 1e-3, 5, 0.05, unit="us")),
    ("combine", "normal"): (*NORMAL, Parameter("cr", 1, 1e3, 20, unit="GB/s")),
}
PARAMETERS["combine", "low_latency"] = PARAMETERS["dispatch", "low_latency"]
TARGET = Path(__file__).parents[1] / "data" / "roofkit_data" / "calibration" / "expert_exchange.toml"
STACK = "deepep-sglang-0.5.12"
SOURCE = f"fit to AIConfigurator collector tables (aic:{STACK}), github ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA)"
LEAST_SMS = 16
COMMENT = """Constants of dispatch and combine inside one machine: roofkit/cost/expert_exchange.py. class = device/mode.
mape, median: errors of priced times (low latency up to 256 tokens per rank, normal on 20 SMs beyond), the worst of left-out
layers, left-out hidden widths and every other token count.
Refit: python tools/fit_expert_exchange.py DEEPEP_CSV."""


def calls(rows: pd.DataFrame, op: str) -> Exchange:
    tokens, hidden, top_k, experts = (rows[c].to_numpy(float) for c in ("tokens", "hidden", "topk", "experts"))
    return Exchange(tokens, tokens * top_k * hidden * MEASURED_BYTES[op], hidden, top_k, experts, MEASURED_RANKS)


def form(rows: pd.DataFrame, op: str, mode: str, device: str, bound: bool = False) -> Form:
    call, preset, sms = calls(rows, op), load_device(device), rows["sms"].to_numpy(float)
    link = preset.value("scaleup_bandwidth_per_direction") * 1e-6
    least = call.bytes_in * (call.ranks - 1) / call.ranks / link if bound else 0.0

    def seconds(constants: Mapping[str, float]) -> np.ndarray:
        return np.maximum(sum(parts_us(call, mode, constants, link, preset.sm_count, sms)), least) * 1e-6

    return Form(f"{op} {mode}", PARAMETERS[op, mode], seconds)


def held_out(rows: pd.DataFrame, op: str, mode: str, device: str, units: pd.Series) -> pd.Series:
    """Signed error of every row, each predicted by the fit to the other units."""
    errors = pd.Series(np.nan, rows.index)
    for unit in sorted(units.unique()):
        train, test = rows[units != unit], rows[units == unit]
        found = robust_fit(form(train, op, mode, device), train[f"{op}_us"].to_numpy() * 1e-6, starts=2)
        errors[test.index] = form(test, op, mode, device, bound=True).seconds(found.constants) * 1e6 / test[f"{op}_us"] - 1
    return errors


def fitted(rows: pd.DataFrame, op: str, mode: str, device: str) -> Fit:
    layers = rows["hidden"].astype(str) + "/" + rows["topk"].astype(str) + "/" + rows["experts"].astype(str)
    turn = rows["tokens"].rank(method="dense").astype(int) % 2
    used = rows["tokens"] <= LOW_LATENCY_TOKENS if mode == "low_latency" else (rows["sms"] == NORMAL_SMS) & (rows["tokens"] > LOW_LATENCY_TOKENS)
    errors = {name: held_out(rows, op, mode, device, units).abs()[used]
              for name, units in (("layers", layers), ("widths", rows["hidden"]), ("token counts", turn))}
    found = robust_fit(form(rows, op, mode, device), rows[f"{op}_us"].to_numpy() * 1e-6, starts=4, families=layers.to_numpy())
    priced, free = ((form(rows[used], op, mode, device, bound).seconds(found.constants) * 1e6 / rows[f"{op}_us"][used] - 1).abs() for bound in (True, False))
    print(f"{device} {op} {mode}: n={len(rows)}, in sample {100 * priced.mean():.1f} % ({100 * free.mean():.1f} % without the bound), at a limit: {found.at_bound}")
    for name, error in errors.items():
        print(f"  left-out {name}: {100 * error.mean():.1f} % mean, {100 * error.median():.1f} % median, 90 % below {100 * error.quantile(0.9):.1f} %")
    print("  worst layers: " + ", ".join(f"{k} {100 * v:.0f} %" for k, v in errors["layers"].groupby(layers[used]).mean().nlargest(3).items()))
    print("  " + str({k: f"{v:.4g} +- {found.errors[k]:.2g}" for k, v in found.constants.items()}))
    worst = max(errors.values(), key=lambda e: e.mean())
    return Fit(op, "fp8" if op == "dispatch" else "bf16", STACK, "SM copies and link", found.constants, cls=f"{device}/{mode}",
               n=len(rows), mape=float(worst.mean()), median=float(worst.median()))


def main(path: str) -> None:
    table = pd.read_csv(path)
    table = table[(table["nodes"] == 1) & ((table["mode"] != "normal") | (table["sms"] >= LEAST_SMS))]
    kept = [fitted(rows, op, mode, device_name(gpu))
            for gpu in sorted(table["gpu"].unique(), reverse=True) for op in ("dispatch", "combine") for mode in MODES
            for rows in [table[(table["gpu"] == gpu) & (table["mode"] == mode)]]]
    write_fits(TARGET, kept, SOURCE, "2026-11", COMMENT)


if __name__ == "__main__":
    main(sys.argv[1])
