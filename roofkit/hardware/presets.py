"""Presets: data files -> devices and clusters; the only reader of data/hardware and data/machines. Room: hardware.

A device file has one table per figure (value, unit, kind, confidence, source, note), a machine file the same, where
kind, confidence and source at the top hold for every figure that does not say otherwise. Nothing loads without them.
"""
import math
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

import pandas as pd

from roofkit.errors import DataError
from roofkit.hardware.device import CONFIDENCES, KINDS, PEAK_KEYS, Device, Fact, Figure
from roofkit.hardware.network import Cluster
from roofkit.units import UNITS, to_base

_HARDWARE, _MACHINES = "hardware", "machines"
_ALIASES = "_aliases.toml"
_DIMENSIONS = (  # key pattern -> dimension of its unit; the first that fits
    (r"_fraction$|_factor$", "ratio"), (r"^(peak|achieved)_(bf|fp|int|tf)\d+", "FLOP/s"), (r"bandwidth|busbw|_achieved$|_nic_rate$", "bytes/s"),
    (r"latency", "s"), (r"_clock$", "Hz"), (r"power$|^tdp$", "W"), (r"area$", "m2"), (r"_count$|_domain$|_stacks$|^nodes$|^devices_per_node$", "count"),
    (r"_capacity|_per_sm$|vmem_per_core", "bytes"),
)
REQUIRED = ("hbm_bandwidth", "memory_capacity")  # and at least one dense peak
_NARROWER = (("bf16", "fp8", 2), ("bf16", "int8", 2), ("fp8", "int8", 1))  # usual speed-up of the second over the first


def check_figure(key: str, entry: Mapping, where: str) -> Figure:
    """One table of a preset file -> Figure in base units.

    `where` is file and key, e.g. "hardware/h100-sxm-80gb.toml [hbm_bandwidth]". Raises DataError when value, unit, kind,
    confidence or source is missing or impossible, UnitError when the unit does not measure what the key says.
    """
    value, unit = entry.get("value"), entry.get("unit")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise DataError(f"{where}: value {value!r} is not a number of at least 0")
    if not unit:
        raise DataError(f"{where}: no unit; GB means 1e9 bytes, GiB 2**30, TFLOP/s 1e12 FLOP/s; known: {', '.join(UNITS)}")
    _check_origin(entry, where, f"{value} {unit}")
    dimension = next((d for pattern, d in _DIMENSIONS if re.search(pattern, key)), None)
    base = to_base(value, unit, dimension, where)
    if key.endswith("_fraction") and base > 1:
        raise DataError(f"{where}: a fraction of {value} beats the peak; give a share between 0 and 1 of the dense peak")
    return Figure(base, float(value), unit, entry["kind"], entry["confidence"], entry["source"], entry.get("note", ""))


def check_fact(entry: Mapping, where: str) -> Fact:
    """One [facts.*] table -> Fact. Raises DataError like check_figure."""
    if not isinstance(entry.get("value"), str) or not entry["value"]:
        raise DataError(f"{where}: value {entry.get('value')!r} is not a text")
    _check_origin(entry, where, repr(entry["value"]))
    return Fact(entry["value"], entry["kind"], entry["confidence"], entry["source"], entry.get("note", ""))


def _check_origin(entry: Mapping, where: str, what: str) -> None:
    if not entry.get("source"):
        raise DataError(f"{where}: no source; say where {what} comes from")
    if entry.get("kind") not in KINDS:
        raise DataError(f"{where}: kind {entry.get('kind')!r} is not one of {', '.join(KINDS)}")
    if entry.get("confidence") not in CONFIDENCES:
        raise DataError(f"{where}: confidence {entry.get('confidence')!r} is not one of A (the maker's own document), "
                        f"B (an independent source), C (not verified)")


def device_from_toml(text: str, where: str = "device file") -> Device:
    """A device from the text of its file; raises DataError naming `where` and the key."""
    doc = _parse(text, where)
    figures, facts = _figures_and_facts(doc, where, {})
    for key in REQUIRED:
        if not figures.get(key) or not figures[key].value:
            raise DataError(f"{where}: [{key}] is missing or 0; a device needs a peak, a bandwidth and a capacity")
    if not any(re.fullmatch(r"peak_\w+_dense", k) and f.value for k, f in figures.items()):
        raise DataError(f"{where}: no peak_<format>_dense figure above 0; sparse and headline prints are no peaks")
    _refuse_sparse(figures, doc, where)
    return Device(doc["name"], doc["label"], doc.get("maker", ""), figures, facts, doc.get("usual_machine", ""))


