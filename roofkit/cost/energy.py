"""Energy: joules and average power of ops on a device. Room: cost.

  E = P t,  P = floor + D (1 + (D / (limit - floor))^s)^(-1/s),  D = (e_flop FLOP + e_hbm bytes + e_l2 bytes + e_link bytes)/t + busy share
`floor` is what the board draws while kernels run and do nothing; D the demand of the work; the sum saturates at the board's
limit, because clocks and voltage fall there. `share` is the part of the SMs at work times the part of the call that is not
launch; kernels that exchange data spin on their SMs for the whole call. While a step waits for its host the board draws
floor + rest x (mean power of the ops - floor): that time is not idle (sampling, copies, kernels that nobody priced).
A cap below the limit stretches time instead: the same work at (cap - floor).
Energy per byte is path-level: all that moves with a byte from DRAM through L2 to an SM. Device-level figures (the DRAM
die alone, 3.9 pJ/bit for HBM2) are kept beside them and never enter a sum.
Files: data/roofkit_data/energy/<device>.toml. Devices without one get the top-down split of generic.toml, marked `generic`: shares
of the power between floor and limit at full rate; `busy` and `rest` are fitted there (roofkit/evidence/energy_rows.py), the others assumed.
"""
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np

from roofkit.cost.bounds import math_of
from roofkit.cost.model import CostedOp
from roofkit.errors import CostModelError, DataError
from roofkit.hardware.device import Device
from roofkit.ops.kinds import Gemm, GroupedGemm, Num
from roofkit.units import to_base

