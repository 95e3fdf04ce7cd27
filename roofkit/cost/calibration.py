"""Calibration: fitted constants of closed forms, per device, operator, number format and software stack. Room: cost.

Files: data/roofkit_data/calibration/<device>.toml, one `[[fit]]` block each, and siblings.toml. `write_fits` writes the
same layout, so a refit replaces a file. A device without a file takes its sibling's constants with its own datasheet
figures (`inherited`): fractions of a peak stay fractions, microseconds of SM time and launch floors are copied as they
are, because they belong to the kernels and not to the clock. What one SM or the L2 delivers is stated relative to memory
bandwidth but belongs to the die, so it keeps its bytes per cycle (`carried`): an H200's SMs draw no more than an H100's.

Units of constants (microseconds inside the forms; their modules say how each enters):
  t0 ts td tq a0 a1 b0 b1 te   fixed costs of a call, of a split, of cold keys, of a copy kernel, of ranks, of an expert [us]
  c0 c1 cj cb                  SM time of one thread block, of one query head in it, of groups over 16 [us x SM]
  ec em e2 eb e1 bs l2         achieved fractions of datasheet FLOP/s, memory, link; caps relative to memory [ratio]
  ex   exponentials per cycle and SM;   tau   shortest k-step of a tile [ns x wave];   k0   k-steps of arithmetic that filling a tile is worth
  be   how far a partial last wave is spread over all SMs [0..1]
  p    exponent 1 + p of the smooth maximum (0 = sum);   c2   share of L2 that keeps data;   sh   half-size of a message [kB]
  ct   tile size at which operand traffic halves the rate [elements];   cq cm ct lin   passes over activations [count]
  gam ke kj lr   exponents and ratios of busiest rank, link efficiency over ranks, wide groups, repeated reads
"""
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from roofkit.errors import DataError
from roofkit.hardware.device import Device

