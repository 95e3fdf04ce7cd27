"""Attention kernels: decode as work of thread blocks and KV splits, prefill as causal blocks with exponentials. Room: cost.

Decode (`cta-work+split`): one thread block per sequence and kv head (per query head where the kernel does not pack a
group). A block costs c = (c0 + c1 group) (1 - f + f width/128) of SM time, f the kernel's share that goes with the width of a
head, plus k per KV token; blocks beyond one per SM queue (u = blocks/SM);
fewer than that are split along KV into pieces of at least 256 tokens, which costs ts. Time is the hypotenuse of that and
the memory stream, plus a launch floor t0, td where the cache is larger than the L2 and tq where a kernel copies queries.
Prefill (`block-cta+exp`): blocks of up to `rows` query rows against key blocks of `keys`, each score element costing its
products at ec P/SM plus an exponential at ex per cycle and SM, cb (1 - f + f width/128) per block, smooth maximum with the
memory time.
Keys already cached before a chunk enter as an offset: the mean row of q new tokens on s cached ones sees s + (q + 1)/2.
MLA: decode walks the shared latent in blocks of up to 64 query heads, a token costing the larger of its bytes and its
products; prefill on expanded heads is the prefill form with its own constants.
Cold by default, as served keys are: the stream runs at the DRAM rate. `warm=True` lets a small cache stay in L2, as in a
benchmark that repeats one step. td keeps its dependence on size in both: no measurement shows it for a small, cold cache.
Form and constants: fits to AIConfigurator collector tables, github ai-dynamo/aiconfigurator @ 095f58a5.
"""
import numpy as np

from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.gemm import smooth_max
from roofkit.cost.model import Timing
from roofkit.ops.kinds import Attention, Num

KV_KEYS = {"bf16": ("bf16",), "fp16": ("bf16",), "fp32": ("bf16",), "fp8": ("fp8", "bf16"), "int8": ("fp8", "bf16"),
           "nvfp4": ("fp8", "bf16"), "int4": ("fp8", "bf16")}
WIDTH = 128  # of a head, at which block costs are stated
WIDE = 16  # query heads of a group that fit one tensor-core tile
MLA_ROWS = 64  # query rows of a block that share a latent tile
SPLIT_TOKENS = 256  # shortest piece of KV worth a block of its own


def decode(op: Attention, fits: DeviceFits, warm: bool = False) -> Timing | None:
    """One call of a decode op; None where the device has no fit. `warm`: a repeated benchmark, see the module.

    With a window, the windowed class of kernels runs once the context exceeds it, the full one until then; the larger of
    both beyond it, so that a longer context is never faster. Kernels that do not pack a windowed group never do.
    """
    if op.latent:
        return _mla_decode(op, fits, warm) if op.v_dim else None  # an indexer's scores are no attention kernel
    group = op.group * float(np.max(op.q_tokens))
    found = _decode_fit(op, fits, group)
    if found is None:
        return None
    fit, exact, packed = found
    limit = op.limit
    tokens = op.kv_tokens if np.isinf(limit) else np.minimum(op.kv_tokens, limit)
    total, work, stream = _decode_us(op, fit, fits, tokens, packed, group, warm)
    windowed = _window_fit(op, fits, fit, packed) if op.window else None
    if windowed is not None:
        full = total
        fit, packed = windowed
        total, work, stream = _decode_us(op, fit, fits, tokens, packed, group, warm)
        if fit.cls == "window-packed":
            total = np.where(op.kv_tokens > op.window, np.maximum(total, full), full)
    launch = fit.get("t0")
    exact = exact and op.kv_format in (fit.format, "fp16")
    return Timing(total * 1e-6, work * 1e-6, stream * 1e-6, 0.0, launch * 1e-6, None, fit.form, fits.label(fit, exact), fits.note(fit))


def _decode_fit(op: Attention, fits: DeviceFits, group: float) -> tuple[Fit, bool, bool] | None:
    """(constants, exact, packed): the class of kernel that runs this group without a window."""
    keys = KV_KEYS.get(op.kv_format, ("bf16",))
    grouped = ("group8+", "group2-7") if group >= 8 else ("group2-7", "group8+")
    probe = fits.find("attention_decode", keys, grouped)
    if probe is None:
        return None
    packed = 1 < op.group and group <= probe.kernel.get("gmax", np.inf)
    names = grouped if packed else ("unpacked", *grouped)
    fit = fits.find("attention_decode", keys, names, (probe.stack,))
    return fit, fit.cls == names[0] and fit.format == keys[0], packed


