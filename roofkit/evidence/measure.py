"""Measure this machine: time small kernels here, fit them, and report the error on points the fit never saw. Room: evidence.

Protocol: three rounds in random order, each with warm-up, repeated samples and their median under a duration rule per point
(machine.Rule); the quietest round counts, the environment is recorded. Every fourth point is held out. Rows come in the uniform
schema (measurements.SCHEMAS). A whole decoder step is predicted from the fitted parts, nothing of it fitted but its passes.
"""
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.errors import MeasurementError
from roofkit.evidence.fit import Fit, Form, Parameter, fit
from roofkit.evidence.machine import Rule, backend, environment, time_call

ROUNDS = 3  # passes over all points; a round that other programs disturb is slower, never faster
WIDTH, HEADS, INNER, LAYERS = 256, 4, 1024, 2  # the small decoder: hidden width, heads, inner width, layers
_GEMM_SHAPES = ((256, 256), (256, 1024), (1024, 256), (512, 2048), (1024, 1024), (2048, 512), (4096, 1024), (1024, 4096))


@dataclass(frozen=True, slots=True, eq=False)
class MachineReport:
    """Result of measure_this_machine.

    points        every timed point: kind, shape, measured_us, predicted_us, held_out, spread (half interquartile range / median)
    errors        per kind and part: n, mape, median, bias [0..1]
    fits          kind -> Fit, constants in s, FLOP/s and bytes/s
    environment   processor, cores, BLAS, versions, timing rule;  wall_s   time it took [s]
    """

    points: pd.DataFrame
    errors: pd.DataFrame
    fits: dict[str, Fit]
    environment: dict[str, object]
    wall_s: float

    @property
    def held_out_mape(self) -> float:
        """The worst kind's error on held-out points [0..1]: the headline."""
        return float(self.errors.query("part == 'held out'")["mape"].max())

    def tables(self) -> dict[str, pd.DataFrame]:
        """The measurements in the uniform schema, one table per kind: gemm, attention, step."""
        p, gpu = self.points, str(self.environment["processor"])
        source = f"this machine:{self.environment['backend']}"
        dtype = self.environment["dtype"]
        gemm = p.query("kind == 'gemm'")
        att = p.query("kind in ('prefill', 'decode')")
        step = p.query("kind == 'step'")
        return {
            "gemm": pd.DataFrame({"gpu": gpu, "dtype": dtype, "m": gemm.m, "n": gemm.n, "k": gemm.k, "time_us": gemm.measured_us, "source": source}),
            "attention": pd.DataFrame({"gpu": gpu, "phase": att.kind, "batch": att.batch, "heads": HEADS, "kv_heads": HEADS,
                                       "head_dim": WIDTH // HEADS, "window": 0, "q_len": att.q_len, "kv_len": att.kv_len, "dtype": dtype,
                                       "kv_dtype": dtype, "time_us": att.measured_us, "source": source}),
            "step": pd.DataFrame({"gpu": gpu, "model": "small-decoder", "engine": self.environment["backend"], "tp": 1, "phase": step.phase,
                                  "batch": step.batch, "in_len": step.q_len, "ctx_len": step.kv_len, "out_len": 0, "dtype": dtype,
                                  "time_ms": step.measured_us / 1e3, "source": source}),
        }

    def save(self, folder) -> list[Path]:
        """Write one CSV per kind and environment.json into `folder` (made if absent); returns the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for kind, table in self.tables().items():
            written.append(folder / f"{kind}_this_machine.csv")
            table.to_csv(written[-1], index=False, float_format="%.5g")
        written.append(folder / "environment.json")
        written[-1].write_text(json.dumps(self.environment, indent=1, default=str) + "\n", encoding="utf-8")
        return written


def measure_this_machine(*, budget_s: float = 40.0, backend_name: str = "auto", seed: int = 0,
                         progress: Callable[[float, str], None] | None = None) -> MachineReport:
    """Time matrix products, attention and a small decoder here, fit simple forms, judge them on every fourth point.

    budget_s       time for all points together; fits add a few seconds [s]
    backend_name   "numpy" | "torch" | "auto" (torch where it drives a GPU, else numpy)
    progress       called with the share done [0..1] and what runs
    Raises MeasurementError for a budget under 3 s, an unknown backend, or missing scipy (the `calibrate` extra).
    """
    if not budget_s >= 3:
        raise MeasurementError(f"budget_s={budget_s} is too short for a meaningful median; give at least 3 seconds")
    begin = time.perf_counter()
    engine = backend(backend_name)
    plan = _plan(engine)
    share = budget_s / (len(plan) * ROUNDS)
    rule = Rule(warm_s=min(0.01, share / 6), sample_s=min(0.003, share / 8), point_s=min(0.5, 0.7 * share))
    points = _time(engine, plan, rule, seed, progress, begin + budget_s)
    points["held_out"] = points.groupby("kind").cumcount() % 4 == 3
    points, fits = _fit(points, 2.0 if engine.dtype == "bf16" else 4.0)
    return MachineReport(points, _errors(points), fits, environment(engine, rule), time.perf_counter() - begin)


def _time(engine, plan: list[dict], rule: Rule, seed: int, progress, deadline: float) -> pd.DataFrame:
    """Every point once a round, in a new random order each round: the median of its quietest round counts.

    On a machine that others keep busy, rounds after the first stop at the deadline.
    """
    rng, taken = np.random.default_rng(seed), {index: [] for index in range(len(plan))}
    for number in range(ROUNDS):
        for done, index in enumerate(rng.permutation(len(plan))):
            if number and time.perf_counter() > deadline:
                break
            if progress:
                progress((number + done / len(plan)) / ROUNDS, plan[index]["kind"])
            taken[int(index)].append(time_call(_call(engine, plan[index]), engine.sync, rule))
    rows = []
    for index, row in enumerate(plan):
        medians = [seconds for seconds, _, _ in taken[index]]
        quiet = int(np.argmin(medians))
        rows.append({**row, "measured_us": medians[quiet] * 1e6, "spread": taken[index][quiet][1], "rounds_differ": max(medians) / min(medians) - 1,
                     "samples": sum(samples for _, _, samples in taken[index])})
    return pd.DataFrame(rows)


def main_measure(args) -> int:
    """What `roofkit measure` runs. args: .budget_s, .backend, .out (folder or None); prints the table, returns 0."""
    report = measure_this_machine(budget_s=getattr(args, "budget_s", 40.0), backend_name=getattr(args, "backend", "auto"))
    env = report.environment
    print(f"{env['processor']}, {env['cores']} cores, {env['backend']} ({env['blas']}), {len(report.points)} points in {report.wall_s:.0f} s")
    table = report.errors.assign(**{c: (100 * report.errors[c]).round(1).astype(str) + " %" for c in ("mape", "median", "bias")})
    print(table.to_string(index=False))
    if getattr(args, "out", None):
        print("written:", ", ".join(str(p) for p in report.save(args.out)))
    return 0


def _plan(engine) -> list[dict]:
    """The points: sizes a few times larger where a GPU runs them. Shapes interleave so that every fourth point differs in both."""
    big = 4 if engine.on_gpu else 1
    gemm = [dict(kind="gemm", m=m * big, n=n * big, k=k * big) for n, k in _GEMM_SHAPES for m in (1, 4, 16, 64, 256)]
    prefill = [dict(kind="prefill", batch=b, q_len=q * big, kv_len=q * big) for b in (1, 2, 4) for q in (32, 48, 64, 96, 128, 192, 256, 384)]
    decode = [dict(kind="decode", batch=b * big, q_len=1, kv_len=kv * big) for b in (1, 2, 4, 8, 16) for kv in (128, 512, 1024, 2048, 4096)]
    steps = [dict(kind="step", phase="prefill", batch=b, q_len=q * big, kv_len=q * big) for b in (1, 4) for q in (32, 96, 160, 256)]
    steps += [dict(kind="step", phase="decode", batch=b * big, q_len=1, kv_len=kv * big) for b in (1, 4, 8) for kv in (128, 512, 1024, 2048)]
    return gemm + prefill + decode + steps


def _call(engine, row: dict) -> Callable[[], object]:
    if row["kind"] == "gemm":
        x, w = engine.array(row["m"], row["k"]), engine.array(row["k"], row["n"])
        return lambda: engine.matmul(x, w)
    width = WIDTH // HEADS
    q = engine.array(row["batch"], HEADS, row["q_len"], width)
    k, v = (engine.array(row["batch"], HEADS, row["kv_len"], width) for _ in range(2))
    if row["kind"] != "step":
        return lambda: engine.attention(q, k, v, row["q_len"] > 1)
    weights = [(engine.array(WIDTH, 3 * WIDTH), engine.array(WIDTH, WIDTH), engine.array(WIDTH, 2 * INNER), engine.array(INNER, WIDTH))
               for _ in range(LAYERS)]
    x0 = engine.array(row["batch"] * row["q_len"], WIDTH)

    def step():
        x = x0
        for qkv, out, gate_up, down in weights:
            y = engine.matmul(engine.norm(x), qkv)
            parts = [engine.heads(y[:, i * WIDTH:(i + 1) * WIDTH], row["batch"], HEADS) for i in range(3)]
            keys, values = (parts[1], parts[2]) if row["q_len"] > 1 else (k, v)  # decode: against the cache
            x = x + engine.matmul(engine.flat(engine.attention(parts[0], keys, values, row["q_len"] > 1)), out)
            z = engine.matmul(engine.norm(x), gate_up)
            x = x + engine.matmul(engine.silu(z[:, :INNER]) * z[:, INNER:], down)
        return x

    return step


def _traffic_s(c, bytes_moved):
    """Bytes from the cache while they fit, from memory beyond it [s]; the share that stays falls off around cache_bytes."""
    kept = 1.0 / (1.0 + (bytes_moved / c["cache_bytes"]) ** 4)
    return bytes_moved / c["bytes_per_s"] * (kept / c["cache_speedup"] + 1.0 - kept)


def _gemm_s(c, m, n, k, size):
    """start + p-norm of arithmetic and traffic [s]; a product of several rows copies its weights, worth few_rows rows."""
    compute = 2.0 * np.where(m > 1, m + c["few_rows"], m) * n * k / c["flops_per_s"]
    memory = _traffic_s(c, size * (m * k + k * n + m * n))
    return c["start_s"] + (compute ** c["sharpness"] + memory ** c["sharpness"]) ** (1 / c["sharpness"])


def _prefill_s(c, batch, q_len, kv_len, size):
    """start + start per head + two products + the passes over the scores [s]."""
    scores = batch * HEADS * q_len * kv_len * 1.0
    return c["start_s"] + batch * HEADS * c["head_s"] + 4.0 * scores * (WIDTH // HEADS) / c["flops_per_s"] + scores * c["score_s"]


def _decode_s(c, batch, q_len, kv_len, size):
    """start + start per head + the stream of the cached keys and values [s]."""
    return c["start_s"] + batch * HEADS * c["head_s"] + _traffic_s(c, size * 2.0 * batch * HEADS * kv_len * (WIDTH // HEADS))


def _parts_s(fits: dict[str, Fit], p: pd.DataFrame, size: float) -> np.ndarray:
    """A decoder step from its parts, passes over activations left out [s]."""
    rows, b = (p.batch * p.q_len).to_numpy(float), p.batch.to_numpy(float)
    g = fits["gemm"].constants
    total = sum(_gemm_s(g, rows, n, k, size) for n, k in ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (2 * INNER, WIDTH), (WIDTH, INNER)))
    q, kv = p.q_len.to_numpy(float), p.kv_len.to_numpy(float)
    att = np.where(q > 1, _prefill_s(fits["prefill"].constants, b, q, kv, size), _decode_s(fits["decode"].constants, b, q, kv, size))
    return LAYERS * (total + att)


_START = Parameter("start_s", 1e-8, 1e-3, 2e-6, unit="s")
_RATE = Parameter("flops_per_s", 1e8, 1e16, 5e10, unit="FLOP/s")
_HEAD = Parameter("head_s", 1e-10, 1e-4, 5e-7, unit="s")
_TRAFFIC = (Parameter("bytes_per_s", 1e8, 1e14, 1e10, unit="bytes/s"), Parameter("cache_speedup", 1.0, 30.0, 3.0),
            Parameter("cache_bytes", 1e5, 1e9, 1e7, unit="bytes"))
_PARAMETERS = {
    "gemm": (_START, _RATE, *_TRAFFIC, Parameter("sharpness", 1.0, 8.0, 2.0), Parameter("few_rows", 1e-2, 64, 4.0)),
    "prefill": (_START, _HEAD, _RATE, Parameter("score_s", 1e-15, 1e-7, 2e-9, unit="s")),
    "decode": (_START, _HEAD, *_TRAFFIC),
    "step": (Parameter("layer_s", 1e-9, 1e-2, 2e-5, unit="s"), Parameter("element_s", 1e-14, 1e-7, 1e-9, unit="s")),
}


def _seconds(kind: str, c, rows: pd.DataFrame, fits: dict[str, Fit], size: float) -> np.ndarray:
    if kind == "gemm":
        return _gemm_s(c, *(rows[x].to_numpy(float) for x in ("m", "n", "k")), size)
    if kind == "step":
        tokens = (rows.batch * rows.q_len).to_numpy(float)
        return _parts_s(fits, rows, size) + LAYERS * (c["layer_s"] + c["element_s"] * tokens * (6 * WIDTH + 3 * INNER))
    form = _prefill_s if kind == "prefill" else _decode_s
    return form(c, *(rows[x].to_numpy(float) for x in ("batch", "q_len", "kv_len")), size)


def _fit(points: pd.DataFrame, size: float) -> tuple[pd.DataFrame, dict[str, Fit]]:
    """Constants from the points not held out, parts before steps; predictions for all points."""
    fits: dict[str, Fit] = {}
    predicted = np.full(len(points), np.nan)
    for kind, parameters in _PARAMETERS.items():
        rows = points[points.kind == kind]
        train = rows[~rows.held_out]
        form = Form(kind, parameters, lambda c, k=kind, r=train: _seconds(k, c, r, fits, size))
        fits[kind] = fit(form, train.measured_us.to_numpy() * 1e-6, starts=6)
        predicted[rows.index] = _seconds(kind, fits[kind].constants, rows, fits, size) * 1e6
    return points.assign(predicted_us=predicted), fits


def _errors(points: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for kind in points.kind.unique():
        for held, part in ((False, "fitted"), (True, "held out")):
            p = points[(points.kind == kind) & (points.held_out == held)]
            ratio = p.predicted_us / p.measured_us
            rows.append({"kind": kind, "part": part, "n": len(p), "mape": (ratio - 1).abs().mean(), "median": (ratio - 1).abs().median(),
                         "bias": float(np.expm1(np.log(ratio).median()))})
    return pd.DataFrame(rows)
