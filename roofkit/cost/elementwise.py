"""Norms, rope, activations, residuals, look-ups, sampling: a launch and one pass over memory. Room: cost.

  t = t0 + bytes (w/(e2 BW) + (1 - w)/(min(em, e2) BW)),  w = 1/(1 + (bytes/(c2 L2))^4)
w is the share that the last kernel left in L2: activations of a decode step never leave it. A kernel whose SMs ask for less than
L2 gives gets no more from memory, hence the minimum. The floors t0 of 1.8-3 us are those of kernels inside a served step (vLLM 0.19
layer profiles of the RTX PRO 6000), and 1.4-4.9 us in profiler traces with a 1 us clock (Vidur, A100 and H100; its norms, 4-5 us, are
of 2023). The traces give norms 0.7 of the bandwidth when counted as fused with the residual addition: two tensors in, two out.
A kernel that runs in a CUDA graph costs this much and no host time.
Constants: t0 [us]; em, e2 [rate from memory, from L2, over memory bandwidth]; c2 [share of L2]. Fitted by
roofkit.evidence.pass_cases; what its rows cannot show stands in `kernel`, assumed. Another device's are taken as they are.
Sources: github casys-kaist/LLMServingSim @ 5daddb21 (MIT), github microsoft/vidur @ 7d475133 (MIT).
"""
from collections.abc import Mapping

import numpy as np

from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.model import Timing
from roofkit.ops.kinds import Elementwise, Num

FORMATS = ("bf16", "fp32")  # of constants: 16-bit kernels first
FORM = "launch+bytes"
CLASSES = (  # part of the op's name -> kernel classes, nearest first
    ("qk_norm", ("qk_norm", "norm", "")), ("final_norm", ("final_norm", "norm", "")), ("norm", ("norm", "")), ("rope", ("rope", "")),
    ("activation", ("act", "")), ("gate", ("act", "")), ("embedding", ("embedding", "")), ("sampling", ("sampling", "")), ("add", ("add", "")),
)


def fit_for(op: Elementwise, fits: DeviceFits) -> Fit | None:
    """Constants of the kernel class that the op's name says, else of a norm."""
    return fits.find("elementwise", FORMATS, (*classes_of(op.name), "norm"))


def classes_of(name: str) -> tuple[str, ...]:
    """Kernel classes of an op's name, nearest first; "" holds every pass without a class of its own."""
    return next((c for part, c in CLASSES if part in name), ("",))


def pass_us(moved: Num, constants: Mapping[str, float], fits: DeviceFits) -> tuple[Num, Num]:
    """(launch, stream) of one call that moves so many bytes [us]: what a fit varies. Constants without e2 have no term of L2."""
    em = min(constants["em"], constants.get("e2", np.inf))
    stream = moved / (em * fits.bw_us)
    if constants.get("e2", 0.0) > em and fits.l2_bytes:
        share = 1 / (1 + (moved / (constants["c2"] * fits.l2_bytes)) ** 4)
        stream = stream * (1 - share * (1 - em / constants["e2"]))
    return constants["t0"], stream


def elementwise(op: Elementwise, fits: DeviceFits) -> Timing | None:
    """One call of one pass; None where the device has no fit."""
    fit = fit_for(op, fits)
    if fit is None:
        return None
    moved = op.rows * ((op.elements_read + op.elements_written) * op.bytes_per_el)
    launch, stream = pass_us(moved, {**fit.kernel, **fit.constants}, fits)
    return Timing((stream + launch) * 1e-6, 0.0, stream * 1e-6, 0.0, launch * 1e-6, None, fit.form, fits.label(fit), fits.note(fit))