def _refuse_sparse(figures: Mapping[str, Figure], doc: Mapping, where: str) -> None:
    """A dense peak that is a sparse print in disguise: equal to one beside it, or out of step with a wider format by the factor."""
    factor = figures["structured_sparsity_factor"].value if "structured_sparsity_factor" in figures else 1.0

    def peak(fmt: str) -> float:
        return figures[f"peak_{fmt}_dense"].value if f"peak_{fmt}_dense" in figures else 0.0

    for key, figure in figures.items():
        m = re.fullmatch(r"peak_(\w+?)_(sparse|headline|printed)", key)
        if m and peak(m[1]) >= 0.98 * figure.value:
            raise DataError(f"{where} [peak_{m[1]}_dense]: {peak(m[1]):g} FLOP/s equals [{key}]; give the rate without sparsity")
    if factor <= 1:
        return
    for wide, narrow, ratio in _NARROWER:  # printed beside each other, both must be dense or the pair is out of step
        if not peak(wide) or not peak(narrow) or any("dense_because" in doc[f"peak_{fmt}_dense"] for fmt in (wide, narrow)):
            continue
        step = peak(narrow) / peak(wide) / ratio
        for key, off in ((narrow, step / factor), (wide, step * factor)):
            if abs(off - 1) < 0.02:
                raise DataError(f"{where} [peak_{key}_dense]: {peak(key):g} FLOP/s is {factor:g} times what the rates beside it suggest, which looks "
                                f"like the print with sparsity; divide by {factor:g}, or say in dense_because why it is dense")


def _parse(text: str, where: str) -> dict:
    try:
        doc = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise DataError(f"{where}: not TOML: {e}") from None
    if doc.get("schema") != 1:
        raise DataError(f"{where}: schema {doc.get('schema')!r}; this version reads schema = 1")
    for key in ("name", "label"):
        if not isinstance(doc.get(key), str) or not doc[key]:
            raise DataError(f"{where}: no {key}")
    return doc


def _figures_and_facts(doc: Mapping, where: str, shared: Mapping) -> tuple[dict[str, Figure], dict[str, Fact]]:
    tables = {k: v for k, v in doc.items() if isinstance(v, dict) and k != "facts"}
    return ({k: check_figure(k, {**shared, **v}, f"{where} [{k}]") for k, v in tables.items()},
            {k: check_fact({**shared, **v}, f"{where} [facts.{k}]") for k, v in doc.get("facts", {}).items()})


def _cluster_from_doc(doc: Mapping, device: Device, where: str) -> Cluster:
    figures, facts = _figures_and_facts(doc, where, {k: doc[k] for k in ("kind", "confidence", "source") if k in doc})
    for key in ("devices_per_node", "nodes", "scaleup_domain"):
        if key not in figures:
            raise DataError(f"{where}: [{key}] is missing")

    def value(key: str) -> float:
        return figures[key].value if key in figures else 0.0

    per_node = int(value("devices_per_node"))
    out = figures.get("scaleout_bandwidth_per_direction_per_node")
    if out:
        figures["scaleout_bandwidth_per_direction_per_device"] = Figure(
            out.value / per_node, out.printed / per_node, out.unit, out.kind, out.confidence, out.source, f"the node's figure over {per_node} devices")
    up = value("scaleup_bandwidth_per_direction_per_device")
    assumptions = tuple(f"{k}: {f.printed:g} {f.unit} is assumed ({f.source})" for k, f in figures.items() if f.kind == "assumed" and "bandwidth" in k)
    return Cluster(device, per_node, int(value("nodes")), int(value("scaleup_domain")), up, value("p2p_bandwidth_per_direction") or up,
                   value("scaleout_bandwidth_per_direction_per_device"), doc.get("topology", "none"), _adds_in_switch(doc),
                   doc["name"], doc["label"], figures, assumptions, facts)


def _adds_in_switch(doc: Mapping) -> bool:
    return "in-switch reduction" in doc.get("facts", {}).get("scaleup_topology", {}).get("value", "")


@cache
def _names(room: str) -> tuple[str, ...]:
    return tuple(sorted(f.name[:-5] for f in _folder(room).iterdir() if f.name.endswith(".toml") and not f.name.startswith("_")))


def _folder(room: str):
    return files("roofkit_data").joinpath(room)


@cache
def _text(room: str, name: str) -> str:
    return _folder(room).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _only(text: str, *keys: str) -> str:
    """The top of a preset file and these of its tables: parsing takes as long as the text, and lists need little of it."""
    top, *tables = text.split("\n[")
    return top + "".join(f"\n[{t}" for t in tables if t.split("]", 1)[0] in keys)


def _unverified(text: str) -> int:
    """Figures of confidence C in a device file, without reading all of it."""
    return sum('\nconfidence = "C"' in table for table in text.split("\n[")[1:] if not table.startswith("facts."))


@cache
def _aliases() -> dict[str, dict[str, str]]:
    return tomllib.loads(_folder(_HARDWARE).joinpath(_ALIASES).read_text(encoding="utf-8"))


def _resolve(room: str, name: str) -> str:
    """Preset name of what a user typed: exact, an alias, or either in other spelling; else DataError with the nearest."""
    known = _names(room)
    typed = re.sub(r"[\s_]+", "-", name.strip().lower()) if isinstance(name, str) else ""
    if typed in known:
        return typed
    aliases = _aliases()[room]
    if typed in aliases:
        return aliases[typed]
    near = get_close_matches(typed, [*known, *aliases], n=1, cutoff=0.5) or [k for k in known if typed and typed in k]
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
    what = {"hardware": "device", "machines": "cluster"}[room]
    raise DataError(f"no {what} preset {name!r} in data/{room}/; {hint} To add one, copy a file there.")


