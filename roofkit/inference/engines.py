"""Engine profiles: what a serving engine adds to device time, as data. Room: inference; only reader of data/engines.

A profile is one TOML per engine: host time per step and per running request, the eager floor of steps that hold a prefill,
the share of memory it uses; each with kind, source and date. Graph replay: host time adds to the device step. Eager: the
step is the longer of device and host.
"""
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from roofkit.errors import DataError
from roofkit.units import to_base


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """host_s per step, host_per_request_s per running request [s]; eager_layer_s floor per layer of a step with prefill [s];
    memory_share of the capacity used for weights and cache [0..1]; sources by key."""

    name: str
    label: str
    host_s: float
    host_per_request_s: float
    eager_layer_s: float
    memory_share: float
    sources: dict[str, str]


@lru_cache
def load_engine(name: str) -> EngineProfile:
    """Profile of "vllm", "sglang" or "trtllm"; raises DataError for another name or a figure without source."""
    path = files("roofkit_data") / "engines" / f"{name}.toml"
    if not path.is_file():
        known = sorted(p.name[:-5] for p in (files("roofkit_data") / "engines").iterdir() if p.name.endswith(".toml"))
        raise DataError(f"no engine profile {name!r} in data/engines; known: {', '.join(known)}")
    raw = tomllib.loads(path.read_text())
    values, sources = {}, {}
    for key, dimension in (("host", "s"), ("host_per_request", "s"), ("eager_per_layer", "s"), ("memory_share", "ratio")):
        figure = raw.get(key, {})
        if not figure.get("source") or not figure.get("kind"):
            raise DataError(f"engines/{name}.toml [{key}]: value, unit, kind and source are required")
        values[key] = to_base(figure["value"], figure["unit"], dimension, f"engines/{name}.toml [{key}]")
        sources[key] = f"{figure['kind']}: {figure['source']}"
    return EngineProfile(name, raw["label"], values["host"], values["host_per_request"], values["eager_per_layer"], values["memory_share"], sources)