LINK_J_PER_BYTE = 80e-12  # assumed: 10 pJ/bit, serial links and their controllers at both ends
SHARES = ("floor", "flop", "hbm", "l2", "busy", "sharpness", "rest")  # of generic.toml
_NEEDED = {"floor": "W", "busy": "W", "hbm_path": "J/byte", "l2_path": "J/byte"}


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Energy constants of one device.

    floor_w, limit_w   power of running without work; board limit [W];  busy_w   of all SMs being occupied [W]
    flop_j             arithmetic -> energy of one FLOP, path-level [J/FLOP]
    hbm_j, l2_j, link_j   energy of a byte from device memory, from L2, over a link, path-level [J/byte]
    sharpness          how abruptly power saturates;  device_hbm_j   the DRAM die alone, for comparison only [J/byte]
    rest               share of the ops' mean dynamic power that is drawn while a step waits for its host [0..1]
    calibration        fitted | inherited | generic
    """

    device: str
    floor_w: float
    limit_w: float
    busy_w: float
    flop_j: Mapping[str, float]
    hbm_j: float
    l2_j: float
    link_j: float
    sharpness: float
    device_hbm_j: float
    calibration: str
    source: str
    rest: float = 0.0

    def joules_per_flop(self, math: str) -> float:
        """Energy of one FLOP of an arithmetic [J]; an arithmetic without a constant takes the dearest known one."""
        return self.flop_j.get(math) or max(self.flop_j.values())

    def power_w(self, demand_w: Num) -> Num:
        """Board power at that demand of work [W]: floor + demand at first, never above the limit."""
        room = self.limit_w - self.floor_w
        relative = np.minimum(np.asarray(demand_w, float) / room, 1e6)
        return self.floor_w + room * relative / (1 + relative**self.sharpness) ** (1 / self.sharpness)


@dataclass(frozen=True, slots=True, eq=False)
class Energy:
    """Joules of an op (all its calls) or of a step, by where they go; the parts add up to total_j.

    static_j   floor power times time;  compute_j, hbm_j, l2_j, busy_j, link_j   shares of the dynamic part, scaled together where the
    board saturates;  time_s   stretched where a cap binds
    """

    time_s: Num
    static_j: Num
    compute_j: Num
    hbm_j: Num
    l2_j: Num
    busy_j: Num
    link_j: Num
    calibration: str

    @property
    def total_j(self) -> Num:
        return self.static_j + self.dynamic_j

    @property
    def dynamic_j(self) -> Num:
        return self.compute_j + self.hbm_j + self.l2_j + self.busy_j + self.link_j

    @property
    def average_w(self) -> Num:
        """Mean power of the board [W]."""
        return self.total_j / np.maximum(self.time_s, 1e-30)


def op_energy(costed: CostedOp, device: Device, *, cap_w: float | None = None) -> Energy:
    """Energy of all calls of a costed op on one device.

    cap_w   power limit set below the board's [W]; the op takes longer where it would need more
    Raises CostModelError for a cap that the floor alone exceeds.
    """
    model, time = power_model(device), np.asarray(costed.time_s, float)
    (compute, hbm, l2, link), occupied_s = demand_parts(costed, device, model)
    return _settled(model, time, [compute, hbm, l2, model.busy_w * occupied_s, link], cap_w)


def demand_parts(costed: CostedOp, device: Device, model: PowerModel) -> tuple[tuple[Num, Num, Num, Num], Num]:
    """((arithmetic, device memory, L2, links) [J], seconds for which all SMs together are occupied) of an op before power saturates."""
    op, time = costed.op, np.asarray(costed.time_s, float)
    math = math_of(op)
    compute = op.flops * model.joules_per_flop(math) if math else 0.0
    l2_bytes = operand_bytes(op) + op.bytes_moved
    active = np.where(np.asarray(op.network_bytes) > 0, 1.0, np.clip(1 - costed.launch_s / np.maximum(time, 1e-30), 0, 1))
    return (compute, op.bytes_moved * model.hbm_j, l2_bytes * model.l2_j, op.network_bytes * model.link_j), occupancy(op, device) * active * time


def step_energy(costed: Iterable[CostedOp], device: Device, time_s: Num, *, cap_w: float | None = None) -> Energy:
    """Energy of a step on one device: its ops, and for the rest of `time_s` [s] (host, bubbles) floor power and `rest` of the ops' dynamic power.

    The latter is counted in busy_j. Without ops the rest is floor power alone.
    """
    model = power_model(device)
    parts = [op_energy(c, device, cap_w=cap_w) for c in costed]
    busy = sum(p.time_s for p in parts)
    own = sum(c.time_s for c in costed)
    idle = np.maximum(np.asarray(time_s, float) - own, 0.0)
    total = {k: sum(getattr(p, k) for p in parts) for k in ("static_j", "compute_j", "hbm_j", "l2_j", "busy_j", "link_j")}
    total["static_j"] = total["static_j"] + model.floor_w * idle
    dynamic_w = sum(p.dynamic_j for p in parts) / np.maximum(busy, 1e-30)
    total["busy_j"] = total["busy_j"] + model.rest * dynamic_w * idle
    return Energy(busy + idle, **total, calibration=model.calibration)


def occupancy(op, device: Device) -> Num:
    """Share of the SMs that have work [0..1]: output tiles of a product, with K-splits; 1 for other ops."""
    if not isinstance(op, Gemm | GroupedGemm):
        return 1.0
    tiles = np.ceil(np.asarray(op.m, float) / 128) * np.ceil(op.n / 128) * (op.batch if isinstance(op, Gemm) else np.maximum(op.distinct, 1.0))
    split = np.clip(np.minimum(np.floor(device.sm_count / tiles), op.k / 256), 1, 16)
    return np.minimum(1.0, tiles * split / device.sm_count)


def operand_bytes(op) -> Num:
    """Bytes that tiles of 128 x 128 load again from L2 while they compute [bytes]; 0 for ops without products in tiles."""
    if not isinstance(op, Gemm | GroupedGemm):
        return 0.0
    return op.flops / 2 * (2 / 128) * op.format.act_bytes_per_el


def _settled(model: PowerModel, time: Num, parts: list[Num], cap_w: float | None) -> Energy:
    demand = sum(parts) / np.maximum(time, 1e-30)
    dynamic_w = model.power_w(demand) - model.floor_w
    scale = dynamic_w / np.maximum(demand, 1e-30)
    if cap_w is not None:
        if not cap_w > model.floor_w:
            raise CostModelError(f"power cap of {cap_w:g} W: {model.device} draws {model.floor_w:.0f} W before any work; set the cap higher")
        time = time * np.maximum(1.0, dynamic_w / (cap_w - model.floor_w))
    return Energy(time, model.floor_w * time, *[np.asarray(part * scale, float) for part in parts], calibration=model.calibration)


@lru_cache(maxsize=64)
def power_model(device: Device) -> PowerModel:
    """Fitted constants of a device, those of its sibling, or the top-down split. Raises CostModelError without a power limit."""
    name = device.name if _file(device.name).is_file() else _siblings().get(device.name, "")
    if device.tdp_w and name and _file(name).is_file():
        return _read(name, device, device.tdp_w)
    return top_down(device)


@lru_cache(maxsize=64)
def top_down(device: Device) -> PowerModel:
    """The device's power limit divided by the shares of generic.toml. Raises CostModelError without a power limit."""
    limit, share = device.tdp_w, generic()
    if not limit:
        raise CostModelError(f"{device.label}: no power figure is known; add [tdp] with its source to its preset")
    floor = device.value("active_floor_power") or share["floor"] * limit
    room = limit - floor
    peaks = {m: device.peak_flops_per_s(m) for m in ("fp32", "bf16", "fp16", "fp8", "fp4", "int8") if device.has_math(m)}
    bandwidth = device.hbm_bytes_per_s
    return PowerModel(device.name, floor, limit, share["busy"] * room, {m: share["flop"] * room / p for m, p in peaks.items()},
                      share["hbm"] * room / bandwidth, share["l2"] * room / (3 * bandwidth), LINK_J_PER_BYTE, share["sharpness"], 31.2e-12, "generic",
                      "top-down: power between floor and limit divided by full-rate use", share["rest"])


