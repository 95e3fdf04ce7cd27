"""Engine profiles: what a serving engine adds to device time, as data. Room: inference; only reader of data/engines.

A profile is one TOML per engine and variant: the share of memory it uses, the delay of its front end, the settings of its
scheduler, each with kind and source. Host time per step and per running request and the eager floor of steps that hold a
prefill are fitted and stand with the other constants of served steps (cost.served). Graph replay: host time adds to the device
step. Eager: the step is the longer of device and host.
"""
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from roofkit.cost.served import constants, shipped
from roofkit.errors import DataError
from roofkit.units import to_base


@dataclass(frozen=True, slots=True, eq=False)
class EngineProfile:
    """kernels   engine whose kernels it runs (cost.calibration.STACKS)
    host_s per step, host_per_request_s per running request [s]; eager_layer_s floor per layer and eager_step_s per step with prefill [s]
    memory_share of the capacity used for weights and cache [0..1]; frontend_s between a client's request and the scheduler [s];
    frontend_per_token_s   serial work of the front end on each token it streams [s];
    scheduling   settings of the scheduler by name (serving.scheduler.Scheduler); sources by key."""

    name: str
    kernels: str
    label: str
    host_s: float
    host_per_request_s: float
    eager_layer_s: float
    eager_step_s: float
    memory_share: float
    frontend_s: float
    frontend_per_token_s: float
    scheduling: dict[str, str | int | float | bool]
    sources: dict[str, str]


def load_engine(name: str) -> EngineProfile:
    """Profile of "vllm", "sglang", "trtllm" or a variant of one ("vllm-0.12"); raises DataError for another name or a figure without source."""
    facts = _facts(name)
    times = {k: v * 1e-6 for k, v in constants()["engine"].get(name, {}).items()}
    if not times:
        raise DataError(f"calibration/served.toml has no host times of engine {name!r}")
    return replace(facts, host_s=times["host_us"], host_per_request_s=times["host_per_request_us"], eager_layer_s=times["eager_layer_us"], eager_step_s=times["eager_step_us"],
                   frontend_per_token_s=times.get("frontend_per_token_us", 0.0))


@lru_cache
def _facts(name: str) -> EngineProfile:
    """The profile without its fitted host times."""
    path = files("roofkit_data") / "engines" / f"{name}.toml"
    if not path.is_file():
        known = sorted(p.name[:-5] for p in (files("roofkit_data") / "engines").iterdir() if p.name.endswith(".toml"))
        raise DataError(f"no engine profile {name!r} in data/engines; known: {', '.join(known)}")
    raw = tomllib.loads(path.read_text())
    sources = {"host": f"{shipped()['kind']}: {shipped()['source']}"}
    values = {}
    for key, dimension in (("memory_share", "ratio"), ("frontend", "s")):
        figure = raw.get(key, {})
        if not figure.get("source") or not figure.get("kind"):
            raise DataError(f"engines/{name}.toml [{key}]: value, unit, kind and source are required")
        values[key] = to_base(figure["value"], figure["unit"], dimension, f"engines/{name}.toml [{key}]")
        sources[key] = f"{figure['kind']}: {figure['source']}"
    scheduling = dict(raw.get("scheduling", {}))
    if not scheduling.get("source") or not scheduling.get("kind"):
        raise DataError(f"engines/{name}.toml [scheduling]: kind and source are required")
    sources["scheduling"] = f"{scheduling.pop('kind')}: {scheduling.pop('source')}"
    return EngineProfile(name, raw.get("kernels", name), raw["label"], 0.0, 0.0, 0.0, 0.0, values["memory_share"], values["frontend"], 0.0, scheduling, sources)
