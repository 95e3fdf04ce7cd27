"""Physical bounds: the least time one call of an op can take on a device. Room: cost.

max(arithmetic at the dense peak, compulsory bytes at the datasheet bandwidth); collectives: the bytes a rank must send
over its links, one direction. No efficiency, no launch. Source: Williams, Waterman & Patterson 2009, CACM 52(4).
"""
import numpy as np

from roofkit.errors import CostModelError
from roofkit.hardware.network import Cluster
from roofkit.ops.kinds import Attention, Collective, Gemm, GroupedGemm, Num, Op, Scan, Transfer


def math_of(op: Op) -> str | None:
    """Arithmetic of the op's products; None for ops that do not use the tensor units."""
    if isinstance(op, Gemm | GroupedGemm):
        return op.format.math
    return op.math if isinstance(op, Attention | Scan) else None


def peak_of(op: Op, cluster: Cluster) -> float | None:
    """Dense peak FLOP/s of the op's arithmetic; None for ops without tensor work. Raises CostModelError without one."""
    math = math_of(op)
    return None if math is None else cluster.device.peak_flops_per_s(math)


def link_bytes_per_s(cluster: Cluster, ranks: int, stride: int = 1) -> float:
    """Bandwidth of one rank, one direction, on the narrowest link its group crosses [bytes/s]. Raises CostModelError if unknown."""
    reach = cluster.reach(ranks * stride)
    rate = cluster.scaleup_bytes_per_s if reach == "scaleup" else cluster.scaleout_bytes_per_s
    if not rate:
        raise CostModelError(f"{cluster.label or cluster.name or cluster.device.label}: no {reach} bandwidth is known for {ranks} ranks; "
                             f"use a cluster preset (rk.list_clusters) or give Cluster(..., {reach}_bytes_per_s=)")
    return rate


def network_s(op: Collective, cluster: Cluster) -> Num:
    """Least time of one collective [s]: what a rank must send inside its fast domain, or across, whichever takes longer.

    Inside `inner` ranks n-1 of n shards move, twice for an all-reduce unless the switch adds for it; across `outer` domains
    every rank carries 1/inner of the data (all-to-all: all that leaves the domain). Of an exchange of tokens only `needed` counts.
    """
    if op.ranks == 1:
        return 0.0
    message = op.message_bytes * op.needed
    domain = max(cluster.scaleup_domain, cluster.devices_per_node)
    inner = min(op.ranks, max(1, domain // op.stride))
    outer = -(-op.ranks // inner)
    twice = 2.0 if op.kind == "all_reduce" else 1.0
    in_switch = op.kind == "all_reduce" and cluster.in_switch_reduction and inner > 2
    inside = 0.0
    if inner > 1:
        share = (inner - 1) / (op.ranks if op.kind == "all_to_all" else inner) * (1.0 if in_switch else twice)
        inside = message * share / link_bytes_per_s(cluster, inner, op.stride)
    if outer == 1:
        return inside
    share = (op.ranks - inner) / op.ranks if op.kind == "all_to_all" else twice * (outer - 1) / outer / inner
    return np.maximum(inside, message * share / link_bytes_per_s(cluster, op.ranks, op.stride))


def bound_parts(op: Op, cluster: Cluster) -> tuple[Num, Num, Num]:
    """(compute, memory, network) seconds of one call at datasheet rates, each alone."""
    device = cluster.device
    if isinstance(op, Collective):
        return 0.0, 0.0, network_s(op, cluster)
    if isinstance(op, Transfer):
        return 0.0, 0.0, op.bytes_in / link_bytes_per_s(cluster, 2, op.stride)
    calls = np.maximum(op.count, 1e-30)
    peak = peak_of(op, cluster)
    compute = 0.0 if peak is None else op.flops / calls / peak
    return compute, op.bytes_moved / calls / device.hbm_bytes_per_s, 0.0


def ideal_s(op: Op, cluster: Cluster) -> Num:
    """The bound of one call [s]: the largest part."""
    compute, memory, network = bound_parts(op, cluster)
    return np.maximum(np.maximum(compute, memory), network)
