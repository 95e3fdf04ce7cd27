"""The step explorer's page: one selection -> everything the page shows. Room: views.

`step_view` never raises for what a visitor can choose: a selection that cannot be computed comes back with its reason and
the nearest selection that works.
"""
from dataclasses import replace

import pandas as pd

from roofkit.errors import RoofkitError
from roofkit.inference.step import Step, estimate, machine_for
from roofkit.tables import CATEGORY_LABELS
from roofkit.units import gb, percent, si
from roofkit.views.choices import Selection, architecture_of, completed, device_of, plan_of, step_controls, workload_of
from roofkit.views.explain import Explanations
from roofkit.views.nearest import nearest
from roofkit.views.provenance import badges, notes, provenance
from roofkit.views.values import Problem, Roof, Statement, StepView, Tile

__all__ = ["step_controls", "step_view"]


def step_of(selection: Selection) -> Step:
    """The estimate behind a selection. Raises RoofkitError with the reason when it cannot be computed."""
    chosen = completed(selection)
    arch, device, plan, workload = architecture_of(chosen), device_of(chosen), plan_of(chosen), workload_of(chosen)
    engine = None if chosen["engine"] == "none" else str(chosen["engine"])
    return estimate(arch, machine_for(device, plan), plan, workload, str(chosen["cost_model"]), engine)


def _works(selection: Selection) -> bool:
    try:
        return bool(step_of(selection).memory.fits)
    except RoofkitError:
        return False


def step_view(selection: Selection) -> StepView:
    """The page for a selection; with a `problem` when it cannot be computed or does not fit."""
    chosen = completed(selection)
    try:
        step = step_of(chosen)
    except RoofkitError as err:
        fix, label = nearest(chosen, step_controls(chosen), _works)
        return StepView(chosen, "Not possible as chosen", problem=Problem(str(err), fix, label))
    view = _page(chosen, step)
    if step.memory.fits:
        return view
    fix, label = nearest(chosen, step_controls(chosen), _works)
    return replace(view, problem=Problem(_too_large(step), fix, label))


def _page(chosen: Selection, step: Step) -> StepView:
    ops = step.ops.sort_values("time_s", ascending=False, kind="stable", ignore_index=True)
    breakdown = step.breakdown()
    room = _fit_words(step)
    return StepView(
        selection=chosen, title=_title(step), tiles=_tiles(step, room), statements=_statements(step, ops, breakdown, room), ops=ops, breakdown=breakdown,
        memory=step.memory.series, roofs=_roofs(step), explain=Explanations(step, ops),
        badges=badges(step), provenance=provenance(step), notes=notes(step), alt=_alt(step, ops, breakdown))


def _title(step: Step) -> str:
    machine = step.cluster.device.label
    size = f"{step.plan.n_devices} × {machine}" if step.plan.n_devices > 1 else f"one {machine}"
    return f"{step.arch.name}: {_what(step)} on {size}"


def _what(step: Step) -> str:
    w = step.workload
    if w.phase == "prefill":
        return f"prefill of {w.batch:,} × {w.prompt_tokens:,} tokens"
    return f"decode step of {w.batch:,} sequences at context {w.context_tokens:,}"


def _tiles(step: Step, room: str) -> tuple[Tile, ...]:
    need, w = step.memory, step.workload
    time, per_device = step.time_s, step.tok_per_s / step.plan.n_devices
    decode = w.phase == "decode"
    tiles = [Tile("time", "time per step" if decode else "time to prefill", si(time, "s"),
                  f"{time / step.ideal_s:.2f}× its physical bound of {si(step.ideal_s, 's')}", number=time, better="lower")]
    if decode:
        tiles.append(Tile("user", "tokens/s per user", f"{1 / time:,.3g}", "1 / time per step", number=1 / time, better="higher"))
    tiles += [
        Tile("throughput", "output tokens/s, all users" if decode else "prompt tokens/s", f"{step.tok_per_s:,.0f}", f"{per_device:,.0f} per device",
             number=step.tok_per_s, better="higher"),
        Tile("mfu", "of peak FLOP/s (MFU)", percent(step.mfu), f"peak {si(step.cluster.device.peak_flops_per_s(step.plan.linear().math), 'FLOP/s')} dense",
             number=step.mfu, better="higher"),
        Tile("mbu", "of memory bandwidth (MBU)", percent(step.mbu), f"peak {si(step.cluster.device.hbm_bytes_per_s, 'B/s')}", number=step.mbu, better="higher"),
        Tile("energy", "energy per token", si(step.j_per_token, "J"), f"{step.energy.average_w:,.0f} W per board on average ({step.energy.calibration})",
             number=float(step.j_per_token), better="lower"),
        Tile("memory", f"of {need.capacity / 1e9:,.1f} GB per device", f"{need.total / 1e9:,.{1 if need.total < 1e11 else 0}f} GB", room,
             bad=not need.fits, number=float(need.total), better="lower")]
    return tuple(tiles)


