"""Hierarchical roofline: an op's traffic and time at every memory level of a device, and which level binds. Room: cost.

Levels, from the memory inwards: `hbm` (device memory to L2), `l2` (L2 to the SRAM of the SMs), `sram` (SRAM to the registers), then
`arithmetic` in whole tiles. Bytes grow inwards, bandwidth too; the level with the longest time binds (Ilic, Pratas & Sousa 2014,
IEEE CAL 13(1); Yang, Kurth & Williams 2020, CCPE 32(20)). The highest bandwidth figure of each level, no efficiency: a bound with
its traffic spelled out, not an estimate of a kernel. A level without a bandwidth figure has an unknown time (NaN).

Products in tiles of TM x TN: each tile of a row of tiles loads its rows of X again, each of a column its columns of W:
  l2    X ceil(n/TN) + W ceil(m/TM) + Y
  hbm   the same with super-tiles of all SMs at work, of which a share misses L2 once neither operand stays there
  sram  what is read out of it: every warp group's tile of 64 x TN reads its operands, what arrives is not counted again
The tile is the largest that shipped kernels use: 256 x 256 by two SMs that share loads (Hopper and later). One SM holds 128 x 256
outputs in its registers and moves half as much again; H100 at 128 x 128 would be bound by L2 in large products.
Attention follows flash_attention.py; one pass over memory has the same bytes at every level.
"""
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofkit.cost import flash_attention as fa
from roofkit.cost.bounds import math_of
from roofkit.errors import CostModelError
from roofkit.hardware.device import Device
from roofkit.ops.kinds import KIND, Attention, Elementwise, Gemm, GroupedGemm, Num

FIGURES = {  # figures that may hold a level's bandwidth; the highest counts, because a bound must not be beaten
    "hbm": ("hbm_bandwidth",), "sram": ("l1_bandwidth",),
    "l2": ("l2_bandwidth", "l2_bandwidth_counter", "l2_bandwidth_upper", "l2_bandwidth_peak", "last_level_cache_bandwidth"),
}
ORDER = ("hbm", "l2", "sram")
TILE = (256, 256)  # rows x columns of an output tile
WARP = 64  # rows of a warp group's tile
WARP_ROWS = 32  # query rows that read one K/V tile out of SRAM together
LABELS = {"hbm": "device memory", "l2": "L2 cache", "sram": "SRAM of the SMs", "arithmetic": "arithmetic"}


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Traffic of one level and its time. `rate` bytes/s (FLOP/s for arithmetic), None where the device has no figure; time_s is NaN then."""

    name: str
    amount: Num
    rate: float | None
    source: str

    @property
    def time_s(self) -> Num:
        return self.amount / self.rate if self.rate else self.amount * np.nan


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """One call of an op at every level of a device, from the memory inwards."""

    op: object
    device: Device
    levels: tuple[Level, ...]

    @property
    def time_s(self) -> Num:
        """The longest of the known levels [s]; the unknown ones may be longer."""
        return np.nanmax(np.stack(np.broadcast_arrays(*(level.time_s for level in self.levels if level.rate))), axis=0)[()]

    @property
    def binding(self):
        """Name of the level with the longest known time; an array of names where the op's fields are arrays."""
        known = [level for level in self.levels if level.rate]
        slowest = np.argmax(np.stack(np.broadcast_arrays(*(level.time_s for level in known))), axis=0)
        return np.array([level.name for level in known])[slowest] if np.ndim(slowest) else known[int(slowest)].name

    @property
    def unknown(self) -> tuple[str, ...]:
        """Levels for which the device has no bandwidth figure."""
        return tuple(level.name for level in self.levels if not level.rate)

    def __getitem__(self, name: str) -> Level:
        return next(level for level in self.levels if level.name == name)

    @property
    def table(self) -> pd.DataFrame:
        """level, label, amount, unit, rate, time_s, binds, source; arrays of a sweep stay in their cells."""
        binding = self.binding
        rows = [(v.name, LABELS[v.name], v.amount, "FLOP" if v.name == "arithmetic" else "bytes", v.rate if v.rate else np.nan, v.time_s,
                 binding == v.name, v.source) for v in self.levels]
        return pd.DataFrame(rows, columns=["level", "label", "amount", "unit", "rate", "time_s", "binds", "source"])


def hierarchical_roofline(op: Gemm | GroupedGemm | Attention | Elementwise, device: Device, *, tile: tuple[int, int] = TILE, l2_reuse: bool = True,
                          kernel: str | fa.Kernel = "fa2", pack_gqa: bool | None = None) -> Hierarchy:
    """Traffic and time of one call of `op` at every memory level of `device`.

    tile       rows x columns of an output tile of a product whose operands are loaded once; rows shrink to those there are, in steps of 16
    l2_reuse   False: nothing stays in L2, so memory sees what the SMs ask for
    kernel, pack_gqa   of attention, see flash_attention; None packs the group in decode
    Raises CostModelError for op kinds without a traffic model (collectives, transfers, scans) and a number format without a peak.
    """
    if isinstance(op, Attention):
        flops, traffic = _attention(op, device, kernel, op.phase == "decode" if pack_gqa is None else pack_gqa, l2_reuse)
    elif isinstance(op, Gemm | GroupedGemm):
        flops, traffic = _products(op, device, tile, l2_reuse)
    elif isinstance(op, Elementwise):
        flops, traffic = None, (op.bytes_moved / _calls(op),) * 3
    else:
        raise CostModelError(f"op {op.name!r}: no memory hierarchy for kind {KIND.get(type(op), type(op).__name__)!r}; "
                             f"it is known for {KIND[Gemm]}, {KIND[GroupedGemm]}, {KIND[Attention]} and {KIND[Elementwise]}")
    levels = [_level(name, amount, device) for name, amount in zip(ORDER, traffic, strict=True)]
    if flops is not None:
        figure = device.peak_figure(math_of(op))
        levels.append(Level("arithmetic", flops, figure.value, figure.source))
    return Hierarchy(op, device, tuple(levels))


