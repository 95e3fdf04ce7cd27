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

from roofkit.cost import attention, collectives, gemm, moe
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
    "w4a16_mxfp4": gemm_format("mxfp4", "bf16"), "w4a8_mxfp4_mxfp8": gemm_format("mxfp4", "fp8"),
}
_GEMM = (P("t0", 0.5, 60, 4, unit="us"), P("ec", 0.2, 1, 0.8), P("em", 0.3, 1, 0.8), P("p", 0.02, 30, 2), P("ct", 0.01, 60, 5),
         P("k0", 1, 3000, 150), P("tau", 0.05, 20, 1.5, unit="ns"), P("be", 0.01, 1, 0.3))
_RESIDENT = (P("c2", 0.05, 3, 0.5), P("l2", 0.01, 20, 1.5))
_DECODE = (P("t0", 0.5, 20, 7, unit="us"), P("c0", 0.1, 12, 3, unit="us"), P("em", 0.5, 1, 0.9), P("bs", 0.3, 60, 4), P("c2", 0.02, 3, 0.6),
           P("td", 1e-3, 30, 5, unit="us"))
_PREFILL = (P("t0", 1, 40, 10, unit="us"), P("ec", 0.2, 1, 0.7), P("em", 0.3, 1, 0.8), P("ex", 3, 1e3, 20), P("cb", 0.05, 12, 3, unit="us"),
            P("p", 0.02, 60, 1.0), P("lin", 1e-3, 5, 0.5))
_MLA_DECODE = (P("t0", 0.5, 30, 6, unit="us"), P("td", 1e-3, 40, 8, unit="us"), P("c0", 0.05, 20, 5, unit="us"), P("c1", 1e-4, 2, 0.05, unit="us"),
               P("bs", 0.05, 60, 8), P("ec", 0.05, 1, 0.8), P("em", 0.1, 1, 0.85), P("ts", 1e-2, 40, 3, unit="us"), P("c2", 0.02, 3, 0.6))
_MOE = (P("t0", 2, 300, 30, unit="us"), P("ec", 0.05, 1, 0.8), P("em", 0.05, 1, 0.8), P("gam", 0.05, 3, 1), P("cm", 0.05, 20, 2), P("ct", 0.05, 60, 4),
        P("te", 1e-5, 3, 0.05, unit="us"))
_RING = (P("a0", 0.5, 400, 8, unit="us"), P("a1", 1e-3, 60, 1.5, unit="us"), P("eb", 0.02, 1.5, 0.7), P("ke", -3, 1, 0, log=False),
         P("sh", 1e-3, 1e5, 1000, unit="kB"))
_ONE_SHOT = (P("b0", 0.5, 40, 5, unit="us"), P("b1", 1e-3, 5, 0.1, unit="us"), P("e1", 0.02, 1.5, 0.5))
HOPPER_ON = ("h1", "h2", "h8", "gh", "b2", "b3", "gb")  # preset names of data-centre GPUs whose vLLM kernels are FlashAttention-3 or later
COARSE = 700  # rows on which starting points are compared
LARGE_L2 = 90e6  # caches above this hold the operands of a repeated call for several calls [bytes]
ROTATION_L2 = 45e6  # caches above this hold a rotation of weights large enough to tell L2 from memory [bytes]
FAST_MEMORY = 4e12  # from here on memory is so fast that such a rotation does not show [bytes/s]
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
    divide: Callable[["Case", int, int], Iterator] | None = None  # (case, folds, seed) -> Splits, where families are not the rule

    def fit(self, rows: pd.DataFrame, *, families: np.ndarray | None = None, starts: int = 3, seed: int = 0, most: int = 4000) -> FitResult:
        """Constants from some of the rows; starts are compared on at most COARSE of them, the fit uses at most `most`."""
        if families is not None:
            if len(families) != len(rows):
                raise MeasurementError(f"{self.label()}: {len(families)} families for {len(rows)} rows")
            families = _thin(pd.Series(families), most).to_numpy()
        rows = _thin(rows, most)
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
    build = {"gemm": _gemm_cases, "gemm_power": _gemm_cases, "attention": _attention_cases, "collective": _collective_cases,
             "mla": _mla_cases, "moe": _moe_cases}.get(kind)
    if build is None:
        raise MeasurementError(f"tables of kind {kind!r} have no fitted form of their own")
    yield from build(frame, device)