def load_device(name: str) -> Device:
    """The device of that preset name or alias ("h100-sxm-80gb", "h100"). Raises DataError for an unknown name, with the nearest."""
    return _device(_resolve(_HARDWARE, name))


@cache
def _device(name: str) -> Device:
    device = device_from_toml(_text(_HARDWARE, name), f"{_HARDWARE}/{name}.toml")
    if not device.usual_machine:
        return device
    machine = _resolve(_MACHINES, device.usual_machine)
    doc = _parse(_only(_text(_MACHINES, machine), "scaleup_domain", "devices_per_node", "facts.scaleup_topology"), f"{_MACHINES}/{machine}.toml")
    spans = doc["scaleup_domain"]["value"] > doc["devices_per_node"]["value"]
    return Device(device.name, device.label, device.maker, device.figures, device.facts, device.usual_machine,
                  doc.get("topology", ""), spans, _adds_in_switch(doc))


def load_cluster(name: str, nodes: int | None = None) -> Cluster:
    """The machine of that preset name ("dgx-h100"), `nodes` of them where given. Raises DataError for an unknown name, with the nearest."""
    cluster = _cluster(_resolve(_MACHINES, name))
    return cluster if nodes is None else cluster.with_nodes(nodes)


@cache
def _cluster(name: str) -> Cluster:
    doc = _parse(_text(_MACHINES, name), f"{_MACHINES}/{name}.toml")
    return _cluster_from_doc(doc, load_device(doc["device"]), f"{_MACHINES}/{name}.toml")


def default_cluster(device: Device | str) -> Cluster:
    """The usual machine of a device, or the device alone where no machine preset holds it; the assumption says which.

    Raises DataError for an unknown name.
    """
    device = load_device(device) if isinstance(device, str) else device
    if device.usual_machine:
        cluster = load_cluster(device.usual_machine)
        if cluster.device == device:
            return cluster
    text = (f"no usual machine is known for {device.label}: one device alone; for more build "
            f"rk.Cluster(rk.load_device({device.name!r}), devices_per_node=8)")
    return Cluster(device, devices_per_node=1, name=device.name, label=f"one {device.label}", assumptions=(text,))


def list_devices() -> pd.DataFrame:
    """Every device preset, one row each: peaks [FLOP/s] and tdp_w [W] (NaN: none or not known), hbm_bytes_per_s, memory_bytes,
    confidence (the worst of peak, bandwidth and memory) and `unverified`, the number of figures with confidence C."""
    return _device_list().copy()


@cache
def _device_list() -> pd.DataFrame:
    rows = []
    shown = {"hbm_bandwidth", "memory_capacity", "memory_capacity_usable", "tdp"}.union(*(PEAK_KEYS[m] for m in ("bf16", "fp16", "fp8", "fp4")))
    for name in _names(_HARDWARE):
        device = device_from_toml(_only(_text(_HARDWARE, name), *shown), f"{_HARDWARE}/{name}.toml")
        peaks = {f"peak_{m}_flops_per_s": device.peak_flops_per_s(m) if device.has_math(m) else math.nan for m in ("bf16", "fp16", "fp8", "fp4")}
        main = device.peak_figure(next(m for m in ("bf16", "fp16", "fp8") if device.has_math(m)))
        memory = device.figures.get("memory_capacity_usable") or device.figures["memory_capacity"]
        rows.append({"name": device.name, "label": device.label, "maker": device.maker, **peaks, "hbm_bytes_per_s": device.hbm_bytes_per_s,
                     "memory_bytes": device.memory_bytes, "tdp_w": device.value("tdp", math.nan), "usual_machine": device.usual_machine,
                     "confidence": max(f.confidence for f in (main, device.figures["hbm_bandwidth"], memory)),
                     "unverified": _unverified(_text(_HARDWARE, name))})
    return pd.DataFrame(rows)


def list_clusters() -> pd.DataFrame:
    """Every machine preset, one row each; bandwidths per device and direction [bytes/s], 0 where not known."""
    return _cluster_list().copy()


@cache
def _cluster_list() -> pd.DataFrame:
    rows = []
    for c in map(_cluster, _names(_MACHINES)):
        power = c.figures.get("node_power")
        rows.append({"name": c.name, "label": c.label, "device": c.device.name, "device_label": c.device.label, "devices_per_node": c.devices_per_node,
                     "nodes": c.nodes, "devices": c.n_devices, "scaleup_domain": c.scaleup_domain, "topology": c.topology,
                     "scaleup_bytes_per_s": c.scaleup_bytes_per_s, "p2p_bytes_per_s": c.p2p_bytes_per_s, "scaleout_bytes_per_s": c.scaleout_bytes_per_s,
                     "in_switch_reduction": c.in_switch_reduction, "node_power_w": power.value if power else math.nan,
                     "confidence": max(f.confidence for f in c.figures.values()), "unverified": len(c.unverified)})
    return pd.DataFrame(rows)
