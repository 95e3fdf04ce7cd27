"""Pricing: ops + cluster -> CostedOps under one cost model. Room: cost.

`ideal` is the datasheet roofline, `simple` the roofline a kernel reaches, `calibrated` the forms fitted to measured
kernels; where a device has no fit for an op, `calibrated` falls back to `simple` and says so. Whatever the model,
time_s >= ideal_s: CostedOp enforces the bound for every op. Products of one format are priced in one array call.
"""
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import numpy as np

from roofkit.cost import attention, bounds, calibration, collectives, elementwise, expert_exchange, gemm, mixed, moe, served
from roofkit.cost import simple as roofline
from roofkit.cost.calibration import DeviceFits
from roofkit.cost.model import CostedOp, Timing
from roofkit.errors import CostModelError
from roofkit.hardware.network import Cluster
from roofkit.ops.kinds import Attention, Collective, Elementwise, Gemm, GroupedGemm, Op, Transfer

MODELS = ("calibrated", "simple", "ideal")
ENGINES = ("vllm", "sglang", "trtllm")
_TERMS = tuple(f.name for f in fields(Timing))[:6]  # the numbers of a Timing, before form, calibration, note


def cost_ops(ops: list[Op], cluster: Cluster, model: str = "calibrated", engine: str | None = None) -> list[CostedOp]:
    """Time of every op [s], in order. Raises CostModelError for an unknown model or a format the device cannot compute."""
    if model not in MODELS:
        raise CostModelError(f"cost model {model!r} is not one of {', '.join(MODELS)}")
    if engine is not None and engine not in ENGINES:
        raise CostModelError(f"engine {engine!r} is not one of {', '.join(ENGINES)}; engine=None is device time only")
    if model != "calibrated":
        price = {"ideal": roofline.ideal, "simple": roofline.simple}[model]
        timings = [price(op, cluster) for op in ops]
    else:
        timings = _calibrated(ops, cluster, calibration.device_fits(cluster.device, engine), engine is not None)
    return [CostedOp(op, timing, bounds.ideal_s(op, cluster) * op.count) for op, timing in zip(ops, timings, strict=True)]


def _calibrated(ops: list[Op], cluster: Cluster, fits: DeviceFits | None, in_engine: bool) -> list[Timing]:
    if fits is None:
        return [roofline.simple(op, cluster) for op in ops]
    timings: list[Timing | None] = [None] * len(ops)
    for members in _by_format(ops).values():
        for i, timing in zip(members, _stacked([ops[i] for i in members], fits, in_engine), strict=True):
            timings[i] = timing
    for i, op in enumerate(ops):
        if not isinstance(op, Gemm):
            form = _form_of(op, cluster, fits)
            timings[i] = None if form is None else form(op)
    _share_launches(ops, timings, fits)
    _exchange_tokens(ops, timings, cluster, fits)
    priced = [t if t is not None else roofline.simple(op, cluster) for op, t in zip(ops, timings, strict=True)]
    return [served.launched(op, t, fits) for op, t in zip(ops, priced, strict=True)] if in_engine else priced


def _share_launches(ops: list[Op], timings: list[Timing | None], fits: DeviceFits) -> None:
    """Prefill chunks and decodes of one step: where the stack runs both in one launch, that launch's form replaces theirs."""
    index = {op.name: i for i, op in enumerate(ops) if isinstance(op, Attention)}
    for name, i in index.items():
        j = index.get(name.removesuffix("_prefill") + "_decode") if name.endswith("_prefill") else None
        if j is not None and mixed.shares_a_launch(ops[i], ops[j], fits):
            timings[i], timings[j] = mixed.mixed_attention(ops[i], ops[j], fits)


def _exchange_tokens(ops: list[Op], timings: list[Timing | None], cluster: Cluster, fits: DeviceFits) -> None:
    """Dispatch and combine around a layer's experts: where those kernels were measured, their form replaces the all-to-all's."""
    for i, op in enumerate(ops):
        if isinstance(op, Collective) and op.group == "ep":
            beside = ops[i + 1:i + 2] if op.name == "dispatch" else ops[max(i - 1, 0):i]
            routed = next((o for o in beside if isinstance(o, GroupedGemm)), None)
            timings[i] = expert_exchange.exchange(op, routed, cluster, fits) or timings[i]


def _form_of(op: Op, cluster: Cluster, fits: DeviceFits) -> Callable[[Op], Timing | None] | None:
    if isinstance(op, Attention):
        return partial(attention.decode if op.phase == "decode" else attention.prefill, fits=fits)
    if isinstance(op, GroupedGemm):
        return partial(moe.experts, fits=fits)
    if isinstance(op, Collective):
        return partial(collectives.collective, cluster=cluster, fits=fits)
    if isinstance(op, Transfer):
        return partial(collectives.transfer, cluster=cluster, fits=fits)
    return partial(elementwise.elementwise, fits=fits) if isinstance(op, Elementwise) else None


def _by_format(ops: list[Op]) -> dict[tuple, list[int]]:
    groups: dict[tuple, list[int]] = {}
    for i, op in enumerate(ops):
        if isinstance(op, Gemm):
            groups.setdefault((op.format,), []).append(i)
    return groups


def _stacked(ops: list[Gemm], fits: DeviceFits, in_engine: bool) -> list[Timing | None]:
    """Price products of one format together: m [ops, *points], n, k, batch [ops, 1...]; one Timing per op comes back."""
    ms = np.stack(np.broadcast_arrays(*[np.asarray(op.m, dtype=float) for op in ops]))
    column = (len(ops),) + (1,) * (ms.ndim - 1)
    n, k, batch = (np.array([float(getattr(op, f)) for op in ops]).reshape(column) for f in ("n", "k", "batch"))
    timing = gemm.calibrated(ms, n, k, ops[0].format, batch, fits, served=in_engine)
    if timing is None:
        return [None] * len(ops)
    return [_row(timing, i, ms.shape) for i in range(len(ops))]


def _row(timing: Timing, i: int, shape: tuple[int, ...]) -> Timing:
    """One op's terms out of a stacked Timing."""
    return Timing(*(_pick(getattr(timing, name), i, shape) for name in _TERMS), timing.form, timing.calibration, timing.note)


def _pick(term, i: int, shape: tuple[int, ...]):
    if not isinstance(term, np.ndarray) or not term.ndim:
        return term
    row = (term if term.shape == shape else np.broadcast_to(term, shape))[i]
    return float(row) if row.ndim == 0 else row
