"""Provenance: where the numbers on a page come from, and how far to trust them. Room: views."""
import pandas as pd

from roofkit.inference.engines import EngineProfile, load_engine
from roofkit.inference.step import Step
from roofkit.views.trust import band_badge

_USED = ("hbm_bandwidth", "memory_capacity", "memory_capacity_usable", "sm_count", "l2_capacity", "tensor_peak_clock", "boost_clock", "tdp")
COLUMNS = ["figure", "value", "unit", "kind", "confidence", "source"]


def provenance(step: Step) -> pd.DataFrame:
    """Figures behind a step: datasheet figures used, achievable shares, link figures, engine constants, forms. Columns COLUMNS."""
    device, math = step.cluster.device, step.plan.linear().math
    peaks = [k for k in device.figures if k.startswith(f"peak_{math}")]
    rows = [_row(k, device.figures[k]) for k in (*peaks, *_USED) if k in device.figures]
    rows.append(_row(f"achievable share of the {math} peak", device.achievable_flops_fraction(math)))
    rows.append(_row("achievable share of the memory bandwidth", device.achievable_bandwidth_fraction()))
    if step.plan.n_devices > 1:
        rows += [_row(k, f) for k, f in step.cluster.figures.items() if "bandwidth" in k]
    if step.engine:
        rows += _engine_rows(load_engine(step.engine))
    forms = {(c.timing.form, c.timing.calibration, c.timing.note) for c in step.costed}
    rows += [(form, "", "", calibration, "", note) for form, calibration, note in sorted(forms)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _engine_rows(profile: EngineProfile) -> list[tuple]:
    """Host constants of an engine and its share of memory, with their sources."""
    host = (("host time per step", profile.host_s), ("host time per running request", profile.host_per_request_s),
            ("floor per layer of a step with a prompt", profile.eager_layer_s), ("floor per step with a prompt", profile.eager_step_s))
    shown = [(name, f"{1e6 * value:.4g}", "us", "host") for name, value in host] + [("share of memory used", f"{profile.memory_share:g}", "", "memory_share")]
    return [(f"{profile.label}: {name}", value, unit, *profile.sources[key].split(": ", 1)[:1], "B", profile.sources[key].split(": ", 1)[1])
            for name, value, unit, key in shown]


def _row(name: str, figure) -> tuple:
    return (name.replace("_", " "), f"{figure.printed:,.6g}", figure.unit, figure.kind, figure.confidence, figure.source)


def badges(step: Step) -> tuple[tuple[str, str], ...]:
    """Short labels with what they mean: cost model, calibration, unverified figures, generic architecture."""
    device = step.cluster.device
    words = {"bound": ("bound, not an estimate", "Datasheet roofline without overheads: no real step is this fast"),
             "fitted": (f"fitted on {device.label}", "Forms fitted to measured kernels of this device"),
             "inherited": ("constants of a sibling", "No kernels of this device or format were fitted: constants come from its nearest relative"),
             "generic": ("not calibrated", "No measured kernels for this device: achievable shares of the datasheet and a launch time")}
    found = [words[step.calibration]]
    if step.cost_model != "ideal":
        found.append(band_badge(step))
    used = [k for k in device.unverified if k in _USED or k.startswith("peak_" + step.plan.linear().math)]
    if used:
        found.append((f"{len(used)} unverified figure{'s' if len(used) > 1 else ''}",
                      "Not read in a source, recalled or computed: " + ", ".join(k.replace("_", " ") for k in used)))
    if step.arch.confidence != "exact":
        found.append(("generic architecture", "Unknown model_type read by common rules: " + "; ".join(step.arch.assumptions)))
    return tuple(found)


def notes(step: Step) -> tuple[str, ...]:
    """Plain sentences: what is assumed, what the model leaves out."""
    found = [*step.arch.assumptions, *step.cluster.assumptions]
    if step.engine is None and step.cost_model != "ideal":
        found.append("Device time only, kernels replayed as a graph; choose an engine to add its host time.")
    if any(c.op.name == "experts" for c in step.costed):
        found.append("Experts: uniform routing; the weights read are those of the expected distinct experts of the batch.")
    if step.plan.pp > 1:
        found.append("Pipeline: one device's timeline; the bubble is what the busiest stage waits for.")
    return tuple(found)
