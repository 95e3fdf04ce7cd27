"""Device: one accelerator, every figure with its unit, kind, confidence and source. Room: hardware.

Peaks are dense and per device; bandwidths are per direction; achieved fractions are figures of their own, never
folded into a peak. The files are in data/roofkit_data/hardware, presets.py is their only reader.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from roofkit.errors import CostModelError

KINDS = ("published", "measured", "estimated", "assumed", "fitted")
CONFIDENCES = ("A", "B", "C")  # best first


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure about the world.

    value       in base units (bytes, bytes/s, FLOP/s, W, s, count, ratio)
    printed, unit   as the source prints it
    kind        published | measured | estimated | assumed | fitted
    confidence  A read in the maker's own document; B in an independent source; C not verified: shown as such
    source, note    where it comes from; conditions, other values seen
    """

    value: float
    printed: float
    unit: str
    kind: str
    confidence: str
    source: str
    note: str = ""

    @property
    def verified(self) -> bool:
        return self.confidence != "C"


@dataclass(frozen=True, slots=True)
class Fact:
    """A word about a device or machine that is no number: memory type, process, links, launch day."""

    value: str
    kind: str
    confidence: str
    source: str
    note: str = ""

    @property
    def verified(self) -> bool:
        return self.confidence != "C"


_SHIPPED = "peak_{}_dense_at_shipped_clock"  # Gaudi 3 prints 1835 at a clock that it does not run
PEAK_KEYS = {  # arithmetic of a product -> figures that give its peak, best first; sparse and headline prints never
    "bf16": (_SHIPPED.format("bf16"), "peak_bf16_dense"),
    "fp16": ("peak_fp16_dense", _SHIPPED.format("bf16"), "peak_bf16_dense"),
    "fp8": (_SHIPPED.format("fp8"), "peak_fp8_dense"),
    "fp4": ("peak_fp4_dense",), "int8": ("peak_int8_dense",), "int4": ("peak_int4_dense",),
    "fp32": ("peak_fp32_vector", "peak_fp32_dense"), "tf32": ("peak_tf32_dense",),
}
_ACHIEVED_KEYS = {  # arithmetic -> measured share of the dense peak, best first
    "bf16": ("achieved_bf16_fraction",), "fp16": ("achieved_fp16_fraction", "achieved_bf16_fraction"),
    "fp8": ("achieved_fp8_fraction",), "fp4": ("achieved_fp4_fraction",), "int8": ("achieved_int8_fraction",),
    "fp32": ("achieved_fp32_vector_fraction",),
}


def _default_fraction(value: float, of: str, low: float, high: float, n: int) -> Figure:
    source = f"median over the {n} devices of the presets where it was measured, rounded (tests/test_hardware_presets.py recomputes it)"
    return Figure(value, value, "ratio", "assumed", "C", source, f"{of}; measured devices lie between {low:g} and {high:g}")


