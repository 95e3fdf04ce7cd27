"""Operators: the work one forward step does and the bytes it must move.

Room: ops (may import errors, units, formats, architectures, hardware). Not here: time, devices, efficiency. An op is
the same on every machine; cost/ gives it time, inventory.py decides which ops run.
Convention: 1 multiply-add = 2 FLOPs; sizes are per rank of the plan; `count` = identical calls in the step; `flops`,
`bytes_moved`, `network_bytes` are totals of all calls. Any field typed Num may be an array: the axis of a sweep.
Compulsory traffic: every operand read once, every result written once (Williams, Waterman & Patterson 2009, CACM 52(4)).
"""
from dataclasses import dataclass

import numpy as np

from roofkit.errors import PlanError
from roofkit.formats import GemmFormat

Num = float | int | np.ndarray  # a scalar, or one axis of a sweep
_FROZEN = dict(frozen=True, slots=True, eq=False)  # eq=False: fields may be arrays


def _whole(name: str, **sizes: float) -> None:
    for key, size in sizes.items():
        if size % 1 or size < 1:
            raise PlanError(f"op {name!r}: {key}={size} must be a whole number of at least 1; choose a parallel size that divides this width")


@dataclass(**_FROZEN)
class Gemm:
    """`batch` products Y[m, n] = X[m, k] @ W[k, n], run `count` times in a step.

    m       tokens in the step [tokens]
    k, n    inner and outer width held by one rank [elements]
    batch   independent products of one call, e.g. one per head when MLA absorbs its up-projection
    Raises PlanError when k or n is not a whole number: a split that does not divide.
    """

    name: str
    category: str
    m: Num
    k: int
    n: int
    format: GemmFormat
    count: int = 1
    batch: int = 1

    def __post_init__(self) -> None:
        _whole(self.name, k=self.k, n=self.n)

    @property
    def flops(self) -> Num:
        return 2.0 * self.m * self.k * self.n * self.batch * self.count

    @property
    def weight_bytes(self) -> float:
        return float(self.k) * self.n * self.batch * self.format.weight_bytes_per_el * self.count

    @property
    def bytes_moved(self) -> Num:
        """X and W read once, Y written once, all calls [bytes]."""
        acts = self.m * (self.k * self.format.act_bytes_per_el + self.n * self.format.out_bytes_per_el) * self.batch * self.count
        return self.weight_bytes + acts

    network_bytes = 0.0


@dataclass(**_FROZEN)
class GroupedGemm:
    """The routed experts of one MoE layer on one rank: gate/up, activation and down products of the touched experts.

    tokens          tokens that enter the layer over all ranks of the expert group [tokens]
    rows            (token, expert) pairs that land on one rank, expected [rows]
    distinct        experts of the rank that get at least one row, expected and not rounded [experts]
    experts         experts held by the rank [experts];  total_experts, top_k   of the whole layer
    hidden, inter   width in and out; inner width per rank [elements]
    matrices        3 gated (gate, up, down) or 2
    ep, tp          ranks that share the experts; ranks that split one expert
    """

    name: str
    category: str
    tokens: Num
    rows: Num
    distinct: Num
    experts: int
    total_experts: int
    top_k: int
    hidden: int
    inter: int
    matrices: int
    format: GemmFormat
    ep: int = 1
    tp: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        _whole(self.name, experts=self.experts, hidden=self.hidden, inter=self.inter)

    @property
    def m(self) -> Num:
        """Rows of one expert's product: those per touched expert, not the tokens of the step."""
        return self.rows / np.maximum(self.distinct, 1e-12)

    @property
    def k(self) -> int:
        return self.hidden

    @property
    def n(self) -> int:
        return (self.matrices - 1) * self.inter

    @property
    def flops(self) -> Num:
        return 2.0 * self.matrices * self.rows * self.hidden * self.inter * self.count

    @property
    def weight_bytes(self) -> Num:
        return self.matrices * self.hidden * self.inter * self.distinct * self.format.weight_bytes_per_el * self.count

    @property
    def bytes_moved(self) -> Num:
        """Weights of the touched experts, rows in and out, once [bytes]. The inner activation stays on chip in the bound."""
        rows = self.rows * self.hidden * (self.format.act_bytes_per_el + self.format.out_bytes_per_el) * self.count
        return self.weight_bytes + rows

    network_bytes = 0.0


