"""Norms, rope, activations, residuals, look-ups, sampling: a launch and one pass over memory. Room: cost.

  t = t0 + bytes (w/(l2 BW) + (1 - w)/(em BW)),  w = 1/(1 + (bytes/(c2 L2))^4)
w is the share that the last kernel left in L2: activations of a decode step never leave it. The floors t0 of 1.8-3 us are
those of kernels inside a served step (vLLM 0.19 layer profiles of the RTX PRO 6000), and 1.8-4.3 us in profiler traces
with a 1 us clock (Vidur, A100 and H100; its norms, 4 us, are of 2023). The traces give norms 0.7 of the bandwidth when
counted as fused with the residual addition: two tensors in, two out.
A kernel that runs in a CUDA graph costs this much and no host time.
Sources: github casys-kaist/LLMServingSim @ 5daddb21 (MIT), github microsoft/vidur @ 7d475133 (MIT).
"""
from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.model import Timing
from roofkit.ops.kinds import Elementwise

CLASSES = (  # part of the op's name -> kernel classes, nearest first
    ("norm", ("norm", "")), ("rope", ("rope", "")), ("activation", ("act", "")), ("gate", ("act", "")), ("embedding", ("embedding", "")),
    ("sampling", ("sampling", "")), ("add", ("add", "")),
)


def fit_for(op: Elementwise, fits: DeviceFits) -> Fit | None:
    """Constants of the kernel class that the op's name says, else of a norm."""
    classes = next((c for part, c in CLASSES if part in op.name), ("",))
    return fits.find("elementwise", ("bf16",), (*classes, "norm"))


def elementwise(op: Elementwise, fits: DeviceFits) -> Timing | None:
    """One call of one pass; None where the device has no fit."""
    fit = fit_for(op, fits)
    if fit is None:
        return None
    moved = op.rows * ((op.elements_read + op.elements_written) * op.bytes_per_el)
    stream = moved / (fit.get("em") * fits.bw_us)
    if fit.get("l2") > fit.get("em") and fits.l2_bytes:
        share = 1 / (1 + (moved / (fit.get("c2") * fits.l2_bytes)) ** 4)
        stream = stream * (1 - share * (1 - fit.get("em") / fit.get("l2")))
    launch = fit.get("t0")
    return Timing((stream + launch) * 1e-6, 0.0, stream * 1e-6, 0.0, launch * 1e-6, None, fit.form, fits.label(fit), fits.note(fit))