DEFAULT_FLOPS_FRACTION = {  # used where a device has no measured fraction; every other arithmetic takes bf16's
    "bf16": _default_fraction(0.79, "large bf16 matrix products over the dense peak", 0.511, 0.969, 15),
    "fp8": _default_fraction(0.75, "large fp8 matrix products over the dense peak", 0.53, 0.955, 10),
}
DEFAULT_BANDWIDTH_FRACTION = _default_fraction(0.84, "large streams over the printed memory bandwidth", 0.48, 0.977, 16)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as its preset describes it. `figures` maps a key to a Figure; properties are the ones costs use.

    usual_machine, usual_topology   preset name and link layout of the machine it is mostly sold in; "" = none known
    spans_nodes           the fast links of that machine reach beyond one node (NVL72 racks, TPU pods)
    in_switch_reduction   the switches of that machine add
    """

    name: str
    label: str
    maker: str
    figures: Mapping[str, Figure]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    usual_machine: str = ""
    usual_topology: str = ""
    spans_nodes: bool = False
    in_switch_reduction: bool = False

    def __hash__(self) -> int:  # equality compares every figure; the name is enough to find it in a cache
        return hash((self.name, self.label))

    def value(self, key: str, default: float | None = None) -> float | None:
        """Base-unit value of a figure, or `default` when the preset has none."""
        figure = self.figures.get(key)
        return default if figure is None else figure.value

    def peak_figure(self, math: str = "bf16") -> Figure:
        """The figure behind `peak_flops_per_s`, with its source. Raises CostModelError where the device has no such rate."""
        for key in PEAK_KEYS.get(math, ()):
            if self.value(key):
                return self.figures[key]
        have = ", ".join(m for m in PEAK_KEYS if self.has_math(m))
        raise CostModelError(f"{self.label} has no native {math} rate; choose a number format whose arithmetic is one of: {have}")

    def peak_flops_per_s(self, math: str = "bf16") -> float:
        """Dense peak of an arithmetic [FLOP/s]. Raises CostModelError where the device has none (bf16 on a T4)."""
        return self.peak_figure(math).value

    def has_math(self, math: str) -> bool:
        """Whether the device has a peak for that arithmetic."""
        return any(self.value(key) for key in PEAK_KEYS.get(math, ()))

    def achievable_flops_fraction(self, math: str = "bf16") -> Figure:
        """Share of the dense peak that large products reach [0..1]: measured where the preset has it, else an assumed median.

        Never folded into a peak. Raises CostModelError where the device has no such rate.
        """
        self.peak_figure(math)
        for key in _ACHIEVED_KEYS.get(math, ()):
            if key in self.figures:
                return self.figures[key]
        return DEFAULT_FLOPS_FRACTION.get(math, DEFAULT_FLOPS_FRACTION["bf16"])

    def achievable_bandwidth_fraction(self) -> Figure:
        """Share of the memory bandwidth that large streams reach [0..1]: measured, else assumed by the preset or in general."""
        return self.figures.get("achieved_hbm_fraction") or self.figures.get("assumed_hbm_fraction") or DEFAULT_BANDWIDTH_FRACTION

    @property
    def hbm_bytes_per_s(self) -> float:
        """Bandwidth of the main device memory, whatever its type [bytes/s]."""
        return self.figures["hbm_bandwidth"].value

    @property
    def memory_bytes(self) -> float:
        """Main memory a program can use: the driver's figure where known, else the printed one [bytes]."""
        return self.value("memory_capacity_usable") or self.figures["memory_capacity"].value

    @property
    def sm_count(self) -> float:
        """Streaming multiprocessors, compute units or cores; 1 where the maker prints none."""
        return self.value("sm_count", 1.0)

    @property
    def l2_bytes(self) -> float:
        """Last shared cache or managed SRAM [bytes]; 0 where there is none or the maker prints none."""
        return self.value("l2_capacity", 0.0)

    @property
    def clock_hz(self) -> float:
        """Clock at which the tensor peak holds, else the boost clock [Hz]; 1.5 GHz where neither is printed."""
        return self.value("tensor_peak_clock") or self.value("boost_clock") or 1.5e9

    @property
    def tdp_w(self) -> float | None:
        """Board or package power limit [W]; None where the maker prints none."""
        return self.value("tdp")

    @property
    def unverified(self) -> tuple[str, ...]:
        """Keys of figures with confidence C: to be marked wherever they show."""
        return tuple(k for k, f in self.figures.items() if not f.verified)


def figure_table(described) -> pd.DataFrame:
    """Where every figure of a Device or Cluster comes from, as printed: figure, value, unit, kind, confidence, source, note.

    Words (memory type, process) follow the numbers with unit "text".
    """
    rows = [(k, f.printed, f.unit, f.kind, f.confidence, f.source, f.note) for k, f in described.figures.items()]
    rows += [(k, f.value, "text", f.kind, f.confidence, f.source, f.note) for k, f in described.facts.items()]
    return pd.DataFrame(rows, columns=["figure", "value", "unit", "kind", "confidence", "source", "note"])