STACKS = {  # whose kernels first; other stacks follow in the default order
    None: ("trtllm", "sglang", "vllm", "nccl"), "trtllm": ("trtllm", "nccl"), "sglang": ("sglang", "vllm", "trtllm", "nccl"),
    "vllm": ("vllm", "trtllm", "sglang", "nccl"),
}
OF_THE_DIE = ("gemm", "attention_decode", "mla_decode", "moe")  # operators whose bs, l2 and lr are those of `carried`
_FILE_KEYS = ("source", "date", "kind")
_OP = re.compile(r'^op\s*=\s*"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one closed form, for one operator, kernel class, number format and stack of one device.

    constants   fitted numbers, units in the module's docstring;  kernel   facts of the kernel set by hand (tile sizes, ...)
    n           measured rows of the fit;  mape, median   error on shapes of families the fit never saw [0..1]
    kind        fitted | inherited (another device's numbers) | assumed
    """

    op: str
    format: str
    stack: str
    form: str
    constants: Mapping[str, float]
    cls: str = ""
    kernel: Mapping[str, float] = field(default_factory=dict)
    n: int = 0
    mape: float | None = None
    median: float | None = None
    kind: str = "fitted"
    source: str = ""
    date: str = ""

    def get(self, name: str, default: float = 0.0) -> float:
        return self.constants.get(name, default)


class _Book:
    """A calibration file whose blocks are parsed when their operator is first asked for: TOML costs 0.2 ms a block."""

    def __init__(self, text: str, where: str) -> None:
        head, *blocks = text.split("\n[[fit]]\n")
        self.where, self.head = where, tomllib.loads(head)
        if not self.head.get("source"):
            raise DataError(f"{where}: no source; say which measurements the constants were fitted to")
        self._blocks: dict[str, list[str]] = {}
        self._fits: dict[str, tuple[Fit, ...]] = {}
        for block in blocks:
            found = _OP.search(block)
            if not found:
                raise DataError(f"{where}: a [[fit]] block has no op")
            self._blocks.setdefault(found[1], []).append(block)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(self._blocks)

    def of(self, op: str) -> tuple[Fit, ...]:
        if op not in self._fits:
            self._fits[op] = tuple(self._fit(tomllib.loads(b)) for b in self._blocks.get(op, ()))
        return self._fits[op]

    def _fit(self, entry: dict) -> Fit:
        cls = entry.pop("class", "")
        try:
            return Fit(**{**{k: self.head[k] for k in _FILE_KEYS if k in self.head}, **entry, "cls": cls})
        except TypeError as error:
            raise DataError(f"{self.where} [[fit]] {entry.get('op')!r}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFits:
    """The fits that apply to `device`, with the device's own datasheet figures per microsecond.

    parent      preset whose measurements the constants come from;  inherited   whether that is another device
    bw_us       memory bandwidth [bytes/us];  link_us   one-direction link of one device [bytes/us];  clock_us [cycles/us]
    """

    device: Device
    parent: str
    inherited: bool
    engine: str | None
    bw_us: float
    sm: float
    l2_bytes: float
    clock_us: float
    link_us: float
    _book: "_Book | _Carried"
    _found: dict = field(default_factory=dict)

    def peak_us(self, math: str) -> float:
        """Dense datasheet peak [FLOP/us]; raises CostModelError where the device has no such arithmetic."""
        return self.device.peak_flops_per_s(math) * 1e-6

    def all(self, op: str) -> tuple[Fit, ...]:
        return self._book.of(op)

    @property
    def ops(self) -> tuple[str, ...]:
        return self._book.ops

    @property
    def ceilings(self) -> Mapping[str, float]:
        """Datasheet numbers of the device the constants were fitted on, units in the names."""
        return self._book.head.get("ceilings", {})

    def find(self, op: str, formats: tuple[str, ...], classes: tuple[str, ...] = ("",), stacks: tuple[str, ...] = ()) -> Fit | None:
        """First fit in order of class, then format, then stack; `stacks` overrides the engine's order of preference."""
        key = (op, formats, classes, stacks)
        if key not in self._found:
            self._found[key] = self._search(*key)
        return self._found[key]

    def _search(self, op: str, formats: tuple[str, ...], classes: tuple[str, ...], stacks: tuple[str, ...]) -> Fit | None:
        order = stacks or STACKS.get(self.engine, STACKS[None]) + STACKS[None] + ("",)
        known = self._book.of(op)
        return next((f for c in classes for x in formats for s in order for f in known
                     if f.cls == c and f.format == x and f.stack.startswith(s)), None)

    def label(self, fit: Fit, exact: bool = True) -> str:
        """`fitted`, or `inherited` when device, format or class of the constants is not the asked one."""
        return "inherited" if self.inherited or not exact or fit.kind != "fitted" else "fitted"

    def note(self, fit: Fit) -> str:
        """Where the constants come from and what they are worth, for explanations."""
        error = "" if fit.mape is None else f", {100 * fit.mape:.0f} % mean error on unseen shapes"
        name = " ".join(x for x in (fit.op.replace("_", " "), fit.cls, fit.format) if x)
        return f"{self.parent} {name} ({fit.stack or fit.source}{error})"


def _root():
    return files("roofkit_data") / "calibration"


@lru_cache(maxsize=None)
def _siblings() -> dict[str, str]:
    return tomllib.loads((_root() / "siblings.toml").read_text(encoding="utf-8"))["siblings"]


@lru_cache(maxsize=None)
def _book(name: str) -> _Book | None:
    path = _root() / f"{name}.toml"
    return _Book(path.read_text(encoding="utf-8"), f"calibration/{name}.toml") if path.is_file() else None


def carried(constants: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Constants fitted on a device with the figures `before` as a device with the figures `after` takes them.

    Figures: memory_gb_s, sms, clock_mhz, as in `ceilings`. bs (one SM's draw over its fair share of memory bandwidth) keeps bytes per
    cycle and SM; l2 and lr (L2 reads, less one, over memory bandwidth) keep theirs too, over all SMs. Source: H200 against H100,
    one die with 1.43 times the bandwidth: fp8 decode of long contexts is 2-6 % faster there, AIConfigurator tables, PyPI 0.12.0.
    """
    clock, memory = after["clock_mhz"] / before["clock_mhz"], before["memory_gb_s"] / after["memory_gb_s"]
    sms = after["sms"] / before["sms"]
    out = dict(constants)
    if "bs" in out:
        out["bs"] *= clock * memory * sms
    for name in ("l2", "lr"):
        if name in out:
            out[name] = max((1 + out[name]) * clock * memory * sms - 1, 0.0)
    return out


class _Carried:
    """Another device's book, its constants as `after` (figures as in `carried`) takes them."""

    def __init__(self, original: _Book, after: Mapping[str, float]) -> None:
        self.original, self.head, self.ops, self._after = original, original.head, original.ops, after
        self._fits: dict[str, tuple[Fit, ...]] = {}

    def of(self, op: str) -> tuple[Fit, ...]:
        if op not in self._fits:
            fits, before = self.original.of(op), self.head["ceilings"]
            self._fits[op] = tuple(replace(f, constants=carried(f.constants, before, self._after)) for f in fits) if op in OF_THE_DIE else fits
        return self._fits[op]


def figures(device: Device) -> dict[str, float]:
    """What `carried` needs of a device."""
    return {"memory_gb_s": device.hbm_bytes_per_s / 1e9, "sms": device.sm_count, "clock_mhz": device.clock_hz / 1e6}


def bind(device: Device, book: _Book | _Carried, parent: str, engine: str | None = None) -> DeviceFits:
    """Fits of `book` with the datasheet figures of `device`; another device's constants are carried over."""
    book = getattr(book, "original", book)
    if parent != device.name and book.head.get("ceilings"):
        book = _Carried(book, figures(device))
    link = device.value("scaleup_bandwidth_per_direction") or device.value("pcie_bandwidth_per_direction") or 0.0
    return DeviceFits(device, parent, parent != device.name, engine, device.hbm_bytes_per_s * 1e-6, device.sm_count,
                      device.l2_bytes, device.clock_hz * 1e-6, link * 1e-6, book)


_BY_ID: dict[tuple[int, str | None], tuple[Device, DeviceFits | None]] = {}


def device_fits(device: Device, engine: str | None = None) -> DeviceFits | None:
    """Constants for a device; None when neither it nor a sibling was fitted.

    engine   "vllm" | "sglang" | "trtllm" prefers that stack's kernels; None prefers TensorRT-LLM's.
    """
    key = (id(device), engine)
    kept = _BY_ID.get(key)
    if kept is None or kept[0] is not device:  # figures may be a plain dict, so a Device need not hash
        parent = device.name if _book(device.name) else _siblings().get(device.name, "")
        book = _book(parent) if parent else None
        kept = _BY_ID[key] = (device, None if book is None else bind(device, book, parent, engine))
    return kept[1]


def read_fits(path: str | Path) -> tuple[Fit, ...]:
    """Every fit of a file written by `write_fits`."""
    book = _Book(Path(path).read_text(encoding="utf-8"), Path(path).name)
    return tuple(f for op in book.ops for f in book.of(op))


def _value(x: object) -> str:
    if isinstance(x, str):
        return '"' + x.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(x, Mapping):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in x.items()) + " }"
    return f"{x:d}" if isinstance(x, int) else f"{float(x):.6g}"


def write_fits(path: str | Path, fits: Iterable[Fit], source: str, date: str, comment: str = "", kind: str = "fitted",
               ceilings: Mapping[str, float] | None = None) -> None:
    """Write one device's fits. `source`, `date`, `kind` hold for every block that does not say otherwise.

    ceilings   datasheet numbers the fit used (peaks, bandwidth, SMs), kept for the record
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += ["schema = 1", f"source = {_value(source)}", f"date = {_value(date)}", f"kind = {_value(kind)}"]
    lines += [f"ceilings = {_value(ceilings)}"] if ceilings else []
    shared = {"source": source, "date": date, "kind": kind}
    for fit in fits:
        lines += ["", "[[fit]]", f"op = {_value(fit.op)}"]
        entry = {"class": fit.cls, "format": fit.format, "stack": fit.stack, "form": fit.form, "constants": fit.constants, "kernel": fit.kernel,
                 "n": fit.n, "mape": fit.mape, "median": fit.median, "kind": fit.kind, "source": fit.source, "date": fit.date}
        lines += [f"{k} = {_value(v)}" for k, v in entry.items() if v not in ("", None, {}, 0) and shared.get(k) != v]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
