"""Routed experts of one rank: grouped products and the passes around them. Room: cost. Times in us inside, seconds outside.

  t = t0 + te El + [ F/(ec P) (+)2 W/(em BW) ] + A/(em BW)
F FLOPs of the rank's rows, W weights of the touched experts, A = cm rows (hidden (2 abytes + 4) + 2 matrices inter)
+ 2 ct tokens hidden: permuting, quantising and combining activations; El local experts; (+)2 a smooth maximum.
The op carries rows and distinct experts of balanced routing, exact expectations, as a served model is assumed to route;
`routing` gives both for the busiest rank under a power law, as the collector of the tables timed it, for fitting.
Form and constants: fits to AIConfigurator collector tables, github ai-dynamo/aiconfigurator @ 095f58a5.
"""
import numpy as np

from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.gemm import NEAREST, SAME
from roofkit.cost.model import Timing
from roofkit.ops.kinds import GroupedGemm, Num

GATED = ("cutlass", "deepgemm", "torch", "min_latency")  # kernel classes, usual choice first
PLAIN = ("nongated", *GATED)
# formats whose experts the engines run with TensorRT-LLM's generated low-latency kernels (vLLM and SGLang by flashinfer_trtllm, public
# run scripts, github SemiAnalysisAI/InferenceX @ 843c6254); the tables time CUTLASS ones too
LOW_LATENCY = ("nvfp4",)
_ALSO = {"w4a8_mxfp4_mxfp8": ("w4a8_mxfp4_mxfp8", "fp8_block", "fp8"), "w4a16_mxfp4": ("w4a16_mxfp4", "bf16"), "w4a16_nvfp4": ("w4a16_mxfp4", "bf16"),
         "int8_wo": ("bf16",), "int4_wo": ("bf16",), "fp8_wo": ("bf16",), "w8a8_int8": ("fp8", "bf16")}
QUANTILES = (np.arange(8) + 0.5) / 8


def experts(op: GroupedGemm, fits: DeviceFits) -> Timing | None:
    """One call on one rank, balanced routing, weights from device memory; None where the device has no fit."""
    fit = fit_for(op, fits)
    if fit is None:
        return None
    total, work, stream = block_us(op, fit, fits, op.rows, op.distinct)
    launch = fit.get("t0")
    exact = (op.format.name == fit.format or (op.format.name, fit.format) in SAME) and (fit.cls == "nongated") == (op.matrices == 2)
    return Timing(total * 1e-6, work * 1e-6, stream * 1e-6, 0.0, launch * 1e-6, None, fit.form, fits.label(fit, exact), fits.note(fit))


def fit_for(op: GroupedGemm, fits: DeviceFits) -> Fit | None:
    """Constants for the op's format and kernel class, or those of the nearest format."""
    names = _ALSO.get(op.format.name) or NEAREST.get(op.format.name, (op.format.name, "bf16"))
    classes = PLAIN if op.matrices == 2 else GATED
    if fits.engine is not None and op.format.name in LOW_LATENCY:
        classes = ("min_latency", *classes)
    return next((f for name in names if (f := fits.find("moe", (name,), classes)) is not None), None)


def block_us(op: GroupedGemm, fit: Fit, fits: DeviceFits, rows: Num, distinct: Num, warm: bool = False) -> tuple[Num, Num, Num]:
    """(whole call, products alone, memory traffic alone) [us] for that many rows and touched experts on the rank."""
    rate = 1 / (fit.get("em") * fits.bw_us)
    inter, hidden, mats = op.inter, op.hidden, op.matrices
    weights = distinct * (mats * hidden * inter * op.format.weight_bytes_per_el)
    work = rows * (2.0 * mats * hidden * inter / (fit.get("ec") * fits.peak_us(op.format.math)))
    stream = weights * rate
    if warm and "c2" in fit.constants:
        share = 1 / (1 + (weights / (fit.get("c2") * fits.l2_bytes)) ** 4)
        stream = share * weights / ((1 + fit.get("l2")) * fits.bw_us) + (1 - share) * stream
    passes = rows * (fit.get("cm") * rate * (hidden * (2 * op.format.act_bytes_per_el + 4) + 2 * mats * inter)) \
        + op.tokens * (2 * fit.get("ct") * rate * hidden)
    fixed = fit.get("t0") + fit.get("te") * op.experts
    return np.hypot(work, stream) + passes + fixed, work, stream + passes


def routing(tokens: Num, top_k: Num, total: Num, ep: Num, alpha: float | None, gam: float = 1.0) -> tuple[Num, Num]:
    """(rows, distinct experts) of the timed rank under the collector's synthetic routing; sizes may be arrays.

    alpha   exponent of the load law x^-alpha on [1, 0.8 tokens]; None = balanced: min(local experts, rows) are touched
    gam     how far the busiest of ep ranks lies above the mean, in units of the expected maximum of ep normal variables
    """
    local, mean = total / ep, np.asarray(tokens, dtype=float) * top_k / ep
    if alpha is None:
        return mean, np.minimum(local, mean)
    top = np.maximum(0.8 * np.asarray(tokens, dtype=float), 1.0 + 1e-6)
    first, second = (_moment(top, alpha, r) for r in (1, 2))
    spread2 = np.maximum(second / first**2 - 1, 0.0)
    excess = 1 + gam * np.sqrt(spread2 / local + 0.5 / mean) * np.sqrt(2 * np.log(ep))
    rows = np.clip(mean * np.minimum(excess, ep), 1, tokens * np.minimum(top_k, local))
    loads = np.stack([_quantile(top, alpha, u) for u in QUANTILES])
    loads = (loads / loads.mean(axis=0)) ** (1 - 1 / local)
    touched = local * (1 - np.exp(-loads * rows / local)).mean(axis=0)
    return rows, np.minimum(rows, touched)


def _moment(top: Num, alpha: float, r: int) -> Num:
    """E[x^r] of the density x^-alpha on [1, top]."""
    def power(e: float) -> Num:
        return np.log(top) if abs(e) < 1e-9 else (top**e - 1) / e
    return power(r + 1 - alpha) / power(1 - alpha)


def _quantile(top: Num, alpha: float, u: float) -> Num:
    e = 1 - alpha
    return top**u if abs(e) < 1e-9 else (1 + u * (top**e - 1)) ** (1 / e)
