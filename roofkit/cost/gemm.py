"""Matrix products: five tiles, K-splits that fill idle SMs, partly balanced waves. Room: cost. Times in us inside, seconds outside.

One launch covers Y[m, n] with tiles of (min(R, m padded to 16), 64), (64, 64), (64, 128), (128, 128) or (128, 256) and takes the fastest:
  u      tiles / SM;   w = (1 - be) ceil(u) + be max(u, 1) waves: be is how far a partial last wave is spread over all SMs
  a      2 TM TN SM / (ec r P): arithmetic of one k-step of a wave;   r falls with the operand traffic of small tiles, 1/TM + 1/TN
  wave   k max(a, tau) + k0 a: k-steps are not shorter than their latency; filling and emptying a tile grows with its area
  whole  w waves
  split  S parts of k, all in one wave (tiles S <= SM): k/S max(a, tau) + k0 a, + ts for the reduction and its partial sums
  t      t0 + smooth maximum of that and the memory time + the pass that quantises activations
R is 16; 64 (kernel fact `rows`) for kernels that only shrink their tile to the rows there are. S runs over a fixed set. For a
fixed tile and S every term grows with m and the allowed set only shrinks, so the time is monotone in m, n and batch by
construction. Operands come from device memory (cold), as the weights of a served model do; `warm=True` adds the L2 residency
of a benchmark that repeats one product over up to five copies of the weights.
Form and constants: fits to AIConfigurator collector tables, github ai-dynamo/aiconfigurator @ 095f58a5. Waves, tiles and
splits: CUTLASS efficient_gemm.md; balancing a partial wave: Osama et al. 2023, Stream-K, arXiv:2301.03598.
"""
from dataclasses import replace

import numpy as np

from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.model import Timing
from roofkit.cost.served import product as as_served
from roofkit.errors import CostModelError
from roofkit.formats import GemmFormat
from roofkit.ops.kinds import Num

NEAREST = {  # own constants first, then the format whose kernels are most alike
    "bf16": ("bf16",), "fp16": ("bf16",), "fp32": ("bf16",), "fp8": ("fp8", "fp8_block", "w8a8_int8", "bf16"),
    "fp8_block": ("fp8_block", "fp8", "bf16"), "w8a8_int8": ("w8a8_int8", "fp8", "bf16"), "nvfp4": ("nvfp4", "fp8", "bf16"),
    "mxfp4": ("nvfp4", "fp8", "bf16"), "int4": ("w8a8_int8", "fp8", "bf16"), "int8_wo": ("int8_wo", "bf16"),
    "fp8_wo": ("int8_wo", "bf16"), "int4_wo": ("int4_wo", "int8_wo", "bf16"),
}
_FALLBACK = {"bf16": ("int4_wo", "int8_wo", "bf16"), "fp16": ("int4_wo", "int8_wo", "bf16"), "fp8": ("fp8", "fp8_block", "bf16"),
             "int8": ("w8a8_int8", "fp8", "bf16"), "fp4": ("nvfp4", "fp8", "bf16")}
ONE_PASS = ("fp8_block", "nvfp4", "mxfp4")  # activations scaled block by block: one short kernel; per-tensor fp8 first looks for the largest
ONE_PASS_US = 2.7  # start of that kernel: mean of t0 - t0 of bf16 over the fitted ones, 1.5 (H100 fp8_block), 2.3 and 4.1 (nvfp4 RTX PRO 6000, B200)
SAME = {("fp16", "bf16")}  # other name, same kernels and rates
QUANT_PASSES = {"fp8": 5.0, "fp8_block": 3.03, "nvfp4": 2.56, "mxfp4": 2.53, "w8a8_int8": 5.0}  # bytes per activation: read 16 bit (twice for a tensor scale), write
SPLITS = (2, 3, 5, 8, 16, 32)  # as accurate as every whole number up to 32
TILES = ((64, 64), (64, 128), (128, 128), (128, 256))  # besides the first, whose rows follow m
ROWS, COLUMNS = 16, 64  # of the first tile
PART = 256  # k-steps a part of a split has at least
TILED, SMOOTH = "five-tiles", "smooth-max"  # forms
RESIDENCY = 24  # how abruptly a rotation of copies stops fitting into L2: nearly a step, since their number is whole
COPIES = 5  # of the weights at most, in a benchmark's rotation: enough to exceed L2; found by fitting the tables


def smooth_max(x: Num, y: Num, q: float) -> Num:
    """(x^q + y^q)^(1/q), y > 0: a sum at q = 1, the maximum as q grows."""
    if q <= 1.002:
        return x + y
    return np.maximum(x, y) if q > 40 else y * (1 + (x / y) ** q) ** (1 / q)


def fit_for(fmt: GemmFormat, fits: DeviceFits) -> tuple[Fit, bool] | None:
    """Constants for a format and whether they are its own; None when the device has no fitted product at all."""
    names = NEAREST.get(fmt.name) or (fmt.name, *_FALLBACK.get(fmt.math, ("bf16",)))
    fit = fits.find("gemm", names)
    if fit is not None and fit.format == "fp8" and fmt.name in ONE_PASS:
        fit = _one_pass(fit, fits.find("gemm", ("bf16",)))
    return None if fit is None else (fit, fit.format == fmt.name or (fmt.name, fit.format) in SAME)


