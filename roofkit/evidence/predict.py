"""Predict: measured rows -> the same rows with the time the shipped constants give. Room: evidence.

Kernel rows are priced as they were measured: one call on an idle GPU in a repeated benchmark, constants of the row's own
stack where there are some. Whole steps go through roofkit.inference.step.estimate. Nothing here is fitted.
"""
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from roofkit.cost import attention, collectives, gemm, mixed, moe
from roofkit.cost import simple as roofline
from roofkit.cost.calibration import DeviceFits, device_fits
from roofkit.cost.model import Timing
from roofkit.cost.pricing import cost_ops
from roofkit.errors import CostModelError, DataError, MeasurementError
from roofkit.evidence.cases import COLLECTIVE_OPS, GEMM_FORMATS, engine_of, load_exponent, moe_class, stack_of
from roofkit.evidence.domains import inside
from roofkit.evidence.measurements import read_measurements, resolve_device
from roofkit.formats import GemmFormat
from roofkit.hardware.device import Device
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import default_cluster, list_devices, load_device
from roofkit.ops.kinds import Attention, Collective, Elementwise, Gemm, GroupedGemm, Op

Part = tuple[np.ndarray, "Timing | None"]  # positions of rows, their timing
PASSES = {"add": (2, 1), "mul": (2, 1), "div": (2, 1), "mlp_act": (2, 1), "emb": (1, 1), "input_layernorm": (2, 2), "post_attention_layernorm": (2, 2)}
NAMES = {"mlp_act": "activation", "attn_rope": "rope", "emb": "embedding", "input_layernorm": "norm", "post_attention_layernorm": "norm", "ln": "norm"}


def predict(measurements) -> pd.DataFrame:
    """The rows of a measurement table with what roofkit says of them.

    measurements   path or DataFrame in the uniform schema (roofkit.evidence.measurements.SCHEMAS)
    Adds predicted_us (predicted_ms for steps and serving points; NaN where nothing prices the row), `calibration` ("fitted" |
    "inherited" | "generic" | "none"), `in_domain` (constants were fitted on this device, and the sizes lie within the measured
    ones) and `note`. Raises MeasurementError for a table that cannot be read or a kind that no form prices.
    """
    frame = read_measurements(measurements)
    kind = frame["kind"].iloc[0]
    if kind in ("step", "serving", "layer"):
        from roofkit.evidence.steps import predict_steps  # a step needs the rooms up to inference; kernels do not
        return predict_steps(frame)
    price = _PRICES.get(kind)
    if price is None:
        raise MeasurementError(f"tables of kind {kind!r} have no prediction yet; kinds: {', '.join([*_PRICES, 'step', 'serving', 'layer'])}")
    out = frame.assign(predicted_us=np.nan, calibration="none", in_domain=False, note="")
    known = list_devices()["name"].tolist()
    for name, rows in frame.groupby("device"):
        preset = resolve_device(name, known)
        if preset is None:
            out.loc[rows.index, "note"] = f"no device preset for {name}"
            continue
        device = load_device(preset)
        predicted, calibration, note = np.full(len(rows), np.nan), np.full(len(rows), "none", object), np.full(len(rows), "", object)
        for where, timing in _priced(price, rows, device):
            predicted[where], calibration[where], note[where] = np.asarray(timing.time_s, float) * 1e6, timing.calibration, timing.note
        out.loc[rows.index, ["predicted_us", "calibration", "note", "device"]] = pd.DataFrame(
            {"predicted_us": predicted, "calibration": calibration, "note": note, "device": preset}, index=rows.index)
    out["in_domain"] = inside(out) & (out["calibration"] == "fitted").to_numpy()
    return out


def _priced(price: Callable, rows: pd.DataFrame, device: Device) -> Iterator[tuple[np.ndarray, Timing]]:
    """Timings of a device's rows, stack by stack; rows whose arithmetic the device lacks yield nothing."""
    cluster = default_cluster(device)
    stacks = rows["source"] if "source" in rows else pd.Series("", index=rows.index)
    for source, where in rows.groupby(stacks).indices.items():
        stack = stack_of(source)
        fits = device_fits(device, engine_of(stack))
        try:
            for inner, timing in price(rows.iloc[where], cluster, fits, stack):
                if timing is not None:
                    yield where[inner], timing
        except (CostModelError, DataError):
            continue


