"""Exchange cases: DeepEP dispatch and combine of one machine, bound to roofkit.cost.expert_exchange.parts_us. Room: evidence.

A row holds both times: it belongs to a case of dispatch (tokens in 8 bit) and to one of combine (16 bit). Normal mode is fitted to
rows of LEAST_SMS SMs or more, since engines take 20 and fewer hide the link. Family = layer (hidden, top_k, experts).
Errors are those of what pricing uses: low latency up to its limit, normal beyond it on 20 SMs; other rows train only.
Source: shared table `moe_all2all_deepep`, AIConfigurator collector, github ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA).
"""
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from roofkit.cost.expert_exchange import LOW_LATENCY_TOKENS, MEASURED_BYTES, MEASURED_FORMATS, MEASURED_RANKS, MODES, NORMAL_SMS, Exchange, parts_us
from roofkit.evidence.cases import Case, stack_of
from roofkit.evidence.fit import Parameter
from roofkit.evidence.splits import Split, splits
from roofkit.hardware.device import Device

P = Parameter
_COMMON = (P("t0", 1, 60, 15, unit="us"), P("th", 0.01, 20, 0.5, unit="us"), P("eb", 0.2, 1, 0.6), P("p", 0.05, 30, 2))
_QUICK = (*_COMMON, P("te", 1e-3, 1, 0.1, unit="us"), P("ct", 1e-3, 20, 1, unit="us"))
_NORMAL = (*_COMMON, P("cn", 1e-3, 10, 0.3, unit="us"), P("cs", 1, 80, 25, unit="GB/s"), P("sh", 0.1, 5e4, 100, unit="kB"))
PARAMETERS = {
    ("dispatch", "low_latency"): _QUICK, ("dispatch", "normal"): (*_NORMAL, P("cc", 1e-3, 5, 0.05, unit="us")),
    ("combine", "low_latency"): _QUICK, ("combine", "normal"): (*_NORMAL, P("cr", 1, 1e3, 20, unit="GB/s")),
}
LEAST_SMS = 16


def exchange_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    """Every case of a table of kind moe_all2all and one device; class = device/mode, as pricing looks them up."""
    frame = frame[(frame["nodes"] == 1) & ((frame["mode"] != "normal") | (frame["sms"] >= LEAST_SMS))]
    frame = frame.assign(source=frame["source"] if "source" in frame else "")
    for (source, mode), part in frame.groupby(["source", "mode"], sort=True):
        for op in MEASURED_BYTES if mode in MODES else ():
            rows = part.assign(time_us=part[f"{op}_us"]).dropna(subset=["time_us"])
            if len(rows):
                yield Case(op, MEASURED_FORMATS[op], stack_of(source), "SM copies and link", device, rows, PARAMETERS[op, mode], _prepare,
                           f"{device.name}/{mode}", divide=divide)


def mode_of(case: Case) -> str:
    return case.cls.split("/")[-1]


def priced(case: Case) -> np.ndarray:
    """Rows whose mode and SMs are those that pricing takes for their number of tokens."""
    few = (case.rows["tokens"] <= LOW_LATENCY_TOKENS).to_numpy()
    return few if mode_of(case) == "low_latency" else ~few & (case.rows["sms"] == NORMAL_SMS).to_numpy()


def divide(case: Case, folds: int, seed: int, rule: str = "family") -> Iterator[Split]:
    """Splits of the rows, judged on priced ones only. rule   "family" | "sizes" as in splits.py | "width": one hidden width left out"""
    if rule != "width":
        parts = splits(case.rows, rule, folds=folds, seed=seed)
    else:
        hidden = case.rows["hidden"].to_numpy()
        parts = (Split(rule, f"hidden={width}", hidden != width, hidden == width) for width in np.unique(hidden))
    judged = priced(case)
    for part in parts:
        yield replace(part, test=part.test & judged)


def _prepare(rows: pd.DataFrame, case: Case):
    tokens, hidden, top_k, experts, sms = (rows[c].to_numpy(float) for c in ("tokens", "hidden", "topk", "experts", "sms"))
    call = Exchange(tokens, tokens * top_k * hidden * MEASURED_BYTES[case.op], hidden, top_k, experts, MEASURED_RANKS)
    mode = mode_of(case)

    def seconds(constants: Mapping[str, float]) -> np.ndarray:
        fits = case.fits(constants)
        return sum(parts_us(call, mode, constants, fits.link_us, fits.sm, sms)) * 1e-6

    return seconds
