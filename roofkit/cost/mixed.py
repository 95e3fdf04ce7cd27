"""Mixed launches: one attention call that holds prefill chunks and decodes, on kernels of the FlashAttention-2 type. Room: cost.

Such a kernel gives every sequence the same grid, (row blocks of the longest query, sequences, query heads): a decode is one
thread block per *query* head, its KV neither split nor its group packed, and it walks the keys at the pace of a full block
of 64 query rows. So decodes cost several times what they cost alone, and no call is shorter than its longest walk.

  d   = c0 + k (keys + 32),   k = 64 x 2 (qk_dim + v_dim) SM / (ec P)     time of one block [us]; prefill: mean of its blocks
  W   = sum of all d / SM + ce x empty blocks / SM                       empty: row blocks of the grid that a decode does not have
  low = max(W, longest d, d_long ceil(N_long / SM), d_short ceil(N / SM))    what no schedule of N blocks can beat
  B   = bytes of both once + repeats;  a query head reads the keys of its group again from memory unless one kv head of all
        decodes stays in L2 (share c2) or the SMs run several heads of the group at once
  t   = t0 + [ low + w max(W + longest (1 - SM/N) - low, 0) ]  (+)1+p  B/(em BW)

Times of blocks add, they do not overlap: sum, not maximum. Fitted to 7,046 mixed launches of vLLM 0.19 (FlashAttention-2, bf16)
on an RTX PRO 6000 workstation card, github casys-kaist/LLMServingSim @ 5daddb21 (MIT); grid order and block size are read out
of those times (FlashAttention-2, arXiv 2307.08691, section 3.2), not out of the kernel's source. Elsewhere constants are inherited,
and stacks with other kernels get the plain sum of their two forms.
Constants, fitted by roofkit.evidence.mixed_cases: t0, c0, ce [us]; ec, em [achieved fraction]; c2 [share of L2]; w [share of the scheduling tail]; p [exponent - 1].
"""
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from roofkit.cost import attention
from roofkit.cost.calibration import DeviceFits, Fit, read_fits
from roofkit.cost.gemm import smooth_max
from roofkit.cost.model import Timing
from roofkit.ops.kinds import Attention, Num

ROWS = 64  # query rows of a block
KEYS = 64  # keys of a step: half a step of padding on average
MEASURED_ON = "rtx-pro-6000-workstation"
FIT_OP = "attention_mixed"  # op of the constants in calibration files
FORM = "mixed launch: blocks of both phases share the SMs"


def mixed_attention(prefill: Attention, decode: Attention, fits: DeviceFits | None) -> tuple[Timing, Timing] | None:
    """(prefill, decode) parts of one launch that runs both; their times add up to the launch. None where the device has no fit.

    Each part is at least its op's bound and the launch at least the longest walk; the launch is divided by SM time.
    Kernels that are not of the FlashAttention-2 type keep their two separate forms: a plain sum, marked `inherited`.
    """
    if fits is None:
        return None
    own = fits.find(FIT_OP, ("bf16",))  # of the device's own file, as `rk.calibrate` writes it
    fit = (own or _fit()) if shares_a_launch(prefill, decode, fits) else None
    if fit is None:
        parts = attention.prefill(prefill, fits), attention.decode(decode, fits)
        if None in parts:
            return None
        return tuple(replace(part, calibration="inherited", note=f"{part.note}; mixed launch not measured here: plain sum") for part in parts)
    walks = _Walks(prefill, decode, fit.constants, fits)
    moved = _bytes(prefill), _bytes(decode) + repeated_bytes(decode, fits, fit.get("c2"))
    stream = [x / (fit.get("em") * fits.bw_us) for x in moved]
    bounds = [_bound_us(op, fits) for op in (prefill, decode)]
    total = np.maximum(_launch_us(walks, stream[0] + stream[1], fit.constants), bounds[0] + bounds[1])
    first = np.clip(total * walks.prefill_share, bounds[0], total - bounds[1])
    measured_on = fits.parent if own else MEASURED_ON
    label = "fitted" if fits.device.name == measured_on else "inherited"
    note = f"{measured_on} mixed attention ({fit.stack}, {100 * (fit.mape or 0):.0f} % mean error on unseen models and TP)"
    start = fit.get("t0") * first / total, fit.get("t0") * (1 - first / total)
    return tuple(Timing(time * 1e-6, work * 1e-6, moved * 1e-6, 0.0, launch * 1e-6, None, FORM, label, note)
                 for time, work, moved, launch in zip((first, total - first), walks.work, stream, start, strict=True))


