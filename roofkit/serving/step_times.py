"""Step times: how long any mix of decodes and prompt chunks takes, from tables built once by the vectorised estimate. Room: serving.

For R decodes with S cached tokens in all and chunks of q new on c cached tokens, T = R + sum q, n rows that are sampled:
  device = linear(T) + head(n) + decode(R, S/R) + start + sum over chunks of [prefill(q, c) - start] + shared launch
  step   = max(device, eager floor if any chunk) + host + host per request x (R + chunks)
linear: operators that see only tokens; decode, prefill: attention, scans and what goes with a phase. Products are priced at the
tokens of the whole batch, so a fused batch is never the sum of two steps. Where decodes share the launch of a chunk
(cost.mixed), `shared launch` is what that adds to the two alone.
"""
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from roofkit.architectures.architecture import Architecture
from roofkit.cost.served import key as served_key
from roofkit.errors import PlanError
from roofkit.hardware.network import Cluster
from roofkit.inference.engines import EngineProfile
from roofkit.inference.step import Step, estimate
from roofkit.ops.inventory import HEAD
from roofkit.ops.kinds import Attention, Scan
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, MixedBatch, Prefill, Workload

TILE, TILED, EACH = 64, 8192, 64  # products step up after whole tiles of so many rows, tabled up to so many; points per doubling above


class _Line:
    """Piecewise linear function of one number, continued flat below and along its last slope above."""

    __slots__ = ("x", "y")

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = [float(v) for v in x], [float(v) for v in np.broadcast_to(y, np.shape(x))]

    def __call__(self, at: float) -> float:
        x, y = self.x, self.y
        i = min(max(bisect_right(x, at), 1), len(x) - 1)
        low = x[i - 1]
        return y[i - 1] + (y[i] - y[i - 1]) * (max(at, x[0]) - low) / (x[i] - low)

    def piece(self, at: float) -> tuple[float, float]:
        """(slope, end) of the piece that holds `at`; the last one has no end."""
        i = bisect_right(self.x, at)
        if i == 0:
            return 0.0, self.x[0]
        last = i >= len(self.x)
        i = min(i, len(self.x) - 1)
        return (self.y[i] - self.y[i - 1]) / (self.x[i] - self.x[i - 1]), np.inf if last else self.x[i]


class _Surface:
    """Bilinear function of two numbers; `along(a)` is its line at a fixed first one."""

    def __init__(self, a: np.ndarray, b: np.ndarray, values: np.ndarray) -> None:
        self.a, self.b, self.values = [float(v) for v in a], np.asarray(b, float), values
        self._lines: dict[float, _Line] = {}

    def along(self, a: float) -> _Line:
        line = self._lines.get(a)
        if line is None:
            i = min(max(bisect_right(self.a, a), 1), len(self.a) - 1)
            share = (a - self.a[i - 1]) / (self.a[i] - self.a[i - 1])
            line = self._lines[a] = _Line(self.b, (1 - share) * self.values[i - 1] + share * self.values[i])
        return line

    def __call__(self, a: float, b: float) -> float:
        return self.along(a)(b)