def _window_fit(op: Attention, fits: DeviceFits, full: Fit, packed: bool) -> tuple[Fit, bool] | None:
    """(constants, packed) of the kernel class behind a sliding window; None: the full class with fewer tokens.

    Multi-head layers of the stack that limits packing (gmax) follow its multi-head class, the others the windowed one.
    """
    names = ("window-packed", "window-unpacked") if packed or "gmax" not in full.kernel else ("window-unpacked",)
    fit = fits.find("attention_decode", (full.format,), names, (full.stack,))
    return None if fit is None else (fit, packed and fit.cls == "window-packed")


def _decode_us(op: Attention, fit: Fit, fits: DeviceFits, tokens: Num, packed: bool, group: float, warm: bool) -> tuple[Num, Num, Num]:
    """(whole call, SM work alone, memory stream alone) [us]; packed: one block holds the `group` query rows of a kv head."""
    heads, group = (op.n_kv_heads, group) if packed else (op.n_heads, group / op.group)
    sm, bw, wide = fits.sm, fits.bw_us, group > WIDE
    blocks = op.batch * (heads / sm)
    per_token = op.kv_elements * op.kv_bytes_per_el
    own = op.batch * (tokens * (op.n_kv_heads * per_token) + op.q_tokens * (op.n_heads * 2 * (op.qk_dim + op.v_dim)))
    stream = own * (1 / (fit.get("em") * bw))
    small = _resident(own, fit, fits)
    if warm:
        stream = small * own / ((1 + fit.get("l2")) * bw) + (1 - small) * stream
    late = fit.get("td") * (1 - small)
    if heads > op.n_kv_heads:  # every query head reads the keys of its group again
        stream = stream + op.batch * tokens * ((heads - op.n_kv_heads) * per_token / ((1 + fit.get("lr")) * bw))
    k = per_token * sm / (fit.get("bs") * bw) * (1 + fit.get("kj") * wide)
    share = fit.kernel.get("width", 0.0)
    c = (fit.get("c0") + fit.get("c1") * group) * (1 - share + share * (op.qk_dim + op.v_dim) / (2 * WIDTH)) + fit.get("cj") * wide
    walk = tokens * k
    queue = np.maximum(blocks, 1)
    total = np.hypot(queue * (c + walk), stream)
    work = queue * (c + walk)
    if fit.kernel.get("split", 1):
        pieces = np.clip(1 / blocks, 1, np.maximum(tokens * (1 / SPLIT_TOKENS), 1))
        split = np.maximum(blocks * pieces, 1) * (c + walk / pieces)
        total, work = np.minimum(total, fit.get("ts") + np.hypot(split, stream)), np.minimum(work, split)
    copies = fit.get("tq") * (op.batch > 1) * (op.n_kv_heads > 1 and group > 1)
    return total + (fit.get("t0") + late + copies), work, stream


def _resident(own: Num, fit: Fit, fits: DeviceFits) -> Num:
    """1 for a cache far below the L2, 0 far above it: what a repeated benchmark finds there."""
    return 1 / (1 + (own / (fit.get("c2", 1.0) * fits.l2_bytes)) ** 4) if fits.l2_bytes else 0.0 * own


def prefill(op: Attention, fits: DeviceFits) -> Timing | None:
    """One call of a prefill op: q new tokens on kv - q cached ones; None where the device has no fit."""
    if not op.v_dim:
        return None  # an indexer's scores are no attention kernel
    kv_key = KV_KEYS.get(op.kv_format, ("bf16",))
    maths = ("fp8", "bf16") if op.math == "fp8" else ("bf16",)
    formats = tuple(f"{math}/{kv}" for math in maths for kv in kv_key)
    fit = fits.find("mla_prefill" if op.latent else "attention_prefill", formats)
    if fit is None:
        return None
    exact = fit.format == f"{maths[0]}/{kv_key[0]}" and op.kv_format in (kv_key[0], "fp16")
    total, work, stream = _prefill_us(op, fit, fits)
    return Timing(total * 1e-6, work * 1e-6, stream * 1e-6, 0.0, fit.get("t0") * 1e-6, None, fit.form, fits.label(fit, exact), fits.note(fit))


def _seen(upto: Num, limit: float, rows: Num) -> Num:
    """Keys that the first `upto` rows of a sequence see together in row blocks of `rows`: row + rows/2, at most limit + rows."""
    if np.isinf(limit):
        return upto * (upto + rows) / 2
    inside = np.minimum(upto, limit + rows / 2)
    return inside * (inside + rows) / 2 + (upto - inside) * (limit + rows)