def stack_of(source) -> str:
    """`aic:trtllm-1.3.0rc20` -> `trtllm-1.3.0rc20`."""
    return str(source).rsplit(":", 1)[-1]


def engine_of(stack: str) -> str | None:
    """Engine whose kernels a stack runs; None for libraries whose kernels none was measured with."""
    if stack.startswith(("flashinfer", "deepgemm", "fa3", "flashmla")):
        return "sglang"
    return next((e for e in ("vllm", "sglang", "trtllm") if stack.startswith(e)), None)


def _gemm_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    for (dtype, source), rows in frame.groupby(["dtype", "source"], sort=True):
        fmt = GEMM_FORMATS.get(dtype)
        if fmt is None or not device.has_math(fmt.math):
            continue
        tiled = dtype != "fp32" and device.maker == "NVIDIA" and device.sm_count > 1
        parameters = _GEMM if tiled else _GEMM[:4]
        if tiled and gemm_kernel(dtype).get("split", 1):
            parameters += (P("ts", 0.02, 60, 2.5, unit="us"),)
        if dtype in ("fp8", "fp8_block", "nvfp4"):
            parameters += (P("cq", 0.02, 10, 1),)
        if device.l2_bytes > ROTATION_L2 and device.hbm_bytes_per_s < FAST_MEMORY:
            parameters += _RESIDENT
        yield Case("gemm", dtype, stack_of(source), gemm.TILED if tiled else gemm.SMOOTH, device, rows, parameters, _prepare_gemm,
                   kernel=gemm_kernel(dtype) if tiled else {})


def gemm_kernel(dtype: str) -> dict[str, int]:
    """Facts of a product's kernels, inferred from timings: integer kernels keep tiles of 64 rows, block-scaled ones never split k."""
    return {**({"split": 0} if dtype in ("fp8_block", "nvfp4", "w8a8_int8") else {}),
            **({"rows": 64} if dtype in ("w8a8_int8", "int8_wo", "int4_wo") else {})}


def _prepare_gemm(rows: pd.DataFrame, case: Case):
    m, n, k = (rows[x].to_numpy(float) for x in ("m", "n", "k"))
    fmt = GEMM_FORMATS[case.format]
    return lambda constants: gemm.calibrated(m, n, k, fmt, 1.0, case.fits(constants), warm=True).time_s


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
    """Query rows and keys of a block, whether query heads of a group share it, and the share of its fixed cost that goes with the
    head width: inferred from timings, per stack."""
    if stack.startswith("trtllm"):
        return {"rows": 64, "keys": 128, "pack": 0}
    if device.name.startswith(HOPPER_ON):
        return {"rows": 128, "keys": 128, "pack": 1}
    return {"rows": 128, "keys": 128, "pack": 1, "width": 1.0} if kv_dtype == "fp8" else {"rows": 64, "keys": 64, "pack": 0}


def attention_rows(rows: pd.DataFrame) -> SimpleNamespace:
    """The fields of an Attention op as columns."""
    dim, window = column(rows.head_dim), rows.window.to_numpy(float)
    heads, kv_heads = column(rows.heads), column(rows.kv_heads)
    return SimpleNamespace(
        batch=column(rows.batch), q_tokens=column(rows.q_len), kv_tokens=column(rows.kv_len), n_heads=heads, n_kv_heads=kv_heads,
        qk_dim=dim, v_dim=dim, kv_elements=2 * dim, kv_bytes_per_el=1.0 if rows.kv_dtype.iloc[0] == "fp8" else 2.0, group=heads / kv_heads,
        limit=column(np.where(window > 0, window, np.inf)), math=rows.dtype.iloc[0])


