"""The `ideal` and `simple` cost models: datasheet roofline, and the roofline a kernel reaches. Room: cost.

`simple` works on every device with a datasheet: FLOPs padded to whole tiles at an achievable share of the peak, bytes at an
achievable share of the bandwidth, the larger of the two, plus one launch. Both FLOP counts stay visible.
"""
import numpy as np

from roofkit.cost import bounds, collectives
from roofkit.cost.model import Timing
from roofkit.hardware.network import Cluster
from roofkit.ops.kinds import Attention, Collective, Gemm, GroupedGemm, Num, Op, Transfer

LAUNCH_S = 2.5e-6  # assumed: floor of one kernel replayed from a CUDA graph; 1.6-3.1 us measured on A100, H100, B200 (data/roofkit_data/calibration)
TILE = 128  # keys per block of a causal kernel; rows and columns of a full product tile are padded to 64


def ideal(op: Op, cluster: Cluster) -> Timing:
    """Datasheet roofline of one call, no overheads: the bound itself."""
    compute, memory, network = bounds.bound_parts(op, cluster)
    time = np.maximum(np.maximum(compute, memory), network)
    return Timing(time, compute, memory, network, 0.0, None, "max(compute, memory) at datasheet rates", "bound", "no overheads: a bound, not an estimate")


def pad(size: Num, to: int) -> Num:
    return np.ceil(np.asarray(size) / to) * to


def padded_flops(op: Op) -> Num:
    """FLOPs of one call with rows padded to 16 up to 64, then to 64; attention with whole causal key blocks. Never below useful."""
    if isinstance(op, Gemm):
        rows = np.where(np.asarray(op.m) <= 64, pad(op.m, 16), pad(op.m, 64))
        return 2.0 * rows * op.k * op.n * op.batch
    if isinstance(op, GroupedGemm):
        rows = pad(op.m, 16) * op.distinct
        return 2.0 * op.matrices * rows * op.hidden * op.inter
    useful = op.flops / np.maximum(op.count, 1e-30)
    if isinstance(op, Attention) and op.phase == "prefill":
        return useful * (1.0 + TILE / 2.0 / np.maximum(op.pairs / op.q_tokens, 1.0))
    return useful


def simple(op: Op, cluster: Cluster) -> Timing:
    """Achievable roofline of one call plus a launch; collectives alpha-beta, the faster of ring and one-shot."""
    if isinstance(op, Collective):
        return collectives.collective(op, cluster, None)
    if isinstance(op, Transfer):
        return collectives.transfer(op, cluster, None)
    device = cluster.device
    memory_share = device.achievable_bandwidth_fraction()
    memory = op.bytes_moved / np.maximum(op.count, 1e-30) / (device.hbm_bytes_per_s * memory_share.value)
    math, compute, padded, share = bounds.math_of(op), 0.0, None, None
    if math is not None:
        padded = padded_flops(op)
        share = device.achievable_flops_fraction(math)
        compute = padded / (device.peak_flops_per_s(math) * share.value)
    note = f"{memory_share.value:.0%} of the bandwidth ({memory_share.kind})"
    if share is not None:
        note = f"{share.value:.0%} of the {math} peak ({share.kind}), " + note
    return Timing(np.maximum(compute, memory) + LAUNCH_S, compute, memory, 0.0, LAUNCH_S, padded, "max(padded FLOP, bytes) at achievable rates + launch",
                  "generic", note)