@lru_cache(maxsize=1)
def generic() -> dict[str, float]:
    """Shares of the top-down split, keys SHARES, from generic.toml. Raises DataError for a share that is missing or has no source."""
    doc = tomllib.loads(_file("generic").read_text(encoding="utf-8"))
    for key in SHARES:
        if not doc.get(key, {}).get("source"):
            raise DataError(f"energy/generic.toml: [{key}] is missing or has no source")
    return {key: float(doc[key]["value"]) for key in SHARES}


def _file(name: str):
    return files("roofkit_data") / "energy" / f"{name}.toml"


@lru_cache(maxsize=1)
def _siblings() -> dict[str, str]:
    return {"gb200-186gb": "b200-sxm-180gb", "b300-sxm-270gb": "b200-sxm-180gb", "gb300-279gb": "b200-sxm-180gb"}


def _read(name: str, device: Device, limit: float) -> PowerModel:
    where = f"energy/{name}.toml"
    doc = tomllib.loads(_file(name).read_text(encoding="utf-8"))
    value = {}
    for key, dimension in {**_NEEDED, "hbm_device": "J/byte"}.items():
        entry = doc.get(key)
        if not entry or not entry.get("source"):
            raise DataError(f"{where}: [{key}] is missing or has no source")
        value[key] = to_base(entry["value"], entry["unit"], dimension, f"{where} [{key}]")
    flop = {math: to_base(e["value"], e["unit"], "J/FLOP", f"{where} [flop.{math}]") for math, e in doc.get("flop", {}).items()}
    own = name == device.name
    return PowerModel(device.name, value["floor"] if own else value["floor"] * limit / doc["limit"]["value"], limit, value["busy"], flop, value["hbm_path"],
                      value["l2_path"], LINK_J_PER_BYTE, doc["sharpness"]["value"], value["hbm_device"], "fitted" if own else "inherited", doc["source"],
                      float(doc["rest"]["value"]) if "rest" in doc else generic()["rest"])
