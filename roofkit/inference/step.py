"""Step: one forward pass of a model on a machine, its time by op and by category, its memory. Room: inference.

`estimate` joins the rooms below: inventory -> cost -> Step. A Step is frozen; its tables are built on first use, so an
estimate alone stays cheap. Fields of the workload may be arrays: then time_s, memory and every term are arrays and `at(i)`
gives one point's tables.
"""
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.cost.bounds import bound_parts, peak_of
from roofkit.cost.energy import Energy, step_energy
from roofkit.cost.memory import Memory, largest_batch, memory
from roofkit.cost.model import CostedOp
from roofkit.cost.pricing import cost_ops
from roofkit.errors import PlanError, WorkloadError
from roofkit.hardware.device import Device
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import default_cluster
from roofkit.inference.engines import EngineProfile, load_engine
from roofkit.inference.hints import hint
from roofkit.ops.inventory import check_plan, draft_inventory, inventory, pipeline_scale
from roofkit.ops.kinds import KIND, Num, Op
from roofkit.ops.plan import Plan
from roofkit.ops.site import Site, site_of
from roofkit.ops.workload import Decode, Workload
from roofkit.tables import BREAKDOWN, OPS_COLUMNS


@dataclass(frozen=True, eq=False)
class Step:
    """One forward step. Times in seconds on one device's timeline; arrays when the workload holds arrays.

    costed   ops with their times; site   sizes of a microbatch
    host_s, exposed_host_s, bubble_s   what the step waits for besides its ops
    """

    arch: Architecture
    cluster: Cluster
    plan: Plan
    workload: Workload
    cost_model: str
    engine: str | None
    site: Site
    costed: tuple[CostedOp, ...]
    host_s: Num = 0.0
    exposed_host_s: Num = 0.0
    bubble_s: Num = 0.0

    @cached_property
    def memory(self) -> Memory:
        """Bytes on the fullest device by component, with .fits and .headroom."""
        return memory(self.arch, self.cluster.device, self.plan, self.workload, _memory_share(self.engine))

    @cached_property
    def device_s(self) -> Num:
        """Sum of the ops [s]."""
        return sum(c.time_s for c in self.costed)

    @cached_property
    def time_s(self) -> Num:
        """The whole step [s]: ops, pipeline bubble, host."""
        return self.device_s + self.bubble_s + self.exposed_host_s + self.host_s

    @cached_property
    def ideal_s(self) -> Num:
        """Physical bound of the step: its ops at datasheet rates, one after the other, plus the bubble's share of that [s]."""
        bound = sum(c.ideal_s for c in self.costed)
        return bound * (1.0 + self.bubble_s / self.device_s)

    def breakdown(self) -> pd.Series:
        """Seconds by tables.BREAKDOWN; the values sum to time_s. Launch is taken out of each op's category."""
        parts = dict.fromkeys(BREAKDOWN, 0.0)
        for c in self.costed:
            parts["launch"] = parts["launch"] + c.launch_s
            parts[c.op.category] = parts[c.op.category] + c.time_s - c.launch_s
        parts.update(host=self.host_s, exposed_host=self.exposed_host_s, pipeline_bubble=self.bubble_s)
        return pd.Series(parts, dtype=float if np.ndim(self.time_s) == 0 else object)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """One row per op, columns of tables.OPS_COLUMNS. Raises WorkloadError for a sweep: use at(i).ops."""
        if np.ndim(self.time_s):
            raise WorkloadError(f"this step holds {np.size(self.time_s)} points; take one with step.at(i).ops")
        rows = [_row(c, self.cluster, self.device_s) for c in self.costed]
        return pd.DataFrame(rows, columns=list(OPS_COLUMNS))

    def at(self, index: int) -> "Step":
        """The step of one point of a sweep, priced alone; index into the flattened broadcast of the workload's arrays."""
        names = [f for f in self.workload.__slots__ if f != "phase"]
        arrays = np.broadcast_arrays(*[getattr(self.workload, n) for n in names])
        point = replace(self.workload, **{n: int(a.reshape(-1)[index]) for n, a in zip(names, arrays, strict=True)})
        return estimate(self.arch, self.cluster, self.plan, point, self.cost_model, self.engine)

    @property
    def new_tokens(self) -> Num:
        """Tokens that the step computes over all replicas [tokens]."""
        return sum(p.tokens for p in self.site.parts) * self.site.microbatches * self.plan.dp

    @property
    def tok_per_s(self) -> Num:
        """Output tokens per second of the whole plan in decode; prompt tokens per second in prefill [tokens/s]."""
        done = self.workload.batch if isinstance(self.workload, Decode) else self.new_tokens
        return done / self.time_s

    @property
    def mfu(self) -> Num:
        """Model FLOP utilisation: useful FLOPs of products and attention, each over its own dense peak, / time [0..1]."""
        busy = sum(c.op.flops / peak for c in self.costed if (peak := peak_of(c.op, self.cluster)))
        return busy / self.time_s

    @property
    def mbu(self) -> Num:
        """Memory bandwidth utilisation: compulsory bytes / (datasheet bandwidth x time) [0..1]."""
        return sum(c.op.bytes_moved for c in self.costed) / (self.cluster.device.hbm_bytes_per_s * self.time_s)

    @cached_property
    def energy(self) -> Energy:
        """Joules of one device over the step by where they go; calibration says how well its power is known."""
        return step_energy(self.costed, self.cluster.device, self.time_s)

    @property
    def energy_j(self) -> Num:
        """Energy of the step over all devices of the plan, boards only, without hosts and cooling [J]."""
        return self.energy.total_j * self.plan.n_devices

    @property
    def j_per_token(self) -> Num:
        """energy_j per token that the step computes [J/token]."""
        return self.energy_j / self.new_tokens

    @property
    def calibration(self) -> str:
        """Weakest calibration among ops that take over 1 % of the step: bound | fitted | inherited | generic."""
        order = ("bound", "fitted", "inherited", "generic")
        seen = {c.timing.calibration for c in self.costed if np.any(c.time_s > 0.01 * self.device_s)}
        return max(seen, key=order.index, default="generic")

    def largest_batch(self) -> int:
        """Largest batch of this workload that fits [sequences]; 0 when none does."""
        return largest_batch(self.arch, self.cluster.device, self.plan, self.workload, _memory_share(self.engine))

    @cached_property
    def checks(self) -> dict[str, bool]:
        """Physical checks on this result; all must hold."""
        bounded = all(np.all(c.time_s >= c.ideal_s * (1 - 1e-12)) for c in self.costed)
        total = self.breakdown().sum()
        watts = self.energy.average_w
        return {"average power between nothing and the board's limit": bool(np.all((watts >= 0) & (watts <= self.cluster.device.tdp_w * 1.05))),
                "no op beats its bound": bounded, "breakdown sums to the step": bool(np.allclose(np.asarray(total, float), self.time_s, rtol=1e-9)),
                "step not below its bound": bool(np.all(self.time_s >= self.ideal_s * (1 - 1e-12)))}