def _prepare_prefill(rows: pd.DataFrame, case: Case):
    """Rows with and without a window apart: the form branches on it."""
    parts = [(index, attention_rows(rows.iloc[index])) for index in rows.groupby(rows.window > 0).indices.values()]

    def seconds(constants):
        fits, out = case.fits(constants), np.empty(len(rows))
        for index, op in parts:
            out[index] = attention._prefill_us(op, fits.all(case.op)[0], fits)[0]
        return out * 1e-6

    return seconds


def decode_facts(stack: str, device: Device, kv_dtype: str) -> tuple[float, bool]:
    """(widest group of query heads a block packs, whether multi-head and windowed kernels split the cache)."""
    if stack.startswith("trtllm"):
        return 32, True
    return np.inf, not (stack.startswith("vllm") and kv_dtype == "bf16" and device.name.startswith(("a100", "a10", "a30", "a40", "l4", "rtx")))


def cost_of_width(stack: str, device: Device, kv_dtype: str, windowed: bool) -> float:
    """Share of a decode block's fixed cost that goes with the head width: half of it in FlashAttention-3 without a window and in
    vLLM's kernels on an fp8 cache, read off the times of widths 64 and 128; none shows in the others."""
    return 0.5 if stack.startswith("vllm") and (kv_dtype == "fp8" or device.name.startswith(HOPPER_ON) and not windowed) else 0.0


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
        width = cost_of_width(stack, device, kv_dtype, name.startswith("window"))
        yield Case("attention_decode", kv_dtype, stack, "cta-work+split", device, part, parameters, _prepare_decode, name,
                   {**kernel, **({} if split else {"split": 0}), **({"width": width} if width else {})})


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


def _mla_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    for (phase, kv_dtype, source), rows in frame.groupby(["phase", "kv_dtype", "source"], sort=True):
        if phase == "decode":
            whole = stack_of(source).startswith("trtllm-1.0")  # that release walks the cache in one piece, read off its timings
            yield Case("mla_decode", kv_dtype, stack_of(source), "mla-walk+split", device, rows, tuple(p for p in _MLA_DECODE if not (whole and p.name == "ts")),
                       _prepare_mla_decode, kernel={"rows": 64, "split": 0} if whole else {})
        elif (rows.q_len > 1).any():
            yield Case("mla_prefill", f"bf16/{kv_dtype}", stack_of(source), "mla-block-cta+exp", device, rows[rows.q_len > 1], _PREFILL, _prepare_mla_prefill,
                       kernel={"rows": 128, "keys": 128, "pack": 0})


def latent_rows(rows: pd.DataFrame, absorbed: bool) -> SimpleNamespace:
    """MLA of 512 latent + 64 rope elements: absorbed decode on the latent, prefill on expanded heads of 192 and 128."""
    heads, limit = column(rows.heads), np.inf
    qk, v, kv_heads, elements = (576, 512, 1.0, 576) if absorbed else (192, 128, heads, 320)
    return SimpleNamespace(batch=column(rows.batch), q_tokens=column(rows.q_len), kv_tokens=column(rows.kv_len), n_heads=heads, n_kv_heads=kv_heads,
                           qk_dim=qk, v_dim=v, kv_elements=elements, kv_bytes_per_el=1.0 if rows.kv_dtype.iloc[0] == "fp8" else 2.0,
                           group=heads / kv_heads, limit=limit, math="bf16")


def _prepare_mla_decode(rows: pd.DataFrame, case: Case):
    op = latent_rows(rows, absorbed=True)

    def seconds(constants):
        fits = case.fits(constants)
        return np.asarray(attention._mla_decode_us(op, fits.all(case.op)[0], fits, True)[0]) * 1e-6

    return seconds


