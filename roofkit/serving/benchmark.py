"""Benchmark: what a public load generator would report of an engine. Room: serving; only reader of data/benchmarks.

TTFT of a closed-loop benchmark is mostly protocol: all clients start at once, each sends a fixed number of requests, lengths
jitter or not, budgets and slots follow the run script. A preset holds these facts, each tagged fact / inferred / assumed; the run
itself is the simulation of serving.simulate.
"""
import tomllib
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.resources import files

import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.errors import DataError, WorkloadError
from roofkit.hardware.device import Device
from roofkit.hardware.network import Cluster
from roofkit.inference.engines import EngineProfile, load_engine
from roofkit.inference.step import machine_for
from roofkit.ops.plan import Plan, resolved
from roofkit.serving.requests import closed_loop
from roofkit.serving.scheduler import Scheduler
from roofkit.serving.simulate import Served, simulate

LIMITS = ("max_num_seqs", "max_num_batched_tokens")  # written as a sum: tokens + clients x c + prompts x isl + outputs x osl
CONDITIONS = ("engine", "devices", "weights", "prompt_tokens", "output_tokens", "tp_below", "clients_from")
_SCHEDULER = {f.name for f in fields(Scheduler)}


@dataclass(frozen=True, slots=True, eq=False)
class Protocol:
    """How a benchmark is run: requests_per_client; shortest length as a share of the nominal; settings by condition, in order."""

    name: str
    label: str
    source: str
    requests_per_client: int
    shortest: float
    settings: tuple[dict, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Benchmark:
    """A benchmark's report.

    served   the simulated run;  protocol   name of the preset
    """

    served: Served
    protocol: str
    clients: int

    @property
    def ttft_s(self) -> float:
        """Mean time to first token over all requests, as reported [s]."""
        return float(self.served.requests["ttft_s"].mean())

    @property
    def tpot_s(self) -> float:
        """Mean over requests of the time per output token after the first [s]; NaN for one-token answers."""
        return float(self.served.requests["tpot_s"].mean())

    def summary(self) -> pd.Series:
        """The run's summary, and TTFT of the start burst and of the steady rest apart [s]: people compare the first and want the second."""
        ttft = self.served.requests["ttft_s"]
        out = self.served.summary()
        out["ttft_s_burst"], out["ttft_s_steady"] = ttft.iloc[:self.clients].mean(), ttft.iloc[self.clients:].mean()
        out["lost_slots"] = max(self.clients - self.served.scheduler.slots, 0)
        return out


def list_protocols() -> list[str]:
    """Names of the benchmark presets."""
    return sorted(p.name[:-5] for p in (files("roofkit_data") / "benchmarks").iterdir() if p.name.endswith(".toml"))


@lru_cache
def load_protocol(name: str) -> Protocol:
    """Preset of data/benchmarks; raises DataError for another name, a setting nobody reads, or a table without its kind."""
    if name not in list_protocols():
        raise DataError(f"no benchmark {name!r}; choose one of {', '.join(list_protocols())}")
    raw = tomllib.loads((files("roofkit_data") / "benchmarks" / f"{name}.toml").read_text(encoding="utf-8"))
    known = {*CONDITIONS, *_SCHEDULER, "kind", "kv", "kv_as_weights", "profile"}
    for table in (raw["load"], *raw.get("settings", [])):
        if table.get("kind") not in ("fact", "inferred", "assumed"):
            raise DataError(f"benchmarks/{name}.toml: every table needs kind = fact, inferred or assumed")
    for table in raw.get("settings", []):
        if unknown := set(table) - known:
            raise DataError(f"benchmarks/{name}.toml: {', '.join(sorted(unknown))} is no setting; known: {', '.join(sorted(known))}")
    load = raw["load"]
    return Protocol(raw["name"], raw["label"], raw["source"], load["requests_per_client"], load["shortest"], tuple(raw.get("settings", [])))


def settings_of(protocol: Protocol, engine: str, plan: Plan, device: str, clients: int, prompt_tokens: int, output_tokens: int) -> dict:
    """Settings that apply to this run, limits as numbers; later tables win."""
    found: dict = {}
    for table in protocol.settings:
        same = table.get("engine", engine) == engine and device in table.get("devices", [device]) and plan.weights == table.get("weights", plan.weights)
        sized = table.get("prompt_tokens", prompt_tokens) == prompt_tokens and table.get("output_tokens", output_tokens) == output_tokens
        if same and sized and plan.tp < table.get("tp_below", plan.tp + 1) and clients >= table.get("clients_from", 1):
            found.update({k: v for k, v in table.items() if k not in (*CONDITIONS, "kind")})
    for name in LIMITS:
        if name in found:
            terms = found[name]
            found[name] = max(terms.get("tokens", 0) + terms.get("clients", 0) * clients + terms.get("prompts", 0) * prompt_tokens + terms.get("outputs", 0) * output_tokens, 1)
    return found


def emulate_benchmark(arch: Architecture, device_or_cluster: Device | Cluster, plan: Plan | None = None, engine: str = "vllm", *, clients: int, prompt_tokens: int,
                      output_tokens: int, preset: str = "inferencemax", seed: int = 0, profile: EngineProfile | None = None, cost_model: str = "calibrated",
                      **scheduler) -> Benchmark:
    """What a benchmark with `clients` concurrent clients would report.

    prompt_tokens, output_tokens   nominal lengths [tokens];  preset   of list_protocols()
    profile      host time and front end; None = the one the preset names, else the engine's
    scheduler    options of rk.Scheduler that override preset and engine, e.g. max_num_seqs=64
    Raises DataError for an unknown preset or engine, WorkloadError for an unknown option or a request that can never run.
    """
    protocol = load_protocol(preset)
    plan = resolved(plan or Plan(), arch)
    cluster = machine_for(device_or_cluster, plan)
    found = settings_of(protocol, engine, plan, cluster.device.name, clients, prompt_tokens, output_tokens)
    if unknown := set(scheduler) - _SCHEDULER:
        raise WorkloadError(f"{', '.join(sorted(unknown))} is no option of rk.Scheduler; it has {', '.join(sorted(_SCHEDULER))}")
    profile = profile or load_engine(found.get("profile", engine))
    rules = Scheduler(**{**profile.scheduling, **{k: v for k, v in found.items() if k in _SCHEDULER}, **scheduler})
    if rules.order == "whole_prompt" and rules.max_num_batched_tokens < prompt_tokens and "max_num_batched_tokens" not in scheduler:
        rules = replace(rules, max_num_batched_tokens=prompt_tokens)
    kv = plan.weights if found.get("kv_as_weights") and plan.weights in ("fp8", "bf16") else found.get("kv", plan.kv)
    requests = closed_loop(clients, clients * protocol.requests_per_client, prompt_tokens, output_tokens, protocol.shortest, seed)
    served = simulate(arch, cluster, replace(plan, kv=kv), requests, rules, engine=profile, cost_model=cost_model)
    return Benchmark(served, protocol.name, clients)
