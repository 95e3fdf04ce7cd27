"""Cases: rows of one kernel class bound to the closed form that prices it. Room: evidence.

A case is what one set of constants describes: one device, operator, number format, software stack and kernel class. Its
rows are stacked into arrays and priced by the very functions of roofkit.cost (warm: the tables are repeated benchmarks on
an idle GPU), so a refit cannot drift away from the product. Bounds of constants are physical: no fraction above 1.
"""
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pandas as pd

from roofkit.cost import attention, collectives, gemm
from roofkit.cost.calibration import Fit, bind
from roofkit.errors import MeasurementError
from roofkit.evidence.fit import Fit as FitResult
from roofkit.evidence.fit import Form, Parameter, fit
from roofkit.formats import GemmFormat, gemm_format
from roofkit.hardware.device import Device

P = Parameter
GEMM_FORMATS: dict[str, GemmFormat] = {
    "bf16": gemm_format("bf16", "bf16"), "fp16": gemm_format("fp16", "fp16"), "fp32": gemm_format("fp32", "fp32"),
    "fp8": gemm_format("fp8", "fp8"), "fp8_block": gemm_format("fp8_block", "fp8_block"), "nvfp4": gemm_format("nvfp4", "nvfp4"),
    "w8a8_int8": gemm_format("int8", "int8"), "int8_wo": gemm_format("int8", "bf16"), "int4_wo": gemm_format("int4", "bf16"),
}
_GEMM = (P("t0", 0.5, 60, 4, unit="us"), P("ec", 0.2, 1, 0.8), P("em", 0.3, 1, 0.8), P("p", 0.02, 30, 2), P("ct", 0.01, 60, 5),
         P("k0", 1, 3000, 150), P("tau", 0.05, 20, 1.5, unit="ns"))
_RESIDENT = (P("c2", 0.05, 3, 0.5), P("l2", 0.01, 20, 1.5))
_DECODE = (P("t0", 0.5, 20, 7, unit="us"), P("c0", 0.1, 12, 3, unit="us"), P("em", 0.5, 1, 0.9), P("bs", 0.3, 60, 4), P("c2", 0.02, 3, 0.6),
           P("td", 1e-3, 30, 5, unit="us"))
_PREFILL = (P("t0", 1, 40, 10, unit="us"), P("ec", 0.2, 1, 0.7), P("em", 0.3, 1, 0.8), P("ex", 3, 1e3, 20), P("cb", 0.05, 12, 3, unit="us"),
            P("p", 0.02, 60, 1.0), P("lin", 1e-3, 5, 0.5))
_RING = (P("a0", 0.5, 400, 8, unit="us"), P("a1", 1e-3, 60, 1.5, unit="us"), P("eb", 0.02, 1.5, 0.7), P("ke", -3, 1, 0, log=False),
         P("sh", 1e-3, 1e5, 1000, unit="kB"))