def _prepare_mla_prefill(rows: pd.DataFrame, case: Case):
    op = latent_rows(rows, absorbed=False)

    def seconds(constants):
        fits = case.fits(constants)
        return np.asarray(attention._prefill_us(op, fits.all(case.op)[0], fits)[0]) * 1e-6

    return seconds


def moe_class(kernel: str) -> str:
    """`moe_torch_flow_nongated` -> `nongated`; `moe_torch_flow` -> `torch`."""
    return kernel.replace("moe_torch_flow_", "").replace("moe_torch_flow", "torch")


def _moe_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    for (dtype, kernel, source), rows in frame.groupby(["dtype", "kernel", "source"], sort=True):
        if dtype in GEMM_FORMATS and len(rows) >= 40:
            parameters = _MOE + (_RESIDENT if device.l2_bytes > LARGE_L2 else ())
            yield Case("moe", dtype, stack_of(source), "grouped+passes", device, rows, parameters, _prepare_moe, moe_class(kernel))


def load_exponent(distribution: str) -> float | None:
    """`power_law_1.2` -> 1.2; `balanced` -> None."""
    return float(distribution.rsplit("_", 1)[-1]) if distribution.startswith("power_law") else None


def _prepare_moe(rows: pd.DataFrame, case: Case):
    """roofkit.cost.moe.routing with everything that no constant changes worked out once; a test compares the two."""
    tokens, topk, experts, tp, ep = (rows[x].to_numpy(float) for x in ("tokens", "topk", "experts", "tp", "ep"))
    local, mean = experts / ep, tokens * topk / ep
    spread, loads = np.zeros(len(rows)), np.ones((len(moe.QUANTILES), len(rows)))
    skewed = (rows.distribution != "balanced").to_numpy()
    top = np.maximum(0.8 * tokens, 1 + 1e-6)
    for name, index in rows.groupby("distribution").indices.items():
        alpha = load_exponent(name)
        if alpha is not None:
            first, second = (moe._moment(top[index], alpha, r) for r in (1, 2))
            spread[index] = np.maximum(second / first**2 - 1, 0)
            each = np.stack([moe._quantile(top[index], alpha, u) for u in moe.QUANTILES])
            loads[:, index] = (each / each.mean(axis=0)) ** (1 - 1 / local[index])
    scale = np.sqrt(spread / local + 0.5 / mean) * np.sqrt(2 * np.log(np.maximum(ep, 1)))
    op = SimpleNamespace(tokens=tokens, hidden=rows.hidden.to_numpy(float), inter=rows.inter.to_numpy(float) // tp, experts=experts // ep,
                         matrices=2 if case.cls == "nongated" else 3, format=GEMM_FORMATS[case.format])

    def seconds(constants):
        fits = case.fits(constants)
        busiest = np.clip(mean * np.minimum(1 + constants["gam"] * scale, ep), 1, tokens * np.minimum(topk, local))
        landed = np.where(skewed, busiest, mean)
        touched = np.where(skewed, local * (1 - np.exp(-loads * (landed / local))).mean(axis=0), local)
        return moe.block_us(op, fits.all(case.op)[0], fits, landed, np.minimum(touched, landed), warm=True)[0] * 1e-6

    return seconds


def _collective_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    frame = frame[(frame.nodes == 1) & (frame.op != "send_recv")]
    fast = (device.value("scaleup_bandwidth_per_direction") or 0.0) > collectives.NVLINK_BYTES_PER_S
    for (op, algo), rows in frame.groupby(["op", "algo"], sort=True):
        custom = "custom" in algo and fast  # over PCIe the one-shot branch is not identified
        parameters = _RING + (_ONE_SHOT if custom else ())
        yield Case(COLLECTIVE_OPS.get(op, op), "bf16", algo, "one-shot-or-ring" if custom else "ring", device, rows, parameters, _prepare_collective)


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