def _generic(op: Op, cluster: Cluster) -> Timing:
    return roofline.simple(op, cluster)


def _gemm(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    for dtype, where in rows.groupby("dtype").indices.items():
        fmt = GEMM_FORMATS.get(dtype)
        if fmt is None or not cluster.device.has_math(fmt.math):
            continue
        part = rows.iloc[where]
        m, n, k = (part[x].to_numpy(float) for x in ("m", "n", "k"))
        timing = None
        if fits is not None and dtype != "fp32":
            foreign = _foreign(dtype, fmt, fits)
            timing = gemm.calibrated(m, n, k, fmt, 1.0, fits, warm=True, served=foreign and dtype == "fp8")
            if timing is not None and foreign:
                timing = replace(timing, calibration="inherited")
        if timing is not None:
            yield where, timing
            continue
        for (width, depth), inner in part.groupby(["n", "k"]).indices.items():
            yield where[inner], _generic(Gemm("gemm", "ffn", m[inner], int(depth), int(width), fmt), cluster)


def _foreign(dtype: str, fmt: GemmFormat, fits: DeviceFits) -> bool:
    """Whether a narrow product of an engine has only another engine's constants: its kernels and its quantisation pass differ.

    Per-tensor fp8 is then priced as a served one, with a short quantisation kernel; block-scaled formats keep the other's constants.
    """
    fit = fits.find("gemm", (dtype,))
    return fmt.quantizes and fits.engine is not None and fit is not None and engine_of(fit.stack) != fits.engine


def _attention(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    groups = rows.groupby(["phase", "heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype"]).indices
    for (phase, heads, kv_heads, dim, window, math, kv), where in groups.items():
        part = rows.iloc[where]
        # a prompt of one token: vLLM's kernels run it as a decode, TensorRT-LLM's as a context of one row
        one = (part.q_len <= 1).to_numpy() & (engine_of(stack) != "trtllm") | (phase == "decode")
        for single in (True, False):
            inner = np.flatnonzero(one == single)
            if not len(inner):
                continue
            b, q, length = (part[x].to_numpy(float)[inner] for x in ("batch", "q_len", "kv_len"))
            op = Attention("attention", "attention", "decode" if single else "prefill", b, 1.0 if single else q, length, int(heads), int(kv_heads),
                           int(dim), int(dim), 2 * int(dim), 1.0 if kv == "fp8" else 2.0, kv, math, int(window) or None)
            yield where[inner], _attention_op(op, cluster, fits)


def _attention_op(op: Attention, cluster: Cluster, fits: DeviceFits | None) -> Timing:
    timing = None
    if fits is not None:
        timing = attention.decode(op, fits, warm=True) if op.phase == "decode" else attention.prefill(op, fits)
    return timing if timing is not None else _generic(op, cluster)


def _mla(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    for (phase, heads, kv), where in rows.groupby(["phase", "heads", "kv_dtype"]).indices.items():
        part = rows.iloc[where]
        b, q, length = (part[x].to_numpy(float) for x in ("batch", "q_len", "kv_len"))
        per_el, h = 1.0 if kv == "fp8" else 2.0, int(heads)
        if phase == "decode":
            op = Attention("mla", "attention", "decode", b, 1.0, length, h, 1, 576, 512, 576, per_el, kv, latent=True)
        else:
            op = Attention("mla", "attention", "prefill", b, q, length, h, h, 192, 128, 320, per_el, kv, latent=True)
        yield where, _attention_op(op, cluster, fits)


MODEL_HEADS = {"llama-3.1-8b": (32, 8, 128), "qwen3-30b-a3b": (32, 4, 128)}  # query heads, kv heads, width


def _mixed(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    for (model, tp), where in rows.groupby(["model", "tp"]).indices.items():
        shape = next((v for k, v in MODEL_HEADS.items() if k in str(model).lower()), None)
        if shape is None:
            continue
        part, (heads, kv_heads, dim) = rows.iloc[where], shape
        q, past, n, context = (part[x].to_numpy(float) for x in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
        heads, kv_heads = heads // int(tp), max(kv_heads // int(tp), 1)
        make = lambda phase, b, q, kv: Attention("attention", "attention", phase, b, q, kv, heads, kv_heads, dim, dim, 2 * dim)  # noqa: E731
        for both, some in ((True, (q > 0) & (n > 0)), (False, (q > 0) & (n <= 0)), (None, (q <= 0) & (n > 0))):
            inner = np.flatnonzero(some)
            if not len(inner):
                continue
            chunk, decode = make("prefill", 1.0, q[inner], past[inner] + q[inner]), make("decode", n[inner], 1.0, context[inner])
            if both:
                timings = mixed.mixed_attention(chunk, decode, fits)
                if timings is not None:
                    yield where[inner], Timing(timings[0].time_s + timings[1].time_s, calibration=timings[0].calibration, note=timings[0].note)
            else:
                yield where[inner], _attention_op(decode if both is None else chunk, cluster, fits)


def _moe(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    for (dtype, kernel, h, i, k, e, tp, ep, law), where in rows.groupby(["dtype", "kernel", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution"]).indices.items():
        fmt, cls = GEMM_FORMATS.get(dtype), moe_class(kernel)
        if fmt is None or not cluster.device.has_math(fmt.math):
            continue
        tokens, mats = rows.tokens.to_numpy(float)[where], 2 if cls == "nongated" else 3
        fit = fits and (fits.find("moe", (dtype,), (cls,)) or moe.fit_for(_expert_op(fmt, tokens, tokens, h, i // tp, k, e, ep, tp, mats), fits))
        landed, distinct = moe.routing(tokens, int(k), int(e), int(ep), load_exponent(law), fit.get("gam") if fit else 1.0)
        op = _expert_op(fmt, tokens, landed, h, i // tp, k, e, ep, tp, mats, distinct)
        if not fit:
            yield where, _generic(op, cluster)
            continue
        total = moe.block_us(op, fit, fits, landed, distinct, warm=True)[0]
        yield where, Timing(total * 1e-6, calibration=fits.label(fit, fit.format == dtype and fit.cls == cls), note=fits.note(fit))


def _expert_op(fmt, tokens, rows, hidden, inter, top_k, experts, ep, tp, matrices, distinct=1.0) -> GroupedGemm:
    return GroupedGemm("experts", "experts", tokens, rows, distinct, max(int(experts) // int(ep), 1), int(experts), int(top_k), int(hidden), max(int(inter), 1),
                       matrices, fmt, int(ep), int(tp))


def _collective(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    for (op, algo, ranks, nodes), where in rows.groupby(["op", "algo", "ranks", "nodes"]).indices.items():
        size, kind, n = rows.bytes.to_numpy(float)[where], COLLECTIVE_OPS.get(op, op), int(ranks)
        if op == "send_recv":
            continue
        fit = fits.find(kind, ("bf16",), stacks=(algo.split("-")[0] if algo.startswith("nccl") else algo,)) if fits is not None and nodes == 1 else None
        if fit is not None:
            start, wire = collectives._fastest(*zip(*collectives._branches(fit, kind, size, n, fits.link_us), strict=True))
            exact = fit.stack == algo
            yield where, Timing((start + wire) * 1e-6, calibration=fits.label(fit, exact), note=fits.note(fit))
            continue
        one = Cluster(cluster.device, max(n // int(nodes), 1), int(nodes), scaleup_domain=max(n // int(nodes), 1))
        held = size / n if kind == "all_gather" else size
        yield where, collectives.collective(Collective("c", "collectives", kind, held, n), one, fits)


def _elementwise(rows: pd.DataFrame, cluster: Cluster, fits: DeviceFits | None, stack: str) -> Iterator[Part]:
    for (op, dtype, cols), where in rows.groupby(["op", "dtype", "cols"]).indices.items():
        read, written = PASSES.get(op, (1, 1))
        item = Elementwise(NAMES.get(op, op), "norm_elementwise", rows.rows.to_numpy(float)[where] if hasattr(rows, "rows") else 1.0, read * float(cols),
                           written * float(cols), float(cols), 4.0 if dtype == "fp32" else 2.0)
        yield where, cost_ops([item], cluster)[0].timing


_PRICES: dict[str, Callable[..., Iterator[Part]]] = {
    "gemm": _gemm, "gemm_power": _gemm, "attention": _attention, "mla": _mla, "mixed_attention": _mixed, "moe": _moe, "collective": _collective,
    "elementwise": _elementwise,
}