def _level(name: str, amount: Num, device: Device) -> Level:
    known = [device.figures[key] for key in FIGURES[name] if device.value(key)]
    if not known:
        return Level(name, amount, None, f"no figure {FIGURES[name][0]} in the preset of {device.label}")
    figure = max(known, key=lambda f: f.value)
    return Level(name, amount, figure.value, figure.source)


def _calls(op) -> Num:
    return np.maximum(op.count, 1e-30)


def gemm_traffic(m: Num, k: float, n: float, bytes_per_el: tuple[float, float, float], device: Device, *, tile: tuple[int, int] = TILE,
                 l2_reuse: bool = True) -> tuple[Num, Num, Num]:
    """(hbm, l2, sram) bytes of one product X[m, k] @ W[k, n] -> Y[m, n]; bytes_per_el of (X, W, Y)."""
    rows, columns = np.clip(16 * np.ceil(m / 16), 16, tile[0]), tile[1]
    x, w, y = m * k * bytes_per_el[0], k * n * bytes_per_el[1], m * n * bytes_per_el[2]
    down, across = np.ceil(m / rows), np.ceil(n / columns)
    l2 = x * across + w * down + y
    sram = y + _padded(m) * n * k * (bytes_per_el[0] / columns + bytes_per_el[1] / np.minimum(rows, WARP))
    sram = np.maximum(sram, l2)
    if not l2_reuse:
        return l2, l2, sram
    tall = np.minimum(np.maximum(np.floor(np.sqrt(device.sm_count)), np.floor(device.sm_count / across)), down)  # tiles at work together
    broad = np.minimum(np.maximum(np.floor(device.sm_count / np.maximum(tall, 1)), 1), across)
    again = x * np.ceil(across / broad) + w * np.ceil(down / np.maximum(tall, 1)) + y
    missed = fa.l2_miss_share(np.minimum(x, w), device.l2_bytes)
    least = x + w + y
    return least + missed * (again - least), l2, sram


def _products(op: Gemm | GroupedGemm, device: Device, tile: tuple[int, int], l2_reuse: bool) -> tuple[Num, tuple[Num, Num, Num]]:
    fmt = op.format
    per_el = (fmt.act_bytes_per_el, fmt.weight_bytes_per_el, fmt.out_bytes_per_el)
    if isinstance(op, Gemm):
        products, times = [(op.m, op.k, op.n)], op.batch
    else:
        products, times = [(op.m, op.hidden, (op.matrices - 1) * op.inter), (op.m, op.inter, op.hidden)], op.distinct
    each = [gemm_traffic(m, k, n, per_el, device, tile=tile, l2_reuse=l2_reuse) for m, k, n in products]
    flops = sum(2.0 * _padded(m) * np.ceil(n / 16) * 16 * k for m, k, n in products) * times
    hbm, l2, sram = (sum(level) * times for level in zip(*each, strict=True))
    if isinstance(op, GroupedGemm):  # the inner activation stays in L2 where it fits
        inner = op.rows * op.inter * ((op.matrices - 1) * per_el[2] + per_el[0])
        hbm = np.maximum(hbm - inner * (1 - fa.l2_miss_share(inner, device.l2_bytes)) if l2_reuse else hbm, op.bytes_moved / _calls(op))
    return flops, (hbm, np.maximum(l2, hbm), np.maximum(sram, hbm))


def _padded(m: Num) -> Num:
    return np.where(np.asarray(m) <= WARP, 16 * np.ceil(np.asarray(m) / 16), WARP * np.ceil(np.asarray(m) / WARP))[()]


def _attention(op: Attention, device: Device, kernel: str | fa.Kernel, pack_gqa: bool, l2_reuse: bool) -> tuple[Num, tuple[Num, Num, Num]]:
    shape, kernel = fa.AttentionShape.of(op), fa.KERNELS[kernel] if isinstance(kernel, str) else kernel
    least, l2 = fa.compulsory_bytes(shape), fa.sram_bytes(shape, kernel, "forward", pack_gqa)
    miss = 1.0
    if l2_reuse and kernel.algorithm != "standard":
        miss = fa.l2_miss_share(fa.working_set_bytes(shape, kernel, device, "forward", pack_gqa), device.l2_bytes)
    hbm = np.maximum(least + miss * (l2 - least), op.bytes_moved / _calls(op))  # an op that selects keys counts its cache whole
    l2 = np.maximum(l2, hbm)
    group = shape.group if pack_gqa else 1
    keys = fa.streamed_keys(shape, kernel.tiles.rows, kernel.tiles.keys, pack_gqa)
    readers = np.ceil(np.minimum(kernel.tiles.rows, shape.q_tokens * group) / WARP_ROWS)  # warps that read each tile out of SRAM
    walks = shape.batch * (shape.shared_heads if pack_gqa else shape.heads)
    sram = l2 + 2 * shape.head_dim * shape.kv_bytes * keys * walks * (readers - 1)
    pairs = fa.executed_pairs(shape, kernel)
    return fa.attention_flops(shape, "forward", kernel.algorithm, pairs), (hbm, l2, sram)
