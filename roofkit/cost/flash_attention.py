"""Attention counted by hand: FLOP and bytes of standard attention, FlashAttention 1, 2 and 3, forward and backward. Room: cost.

Bytes have three boundaries, never one number:
  compulsory   every tensor once between device memory and the chip: what no algorithm avoids
  sram         between L2 and the SMs: follows from the loop order and the tiles of Br query rows x Bc keys
  hbm          between device memory and L2: compulsory + miss x (sram - compulsory); what the heads in flight keep in L2 is not read again
FlashAttention-1 loops over K/V tiles outside and re-streams Q and O; 2 and 3 loop over Q tiles outside and re-stream K and V.
Either way traffic grows as N^2 d^2 / M for M elements of SRAM. Online-softmax statistics are m and l, FP32: 2 x 4 bytes a row.
Softmax is no tensor-core work: about 5 scalar operations and one exponential per pair of query and key.

Time of a kernel, two forms side by side:
  overlap   t0 + max( hbm/BW, FLOP/(ec P) + scalar/V )          loads hidden behind arithmetic
  sum       t0 + hbm/BW + FLOP/(ec P) + scalar/V                Guo et al., arXiv 2507.02456; no upper bound of a real kernel
P dense tensor peak, V vector peak, FLOP those of executed tiles. ec and t0 are constants of a kernel (KERNELS), each with its kind.
These forms explain and teach; served steps are priced by cost/attention.py, fitted to today's kernels.
Sources: FlashAttention arXiv 2205.14135, -2 arXiv 2307.08691, -3 arXiv 2407.08608. Byte forms derived here from their algorithms.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from roofkit.errors import CostModelError, WorkloadError
from roofkit.hardware.device import Device
from roofkit.ops.kinds import Attention, Num

FP32 = 4.0  # bytes of statistics and accumulators
SCALAR_OPS = 5.0  # per pair: scale, running maximum, subtract, sum, rescale
L2_SHARE = 0.65  # assumed share of L2 that keeps re-read tiles, 0.5-0.8; only DRAM counters can fit it
DIRECTIONS = ("forward", "backward")
MODES = ("overlap", "sum")


@dataclass(frozen=True, slots=True, eq=False)
class AttentionShape:
    """`batch` x `heads` attention calls of `q_tokens` queries against `kv_tokens` keys. Token counts may be arrays.

    head_dim        mean width of a score product and a value product [elements]
    causal          query j of q sees kv - q + j keys;  window   a query sees at most this many [tokens]
    bytes_per_el    of queries, output and their gradients;  kv_bytes_per_el   of keys and values [bytes/element]
    """

    batch: Num
    heads: int
    q_tokens: Num
    kv_tokens: Num
    head_dim: float
    kv_heads: int | None = None
    causal: bool = True
    bytes_per_el: float = 2.0
    kv_bytes_per_el: float | None = None
    window: float | None = None

    def __post_init__(self) -> None:
        if self.heads % self.shared_heads:
            raise WorkloadError(f"attention: {self.heads} query heads are no multiple of {self.shared_heads} kv heads")
        if (np.asarray(self.q_tokens) < 1).any() or (self.causal and (np.asarray(self.q_tokens) > np.asarray(self.kv_tokens)).any()):
            raise WorkloadError(f"attention: q_tokens={self.q_tokens} must be at least 1 and, if causal, at most kv_tokens={self.kv_tokens}")

        if self.window is not None and not self.causal:
            raise WorkloadError("attention: a window needs causal=True")

    @classmethod
    def of(cls, op: Attention) -> "AttentionShape":
        """Shape of one call of an op; a latent op (MLA) has one kv head of the mean width."""
        limit = None if np.isinf(op.limit) else op.limit
        tokens = op.kv_tokens + (op.q_tokens if op.phase == "decode" else 0)
        return cls(op.batch, op.n_heads, op.q_tokens, tokens, (op.qk_dim + op.v_dim) / 2, op.n_kv_heads,
                   kv_bytes_per_el=op.kv_bytes_per_el * op.kv_elements / (op.qk_dim + op.v_dim), window=limit)

    @property
    def shared_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def group(self) -> int:
        """Query heads that share one kv head."""
        return self.heads // self.shared_heads

    @property
    def kv_bytes(self) -> float:
        return self.bytes_per_el if self.kv_bytes_per_el is None else self.kv_bytes_per_el

    @property
    def reach(self) -> float:
        return np.inf if self.window is None else self.window

    @property
    def pairs(self) -> Num:
        """Useful (query, key) pairs of one head: those the mask and the window let through."""
        q, kv = self.q_tokens, self.kv_tokens
        if not self.causal:
            return 1.0 * q * kv
        start = kv - q
        if np.isinf(self.reach):
            return q * start + q * (q + 1) / 2.0
        free = np.clip(self.reach - start, 0, q)
        return free * start + free * (free + 1) / 2.0 + (q - free) * self.reach


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile of a kernel: `rows` of Q (Br) x `keys` of K and V (Bc); `stages` K/V tiles in flight."""

    rows: int
    keys: int
    stages: int = 1

    def sram_bytes(self, head_dim: float, bytes_per_el: float = 2.0, staged_scores: bool = False) -> float:
        """Q tile and K, V tiles in flight, plus the scores where a kernel stages them [bytes]; must fit the SRAM of a thread block."""
        scores = self.rows * self.keys * bytes_per_el if staged_scores else 0.0
        return (self.rows + 2 * self.keys * self.stages) * head_dim * bytes_per_el + scores

    def check(self, head_dim: float, sram_bytes: float, bytes_per_el: float = 2.0, staged_scores: bool = False) -> None:
        need = self.sram_bytes(head_dim, bytes_per_el, staged_scores)
        if need > sram_bytes:
            raise CostModelError(f"tiles {self.rows} x {self.keys}, {self.stages} stages at head_dim {head_dim:g} need {need:,.0f} bytes of SRAM, "
                                 f"more than the {sram_bytes:,.0f} of one thread block; take smaller tiles or fewer stages")