def _fit_words(step: Step) -> str:
    if step.memory.fits:
        return f"fits; up to {_sequences(step.largest_batch())}"
    return f"does not fit: {gb(-step.memory.headroom)} too much"


def _sequences(n: int) -> str:
    return f"{n:,} sequence{'' if n == 1 else 's'}"


def _too_large(step: Step) -> str:
    need, most = step.memory, step.largest_batch()
    parts = ", ".join(f"{label} {gb(value)}" for label, value in
                      (("weights", need.weights), ("KV cache", need.kv_cache), ("activations", need.activations), ("reserve", need.reserve)) if value)
    room = f"At this length {_sequences(most)} would fit." if most else "Not even one sequence of this length fits."
    return (f"{step.arch.name} does not fit: it needs {gb(need.total)} of the {gb(need.capacity)} of each {step.cluster.device.label} ({parts}). {room}")


def _statements(step: Step, ops: pd.DataFrame, breakdown: pd.Series, room: str) -> tuple[Statement, ...]:
    time, top = step.time_s, {k: ops.at[0, k] for k in ("name", "time_s", "share", "hint")}
    parts = breakdown.sort_values(ascending=False)
    first, second = parts.index[0], parts.index[1]
    read = sum(c.op.bytes_moved for c in step.costed)
    lower = read / step.cluster.device.hbm_bytes_per_s
    bounds, times = ops["bound"].to_numpy(), ops["time_s"].to_numpy()
    memory_share, compute_share = (times[bounds == kind].sum() / times.sum() for kind in ("memory", "compute"))
    bound = "memory" if memory_share >= max(compute_share, 0.5) else "compute" if compute_share >= 0.5 else "several things at once"
    texts = [
        (f"One {_what(step)} takes {si(time, 's')}: {percent(parts.iloc[0] / time, 0)} of it is {_in_sentence(first)} and "
         f"{percent(parts.iloc[1] / time, 0)} {_in_sentence(second)}.", "breakdown"),
        (f"It is bound by {bound}: {gb(read)} must move through each device's memory, which alone takes {si(lower, 's')} at "
         f"{si(step.cluster.device.hbm_bytes_per_s, 'B/s')}, {percent(lower / time, 0)} of the step.", "roofline"),
        (f"The slowest operator is {top['name']} with {si(top['time_s'], 's')} ({percent(top['share'], 0)}); what would help: {top['hint']}.", "ops"),
        (f"Memory: {gb(step.memory.total)} of {gb(step.memory.capacity)} per device; {room}.", "memory")]
    comm = breakdown["collectives"]
    if comm > 0:
        texts.insert(3, (f"Collectives between {step.plan.n_devices} devices take {si(comm, 's')} ({percent(comm / time, 0)}).", "breakdown"))
    return tuple(Statement(text, target) for text, target in texts)


def _in_sentence(category: str) -> str:
    label = CATEGORY_LABELS[category]
    return label[0].lower() + label[1:]


def _roofs(step: Step) -> tuple[Roof, ...]:
    device, math = step.cluster.device, step.plan.linear().math
    peak, bandwidth = device.peak_flops_per_s(math), device.hbm_bytes_per_s
    flops_share, memory_share = device.achievable_flops_fraction(math), device.achievable_bandwidth_fraction()
    return (Roof(f"peak {math}: {si(peak, 'FLOP/s')}, {si(bandwidth, 'B/s')}", "peak", peak, bandwidth),
            Roof(f"achievable: {percent(flops_share.value, 0)} and {percent(memory_share.value, 0)} of it ({flops_share.kind}, {memory_share.kind})",
                 "achievable", peak * flops_share.value, bandwidth * memory_share.value))


def _alt(step: Step, ops: pd.DataFrame, breakdown: pd.Series) -> dict[str, str]:
    ridge = _roofs(step)[1].ridge  # of the achievable roof, the one the picture names
    intensity = ops["intensity"].to_numpy()[ops["flops"].to_numpy() > 0]
    below = (intensity < ridge).sum()
    rows = "; ".join(f"{name} {si(time, 's')}" for name, time in zip(ops["name"][:5], ops["time_s"][:5], strict=True))
    parts = "; ".join(f"{_in_sentence(k)} {si(v, 's')}" for k, v in breakdown.items() if v > 0)
    need = step.memory
    return {
        "roofline": f"Roofline: {len(intensity)} operators; {below} lie left of the ridge at {ridge:.3g} FLOP per byte, where memory bounds them. "
                    f"Largest: {rows}.",
        "breakdown": f"Where time goes, {si(step.time_s, 's')} in all: {parts}.",
        "ops": f"{len(ops)} operators, slowest first: {rows}.",
        "memory": "Memory per device: " + "; ".join(f"{k.replace('_', ' ')} {gb(v)}" for k, v in need.items() if v) + ".",
    }


