"""Collectives: one form per library over all rank counts; hierarchical across machines. Room: cost.

  ring       a0 + a1 (n-2) + f S / (link eb (n/2)^ke) (1 + sqrt(sh/S)),  f = 2(n-1)/n for all_reduce, else (n-1)/n
  one-shot   b0 + b1 (n-2) + (n-1) S / (e1 link): every rank reads all others' data at once; engines' own all-reduce
S is the message as collective benchmarks count it; link is one direction of one device. ke > 0 is reduction in the
switch. Serving engines run the fastest of their own kernel and NCCL. Start costs are linear in n up to the 8 ranks that
were measured, logarithmic beyond. reduce_scatter, not measured, takes all_gather's constants.
Between machines: inside, then across on 1/inner of the data, then inside (reduce-scatter, all-reduce, all-gather).
Without constants: the faster of a ring with NCCL's latencies and a one-shot kernel.
Sources: fits to AIConfigurator collector tables, github ai-dynamo/aiconfigurator @ 095f58a5; NCCL's published tuning
table (github NVIDIA/nccl, src/graph/tuning.cc) with the newer constants that E. Erdil measured: base 6.8 + 0.6 us a hop
for the low-latency protocol at half the bandwidth, 14 + 1.25 us for the 128-byte one at 0.95 of it.
"""
import math

import numpy as np

from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.model import Timing
from roofkit.hardware.network import Cluster
from roofkit.ops.kinds import Collective, Num, Transfer

PROTOCOLS = ((6.8, 0.6, 0.5), (14.0, 1.25, 0.95))  # (base of an all-reduce [us], a hop [us], share of the achieved bandwidth)
HALF_SIZE = {True: 2e6, False: 50e3}  # message that gets half the rate [bytes], fast links and PCIe: order of the fitted rings
NETWORK_HOP_US = 5.0  # low-latency hop between machines, NCCL tuning table
ACHIEVED = 0.75  # of a link's datasheet rate: median of the NCCL fits on A100, H100 and B200 (0.70-0.78)
ONE_SHOT = (4.3, 0.09, 0.56)  # start [us], per rank [us], achieved share: median of the engines' kernels on A100, H100, B200
PEER_US, NETWORK_PEER_US = 5.0, 12.0  # start of a copy to a neighbour: half a two-rank all-reduce; with a network hop each way
NVLINK_BYTES_PER_S = 100e9  # below this a device's fast link is PCIe, whose kernels differ
MEASURED_RANKS = 8


