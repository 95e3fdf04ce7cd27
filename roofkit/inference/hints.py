"""Hints: the one change that would help an operator most, from what binds it. Room: inference."""
from roofkit.ops.kinds import Attention, Collective, Gemm, GroupedGemm, Op, Scan, Transfer


def hint(op: Op, bound: str) -> str:
    """One short sentence for `bound` in "memory" | "compute" | "network" | "launch"."""
    if bound == "launch":
        return "fuse it with its neighbours or run a larger batch: the start of the kernel is most of its time"
    if isinstance(op, Collective):
        return "use fewer ranks, faster links, or overlap it with compute"
    if isinstance(op, Transfer):
        return "use fewer pipeline stages or faster links"
    if isinstance(op, Attention):
        if bound == "compute":
            return "shorter prompts, a sliding window, or more tensor-parallel ranks"
        return "store the KV cache in fp8, or spread it over more devices: the time is the cache being read"
    if isinstance(op, GroupedGemm):
        if bound == "compute":
            return "narrower weights and activations, or more expert-parallel ranks"
        return "a larger batch per expert, narrower expert weights, or more expert-parallel ranks: the time is experts being read"
    if isinstance(op, Gemm):
        if bound == "compute":
            return "fp8 weights and activations, or more tensor-parallel ranks"
        return "a larger batch or narrower weights: the time is the weights being read"
    if isinstance(op, Scan):
        return "more sequences per step: the time is the state being read and written"
    return "fuse it with its neighbours: it only moves activations"
