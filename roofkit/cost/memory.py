"""Memory: what one device holds, component by component, and how large a batch fits. Room: cost.

The fullest device counts: the busiest pipeline stage, replicated KV heads and latents included. Weights come from the
same ops that price their traffic, so time and memory cannot disagree about a plan.
"""
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture, Attention, LayerGroup, MoE
from roofkit.architectures.shapes import expert_vectors, vectors
from roofkit.errors import WorkloadError
from roofkit.hardware.device import Device
from roofkit.ops.attention_blocks import cache_elements_per_token
from roofkit.ops.inventory import inventory
from roofkit.ops.kinds import Gemm, GroupedGemm, Num
from roofkit.ops.plan import Plan
from roofkit.ops.recurrent_blocks import state_bytes_per_sequence
from roofkit.ops.site import site_of
from roofkit.ops.workload import Decode, Workload
from roofkit.tables import MEMORY_INDEX

# assumed: context, libraries, communication buffers and fragmentation of a serving process
RESERVE_BYTES, RESERVE_SHARE = 2 * 2.0**30, 0.05


class Memory(pd.Series):
    """Bytes on the fullest device by component: a Series with index tables.MEMORY_INDEX, and what follows from it.

    Values are scalars, or arrays over a sweep; `capacity` is the device's memory [bytes].
    """

    _metadata = ["capacity"]

    def __init__(self, parts: dict[str, Num], capacity: float) -> None:
        sweep = any(np.ndim(v) for v in parts.values())
        values = np.empty(len(parts), dtype=object if sweep else float)
        values[:] = list(parts.values()) if not sweep else None
        for i, value in enumerate(parts.values()):
            values[i] = value
        super().__init__(values, index=list(parts), name="bytes")
        self.capacity = capacity

    @property
    def _constructor(self):
        return pd.Series  # a slice or a product of it is a plain Series

    @property
    def total(self) -> Num:
        """Everything that must be held [bytes]."""
        return sum(self.to_numpy())

    @property
    def fits(self) -> Num:
        """Whether everything stays within the capacity."""
        return self.total <= self.capacity

    @property
    def headroom(self) -> Num:
        """Bytes left; negative when it does not fit."""
        return self.capacity - self.total

    @property
    def series(self) -> pd.Series:
        """A plain Series with one more entry, "capacity" [bytes]."""
        return pd.Series([*self.to_numpy(), self.capacity], index=[*self.index, "capacity"])


# products whose weights are counted from the architecture itself: tables, biases and scalars, what lies around the layers
OUTSIDE = ("logits", "layer_extras", "outside_layers", "shared_gate")