def collective(op: Collective, cluster: Cluster, fits: DeviceFits | None) -> Timing:
    """One call of a collective; never None: devices without fits, or with another kind of link, get the generic form."""
    if op.ranks <= 1:
        return Timing(0.0 * np.asarray(op.bytes_in), form="none", calibration="bound", note="one rank")
    domain = max(cluster.scaleup_domain, cluster.devices_per_node)
    inner = min(op.ranks, max(1, domain // max(1, op.stride)))
    outer = math.ceil(op.ranks / inner)
    usable = fits if fits is not None and _same_link(cluster, fits, inner) else None
    start, wire, form, kind, note = _inside(op.kind, op.message_bytes, inner, cluster, usable)
    if outer > 1:
        start, wire = _across(op, inner, outer, cluster, usable)
        form, kind, note = "hierarchical", "generic", f"{inner} ranks inside, {outer} machines; {note}"
    return Timing((start + wire) * 1e-6, network_s=wire * 1e-6, launch_s=start * 1e-6, form=form, calibration=kind, note=note)


def generic(op: Collective | Transfer, cluster: Cluster) -> Timing:
    """A collective or copy without fitted constants: what the `simple` model uses."""
    return transfer(op, cluster, None) if isinstance(op, Transfer) else collective(op, cluster, None)


def transfer(op: Transfer, cluster: Cluster, fits: DeviceFits | None) -> Timing:
    """A copy to the device `stride` places further; stages that fill a machine send across machines."""
    near = op.stride < max(cluster.scaleup_domain, cluster.devices_per_node)
    link = (cluster.p2p_bytes_per_s or _link_us(cluster) * 1e6) if near else cluster.scaleout_bytes_per_s
    start = PEER_US if near else NETWORK_PEER_US
    wire = op.bytes_in / ((link or _link_us(cluster) * 1e6) * ACHIEVED)
    return Timing(wire + start * 1e-6, network_s=wire, launch_s=start * 1e-6, form="alpha+beta", calibration="generic",
                  note=f"{'inside a machine' if near else 'between machines'}, {100 * ACHIEVED:.0f} % of the link")


def _link_us(cluster: Cluster) -> float:
    """One direction of one device's links to its neighbours [bytes/us]."""
    device = cluster.device
    rate = cluster.scaleup_bytes_per_s or device.value("scaleup_bandwidth_per_direction") or device.value("pcie_bandwidth_per_direction") or 16e9
    return rate * 1e-6


def _same_link(cluster: Cluster, fits: DeviceFits, ranks: int) -> bool:
    """Whether this cluster joins devices as the measured one did: all by a fast switch, or all by PCIe."""
    fast = _link_us(cluster) * 1e6 >= NVLINK_BYTES_PER_S and cluster.scaleup_domain >= ranks
    return fast == (fits.ceilings.get("link_gb_s", 0.0) * 1e9 >= NVLINK_BYTES_PER_S)


def _inside(kind: str, size: Num, ranks: int, cluster: Cluster, fits: DeviceFits | None) -> tuple[Num, Num, str, str, str]:
    """(start [us], wire [us], form, calibration, note) of one collective within a fast domain."""
    if ranks <= 1:
        return 0.0 * np.asarray(size), 0.0 * np.asarray(size), "none", "bound", "one rank"
    link = _link_us(cluster)
    known = _libraries(kind, fits) if fits is not None else ()
    if not known:
        return *_generic(kind, size, ranks, link), "ring or one-shot", "generic", "NCCL latencies, typical share of the link"
    starts, wires = zip(*(branch for fit in known for branch in _branches(fit, kind, size, ranks, link)))
    start, wire = _fastest(starts, wires)
    return start, wire, known[0].form, fits.label(known[0], known[0].op == kind), fits.note(known[0])


def _libraries(kind: str, fits: DeviceFits) -> tuple[Fit, ...]:
    """The engine's own kernel where it has one, and NCCL."""
    own = {"vllm": "vllm-custom", "sglang": "vllm-custom"}.get(fits.engine, "trtllm-custom")
    names = {"reduce_scatter": ("reduce_scatter", "all_gather")}.get(kind, (kind,))
    found = [next((f for n in names if (f := fits.find(n, ("bf16",), stacks=(s,)))), None) for s in (own, "nccl")]
    return tuple(f for f in found if f is not None)


def _ranks_beyond_two(ranks: int) -> float:
    """n - 2 up to the measured 8 ranks; each doubling beyond adds as much as the last measured one."""
    return min(ranks, MEASURED_RANKS) - 2 + max(0.0, math.log2(ranks / MEASURED_RANKS)) * MEASURED_RANKS / 2


def _wire_share(kind: str, ranks: int) -> float:
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks


def _branches(fit: Fit, kind: str, size: Num, ranks: int, link: float) -> list[tuple[float, Num]]:
    """(start, wire) [us] of the ring and, for a custom kernel, of the one-shot algorithm."""
    more, get = _ranks_beyond_two(ranks), fit.get
    growth = (min(ranks, MEASURED_RANKS) / 2) ** get("ke")
    ring = size * (1 + np.sqrt(get("sh") * 1e3 / np.maximum(size, 1.0))) * (_wire_share(kind, ranks) / (link * get("eb") * growth))
    out = [(get("a0") + get("a1") * more, ring)]
    if fit.form.startswith("one-shot"):
        out.append((get("b0") + get("b1") * more, size * ((ranks - 1) / (get("e1") * link))))
    return out


def _fastest(starts: tuple, wires: tuple) -> tuple[Num, Num]:
    """Start and wire time of the fastest branch, element by element."""
    start, wire = starts[0] + 0.0 * wires[0], wires[0]
    for s, w in zip(starts[1:], wires[1:]):
        quicker = s + w < start + wire
        start, wire = np.where(quicker, s, start), np.where(quicker, w, wire)
    return start, wire


def _generic(kind: str, size: Num, ranks: int, link: float, hop_us: float | None = None) -> tuple[Num, Num]:
    """Ring by NCCL's two quick protocols and, for all_reduce inside a machine, a one-shot kernel: the fastest [us]."""
    halves = 2 if kind == "all_reduce" else 1
    hops = halves * (ranks - 1) if kind != "all_to_all" else 1
    starts = [halves * base / 2 + hops * (hop_us or hop) for base, hop, _ in PROTOCOLS]
    fast = link * 1e6 >= NVLINK_BYTES_PER_S
    rate = link * ACHIEVED * (1.0 if fast or hop_us else 2.0 / ranks)  # cards on PCIe share the host's bridges
    grown = size * (1 + np.sqrt(HALF_SIZE[fast] / np.maximum(size, 1.0)))
    wires = [grown * (_wire_share(kind, ranks) / (rate * share)) for _, _, share in PROTOCOLS]
    if kind == "all_reduce" and hop_us is None:
        base, more, share = ONE_SHOT
        starts, wires = [*starts, base + more * (ranks - 2)], [*wires, size * ((ranks - 1) / (rate * share / ACHIEVED))]
    return _fastest(tuple(starts), tuple(wires))


def _across(op: Collective, inner: int, outer: int, cluster: Cluster, fits: DeviceFits | None) -> tuple[Num, Num]:
    """Start and wire time [us] over several machines; each device has its own way out."""
    out = (cluster.scaleout_bytes_per_s or _link_us(cluster) * 1e6) * 1e-6
    size = op.message_bytes
    if op.kind == "all_to_all":  # what leaves the machine, beside what stays inside
        away = _generic("all_to_all", size, outer, out, NETWORK_HOP_US)
        parts = [_inside("all_to_all", size / outer, inner, cluster, fits)[:2], away]
    elif op.kind == "all_reduce":
        parts = [_inside("reduce_scatter", size, inner, cluster, fits)[:2], _generic("all_reduce", size / inner, outer, out, NETWORK_HOP_US),
                 _inside("all_gather", size, inner, cluster, fits)[:2]]
    else:
        parts = [_inside(op.kind, size, inner, cluster, fits)[:2], _generic(op.kind, size / inner, outer, out, NETWORK_HOP_US)]
    return sum(p[0] for p in parts), sum(p[1] for p in parts)