_ONE_SHOT = (P("b0", 0.5, 40, 5, unit="us"), P("b1", 1e-3, 5, 0.1, unit="us"), P("e1", 0.02, 1.5, 0.5))
COARSE = 700  # rows on which starting points are compared
LARGE_L2 = 90e6  # caches above this hold the operands of a repeated call for several calls [bytes]
SLOW_MEMORY = 2.1e12  # below this a large L2 is so much faster that a rotation of weights within it shows [bytes/s]
COPIES = 5  # of the weights that the collector of the public tables rotates at most
RESIDENT_SHARPNESS = 24  # how abruptly a rotation stops fitting a cache; measured bandwidth steps within 10 % of its size
COLLECTIVE_OPS = {"alltoall": "all_to_all"}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Rows (a table of one kind and device) that share constants. `prepare(rows, case)` -> seconds(constants)."""

    op: str
    format: str
    stack: str
    form: str
    device: Device
    rows: pd.DataFrame
    parameters: tuple[Parameter, ...]
    prepare: Callable[[pd.DataFrame, "Case"], Callable[[Mapping[str, float]], np.ndarray]]
    cls: str = ""
    kernel: Mapping[str, float] = field(default_factory=dict)

    def fit(self, rows: pd.DataFrame, *, families: np.ndarray | None = None, starts: int = 3, seed: int = 0, most: int = 4000) -> FitResult:
        """Constants from some of the rows; starts are compared on at most COARSE of them, the fit uses at most `most`."""
        rows = _thin(rows, most)
        if families is not None and len(families) != len(rows):
            raise MeasurementError(f"{self.label()}: {len(families)} families for {len(rows)} rows")
        coarse = _thin(rows, COARSE)
        extra = {} if len(coarse) == len(rows) else {"coarse": self.bound_form(coarse), "coarse_measured_s": coarse.time_us.to_numpy() * 1e-6}
        return fit(self.bound_form(rows), rows.time_us.to_numpy() * 1e-6, families=families, starts=starts, seed=seed, **extra)

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        return self.device.name, self.op, self.format, self.stack, self.cls

    def bound_form(self, rows: pd.DataFrame) -> Form:
        """The form over some of the rows, ready to fit or to evaluate."""
        return Form(self.form, self.parameters, self.prepare(rows, self))

    def fits(self, constants: Mapping[str, float]):
        """DeviceFits that hold these constants alone, for the functions of roofkit.cost."""
        entry = Fit(self.op, self.format, self.stack, self.form, constants, self.cls, self.kernel)
        return bind(self.device, _Single(entry), self.device.name)

    def label(self) -> str:
        return " ".join(x for x in (self.device.name, self.op, self.cls, self.format, self.stack) if x)


class _Single:
    """A calibration book of one entry."""

    head: Mapping = {}

    def __init__(self, entry: Fit) -> None:
        self._entry = entry
        self.ops = (entry.op,)

    def of(self, op: str) -> tuple[Fit, ...]:
        return (self._entry,) if op == self._entry.op else ()


def _thin(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most `most` rows, evenly spread over the table as a fixed shuffle orders it."""
    if len(rows) <= most:
        return rows
    keep = np.random.default_rng(len(rows)).permutation(len(rows))[:most]
    return rows.iloc[np.sort(keep)]


class Column(np.ndarray):
    """A column whose truth is that of all its elements: rows are grouped so that branches of a form agree on them."""

    def __bool__(self) -> bool:
        return bool(np.all(np.asarray(self)))


def column(values) -> Column:
    return np.asarray(values, dtype=float).view(Column)


def cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    """Every case of a table of one kind and one device; rows no form describes are left out.

    Raises MeasurementError for a kind without a fitted form.
    """
    kind = frame["kind"].iloc[0]
    build = {"gemm": _gemm_cases, "gemm_power": _gemm_cases, "attention": _attention_cases, "collective": _collective_cases}.get(kind)
    if build is None:
        raise MeasurementError(f"tables of kind {kind!r} have no fitted form of their own")
    yield from build(frame, device)


def stack_of(source) -> str:
    """`aic:trtllm-1.3.0rc20` -> `trtllm-1.3.0rc20`."""
    return str(source).rsplit(":", 1)[-1]


def engine_of(stack: str) -> str | None:
    """Engine whose kernels a stack runs; None for libraries."""
    return next((e for e in ("vllm", "sglang", "trtllm") if stack.startswith(e)), None)


def _gemm_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    for (dtype, source), rows in frame.groupby(["dtype", "source"], sort=True):
        fmt = GEMM_FORMATS.get(dtype)
        if fmt is None or not device.has_math(fmt.math):
            continue
        tiled = dtype != "fp32" and device.maker == "NVIDIA" and device.sm_count > 1
        split = dtype not in ("fp8_block", "nvfp4", "w8a8_int8")
        parameters = _GEMM if tiled else _GEMM[:4]
        if tiled and split:
            parameters += (P("ts", 0.02, 60, 2.5, unit="us"),)
        if dtype in ("fp8", "fp8_block", "nvfp4"):
            parameters += (P("cq", 0.02, 10, 1),)
        if device.l2_bytes > LARGE_L2 and device.hbm_bytes_per_s < SLOW_MEMORY:
            parameters += _RESIDENT
        yield Case("gemm", dtype, stack_of(source), "three-tiles" if tiled else "smooth-max", device, rows, parameters, _prepare_gemm,
                   kernel={} if split or not tiled else {"split": 0})


