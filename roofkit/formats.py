"""Number formats: what one element costs in memory and which arithmetic a product of two formats uses. Room: ground.

A tensor's format is `bf16`, `fp8`, `int4`, ...; a matrix product needs two of them, weights and activations, and runs
on the tensor units in one arithmetic (`GemmFormat.math`). Scales are part of the bytes: fp8 with 128 x 128 blocks is
1 + 4/16384 bytes, nvfp4 0.5 + 1/16, mxfp4 0.5 + 1/32, int4 with groups of 128 about 0.52.
Source: block sizes of the OCP microscaling format specification v1.0 and of the DeepSeek-V3 report (arXiv 2412.19437, section 3.3).
"""
from dataclasses import dataclass
from functools import lru_cache

from roofkit.errors import PlanError


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """One tensor format. `bytes_per_el` includes its scales; `bits` is the element alone."""

    name: str
    bits: int
    bytes_per_el: float
    math: str  # arithmetic when both operands have it: fp32 | bf16 | fp16 | fp8 | int8 | fp4 | int4
    label: str


FORMATS: dict[str, NumberFormat] = {f.name: f for f in (
    NumberFormat("fp32", 32, 4.0, "fp32", "32-bit float"),
    NumberFormat("bf16", 16, 2.0, "bf16", "16-bit brain float"),
    NumberFormat("fp16", 16, 2.0, "fp16", "16-bit float"),
    NumberFormat("fp8", 8, 1.0, "fp8", "8-bit float, one scale per tensor"),
    NumberFormat("fp8_block", 8, 1.0 + 4 / 16384, "fp8", "8-bit float, 128 x 128 blocks"),
    NumberFormat("int8", 8, 1.0, "int8", "8-bit integer"),
    NumberFormat("nvfp4", 4, 0.5 + 1 / 16, "fp4", "4-bit float, blocks of 16"),
    NumberFormat("mxfp4", 4, 0.5 + 1 / 32, "fp4", "4-bit float, blocks of 32"),
    NumberFormat("int4", 4, 0.5 + 2.5 / 128, "int4", "4-bit integer, groups of 128"),
)}
KV_FORMATS = ("bf16", "fp16", "fp8", "int8", "fp32", "nvfp4", "int4")


def number_format(name: str, where: str = "format") -> NumberFormat:
    """The format of that name; raises PlanError naming the known ones."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise PlanError(f"{where}: number format {name!r} is not known; choose one of {', '.join(FORMATS)}") from None


@dataclass(frozen=True, slots=True)
class GemmFormat:
    """Formats of one matrix product.

    name    key of calibrations: bf16, fp16, fp8, fp8_block, nvfp4, w8a8_int8, int8_wo, int4_wo, w4a16_mxfp4, ...
    math    arithmetic of the tensor units: bf16, fp8, int8, fp4, ...
    weight_bytes_per_el, act_bytes_per_el, out_bytes_per_el   [bytes/element]
    quantizes   the 16-bit activations are quantised on the fly, as a kernel of its own
    """

    name: str
    math: str
    weight_bytes_per_el: float
    act_bytes_per_el: float
    out_bytes_per_el: float = 2.0
    quantizes: bool = False


@lru_cache(maxsize=256)
def gemm_format(weights: str, activations: str) -> GemmFormat:
    """How a product of these two tensor formats runs.

    Equal widths run in that arithmetic; narrower weights are unpacked to the activations' format on chip
    (weight-only quantisation), so they save bytes and no FLOP/s. Raises PlanError for an unknown format, or for
    activations narrower than the weights, which no kernel offers.
    """
    w, a = number_format(weights, "weights"), number_format(activations, "activations")
    if a.bits < w.bits:
        raise PlanError(f"activations {activations!r} are narrower than weights {weights!r}; no kernel does that: "
                        f"use activations={weights!r} or wider")
    out = max(2.0, a.bytes_per_el)
    if w.bits == 16 or w.bits == 32:
        name = "fp32" if "fp32" in (w.name, a.name) else a.name
        return GemmFormat(name, FORMATS[name].math, w.bytes_per_el, a.bytes_per_el, out)
    if a.bits >= 16:
        name = {"int8": "int8_wo", "int4": "int4_wo", "mxfp4": "w4a16_mxfp4", "nvfp4": "w4a16_nvfp4", "fp8": "fp8_wo", "fp8_block": "fp8_wo"}[w.name]
        return GemmFormat(name, a.math, w.bytes_per_el, a.bytes_per_el, out)
    if a.bits == w.bits:
        name = {"int8": "w8a8_int8"}.get(w.name, w.name)
        return GemmFormat(name, w.math, w.bytes_per_el, a.bytes_per_el, out, quantizes=True)
    name = {"int4": "w4a8_int", "mxfp4": "w4a8_mxfp4_mxfp8", "nvfp4": "w4a8_nvfp4_fp8"}[w.name]
    return GemmFormat(name, a.math, w.bytes_per_el, a.bytes_per_el, out, quantizes=True)