@dataclass(**_FROZEN)
class Attention:
    """Softmax attention of `batch` sequences: `q_tokens` new queries each against `kv_tokens` keys, causal among the new.

    phase           "prefill" | "decode" (one query, or a few, against a long cache)
    kv_tokens       cached tokens plus the new ones in prefill; cached tokens in decode [tokens]
    window          a query sees at most this many tokens; None = all
    n_heads, n_kv_heads   per rank; MLA decode: one shared latent head
    qk_dim, v_dim   width of a score product, of a value product [elements]
    kv_elements     cached elements per token and kv head: qk_dim + v_dim, or the latent alone when values are part of it
    kv_bytes_per_el, kv_format    of the cache;  math   arithmetic of the products
    select          tokens each query attends to after an indexer chose them; None = all
    """

    name: str
    category: str
    phase: str
    batch: Num
    q_tokens: Num
    kv_tokens: Num
    n_heads: int
    n_kv_heads: int
    qk_dim: int
    v_dim: int
    kv_elements: int
    kv_bytes_per_el: float = 2.0
    kv_format: str = "bf16"
    math: str = "bf16"
    window: int | None = None
    select: int | None = None
    latent: bool = False
    count: int = 1

    def __post_init__(self) -> None:
        _whole(self.name, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads)

    @property
    def group(self) -> float:
        """Query heads that share one kv head."""
        return self.n_heads / self.n_kv_heads

    @property
    def limit(self) -> float:
        """Keys one query may use: the smaller of window and selection; inf without either [tokens]."""
        return min(self.window or np.inf, self.select or np.inf)

    @property
    def pairs(self) -> Num:
        """(query, key) pairs of one sequence and head that the causal mask and the limit let through.

        Query j of q new tokens sees kv - q + j keys, j = 1..q, at most `limit`; decode's single query sees kv cached tokens.
        """
        if self.phase == "decode":
            return self.q_tokens * np.minimum(self.kv_tokens, self.limit)
        q, start = self.q_tokens, self.kv_tokens - self.q_tokens
        if not np.isfinite(self.limit):
            return q * start + q * (q + 1) / 2.0
        free = np.clip(self.limit - start, 0, q)  # queries still below the limit
        return free * start + free * (free + 1) / 2.0 + (q - free) * self.limit

    @property
    def kv_read_tokens(self) -> Num:
        """Tokens of one sequence whose keys at least one query uses [tokens]."""
        if self.phase == "decode":
            return np.minimum(self.kv_tokens, self.q_tokens * self.limit) if self.select else np.minimum(self.kv_tokens, self.limit + self.q_tokens - 1)
        window = np.inf if self.window is None else self.window
        return np.minimum(self.kv_tokens, self.q_tokens + window - 1)

    @property
    def flops(self) -> Num:
        return 2.0 * self.pairs * (self.qk_dim + self.v_dim) * self.n_heads * self.batch * self.count

    @property
    def exponentials(self) -> Num:
        return self.pairs * self.n_heads * self.batch * self.count

    @property
    def kv_read_bytes(self) -> Num:
        return self.kv_read_tokens * self.n_kv_heads * self.kv_elements * self.kv_bytes_per_el * self.batch * self.count

    @property
    def bytes_moved(self) -> Num:
        """Cache read once per kv head, queries in, output out, 16 bit [bytes]. Writing new keys is an op of its own (kv_write)."""
        acts = 2.0 * self.q_tokens * self.n_heads * (self.qk_dim + self.v_dim) * self.batch * self.count
        return self.kv_read_bytes + acts

    network_bytes = 0.0