def shares_a_launch(prefill: Attention, decode: Attention, fits: DeviceFits) -> bool:
    """Whether the stack runs both in one FlashAttention-2 launch: blocks of 64 rows, groups not packed, vLLM kernels."""
    if prefill.latent or decode.latent or not prefill.v_dim or not decode.v_dim:
        return False
    kv = attention.KV_KEYS.get(prefill.kv_format, ("bf16",))
    fit = fits.find("attention_prefill", tuple(f"bf16/{key}" for key in kv))
    return fit is not None and fit.stack.startswith("vllm") and fit.kernel.get("rows") == ROWS and not fit.kernel.get("pack")


@lru_cache(maxsize=None)
def _fit() -> Fit:
    return read_fits(Path(str(files("roofkit_data") / "calibration" / "mixed.toml")))[0]


def _bytes(op: Attention) -> Num:
    return op.bytes_moved / np.maximum(op.count, 1e-30)


def _bound_us(op: Attention, fits: DeviceFits) -> Num:
    return np.maximum(op.flops / np.maximum(op.count, 1e-30) / fits.peak_us(op.math), _bytes(op) / fits.bw_us)


def repeated_bytes(op: Attention, fits: DeviceFits, c2: float) -> Num:
    """Device-memory bytes beyond reading each key once: query heads of a group run far apart in the grid [bytes]."""
    one = op.kv_read_tokens * op.batch * op.kv_elements * op.kv_bytes_per_el  # one kv head of every decode
    at_once = np.clip(fits.sm / np.maximum(op.batch, 1e-30), 1, op.group)
    missed = 1 / (1 + (c2 * fits.l2_bytes / np.maximum(one, 1.0)) ** 4)
    return one * op.n_kv_heads * (op.group / at_once - 1) * missed


class _Walks:
    """Blocks of the launch: how many per SM, how long each [us], and the SM time of both phases."""

    def __init__(self, prefill: Attention, decode: Attention, constants: Mapping[str, float], fits: DeviceFits) -> None:
        def pace(op: Attention) -> float:
            return ROWS * 2 * (op.qk_dim + op.v_dim) * fits.sm / (constants["ec"] * fits.peak_us(op.math))

        blocks = np.ceil(prefill.q_tokens / ROWS)
        top = np.minimum(prefill.kv_tokens, prefill.limit + ROWS)
        mean = np.minimum(prefill.pairs / prefill.q_tokens + (ROWS - 1) / 2, top)
        own = decode.kv_read_tokens + decode.q_tokens
        self.count = [prefill.batch * blocks * (prefill.n_heads / fits.sm), decode.batch * (decode.n_heads / fits.sm)]
        self.each = [constants["c0"] + pace(op) * (keys + KEYS / 2) for op, keys in ((prefill, mean), (decode, own))]
        self.longest = np.maximum(constants["c0"] + pace(prefill) * (top + KEYS / 2), self.each[1])
        empty = self.count[1] * np.maximum(blocks - 1, 0) * constants["ce"]
        self.work = [self.count[0] * self.each[0], self.count[1] * self.each[1] + empty]

    @property
    def prefill_share(self) -> Num:
        return self.work[0] / (self.work[0] + self.work[1])

    def makespan(self, tail: float) -> Num:
        """Time until the last block ends [us]: between what no schedule beats and what no greedy one exceeds (Graham 1966)."""
        total, (a, b), (x, y) = self.work[0] + self.work[1], self.each, self.count
        long_count = np.where(a > b, x, y)
        waves = np.maximum(np.maximum(a, b) * np.ceil(long_count), np.minimum(a, b) * np.ceil(x + y))
        low = np.maximum(np.maximum(total, self.longest), waves)
        high = total + self.longest * (1 - 1 / np.maximum(x + y, 1))
        return low + tail * np.maximum(high - low, 0)


def launch_us(prefill: Attention, decode: Attention, constants: Mapping[str, float], fits: DeviceFits) -> Num:
    """Time of one launch under `constants`, before the bound [us]: what a fit varies."""
    moved = _bytes(prefill) + _bytes(decode) + repeated_bytes(decode, fits, constants["c2"])
    return _launch_us(_Walks(prefill, decode, constants, fits), moved / (constants["em"] * fits.bw_us), constants)


def _launch_us(walks: _Walks, stream: Num, constants: Mapping[str, float]) -> Num:
    return constants["t0"] + smooth_max(walks.makespan(constants["w"]), stream, 1 + constants["p"])
