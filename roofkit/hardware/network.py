"""Cluster: devices, their links and how far each reaches. Room: hardware. Bandwidths are per direction and device.

A cluster comes from a machine preset (presets.load_cluster) or is built by hand; then links that are not given are
taken from the device's own figures, and every such choice is written into `assumptions`.
"""
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from roofkit.errors import DataError, PlanError
from roofkit.hardware.device import Device, Fact, Figure

ASSUMED_PCIE = Figure(31.5e9, 31.5, "GB/s", "assumed", "C", "PCIe 4.0 x16 line rate, the usual slot", "the preset has no host link")
ASSUMED_SCALEOUT = Figure(12.5e9, 12.5, "GB/s", "assumed", "C", "one 100 Gb/s adapter per device, a modelling choice",
                          "the preset names no usual adapter")


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` machines of `devices_per_node` devices.

    scaleup_domain        devices joined by the fast links (NVLink, ICI, Infinity Fabric); 1 = cards that meet over PCIe
    scaleup_bytes_per_s   per device and direction, all links together [bytes/s]; 0 = unknown
    p2p_bytes_per_s       what one pair of the domain sees [bytes/s]
    scaleout_bytes_per_s  per device and direction between nodes [bytes/s]; 0 = none
    topology              switched | full-mesh | mesh | cube-mesh | torus | ring | dragonfly | pair | pcie | none
    in_switch_reduction   the switches add (NVLink SHARP), so an all-reduce moves about half the bytes
    figures, facts        what the links and counts rest on, each with its source

    None (for the domain: 0) means: take it from the device. Raises DataError for a device that is none or a bandwidth
    that cannot be, PlanError for a count below one.
    """

    device: Device
    devices_per_node: int
    nodes: int = 1
    scaleup_domain: int = 0
    scaleup_bytes_per_s: float | None = None
    p2p_bytes_per_s: float | None = None
    scaleout_bytes_per_s: float | None = None
    topology: str = ""
    in_switch_reduction: bool | None = None
    name: str = ""
    label: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, self.label, self.device, self.devices_per_node, self.nodes))

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise DataError(f"Cluster: device is {self.device!r}; give a Device, for example rk.load_device('h100-sxm-80gb')")
        for key, least in (("devices_per_node", 1), ("nodes", 1), ("scaleup_domain", 0)):
            object.__setattr__(self, key, _count(key, getattr(self, key), least))
        figures, assumptions = dict(self.figures), list(self.assumptions)
        given = {key: getattr(self, key) for key in ("scaleup_bytes_per_s", "p2p_bytes_per_s", "scaleout_bytes_per_s")}
        for key, value in given.items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise DataError(f"Cluster: {key} is {value!r}; give bytes per second and direction, 0 where there is no such link")
        domain = self.scaleup_domain or _default_domain(self.device, self.devices_per_node, self.nodes)
        up, p2p, out = given.values()
        if up is None:
            up = _default_scaleup(self.device, self.devices_per_node, self.nodes, domain, figures, assumptions)
        if p2p is None:
            pair = self.device.value("scaleup_p2p_bandwidth_per_direction") if domain > 1 else None
            p2p = min(pair or up, up)
        if p2p > up * (1 + 1e-9):
            raise DataError(f"Cluster: p2p_bytes_per_s {p2p:g} exceeds scaleup_bytes_per_s {up:g}; the first is what one pair sees, "
                            f"the second all links of a device together, both in one direction")
        if out is None:
            out = _default_scaleout(self.device, self.nodes, figures, assumptions)
        topology = self.topology or (self.device.usual_topology if domain > 1 else "") or _plain_topology(self.devices_per_node, domain)
        adds = self.device.in_switch_reduction and domain > 1 if self.in_switch_reduction is None else self.in_switch_reduction
        n = self.devices_per_node * self.nodes
        for key, value in (("scaleup_domain", domain), ("scaleup_bytes_per_s", float(up)), ("p2p_bytes_per_s", float(p2p)),
                           ("scaleout_bytes_per_s", float(out)), ("topology", topology), ("in_switch_reduction", bool(adds)),
                           ("label", self.label or (self.device.label if n == 1 else f"{n} x {self.device.label}")),
                           ("figures", figures), ("assumptions", tuple(assumptions))):
            object.__setattr__(self, key, value)

    @property
    def n_devices(self) -> int:
        return self.devices_per_node * self.nodes

    @property
    def pcie_bytes_per_s(self) -> float:
        """Host link of one device and direction [bytes/s]: where cards of a node meet that no fast link joins."""
        return self.device.value("pcie_bandwidth_per_direction") or ASSUMED_PCIE.value

    @property
    def unverified(self) -> tuple[str, ...]:
        """Keys of the machine's figures with confidence C; the device lists its own."""
        return tuple(k for k, f in self.figures.items() if not f.verified)

    def with_nodes(self, nodes: int) -> "Cluster":
        """The same machine, `nodes` of them. Raises PlanError below one."""
        return replace(self, nodes=nodes, label=self.label if nodes == self.nodes else f"{self.label}, {nodes} nodes")

    def reach(self, ranks: int) -> str:
        """"one" | "scaleup" | "scaleout": the slowest link that a group of `ranks` neighbours crosses."""
        if ranks <= 1:
            return "one"
        if ranks > self.n_devices:
            raise PlanError(f"{self.label or self.name}: a group of {ranks} devices needs more than the {self.n_devices} there are; "
                            f"use fewer ranks or a larger cluster")
        return "scaleup" if ranks <= max(self.scaleup_domain, self.devices_per_node) else "scaleout"

    def link_bytes_per_s(self, ranks: int) -> float:
        """What one device of a group of `ranks` neighbours can send in one direction [bytes/s]; inf for one rank.

        Without switches a device reaches only the links to its peers: two MI300X see 64 GB/s, eight 448. Beyond bridged
        pairs, cards of a node meet over PCIe. 0 = unknown. Raises PlanError like `reach`.
        """
        reach = self.reach(ranks)
        if reach == "one":
            return math.inf
        if reach == "scaleout":
            return self.scaleout_bytes_per_s
        if ranks <= self.scaleup_domain or self.scaleup_domain == 1:
            return min(self.scaleup_bytes_per_s, (ranks - 1) * self.p2p_bytes_per_s)
        return min(self.scaleup_bytes_per_s, self.pcie_bytes_per_s)


def _count(key: str, value, least: int) -> int:
    try:
        n = operator.index(value)
    except TypeError:
        n = least - 1
    if n < least:
        raise PlanError(f"Cluster: {key} is {value!r}; give a whole number of at least {max(least, 1)}")
    return n


def _default_domain(device: Device, per_node: int, nodes: int) -> int:
    """How far the fast links of a hand-built cluster reach: the node, or racks and pods where the usual machine is one."""
    largest = int(device.value("scaleup_domain", 1))
    if device.spans_nodes:
        return max(1, min(largest, per_node * nodes))
    if largest < per_node and largest < 8:  # bridges join two or four cards; a fuller node meets over PCIe
        return 1
    return per_node if largest > 1 else 1


def _default_scaleup(device: Device, per_node: int, nodes: int, domain: int, figures: dict, assumptions: list) -> float:
    if per_node * nodes == 1:
        return device.value("scaleup_bandwidth_per_direction", 0.0)
    own = device.figures.get("scaleup_bandwidth_per_direction")
    bridged_apart = domain == 1 and per_node > 1 and device.value("scaleup_domain", 1) > 1
    figure = own if own and not bridged_apart else device.figures.get("pcie_bandwidth_per_direction", ASSUMED_PCIE)
    figures["scaleup_bandwidth_per_direction_per_device"] = figure
    link = "its own links" if figure is own else "PCIe"
    assumptions.append(f"links between devices: {figure.printed:g} {figure.unit} per device and direction over {link}, {figure.kind} ({figure.source})")
    return figure.value


def _default_scaleout(device: Device, nodes: int, figures: dict, assumptions: list) -> float:
    typical = device.figures.get("scaleout_bandwidth_per_direction_typical")
    if nodes == 1:
        return typical.value if typical else 0.0
    figure = typical or ASSUMED_SCALEOUT
    figures["scaleout_bandwidth_per_direction_per_device"] = figure
    assumptions.append(f"network between nodes: {figure.printed:g} {figure.unit} per device and direction, typical, assumed ({figure.source})")
    return figure.value


def _plain_topology(per_node: int, domain: int) -> str:
    if domain > 1:
        return "switched"
    return "pcie" if per_node > 1 else "none"