@dataclass(**_FROZEN)
class Scan:
    """A recurrent mixer's state update over `tokens` tokens of `batch` sequences (state space, linear attention, convolution).

    state_elements  state of one sequence on this rank, read and written once per call [elements]
    io_elements     elements read and written per token besides the state
    flops_per_token arithmetic per token [FLOP]
    """

    name: str
    category: str
    batch: Num
    tokens: Num
    state_elements: float
    io_elements: float
    flops_per_token: float
    state_bytes_per_el: float = 4.0
    io_bytes_per_el: float = 2.0
    math: str = "bf16"
    count: int = 1

    @property
    def flops(self) -> Num:
        return self.flops_per_token * self.tokens * self.batch * self.count

    @property
    def bytes_moved(self) -> Num:
        state = 2.0 * self.state_elements * self.state_bytes_per_el * self.batch
        return (state + self.io_elements * self.io_bytes_per_el * self.tokens * self.batch) * self.count

    network_bytes = 0.0


@dataclass(**_FROZEN)
class Elementwise:
    """One pass over rows x cols elements: norm, rope, activation, residual, embedding look-up, router softmax, sampling.

    elements_read, elements_written   per row [elements]; flops_per_row [FLOP]
    """

    name: str
    category: str
    rows: Num
    elements_read: float
    elements_written: float
    flops_per_row: float
    bytes_per_el: float = 2.0
    count: int = 1

    @property
    def flops(self) -> Num:
        return self.flops_per_row * self.rows * self.count

    @property
    def bytes_moved(self) -> Num:
        return self.rows * (self.elements_read + self.elements_written) * self.bytes_per_el * self.count

    network_bytes = 0.0


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(**_FROZEN)
class Collective:
    """`kind` over `ranks` ranks, `count` times.

    bytes_in   what one rank holds before the operation [bytes]: the tensor for all_reduce and reduce_scatter, its shard
               for all_gather, all it has to send (to itself included) for all_to_all
    group      "tp" | "ep" | "dp" | "cp": which ranks; `stride` = distance of neighbours in the device order
    needed     share of bytes_in that has to travel at the least [0..1]: copies of a token to experts of one rank are one copy.
               It enters the bound alone; what a library sends is its form's affair
    """

    name: str
    category: str
    kind: str
    bytes_in: Num
    ranks: int
    group: str = "tp"
    stride: int = 1
    count: int = 1
    needed: float = 1.0

    @property
    def message_bytes(self) -> Num:
        """The whole tensor, as collective benchmarks count it [bytes]: n shards for all_gather, bytes_in otherwise."""
        return self.bytes_in * (self.ranks if self.kind == "all_gather" else 1)

    @property
    def wire_factor(self) -> float:
        """Bytes one rank must send per byte of `message_bytes`: 2 (n-1)/n for all_reduce, (n-1)/n otherwise; 0 at one rank."""
        return (2.0 if self.kind == "all_reduce" else 1.0) * (self.ranks - 1) / self.ranks

    @property
    def network_bytes(self) -> Num:
        return self.message_bytes * self.wire_factor * self.count

    flops = 0.0
    bytes_moved = 0.0


@dataclass(**_FROZEN)
class Transfer:
    """A copy from one device to another, e.g. between pipeline stages; `stride` = distance of the two in the device order."""

    name: str
    category: str
    bytes_in: Num
    stride: int = 1
    count: int = 1

    @property
    def network_bytes(self) -> Num:
        return self.bytes_in * self.count

    flops = 0.0
    bytes_moved = 0.0


Op = Gemm | GroupedGemm | Attention | Scan | Elementwise | Collective | Transfer
KIND = {Gemm: "gemm", GroupedGemm: "grouped_gemm", Attention: "attention", Scan: "scan", Elementwise: "elementwise",
        Collective: "collective", Transfer: "transfer"}