def _memory_share(engine: str | None) -> float | None:
    return load_engine(engine).memory_share if engine else None


def estimate(arch: Architecture, device_or_cluster: Device | Cluster, plan: Plan | None = None, workload: Workload | None = None,
             cost_model: str = "calibrated", engine: str | None = None, draft: bool = False) -> Step:
    """Time, breakdown and memory of one forward step.

    device_or_cluster   a Device means its usual machine (hardware.presets.default_cluster)
    plan                Plan() when None;  workload   Prefill, Decode or MixedBatch; fields may be arrays
    cost_model          "calibrated" | "simple" | "ideal"
    engine              None = device time with kernels replayed as a graph; "vllm" | "sglang" | "trtllm" add host time and
                        take that engine's kernels
    draft               price one pass of the model's own multi-token-prediction layers instead of the model; memory stays the model's
    Raises PlanError, WorkloadError, CostModelError. A step that does not fit is priced all the same: see step.memory.fits.
    """
    if workload is None:
        raise WorkloadError("estimate needs a workload: rk.Decode(batch, context_tokens) or rk.Prefill(batch, prompt_tokens)")
    plan = plan or Plan()
    if not isinstance(arch, Architecture):
        raise PlanError(f"the first argument is {type(arch).__name__}, not an architecture; use rk.load_architecture(name)")
    cluster = machine_for(device_or_cluster, plan)
    check_plan(plan, cluster.n_devices)
    site = site_of(arch, plan, workload)
    plan = site.plan  # formats of the checkpoint filled in
    profile = load_engine(engine) if engine else None
    ops = (draft_inventory if draft else inventory)(arch, plan, workload)
    costed = tuple(cost_ops(ops, cluster, cost_model, profile.kernels if profile else None))
    step = Step(arch, cluster, plan, workload, cost_model, engine, site, costed)
    if plan.pp > 1 and not draft:
        busy, idle = pipeline_scale(arch, plan, site.microbatches, workload.phase)
        step = replace(step, bubble_s=step.device_s * idle / busy)
    return _with_host(step, profile) if profile and cost_model != "ideal" and not draft else step


