"""Device: one accelerator, every figure with its unit, kind, confidence and source. Room: hardware.

Peaks are dense and per device; bandwidths are per direction; achieved fractions are figures of their own, never
folded into a peak. The files are in data/roofkit_data/hardware, presets.py is their only reader.
"""
from collections.abc import Mapping
from dataclasses import dataclass

from roofkit.errors import CostModelError


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


PEAK_KEYS = {  # arithmetic of a product -> figures that give its peak, best first
    "bf16": ("peak_bf16_dense",), "fp16": ("peak_fp16_dense", "peak_bf16_dense"), "fp8": ("peak_fp8_dense",),
    "fp4": ("peak_fp4_dense",), "int8": ("peak_int8_dense",), "int4": ("peak_int4_dense",),
    "fp32": ("peak_fp32_vector", "peak_fp32_dense"), "tf32": ("peak_tf32_dense",),
}


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as its preset describes it. `figures` maps a key to a Figure; properties are the ones costs use."""

    name: str
    label: str
    maker: str
    figures: Mapping[str, Figure]

    def value(self, key: str, default: float | None = None) -> float | None:
        """Base-unit value of a figure, or `default` when the preset has none."""
        figure = self.figures.get(key)
        return default if figure is None else figure.value

    def peak_flops_per_s(self, math: str = "bf16") -> float:
        """Dense peak of an arithmetic [FLOP/s]. Raises CostModelError where the device has none (bf16 on a T4)."""
        for key in PEAK_KEYS.get(math, ()):
            if self.value(key):
                return self.figures[key].value
        have = ", ".join(m for m in PEAK_KEYS if self.has_math(m))
        raise CostModelError(f"{self.label} has no native {math} rate; choose a number format whose arithmetic is one of: {have}")

    def has_math(self, math: str) -> bool:
        """Whether the device has a peak for that arithmetic."""
        return any(self.value(key) for key in PEAK_KEYS.get(math, ()))

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
        return self.value("l2_capacity", 0.0)

    @property
    def clock_hz(self) -> float:
        return self.value("tensor_peak_clock") or self.value("boost_clock") or 1.5e9

    @property
    def unverified(self) -> tuple[str, ...]:
        """Keys of figures with confidence C: to be marked wherever they show."""
        return tuple(k for k, f in self.figures.items() if not f.verified)