@lru_cache(maxsize=4096)
def weight_bytes(arch: Architecture, plan: Plan) -> float:
    """Weights of the fullest device [bytes]: every expert it holds, not only those a batch touches; norms and tables included."""
    ops = inventory(arch, replace(plan, pp=1), Decode(1, 1))
    linear = sum(op.weight_bytes for op in ops if isinstance(op, Gemm) and op.name not in OUTSIDE)
    experts = sum(float(op.experts) * op.matrices * op.hidden * op.inter * op.format.weight_bytes_per_el * op.count
                  for op in ops if isinstance(op, GroupedGemm))
    small = 2.0 * sum((g.norm_params + g.extra_params + _vectors(g, arch.hidden, plan.ep)) * g.count for g in arch.groups)
    stage = -(-arch.n_layers // plan.pp) / arch.n_layers
    tables = 2.0 * (arch.embed_params + arch.head_params) / plan.tp
    ends = max(arch.embed_params, arch.head_params) * 2.0 / plan.tp if plan.pp > 1 else tables
    return (linear + experts + small) * stage + ends + 2.0 * (arch.other_params + arch.head_bias)


def _vectors(group: LayerGroup, hidden: int, ep: int) -> float:
    """Biases, norms and scalars of a layer's blocks on one rank, those of the experts spread with them; keys and values of
    cross-attention, which a text step holds and does not compute [parameters]."""
    mixer = group.mixer
    cross = mixer.n_kv_heads * (mixer.head_dim + mixer.value_dim) * hidden if isinstance(mixer, Attention) and mixer.kv == "cross" else 0
    experts = expert_vectors(group.ffn, hidden) if isinstance(group.ffn, MoE) else 0
    return cross + vectors(mixer, hidden) + vectors(group.ffn, hidden) - experts * (1 - 1 / ep)


def cache_bytes(arch: Architecture, plan: Plan, sequences: Num, tokens: Num) -> Num:
    """KV cache of `sequences` sequences of `tokens` tokens on the fullest device [bytes]; windows bound it."""
    total = 0.0
    for g in arch.groups:
        limit = g.mixer.window if isinstance(g.mixer, Attention) and g.mixer.window else np.inf
        total = total + cache_elements_per_token(g.mixer, plan.tp) * g.count * np.minimum(tokens, limit)
    stage = -(-arch.n_layers // plan.pp) / arch.n_layers
    return total * plan.kv_bytes_per_el * stage * sequences


def activation_bytes(arch: Architecture, plan: Plan, tokens: Num, logits: Num) -> Num:
    """Largest working set of one layer plus logits in fp32 [bytes]: two hidden streams and the widest intermediate, 16 bit."""
    widest = 0.0
    for g in arch.groups:
        ffn = g.ffn
        if ffn is not None:
            routed = getattr(ffn, "top_k", 0) * (getattr(ffn, "expert_width", 0) * 3 / plan.expert_tp + arch.hidden) / max(plan.ep // plan.tp, 1)
            dense = 3.0 * getattr(ffn, "width", getattr(ffn, "shared_width", 0)) / plan.tp
            widest = max(widest, routed + dense)
        heads = getattr(g.mixer, "n_heads", 0)
        head_dim = getattr(g.mixer, "head_dim", None) or getattr(g.mixer, "v_head_dim", 0) + getattr(g.mixer, "qk_nope_head_dim", 0)
        widest = max(widest, 3.0 * heads * (head_dim or 0) / plan.tp)
    return 2.0 * tokens * (2.0 * arch.hidden + widest) + 4.0 * logits * arch.vocab / plan.tp


def memory(arch: Architecture, device: Device, plan: Plan, workload: Workload, engine_share: float | None = None) -> Memory:
    """What a step needs on the fullest device. `engine_share`: part of the capacity an engine uses (vLLM's 0.9), else a fixed reserve."""
    site = site_of(arch, plan, workload)
    plan = site.plan
    capacity = device.memory_bytes
    cache, state, state_each = 0.0, 0.0, sum(state_bytes_per_sequence(g.mixer, plan.tp) * g.count for g in arch.groups)
    for part in site.parts:
        sequences = part.batch * site.microbatches
        kept = part.kv + (part.q if part.phase == "decode" else 0)
        cache = cache + cache_bytes(arch, plan, sequences, kept)
        state = state + sequences * state_each / plan.pp
    reserve = (1 - engine_share) * capacity if engine_share else min(RESERVE_BYTES, RESERVE_SHARE * capacity)
    parts = (weight_bytes(arch, plan), cache, state, activation_bytes(arch, plan, site.tokens, site.logits), reserve)
    return Memory(dict(zip(MEMORY_INDEX, parts, strict=True)), capacity)


def largest_batch(arch: Architecture, device: Device, plan: Plan, workload: Workload, engine_share: float | None = None, most: int = 1 << 20) -> int:
    """Largest batch of this workload that fits [sequences]; 0 when not even one does. Memory grows with batch, so bisection is exact."""
    try:
        batches = np.unique(np.round(np.geomspace(1, most, 200)).astype(int))
        room = memory(arch, device, plan, replace(workload, batch=batches), engine_share).fits
    except WorkloadError:
        return 0
    if not room[0]:
        return 0
    low = int(batches[np.flatnonzero(room)[-1]])
    if low == most:
        return most
    fine = np.arange(low, int(batches[np.flatnonzero(room)[-1] + 1]) + 1)
    while fine.size > 4096:
        fine = _narrow(fine, memory(arch, device, plan, replace(workload, batch=fine[:: fine.size // 1000]), engine_share).fits)
    return int(fine[memory(arch, device, plan, replace(workload, batch=fine), engine_share).fits][-1])


def _narrow(fine: np.ndarray, fits: np.ndarray) -> np.ndarray:
    step = fine.size // 1000
    last = int(np.flatnonzero(fits)[-1])
    return fine[last * step: last * step + step + 1]