def _prefill_us(op: Attention, fit: Fit, fits: DeviceFits) -> tuple[Num, Num, Num]:
    """(whole call, SM work alone, memory traffic alone) [us]."""
    sm, bw, q, batch = fits.sm, fits.bw_us, op.q_tokens, op.batch
    most, keys, packed = fit.kernel["rows"], fit.kernel["keys"], fit.kernel["pack"]
    group, heads = (op.group, op.n_kv_heads) if packed else (1.0, op.n_heads)
    rows = q * group
    block = np.clip(16 * np.ceil(rows / 16), 16, most)
    new = block / group
    blocks = batch * (heads / sm) * np.ceil(rows / block)
    past = op.kv_tokens - q
    ceiling = keys * np.ceil(op.kv_tokens / keys)
    mean = np.minimum((_seen(op.kv_tokens, op.limit, new) - _seen(past, op.limit, new)) / q + keys / 2, ceiling)
    dims = (op.qk_dim + op.v_dim) / 2
    el = 4 * dims * sm / (fit.get("ec") * fits.peak_us(fit.format.split("/")[0])) + 1 / (fit.get("ex") * fits.clock_us)
    last = block * np.minimum(np.minimum(op.kv_tokens, op.limit + new) + keys / 2, ceiling) * el
    queue = np.maximum(blocks, 1)
    share = fit.kernel.get("width", 0.0)
    work = np.maximum(blocks * block * mean * el, last) + last * (0.5 - 0.5 / queue) + fit.get("cb") * (1 - share + share * dims / WIDTH) * queue
    cached = np.minimum(past, op.limit) * (op.n_kv_heads * op.kv_elements * op.kv_bytes_per_el)
    moved = batch * (q * dims * (4 * op.n_heads + 2 * op.n_kv_heads * (2 + op.kv_bytes_per_el)) + cached)
    stream = moved / (fit.get("em") * bw)
    total = smooth_max(work, stream, 1 + fit.get("p"))
    written = batch * q * (fit.get("lin") * 8 * op.n_kv_heads * dims / (fit.get("em") * bw))
    return total + (fit.get("t0") + written), work, stream


def _mla_decode(op: Attention, fits: DeviceFits, warm: bool) -> Timing | None:
    """Absorbed decode on the shared latent: blocks of up to 64 query heads walk one sequence's latent, split where SMs idle."""
    fit = fits.find("mla_decode", KV_KEYS.get(op.kv_format, ("bf16",)))
    if fit is None:
        return None
    total, work, stream = _mla_decode_us(op, fit, fits, warm)
    return Timing(total * 1e-6, work * 1e-6, stream * 1e-6, 0.0, fit.get("t0") * 1e-6, None, fit.form,
                  fits.label(fit, op.kv_format in (fit.format, "fp16")), fits.note(fit))


def _mla_decode_us(op: Attention, fit: Fit, fits: DeviceFits, warm: bool) -> tuple[Num, Num, Num]:
    """(whole call, SM work alone, memory stream alone) [us]."""
    sm, bw = fits.sm, fits.bw_us
    tokens = np.minimum(op.kv_tokens, op.limit)
    rows = op.n_heads * op.q_tokens
    most = fit.kernel.get("rows", MLA_ROWS)
    per_block, walks = np.minimum(rows, most), np.ceil(rows / most)
    blocks = op.batch * walks / sm
    per_token = op.kv_elements * op.kv_bytes_per_el
    own = op.batch * (tokens * per_token + rows * (2.0 * (op.qk_dim + op.v_dim)))
    stream = own / (fit.get("em") * bw)
    small = _resident(own, fit, fits)
    if warm:
        stream = small * own / ((1 + fit.get("l2")) * bw) + (1 - small) * stream
    late = fit.get("td") * (1 - small)
    if "lr" in fit.constants:  # narrow blocks of one sequence read its latent again, from L2
        stream = stream + op.batch * tokens * (walks - 1) * (per_token / ((1 + fit.get("lr")) * bw))
    math = op.math if op.math in ("bf16", "fp16") else "bf16"  # latent kernels were measured in bf16 arithmetic
    products = np.maximum(per_block, WIDE) * (2 * (op.qk_dim + op.v_dim) * sm / (fit.get("ec") * fits.peak_us(math)))
    walk = tokens * np.hypot(per_token * sm / (fit.get("bs") * bw), products)
    c = fit.get("c0") + fit.get("c1") * per_block
    work = np.maximum(blocks, 1) * (c + walk)
    total = np.hypot(work, stream)
    if fit.kernel.get("split", 1):
        pieces = np.clip(1 / blocks, 1, np.maximum(tokens / SPLIT_TOKENS, 1))
        split = np.maximum(blocks * pieces, 1) * (c + walk / pieces)
        total, work = np.minimum(total, fit.get("ts") + np.hypot(split, stream)), np.minimum(work, split)
    return total + (fit.get("t0") + late), work, stream