def _prepare_gemm(rows: pd.DataFrame, case: Case):
    m, n, k = (rows[x].to_numpy(float) for x in ("m", "n", "k"))
    fmt = GEMM_FORMATS[case.format]
    return lambda constants: benchmark_gemm_s(m, n, k, fmt, case.fits(constants), constants)


def benchmark_gemm_s(m, n, k, fmt: GemmFormat, fits, constants: Mapping[str, float]) -> np.ndarray:
    """The form of roofkit.cost.gemm in a benchmark that rotates few copies of the weights, some of which stay in L2 [s].

    A collector rotates ceil(L2 / weights) copies, five at most; where copies and activations fit c2 x L2 they are read
    (1 + l2) times as fast as the datasheet says of memory. Without c2: cold, as a served model is.
    """
    if "c2" not in constants:
        return gemm.calibrated(m, n, k, fmt, 1.0, fits).time_s
    fit, _ = gemm.fit_for(fmt, fits)
    weights, acts = n * k * fmt.weight_bytes_per_el, m * (k * fmt.act_bytes_per_el + n * fmt.out_bytes_per_el)
    cold = (weights + acts) / (fit.get("em") * fits.bw_us)
    filled = (np.minimum(COPIES, np.ceil(fits.l2_bytes / weights)) * weights + acts) / (fit.get("c2") * fits.l2_bytes)
    kept = 1 / (1 + np.minimum(filled, 10.0) ** RESIDENT_SHARPNESS)
    memory = kept * (weights + acts) / ((1 + fit.get("l2")) * fits.bw_us) + (1 - kept) * cold
    total = gemm._tiled(m, n, k, 1.0, memory, fit, fits, fmt.math)[0]
    if fmt.quantizes and fit.get("cq"):
        total = total + fit.get("cq") * gemm.QUANT_PASSES.get(fmt.name, 3.0) / (fit.get("em") * fits.bw_us) * (m * k)
    return (total + fit.get("t0")) * 1e-6


def _attention_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    for (phase, dtype, kv_dtype, source), rows in frame.groupby(["phase", "dtype", "kv_dtype", "source"], sort=True):
        stack = stack_of(source)
        if phase == "decode":
            yield from _decode_cases(rows, device, kv_dtype, stack)
        elif device.has_math(dtype):
            rows = rows[rows.q_len > 1]  # one query is a decode
            if len(rows):
                yield Case("attention_prefill", f"{dtype}/{kv_dtype}", stack, "block-cta+exp", device, rows, _PREFILL, _prepare_prefill,
                           kernel=prefill_kernel(device, stack, kv_dtype))


def prefill_kernel(device: Device, stack: str, kv_dtype: str) -> dict[str, int]:
    """Query rows and keys of a block and whether query heads of a group share it: inferred from timings, per stack."""
    if stack.startswith("trtllm"):
        return {"rows": 64, "keys": 128, "pack": 0}
    modern = device.name.startswith(("h1", "h2", "h8", "gh", "b2", "b3", "gb"))
    return {"rows": 128, "keys": 128, "pack": 1} if modern or kv_dtype == "fp8" else {"rows": 64, "keys": 64, "pack": 0}


def attention_rows(rows: pd.DataFrame) -> SimpleNamespace:
    """The fields of an Attention op as columns."""
    dim, window = column(rows.head_dim), rows.window.to_numpy(float)
    heads, kv_heads = column(rows.heads), column(rows.kv_heads)
    return SimpleNamespace(
        batch=column(rows.batch), q_tokens=column(rows.q_len), kv_tokens=column(rows.kv_len), n_heads=heads, n_kv_heads=kv_heads,
        qk_dim=dim, v_dim=dim, kv_elements=2 * dim, kv_bytes_per_el=1.0 if rows.kv_dtype.iloc[0] == "fp8" else 2.0, group=heads / kv_heads,
        limit=column(np.where(window > 0, window, np.inf)), math=rows.dtype.iloc[0])


def _prepare_prefill(rows: pd.DataFrame, case: Case):
    op = attention_rows(rows)

    def seconds(constants):
        fits = case.fits(constants)
        return np.asarray(attention._prefill_us(op, fits.all(case.op)[0], fits)[0]) * 1e-6

    return seconds