def _one_pass(fit: Fit, wide: Fit | None) -> Fit:
    """Arithmetic and memory of per-tensor fp8 products behind one short quantisation kernel instead of two slow ones; no split of k.

    On H100, whose block-scaled products were fitted too, that brings their error from 50 to 19 %.
    """
    if wide is None:
        return fit
    return replace(fit, constants={**fit.constants, "t0": min(fit.get("t0"), wide.get("t0") + ONE_PASS_US)}, kernel={**fit.kernel, "split": 0})


def calibrated(m: Num, n: Num, k: Num, fmt: GemmFormat, batch: Num, fits: DeviceFits, warm: bool = False, served: bool = False) -> Timing | None:
    """Time of one launch of `batch` products Y[m, n] = X[m, k] W[k, n]; arguments broadcast. None without a fit.

    warm     weights of a repeated benchmark may stay in L2; False in serving
    served   inside a step of an engine: see served.py
    Raises CostModelError: no such arithmetic.
    """
    found = fit_for(fmt, fits)
    if found is None:
        return None
    fit, exact = found
    if served:
        fit = as_served(fit, fits)
    memory = memory_us(m, n, k, fmt, batch, fit, fits, warm)
    launch = fit.get("t0")
    if fit.form not in (TILED, SMOOTH):
        raise CostModelError(f"{fits.parent} gemm {fit.format}: form {fit.form!r} is not known; fit the constants again with `roofkit calibrate`")
    if fit.form == SMOOTH:
        work = 2.0 * m * n * k * batch / (fit.get("ec") * fits.peak_us(fmt.math))
        total, padded = smooth_max(work, memory, 1 + fit.get("p")), None
    else:
        total, work, padded = _tiled(m, n, k, batch, memory, fit, fits, fmt.math)
    if fmt.quantizes and fit.get("cq"):
        quantise = fit.get("cq") * QUANT_PASSES.get(fmt.name, 3.0) / (fit.get("em") * fits.bw_us) * (m * k * batch)
        total, memory = total + quantise, memory + quantise
    return Timing((total + launch) * 1e-6, work * 1e-6, memory * 1e-6, 0.0, launch * 1e-6, padded, fit.form, fits.label(fit, exact), fits.note(fit))


def memory_us(m: Num, n: Num, k: Num, fmt: GemmFormat, batch: Num, fit: Fit, fits: DeviceFits, warm: bool) -> Num:
    """Time to move both operands and the result once [us]."""
    weights = n * k * batch * fmt.weight_bytes_per_el
    acts = m * (k * fmt.act_bytes_per_el + n * fmt.out_bytes_per_el) * batch
    cold = (weights + acts) / (fit.get("em") * fits.bw_us)
    if not warm or "c2" not in fit.constants:
        return cold
    copies = np.minimum(COPIES, np.ceil(fits.l2_bytes / weights))
    share = 1 / (1 + ((copies * weights + acts) / (fit.get("c2") * fits.l2_bytes)) ** RESIDENCY)
    return share * (weights + acts) / ((1 + fit.get("l2")) * fits.bw_us) + (1 - share) * cold


def _tiles(m: Num, dims: int, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the tiles, stacked on a first axis in front of `dims` others."""
    shape = (len(TILES) + 1,) + (1,) * dims
    columns = np.array([COLUMNS] + [tn for _, tn in TILES], float).reshape(shape)
    least = fit.kernel.get("rows", ROWS)
    first = np.asarray(ROWS if least <= ROWS else np.minimum(least, np.ceil(m / 16) * 16))
    rows = np.empty(shape[:1] + (1,) * (dims - first.ndim) + first.shape) if first.ndim else np.empty(shape)
    rows[0] = first
    for i, (tm, _) in enumerate(TILES):
        rows[i + 1] = tm
    return rows, columns


def _tiled(m: Num, n: Num, k: Num, batch: Num, memory: Num, fit: Fit, fits: DeviceFits, math: str) -> tuple[Num, Num, Num]:
    """(smooth maximum of work and memory [us], work alone [us], FLOP executed with whole tiles) of the best tile and split."""
    sm, q, ct, even = fits.sm, 1 + fit.get("p"), fit.get("ct"), fit.get("be")
    rows, columns = _tiles(m, max(map(np.ndim, (m, n, k, batch))), fit)
    tiles = np.ceil(m / rows) * (np.ceil(n / columns) * batch)
    arithmetic = (rows * (columns + ct) + ct * columns) * (2 * sm / (fit.get("ec") * fits.peak_us(math) * (1 + 3 * ct / 256)))
    step, fill = np.maximum(arithmetic, fit.get("tau") * 1e-3), fit.get("k0") * arithmetic
    share = tiles / sm
    works = (np.ceil(share) * (1 - even) + np.maximum(share, 1.0) * even) * (k * step + fill)
    best = np.argmin(works, axis=0)[None]
    work = np.take_along_axis(works, best, 0)[0]
    padded = np.take_along_axis(tiles * (rows * columns), best, 0)[0] * (2.0 * k)
    total = smooth_max(work, memory, q)
    if not fit.kernel.get("split", 1):
        return total, work, padded
    few, deep, shallow = np.min(tiles), np.max(k), np.min(k)
    partial = (8.0 / fits.bw_us) * (m * n * batch)  # fp32 sums written and read
    for s in SPLITS:
        if few > sm / s or deep < PART * s:
            break  # no point of this call can split that far
        part = np.where(tiles <= sm / s, k * (step / s) + fill, np.inf).min(axis=0)
        if shallow < PART * s:
            part = np.where(k >= PART * s, part, np.inf)
        total = np.minimum(total, smooth_max(part, memory, q) + (fit.get("ts") * (1 - 1 / s) + (s - 1) * partial))
    return total, work, padded
