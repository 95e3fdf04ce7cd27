"""Cluster: devices, their links and how far each reaches. Room: hardware. Bandwidths are per direction and device."""
from collections.abc import Mapping
from dataclasses import dataclass, field

from roofkit.errors import PlanError
from roofkit.hardware.device import Device, Figure


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` machines of `devices_per_node` devices.

    scaleup_domain        devices joined by the fast links (NVLink, ICI, Infinity Fabric); 1 = cards that meet over PCIe
    scaleup_bytes_per_s   per device and direction, all links together [bytes/s]; 0 = unknown
    p2p_bytes_per_s       what one pair of the domain sees [bytes/s]
    scaleout_bytes_per_s  per device and direction between nodes [bytes/s]; 0 = none
    in_switch_reduction   the switches add (NVLink SHARP), so an all-reduce moves about half the bytes
    """

    device: Device
    devices_per_node: int
    nodes: int = 1
    scaleup_domain: int = 1
    scaleup_bytes_per_s: float = 0.0
    p2p_bytes_per_s: float = 0.0
    scaleout_bytes_per_s: float = 0.0
    topology: str = "none"
    in_switch_reduction: bool = False
    name: str = ""
    label: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    @property
    def n_devices(self) -> int:
        return self.devices_per_node * self.nodes

    def reach(self, ranks: int) -> str:
        """"one" | "scaleup" | "scaleout": the slowest link that a group of `ranks` neighbours crosses."""
        if ranks <= 1:
            return "one"
        if ranks > self.n_devices:
            raise PlanError(f"{self.label or self.name}: a group of {ranks} devices needs more than the {self.n_devices} there are; "
                            f"use fewer ranks or a larger cluster")
        return "scaleup" if ranks <= max(self.scaleup_domain, self.devices_per_node) else "scaleout"