class _Grid:
    """Multilinear function of several numbers on log axes, flat outside."""

    def __init__(self, axes: list[np.ndarray], values: np.ndarray) -> None:
        self.axes, self.values = [np.log1p(np.asarray(a, float)) for a in axes], values

    def __call__(self, *at: float) -> float:
        values = self.values
        for axis, x in zip(self.axes, np.log1p(at), strict=True):
            x = min(max(x, axis[0]), axis[-1])
            i = min(int(np.searchsorted(axis, x, "right")), len(axis) - 1)
            share = (x - axis[i - 1]) / (axis[i] - axis[i - 1])
            values = (1 - share) * values[i - 1] + share * values[i]
        return float(values)


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Tables of one model on one machine under one plan and engine; times in seconds.

    calibration   weakest calibration among the operators of the steps: bound | fitted | inherited | generic
    """

    linear: _Line
    head: _Line
    decode: _Surface
    prefill: _Surface
    start_s: float
    shared: _Grid | None
    calibration: str
    host_s: float = 0.0
    host_per_request_s: float = 0.0
    eager_s: float = 0.0
    _kept: dict = field(default_factory=dict, repr=False)  # sums of linear and head: the tables' own, so replace() may share it

    def step_s(self, decodes: int, cached: int, chunks: list[tuple[int, int]], sampled: int) -> float:
        """One step: `decodes` sequences with `cached` tokens in all, `chunks` of (new, cached) tokens, `sampled` rows."""
        if not chunks:
            return self._token_ops_s(decodes, sampled) + self.decode.along(decodes)(cached / decodes) + self._host_s(decodes)
        new = sum(q for q, _ in chunks)
        time = self._token_ops_s(decodes + new, sampled) + self.start_s + sum(self.prefill(q, done) - self.start_s for q, done in chunks)
        if decodes:
            time += self.decode(decodes, cached / decodes)
            if self.shared is not None:
                time += self.shared(decodes, cached / decodes, new, max(done for _, done in chunks))
        return max(time, self.eager_s) + self._host_s(decodes + len(chunks))

    def run(self, decodes: int, cached: int) -> tuple[float, float, float]:
        """(first, growth, steps): the next decode step takes `first` [s], each one after it `growth` more, for so many steps.

        Contexts grow by one token a step, so inside a piece of the table durations are an arithmetic series.
        """
        line, context = self.decode.along(decodes), cached / decodes
        growth, end = line.piece(context)
        return self._token_ops_s(decodes, decodes) + line(context) + self._host_s(decodes), growth, end - context + 1

    def _token_ops_s(self, tokens: int, sampled: int) -> float:
        """Operators that see tokens and sampled rows alone [s]."""
        found = self._kept.get((tokens, sampled))
        if found is None:
            found = self._kept[tokens, sampled] = self.linear(tokens) + (self.head(sampled) if sampled else 0.0)
        return found

    def _host_s(self, running: int) -> float:
        return self.host_s + self.host_per_request_s * running


def _points(most: int, each: int = 8) -> np.ndarray:
    """1 .. most: every number while they are few, then `each` per doubling."""
    fine = np.arange(1, min(most, each) + 1)
    if most <= each:
        return np.append(fine, most + 1) if most == 1 else fine
    return np.unique(np.append(fine, np.round(np.geomspace(each, most, int(each * np.log2(most / each)) + 2)).astype(int)))


def step_times(arch: Architecture, cluster: Cluster, plan: Plan, profile: EngineProfile | None = None, cost_model: str = "calibrated", *, max_seqs: int = 256,
               max_tokens: int = 8192, max_context: int = 8192) -> StepTimes:
    """Tables for steps of up to `max_seqs` sequences, `max_tokens` new tokens and `max_context` cached tokens each.

    profile   engine whose kernels and host time count; None = device time alone
    Raises PlanError for pipeline stages or data parallelism: simulate one replica.
    """
    if plan.pp > 1 or plan.dp > 1:
        raise PlanError(f"serving is simulated for one replica without pipeline stages; this plan has pp={plan.pp}, dp={plan.dp}")
    device = _device_times(arch, cluster, plan, profile.kernels if profile else None, cost_model, max_seqs, max_tokens, max_context, served_key())
    if profile is None or cost_model == "ideal":
        return device
    return replace(device, host_s=profile.host_s, host_per_request_s=profile.host_per_request_s, eager_s=profile.eager_layer_s * arch.n_layers + profile.eager_step_s)


@lru_cache(maxsize=1024)
def _device_times(arch: Architecture, cluster: Cluster, plan: Plan, engine: str | None, cost_model: str, max_seqs: int, max_tokens: int, max_context: int, constants: str) -> StepTimes:
    def price(workload: Workload) -> Step:
        return estimate(arch, cluster, plan, workload, cost_model, engine)

    edges = np.arange(TILE, min(max_tokens, TILED) + 1, TILE)
    tokens = np.unique(np.concatenate([_points(max_tokens, EACH), edges, edges[edges < max_tokens] + 1]))
    flat = price(Prefill(1, tokens))
    alone = price(Decode(1, 1))
    common = {c.op.name for c in flat.costed} & {c.op.name for c in alone.costed} - set(HEAD)
    common -= {c.op.name for c in (*flat.costed, *alone.costed) if isinstance(c.op, Attention | Scan)}
    seqs, contexts = _points(max_seqs), np.unique(np.append(_points(max_context, 2), max_context))
    chunks, cached = _points(max_tokens, 8), np.append(0, _points(max_context, 2))
    heads = price(Decode(seqs, 1))
    decode = price(Decode(*(x.ravel() for x in np.meshgrid(seqs, contexts, indexing="ij"))))
    new, done = (x.ravel() for x in np.meshgrid(chunks, cached, indexing="ij"))
    prefill = price(Prefill(1, new + done, done))
    shape = len(chunks), len(cached)
    specific = [c for c in price(Prefill(1, 1)).costed if c.op.name not in common and c.op.name not in HEAD]
    return StepTimes(
        linear=_Line(tokens, _sum(flat, lambda name: name in common)), head=_Line(seqs, _sum(heads, lambda name: name in HEAD)),
        decode=_Surface(seqs, contexts, _specific(decode, common, len(seqs), len(contexts))), prefill=_Surface(chunks, cached, _specific(prefill, common, *shape)),
        start_s=float(sum(c.launch_s for c in specific)), shared=_shared(price, common, max_seqs, max_tokens, max_context),
        calibration=flat.at(-1).calibration)


def _sum(step: Step, wanted) -> np.ndarray:
    return sum((c.time_s for c in step.costed if wanted(c.op.name)), 0.0)


def _specific(step: Step, common: set[str], rows: int, columns: int) -> np.ndarray:
    total = _sum(step, lambda name: name not in common and name not in HEAD)
    return np.broadcast_to(total, (rows * columns,)).reshape(rows, columns)


def _shared(price, common: set[str], max_seqs: int, max_tokens: int, max_context: int) -> _Grid | None:
    """What one launch of decodes and a chunk takes beyond the two alone; None where the kernels do not share a launch."""
    axes = [_points(max_seqs, 1), _points(max_context, 1)[4:], _points(max_tokens, 1), np.append(0, _points(max_context, 1)[8:])]
    axes[1] = axes[1] if len(axes[1]) > 1 else _points(max_context, 1)
    axes = [np.append(a, a[-1] + 1) if len(a) < 2 else a for a in axes]

    def surplus(points: list[np.ndarray]) -> np.ndarray:
        seqs, context, new, done = points
        both = _phase_ops(price(MixedBatch(seqs, context, new, done)), common, mixed=True)
        return both - _phase_ops(price(Decode(seqs, context)), common) - _phase_ops(price(Prefill(1, new + done, done)), common)

    probe = surplus([np.array([min(max_seqs, 8)]), np.array([min(max_context, 1024)]), np.array([min(max_tokens, 512)]), np.array([0])])
    if np.all(np.abs(probe) < 1e-9):
        return None
    points = [x.ravel() for x in np.meshgrid(*axes, indexing="ij")]
    return _Grid(axes, surplus(points).reshape([len(a) for a in axes]))


def _phase_ops(step: Step, common: set[str], mixed: bool = False) -> np.ndarray:
    def plain(name: str) -> str:
        return name.removesuffix("_decode").removesuffix("_prefill") if mixed else name
    return _sum(step, lambda name: plain(name) not in common and name not in HEAD)