def machine_for(device_or_cluster: Device | Cluster, plan: Plan) -> Cluster:
    """A Cluster as given; for a Device its usual machine, as many of them as the plan needs."""
    if isinstance(device_or_cluster, Cluster):
        return device_or_cluster
    if not isinstance(device_or_cluster, Device):
        raise PlanError(f"{device_or_cluster!r} is neither a Device nor a Cluster; use rk.load_device(name) or rk.load_cluster(name)")
    cluster = default_cluster(device_or_cluster)
    nodes = -(-plan.n_devices // cluster.devices_per_node)
    return cluster if nodes <= cluster.nodes else replace(cluster, nodes=nodes)


def _with_host(step: Step, profile: EngineProfile) -> Step:
    """Host time of the engine: added after graph replay; a step with a prefill also cannot beat the eager launch of its layers."""
    running = sum(p.batch for p in step.site.parts)
    host = profile.host_s + profile.host_per_request_s * running
    exposed = 0.0
    if step.workload.phase != "decode":
        exposed = np.maximum(profile.eager_layer_s * step.arch.n_layers / step.plan.pp + profile.eager_step_s - step.device_s, 0.0)
    return replace(step, host_s=host, exposed_host_s=exposed)


def _row(costed: CostedOp, cluster: Cluster, total: float) -> dict:
    op, timing, time_s = costed.op, costed.timing, float(costed.time_s)
    calls = float(op.count)
    flops, moved, peak = float(op.flops), float(op.bytes_moved), peak_of(op, cluster)
    terms = {k: float(getattr(timing, k)) * calls for k in ("compute_s", "memory_s", "network_s", "launch_s")}
    intensity = flops / moved if moved else np.nan
    roof = np.nan if peak is None and not moved else min(peak or np.inf, intensity * cluster.device.hbm_bytes_per_s)
    bound = _bound(costed, cluster)
    return {"name": op.name, "category": op.category, "kind": KIND[type(op)], "count": calls, **_shape(op), "flops": flops,
            "flops_padded": float(flops if timing.flops_padded is None else timing.flops_padded * calls), "hbm_bytes": moved,
            "network_bytes": float(op.network_bytes), "intensity": intensity, "flops_per_s": flops / time_s if time_s else 0.0, **terms,
            "time_s": time_s, "share": time_s / total if total else 0.0, "bound": bound, "ideal_s": float(costed.ideal_s),
            "roof_flops_per_s": roof, "form": timing.form, "calibration": timing.calibration, "hint": hint(op, bound)}


def _bound(costed: CostedOp, cluster: Cluster) -> str:
    """What limits an op, one of tables.BOUNDS: its launch when that is over half of its time, else its side of the roofline;
    right of the ridge it is memory all the same when the model's memory term is the longer one (passes over activations)."""
    if costed.launch_s > 0.5 * costed.time_s:
        return "launch"
    compute, moved, network = bound_parts(costed.op, cluster)
    if network:
        return "network"
    return "compute" if compute > moved and costed.timing.compute_s >= costed.timing.memory_s else "memory"


def _shape(op: Op) -> dict[str, float]:
    return {k: float(getattr(op, k, np.nan)) for k in ("m", "n", "k")}
