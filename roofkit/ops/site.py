"""Site: where in a step an op runs: which rank's share, how many tokens, how many layers. Room: ops.

`Site` turns (architecture, plan, workload) into the sizes that the block builders need: sequences per microbatch,
tokens, parts of the batch by phase. Splits that do not divide raise PlanError with the sizes that would.
"""
from dataclasses import dataclass

import numpy as np

from roofkit.architectures.architecture import Architecture
from roofkit.errors import PlanError
from roofkit.formats import GemmFormat, gemm_format
from roofkit.ops.kinds import Num
from roofkit.ops.plan import Plan, resolved
from roofkit.ops.workload import Decode, MixedBatch, Prefill, Workload


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sequences of one phase inside a step: `batch` of them, `q` new tokens each, against `kv` keys (kinds.Attention)."""

    phase: str
    batch: Num
    q: Num
    kv: Num

    @property
    def tokens(self) -> Num:
        return self.batch * self.q


def split(size: int, ways: int, what: str) -> int:
    """size / ways, or PlanError naming the rank counts that divide."""
    if size % ways:
        good = [w for w in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size % w == 0]
        raise PlanError(f"{what} = {size} is not divisible by {ways} ranks; sizes that work: {', '.join(map(str, good))}")
    return size // ways


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One microbatch on one rank. `parts` by phase; `logits` rows that reach the output matrix [sequences]."""

    arch: Architecture
    plan: Plan
    parts: tuple[Part, ...]
    logits: Num
    microbatches: Num
    count: int = 1

    @property
    def d(self) -> int:
        return self.arch.hidden

    @property
    def tokens(self) -> Num:
        """New tokens of one data-parallel rank's microbatch [tokens]."""
        return sum(p.tokens for p in self.parts)

    def linear(self, part: str) -> GemmFormat:
        """Formats of the products of a part of the model, of plan.PARTS."""
        return self.plan.linear(part)

    @property
    def wide(self) -> GemmFormat:
        """Products that stay 16 bit: router, output matrix, absorbed MLA products."""
        return gemm_format(self.math, self.math)

    @property
    def math(self) -> str:
        """16-bit arithmetic of attention and unquantised products: fp16 when the plan says so, else bf16."""
        return self.plan.sixteen_bit

    @property
    def act_bytes(self) -> float:
        return self.wide.act_bytes_per_el

    def name(self, base: str, part: Part) -> str:
        """`base`, told apart by phase where a step has several."""
        return base if len(self.parts) == 1 else f"{base}_{part.phase}"


def _ceil_div(a: Num, b: Num) -> Num:
    return -(-np.asarray(a) // np.asarray(b)) if np.ndim(a) or np.ndim(b) else -(-a // b)


def site_of(arch: Architecture, plan: Plan, workload: Workload) -> Site:
    """Sizes of one microbatch on the busiest rank.

    The batch is that of the whole plan: each of dp replicas gets ceil(batch / dp) sequences, cut into
    min(pp, that) microbatches. Raises PlanError for cp > 1 or more stages than layers.
    """
    plan = resolved(plan, arch)
    if plan.cp > 1:
        raise PlanError("cp > 1 has no inference model yet; use cp=1 and more tensor-parallel ranks (tp) for long contexts")
    if plan.pp > arch.n_layers:
        raise PlanError(f"pp={plan.pp} is more stages than the {arch.n_layers} layers of {arch.name}; use pp of at most {arch.n_layers}")
    per_replica = _ceil_div(workload.batch, plan.dp)
    pieces = np.minimum(plan.pp, per_replica) if np.ndim(per_replica) else min(plan.pp, per_replica)
    batch = _ceil_div(per_replica, pieces)
    if isinstance(workload, Decode):
        parts = (Part("decode", batch, 1, workload.context_tokens),)
        logits = batch
    elif isinstance(workload, Prefill):
        parts = (Part("prefill", batch, workload.prompt_tokens - workload.cached_tokens, workload.prompt_tokens),)
        logits = batch
    elif isinstance(workload, MixedBatch):
        chunks = _ceil_div(workload.chunks, plan.dp)
        chunk = Part("prefill", chunks, workload.chunk_tokens, workload.cached_tokens + workload.chunk_tokens)
        parts = (chunk, Part("decode", batch, 1, workload.context_tokens))
        logits = batch + chunks
    else:
        raise PlanError(f"workload {workload!r} is not one of Prefill, Decode, MixedBatch")
    return Site(arch, plan, parts, logits, pieces)