def block_sizes(head_dim: int, sram_elements: int) -> Tiles:
    """Bc = ceil(M / 4d), Br = min(Bc, d) for SRAM of M elements: FlashAttention, arXiv 2205.14135, algorithm 1."""
    keys = -(-sram_elements // (4 * head_dim))
    return Tiles(min(keys, head_dim), keys)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A published implementation: loop order, tiles and fitted or published constants.

    algorithm   "standard" | "fa1" | "fa2" (FlashAttention-3 counts as fa2: the same loops)
    ec          achieved share of the tensor peak by (direction, mode);  launch_s   fixed time per kernel [s]; kernels per direction
    em          achieved share of the memory bandwidth;  passes   further reads or writes of the N x N matrix by direction
    kind, source   of ec, em and launch_s
    """

    name: str
    algorithm: str
    tiles: Tiles
    ec: Mapping[tuple[str, str], float]
    kind: str
    source: str
    em: float = 1.0
    launch_s: float = 0.0
    kernels: Mapping[str, int] = field(default_factory=lambda: {"forward": 1, "backward": 2})
    passes: Mapping[str, float] = field(default_factory=dict)


def _ec(forward: float, backward: float, forward_sum: float, backward_sum: float) -> dict[tuple[str, str], float]:
    return {("forward", "overlap"): forward, ("backward", "overlap"): backward, ("forward", "sum"): forward_sum, ("backward", "sum"): backward_sum}


# ---------------------------------------------------------------- arithmetic
def _row_blocks(shape: AttentionShape, q: float, kv: float, rows: int, keys: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, keys loaded in whole tiles) of every row block of `group` packed heads with q queries each on kv keys."""
    end = np.minimum(np.arange(1, np.ceil(q * group / rows) + 1) * rows, q * group)
    height = np.diff(end, prepend=0)
    if not shape.causal:
        return height, np.full(end.size, float(kv))
    upto = kv - q + np.ceil(end / group)
    start = np.floor(np.maximum(kv - q + np.floor((end - height) / group) + 1 - shape.reach, 0) / keys) * keys
    return height, np.minimum(np.ceil(upto / keys) * keys, kv) - start


def streamed_keys(shape: AttentionShape, rows: int, keys: int, pack_gqa: bool = False) -> Num:
    """Keys that the row blocks of one kv head (packed) or one query head (not) load together, in whole tiles [tokens]."""
    group = shape.group if pack_gqa else 1
    count = np.vectorize(lambda q, kv: float(_row_blocks(shape, q, kv, rows, keys, group)[1].sum()), otypes=[float])
    return count(shape.q_tokens, shape.kv_tokens)[()]


def streamed_rows(shape: AttentionShape, rows: int, keys: int) -> Num:
    """Query rows that the K/V tiles of one query head stream together, in whole tiles [tokens]: Tc x Nq without a mask."""
    def count(q: float, kv: float) -> float:
        start = np.arange(np.ceil(kv / keys)) * keys
        first = np.clip(start - (kv - q), 0, q) if shape.causal else np.zeros(start.size)
        last = np.clip(start + keys - 1 + shape.reach - (kv - q), 0, q) if shape.causal else np.full(start.size, q)
        last = np.minimum(np.ceil(last / rows) * rows, q)
        return float(np.maximum(last - np.floor(first / rows) * rows, 0).sum())

    return np.vectorize(count, otypes=[float])(shape.q_tokens, shape.kv_tokens)[()]


def executed_pairs(shape: AttentionShape, kernel: Kernel) -> Num:
    """Pairs of one query head that a kernel computes: whole tiles where it skips masked ones, all of them where it does not."""
    if kernel.algorithm == "standard":
        return 1.0 * shape.q_tokens * shape.kv_tokens

    def count(q: float, kv: float) -> float:
        height, loaded = _row_blocks(shape, q, kv, kernel.tiles.rows, kernel.tiles.keys, 1)
        return float((height * loaded).sum())

    return np.vectorize(count, otypes=[float])(shape.q_tokens, shape.kv_tokens)[()]


def attention_flops(shape: AttentionShape, direction: str = "forward", algorithm: str = "fa2", pairs: Num | None = None) -> Num:
    """Tensor work of all heads [FLOP]; useful pairs unless `pairs` of one head are given.

    Forward two products, 4 d a pair. Backward: five products (2.5 x forward) where P is computed again, four (2 x) where it was stored.
    """
    products = 2 if direction == "forward" else 4 if algorithm == "standard" else 5
    return 2.0 * products * shape.head_dim * (shape.pairs if pairs is None else pairs) * shape.batch * shape.heads


def training_flops(params: float, tokens: float, layers: int, hidden: int, sequence: int) -> float:
    """FLOP of `tokens` training tokens as FlashAttention-2 counts them: 6 P + 12 L h S a token, all pairs, not halved for the mask."""
    return tokens * (6.0 * params + 12.0 * layers * hidden * sequence)


# ---------------------------------------------------------------- bytes
def compulsory_bytes(shape: AttentionShape, direction: str = "forward") -> Num:
    """Every tensor once [bytes]: Q, O, logsumexp, K, V; backward Q, O, dO, dQ, logsumexp, K, V, dK, dV."""
    rows = shape.q_tokens * shape.heads * shape.batch
    used = np.minimum(shape.kv_tokens, shape.q_tokens + shape.reach - 1)
    kv = used * shape.shared_heads * shape.batch * shape.head_dim * shape.kv_bytes
    tensors, kv_tensors = (2, 2) if direction == "forward" else (4, 4)
    return rows * (tensors * shape.head_dim * shape.bytes_per_el + FP32) + kv_tensors * kv


def standard_attention_bytes(shape: AttentionShape, direction: str = "forward", passes: float = 0) -> Num:
    """Attention that writes S and P to memory [bytes]: 4 N^2 s + 4 N d s forward, 7 N^2 s + 8 N d s backward.

    passes   further reads or writes of an N x N matrix: mask, dropout, and their backward
    """
    matrix = 1.0 * shape.q_tokens * shape.kv_tokens * shape.bytes_per_el
    rows = (shape.q_tokens + shape.kv_tokens) * shape.head_dim * shape.bytes_per_el
    matrices, tensors = (4, 2) if direction == "forward" else (7, 4)
    return ((matrices + passes) * matrix + tensors * rows) * shape.batch * shape.heads


def fa1_bytes(shape: AttentionShape, tiles: Tiles, direction: str = "forward", *, skip_first_read: bool = False, precomputed_delta: bool = False) -> Num:
    """SRAM traffic of FlashAttention-1, K/V tiles outside [bytes]: algorithms 1 and 4. Query heads share no keys.

    Forward: K, V once, and per K/V tile Q in, O in and out, statistics m and l in and out. Backward: K, V in, dK, dV out, and per
    tile Q, O, dO, dQ in, dQ out, statistics in.
    skip_first_read     the first tile starts O (dQ) at zero instead of reading it
    precomputed_delta   D = rowsum(dO * O) is computed once before, so that O leaves the inner loop
    """
    d, s, q = shape.head_dim, shape.bytes_per_el, shape.q_tokens
    rows = streamed_rows(shape, tiles.rows, tiles.keys)
    if direction == "forward":
        total = 2 * shape.kv_tokens * d * shape.kv_bytes + rows * (3 * d * s + 4 * FP32)
        return (total - skip_first_read * q * (d * s + 2 * FP32)) * shape.batch * shape.heads
    inner = 4 * d * s + 3 * FP32 if precomputed_delta else 5 * d * s + 2 * FP32
    total = 4 * shape.kv_tokens * d * shape.kv_bytes + rows * inner + precomputed_delta * q * (2 * d * s + FP32)
    return (total - skip_first_read * q * d * s) * shape.batch * shape.heads


def fa2_bytes(shape: AttentionShape, tiles: Tiles, direction: str = "forward", pack_gqa: bool = False) -> Num:
    """SRAM traffic of FlashAttention-2 and 3, Q tiles outside [bytes]; O stays on chip. No reuse in L2.

    pack_gqa   the rows of a group fill one tile together. It saves K/V loads where a head alone leaves tiles part empty: decode.
    Backward: K/V tiles outside; per tile Q, dO and dQ in, dQ out in FP32 by atomic additions; D = rowsum(dO * O) before.
    """
    d, s, q = shape.head_dim, shape.bytes_per_el, shape.q_tokens
    if direction == "forward":
        walks = shape.shared_heads if pack_gqa else shape.heads
        keys = streamed_keys(shape, tiles.rows, tiles.keys, pack_gqa)
        return (q * shape.heads * (2 * d * s + FP32) + 2 * d * shape.kv_bytes * keys * walks) * shape.batch
    rows = streamed_rows(shape, tiles.rows, tiles.keys)
    total = rows * (d * (2 * s + 2 * FP32) + 2 * FP32) + 4 * shape.kv_tokens * d * shape.kv_bytes + 2 * q * d * s
    return total * shape.batch * shape.heads


def l2_miss_share(working_set_bytes: Num, l2_bytes: float, l2_share: float = L2_SHARE) -> Num:
    """Share of re-reads that go to device memory: clip(1 - eta L2 / working set, 0, 1)."""
    return np.clip(1.0 - l2_share * l2_bytes / np.maximum(working_set_bytes, 1e-30), 0.0, 1.0)


def working_set_bytes(shape: AttentionShape, kernel: Kernel, device: Device, direction: str, pack_gqa: bool = False, blocks_per_sm: int = 1) -> Num:
    """What the heads in flight read again and again [bytes]: K and V (FlashAttention-2), Q and O (1), Q, dO and dQ (backward)."""
    s, d, running = shape.bytes_per_el, shape.head_dim, device.sm_count * blocks_per_sm
    forward2 = kernel.algorithm == "fa2" and direction == "forward"
    if kernel.algorithm == "fa1":
        heads = np.minimum(running, shape.batch * shape.heads)  # one thread block walks a whole head
    elif forward2:
        group = shape.group if pack_gqa else 1
        heads = np.ceil(running / np.ceil(shape.q_tokens * group / kernel.tiles.rows)) * group / shape.group
        heads = np.minimum(np.maximum(heads, 1), shape.batch * shape.shared_heads)
    else:
        heads = np.minimum(np.ceil(running / np.ceil(shape.kv_tokens / kernel.tiles.keys)), shape.batch * shape.heads)
    if forward2:
        return 2 * np.minimum(shape.kv_tokens, shape.q_tokens + shape.reach - 1) * d * shape.kv_bytes * heads
    return shape.q_tokens * d * (2 * s if direction == "forward" else 2 * s + FP32) * heads


def split_kv_bytes(shape: AttentionShape, chunks: Num) -> tuple[Num, Num]:
    """Decode with KV split into `chunks` (flash-decoding): (bytes of keys, queries, output; bytes of FP32 partials written and read again)."""
    partials = 2.0 * chunks * shape.q_tokens * (shape.head_dim + 1) * FP32 * shape.batch * shape.heads
    return compulsory_bytes(shape), np.where(np.asarray(chunks) > 1, partials, 0.0)[()]


def split_kv_blocks(shape: AttentionShape, chunks: Num) -> Num:
    """Thread blocks of a packed split decode: batch x kv heads x chunks."""
    return shape.batch * shape.shared_heads * chunks


def training_memory_bytes(shape: AttentionShape) -> Num:
    """Memory of one FlashAttention-1 forward and backward [bytes]: Q, K, V, O and gradients, O and dQ accumulated in FP32, two statistics."""
    rows, d, s = shape.q_tokens * shape.batch * shape.heads, shape.head_dim, shape.bytes_per_el
    kv = shape.kv_tokens * shape.batch * shape.shared_heads
    return rows * (4 * d * s + 2 * d * FP32 + 2 * FP32) + 4 * kv * d * s


# ---------------------------------------------------------------- kernels and their times
_A100_TABLES = ("fitted to half of the A100-40GB times of arXiv 2205.14135, tables 12, 18, 19 (batch 16, 8 heads, d 64, fp16); "
                "error on the other half in tests/test_flash_attention.py")
KERNELS = {k.name: k for k in (
    Kernel("standard", "standard", Tiles(1, 1), _ec(0.6, 0.6, 0.6, 0.6), "fitted", "em and t0: " + _A100_TABLES + "; ec assumed, of its large products",
           em=0.66, launch_s=0.0, kernels={"forward": 3, "backward": 6}),
    Kernel("fa1", "fa1", Tiles(64, 256), _ec(0.22, 0.22, 0.275, 0.275), "fitted", _A100_TABLES, launch_s=0.154e-3),
    Kernel("fa1-2023", "fa1", Tiles(128, 128), _ec(0.33, 0.33, 0.33, 0.33), "published", "25-40 % of the A100 peak, abstract of arXiv 2307.08691; middle"),
    Kernel("fa2", "fa2", Tiles(128, 64), _ec(0.82, 0.65, 0.82, 0.65), "published", "73 % of the A100 peak forward, 63 % backward at best, arXiv 2307.08691"),
    Kernel("fa3", "fa2", Tiles(128, 128, 2), _ec(0.84, 0.65, 0.84, 0.65), "published", "740 TFLOP/s forward on H100, abstract of arXiv 2407.08608; "
           "backward assumed as fa2"),
)}


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCost:
    """What one call costs on a device, every part kept.

    useful_flops, executed_flops   by the mask; in whole tiles [FLOP];  scalar_ops, exponentials   of executed pairs [count]
    compulsory_bytes, sram_bytes, hbm_bytes   the three boundaries [bytes];  l2_miss_share   of re-reads [0..1]
    tensor_s, scalar_s, memory_s, launch_s   the terms [s], constants of `mode` inside
    """

    shape: AttentionShape
    kernel: Kernel
    direction: str
    mode: str
    useful_flops: Num
    executed_flops: Num
    scalar_ops: Num
    exponentials: Num
    compulsory_bytes: Num
    sram_bytes: Num
    hbm_bytes: Num
    l2_miss_share: Num
    tensor_s: Num
    scalar_s: Num
    memory_s: Num
    launch_s: float

    @property
    def time_s(self) -> Num:
        """Kernel time in `mode` [s]."""
        arithmetic = self.tensor_s + self.scalar_s
        return self.launch_s + (np.maximum(arithmetic, self.memory_s) if self.mode == "overlap" else arithmetic + self.memory_s)

    @property
    def table(self) -> pd.DataFrame:
        """One row per quantity: quantity, value, unit, meaning."""
        rows = [
            ("useful_flops", self.useful_flops, "FLOP", "pairs that the mask lets through"),
            ("executed_flops", self.executed_flops, "FLOP", "whole tiles"),
            ("scalar_ops", self.scalar_ops, "count", "softmax and rescaling on the vector units"),
            ("exponentials", self.exponentials, "count", "one per executed pair"),
            ("compulsory_bytes", self.compulsory_bytes, "bytes", "every tensor once"),
            ("hbm_bytes", self.hbm_bytes, "bytes", "device memory to L2, re-reads that miss L2 included"),
            ("sram_bytes", self.sram_bytes, "bytes", "L2 to SMs, by loop order and tiles"),
            ("l2_miss_share", self.l2_miss_share, "0..1", "share of re-reads that go to device memory"),
            ("tensor_s", self.tensor_s, "s", "executed FLOP at the achieved share of the tensor peak"),
            ("scalar_s", self.scalar_s, "s", "scalar operations at the vector peak"),
            ("memory_s", self.memory_s, "s", "device memory traffic at the achieved bandwidth"),
            ("launch_s", self.launch_s, "s", "fixed cost of the kernels"),
            ("time_s", self.time_s, "s", "launch + max(arithmetic, memory)" if self.mode == "overlap" else "launch + arithmetic + memory"),
        ]
        return pd.DataFrame(rows, columns=["quantity", "value", "unit", "meaning"])


def flash_attention(shape: AttentionShape, device: Device, kernel: str | Kernel = "fa2", direction: str = "forward", mode: str = "overlap", *,
                    pack_gqa: bool = False, l2_share: float = L2_SHARE, math: str = "fp16") -> AttentionCost:
    """Cost of one attention call: counts, three byte boundaries, time.

    kernel   name in KERNELS or a Kernel of your own;  mode   "overlap" | "sum", see the module
    Raises CostModelError for an unknown kernel, direction or mode, and for a device without that arithmetic or a vector peak.
    """
    kernel = _kernel(kernel)
    if direction not in DIRECTIONS or mode not in MODES:
        raise CostModelError(f"direction {direction!r} must be one of {', '.join(DIRECTIONS)}; mode {mode!r} one of {', '.join(MODES)}")
    vector = device.value("peak_fp32_vector")
    if not vector:
        raise CostModelError(f"{device.label} has no peak_fp32_vector figure, so the softmax has no rate; add it to the device's preset")
    pairs = executed_pairs(shape, kernel)
    flops = attention_flops(shape, direction, kernel.algorithm, pairs)
    calls = shape.batch * shape.heads
    least = compulsory_bytes(shape, direction)
    sram, miss = sram_bytes(shape, kernel, direction, pack_gqa), 1.0
    if kernel.algorithm != "standard":
        miss = l2_miss_share(working_set_bytes(shape, kernel, device, direction, pack_gqa), device.l2_bytes, l2_share)
    hbm = least + miss * (sram - least)
    return AttentionCost(
        shape, kernel, direction, mode, attention_flops(shape, direction, kernel.algorithm), flops, SCALAR_OPS * pairs * calls, pairs * calls,
        least, sram, hbm, miss, flops / (kernel.ec[direction, mode] * device.peak_flops_per_s(math)), SCALAR_OPS * pairs * calls / vector,
        hbm / (kernel.em * device.hbm_bytes_per_s), kernel.launch_s * kernel.kernels[direction])


def _kernel(kernel: str | Kernel) -> Kernel:
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in KERNELS:
        raise CostModelError(f"attention kernel {kernel!r} is not one of {', '.join(KERNELS)}")
    return KERNELS[kernel]


def sram_bytes(shape: AttentionShape, kernel: Kernel, direction: str = "forward", pack_gqa: bool = False) -> Num:
    """Traffic between L2 and the SMs under the kernel's loop order and tiles [bytes]; standard attention passes all of it through memory."""
    if kernel.algorithm == "standard":
        return standard_attention_bytes(shape, direction, kernel.passes.get(direction, 0))
    if kernel.algorithm == "fa1":
        return fa1_bytes(shape, kernel.tiles, direction)
    return fa2_bytes(shape, kernel.tiles, direction, pack_gqa)