def decode_facts(stack: str, device: Device, kv_dtype: str) -> tuple[float, bool]:
    """(widest group of query heads a block packs, whether multi-head and windowed kernels split the cache)."""
    if stack.startswith("trtllm"):
        return 32, True
    return np.inf, not (stack.startswith("vllm") and kv_dtype == "bf16" and device.name.startswith(("a100", "a10", "a30", "a40", "l4", "rtx")))


def decode_class(frame: pd.DataFrame, widest: float) -> np.ndarray:
    """Kernel class of every row without regard to a window: group2-7 | group8+ | unpacked."""
    group = (frame.heads / frame.kv_heads).to_numpy()
    return np.where((group <= 1) | (group > widest), "unpacked", np.where(group >= 8, "group8+", "group2-7"))


def _decode_cases(rows: pd.DataFrame, device: Device, kv_dtype: str, stack: str) -> Iterator[Case]:
    widest, splits = decode_facts(stack, device, kv_dtype)
    full = decode_class(rows, widest)
    beyond = (rows.window > 0).to_numpy() & (rows.kv_len > rows.window).to_numpy()
    if not splits:  # this kernel family stops packing as soon as a window is set
        cls = np.where((rows.window > 0).to_numpy(), "window-unpacked", full)
    else:  # a window shows only beyond it; wide groups that are never packed keep their class
        cls = np.where(beyond & ((full != "unpacked") | np.isinf(widest)), "window-packed", full)
    kernel = {"gmax": widest} if np.isfinite(widest) else {}
    for name in ("group2-7", "group8+", "unpacked", "window-packed", "window-unpacked"):
        part = rows[cls == name]
        if len(part) < 20:
            continue
        packed, split = name in ("group2-7", "group8+", "window-packed"), splits or name in ("group2-7", "group8+")
        parameters = _DECODE + ((P("l2", 1e-2, 8, 1),) if device.l2_bytes > LARGE_L2 else ())
        parameters += (P("ts", 1e-3, 40, 5, unit="us"),) if split else ()
        parameters += (P("c1", 1e-4, 2, 0.05, unit="us"), P("tq", 1e-3, 15, 1, unit="us")) if packed else (P("lr", 1e-2, 100, 1),)
        parameters += (P("cj", 1e-4, 4, 0.3, unit="us"), P("kj", 1e-3, 20, 0.5)) if name == "group8+" else ()
        yield Case("attention_decode", kv_dtype, stack, "cta-work+split", device, part, parameters, _prepare_decode, name,
                   {**kernel, **({} if split else {"split": 0})})


def _prepare_decode(rows: pd.DataFrame, case: Case):
    """Rows in up to four groups on which the form's branches agree: one kv head or several, more query heads or as many."""
    packed = case.cls in ("group2-7", "group8+", "window-packed")
    parts = []
    for _, index in rows.groupby([rows.kv_heads > 1, rows.heads > rows.kv_heads]).indices.items():
        op = attention_rows(rows.iloc[index])
        parts.append((index, op, np.minimum(op.kv_tokens, op.limit)))

    def seconds(constants):
        fits = case.fits(constants)
        entry, out = fits.all(case.op)[0], np.empty(len(rows))
        for index, op, tokens in parts:
            out[index] = attention._decode_us(op, entry, fits, tokens, packed, op.group, True)[0]
        return out * 1e-6

    return seconds


def _collective_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    frame = frame[(frame.nodes == 1) & (frame.op != "send_recv")]
    for (op, algo), rows in frame.groupby(["op", "algo"], sort=True):
        custom = "custom" in algo
        parameters = _RING + (_ONE_SHOT if custom else ())
        yield Case(COLLECTIVE_OPS.get(op, op), "bf16", algo, "one-shot or ring" if custom else "ring", device, rows, parameters, _prepare_collective)


def _prepare_collective(rows: pd.DataFrame, case: Case):
    ranks, size = rows.ranks.to_numpy(), rows.bytes.to_numpy(float)
    groups = [(np.flatnonzero(ranks == n), int(n)) for n in np.unique(ranks)]

    def seconds(constants):
        fits = case.fits(constants)
        entry, out = fits.all(case.op)[0], np.empty(len(rows))
        for index, n in groups:
            out[index] = np.min([s + w for s, w in collectives._branches(entry, case.op, size[index], n, fits.link_us)], axis=0)
        return out * 1e-6

    return seconds
