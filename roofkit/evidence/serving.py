"""Serving: predictions of measured load points and request traces, by simulating the run that produced them. Room: evidence.

A load point is a closed-loop benchmark; the run that made it is named by its `source` ("...lab-run": the aiperf preset, else
inferencemax, see data/benchmarks). Blank precision is 16 bit for every engine. A trace is an open loop of given arrivals.
"""
from collections.abc import Iterator

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.errors import MeasurementError, RoofkitError
from roofkit.evidence.measurements import device_name, resolve_device
from roofkit.evidence.names import resolve_model, usual_cluster
from roofkit.hardware.device import Device
from roofkit.hardware.presets import list_devices, load_device
from roofkit.inference.engines import load_engine
from roofkit.inference.step import estimate
from roofkit.ops.plan import Plan, resolved
from roofkit.ops.workload import Decode
from roofkit.serving.benchmark import Benchmark, emulate_benchmark
from roofkit.serving.requests import Requests
from roofkit.serving.scheduler import Scheduler
from roofkit.serving.simulate import Served, simulate

WEIGHTS = {"fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp8": "fp8", "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "int4": "int4", "int8": "int8"}
TRACE = ("gpu", "model", "input_toks", "output_toks", "arrival_s", "scheduled_s", "first_token_s", "last_token_s")


def predict_points(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple]:
    """(index, TPOT [s], TTFT [s], calibration, note) of every row; NaN with the reason where the run is not modelled."""
    for row in rows.itertuples():
        reason = not_modelled(row)
        if reason:
            yield row.Index, np.nan, np.nan, "none", f"{reason} rows are not modelled"
            continue
        try:
            found = emulate_row(row, device, arch)
        except RoofkitError as error:
            yield row.Index, np.nan, np.nan, "none", str(error)[:120]
            continue
        yield row.Index, found.tpot_s, found.ttft_s, found.served.calibration, f"closed-loop simulation, protocol {found.protocol}"


def not_modelled(row) -> str:
    """Why a load point cannot be simulated; empty when it can."""
    precision, dp = _precision(row), getattr(row, "attn_dp", 1.0)
    if getattr(row, "mode", "agg") != "agg":
        return "disaggregated"
    if dp > 1:
        return "attention data parallel"
    return "" if precision in WEIGHTS else f"precision {precision}"


def _precision(row) -> str:
    return row.precision if isinstance(row.precision, str) else "bf16"


def plan_of(row, arch: Architecture) -> Plan:
    """Plan of a load point, its cache in 16 bit until the protocol says otherwise; a checkpoint stored in MXFP4 runs as stored."""
    weights, ep = WEIGHTS[_precision(row)], getattr(row, "ep", 1.0)
    stored = weights in ("nvfp4", "mxfp4") and resolved(Plan(), arch).weights == "mxfp4"
    return Plan(tp=int(row.tp), ep=int(ep) if ep > 0 else 1, weights=None if stored else weights, activations=None if stored else weights, kv="bf16")


def preset_of(row) -> str:
    """Benchmark preset that made a load point, by its source."""
    return "aiperf" if str(getattr(row, "source", "")).endswith("lab-run") else "inferencemax"


def emulate_row(row, device: Device, arch: Architecture) -> Benchmark:
    """The benchmark run of one load point."""
    return emulate_benchmark(arch, usual_cluster(device, int(row.tp)), plan_of(row, arch), row.engine, clients=int(row.concurrency), prompt_tokens=int(row.isl),
                             output_tokens=int(row.osl), preset=preset_of(row))


def bound_ms(frame: pd.DataFrame) -> np.ndarray:
    """Roofline of one decode step of every load point's stated concurrency [ms]: what no server beats; NaN where not modelled."""
    out = pd.Series(np.nan, frame.index)
    devices, models = list_devices()["name"].tolist(), list_architectures()["name"].tolist()
    for (gpu, model, precision, tp), rows in frame.groupby(["device", "model", frame["precision"].astype(object).fillna("bf16"), "tp"]):
        device, arch = resolve_device(gpu, devices), resolve_model(model, models)
        if device is None or arch is None or precision not in WEIGHTS:
            continue
        try:  # one replica of tp devices, the cache in one byte an element: never more work than the row had
            plan = Plan(tp=int(tp), weights=WEIGHTS[precision], activations=WEIGHTS[precision], kv="fp8")
            each = np.maximum((rows["concurrency"] / np.maximum(rows["n_gpu"] / tp, 1)).to_numpy(float), 1.0)
            step = estimate(load_architecture(arch), usual_cluster(load_device(device), int(tp)), plan, Decode(each, rows["isl"].to_numpy(float)), cost_model="ideal")
        except RoofkitError:
            continue
        out[rows.index] = step.time_s * 1e3
    return out.to_numpy()


def replay_trace(traces, config, engine: str = "vllm") -> dict[tuple[str, str], tuple[pd.DataFrame, Served]]:
    """Requests of measured runs through the simulator: (gpu, model) -> (measured rows, simulated run).

    traces   path or DataFrame with the columns TRACE, times in s;  config   path or DataFrame: gpu, model, tp, dtype, max_num_seqs,
             max_num_batched_tokens of each run
    Raises MeasurementError for missing columns, an unknown device or model.
    """
    rows, runs = (t if isinstance(t, pd.DataFrame) else pd.read_csv(t) for t in (traces, config))
    if lacks := [c for c in TRACE if c not in rows]:
        raise MeasurementError(f"request trace: columns {', '.join(lacks)} are missing")
    devices, models, out = list_devices()["name"].tolist(), list_architectures()["name"].tolist(), {}
    for run in runs.itertuples():
        device, arch = resolve_device(device_name(run.gpu), devices), resolve_model(run.model, models)
        if device is None or arch is None:
            raise MeasurementError(f"request trace: no preset of {run.gpu if device is None else run.model}")
        own = rows[(rows["gpu"] == run.gpu) & (rows["model"] == run.model)].sort_values("arrival_s", kind="stable").reset_index(drop=True)
        profile = load_engine(engine)
        rules = Scheduler(**{**profile.scheduling, "max_num_seqs": int(run.max_num_seqs), "max_num_batched_tokens": int(run.max_num_batched_tokens)})
        dtype = WEIGHTS.get(run.dtype, run.dtype)
        plan = Plan(tp=int(run.tp), weights=dtype, activations=dtype, kv=dtype)
        sent = Requests(own["arrival_s"].to_numpy(float), own["input_toks"].to_numpy(), own["output_toks"].to_numpy())
        out[run.gpu, run.model] = own, simulate(load_architecture(arch), usual_cluster(load_device(device), int(run.tp)), plan, sent, rules, engine=profile)
    return out


def trace_errors(traces, config) -> pd.DataFrame:
    """Mean, median and 99th percentile of TTFT, TPOT and latency of every replayed run: measured, predicted [s] and their relative error."""
    out = []
    for (gpu, model), (own, run) in replay_trace(traces, config).items():
        answers = (own["output_toks"] - 1).where(own["output_toks"] > 1)
        measured = {"ttft": own["first_token_s"] - own["arrival_s"], "tpot": (own["last_token_s"] - own["first_token_s"]) / answers,
                    "latency": own["last_token_s"] - own["arrival_s"]}
        for name, column in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("latency", "e2e_s")):
            for label, pick in (("mean", np.nanmean), ("p50", np.nanmedian), ("p99", lambda x: np.nanquantile(x, 0.99))):
                true, said = float(pick(measured[name])), float(pick(run.requests[column]))
                out.append({"gpu": gpu, "model": model, "quantity": name, "statistic": label, "measured_s": true, "predicted_s": said, "error": said / true - 1})
    return pd.DataFrame(out)
