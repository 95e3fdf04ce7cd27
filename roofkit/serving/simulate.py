"""Simulate: requests through an engine, step by step, on a clock. Room: serving.

The loop composes a step, takes its time from the tables, and hands out tokens. Runs of decode steps in which nothing happens are
jumped over in closed form. With async scheduling a step is composed when the one before it starts: a request that arrives then
waits for the step that runs and the one already composed.
"""
import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.cost.memory import cache_bytes, memory
from roofkit.errors import WorkloadError
from roofkit.hardware.device import Device
from roofkit.hardware.network import Cluster
from roofkit.inference.engines import EngineProfile, load_engine
from roofkit.inference.step import machine_for
from roofkit.ops.plan import Plan, resolved
from roofkit.ops.workload import Prefill
from roofkit.serving.requests import Requests
from roofkit.serving.scheduler import ComposedStep, Queue, Scheduler
from roofkit.serving.step_times import StepTimes, step_times


@dataclass(frozen=True, eq=False)
class Served:
    """What a simulated run did.

    requests   one row each: arrival_s, prompt_tokens, output_tokens, scheduled_s, first_token_s, finish_s, and from them queue_s, ttft_s,
               tpot_s (NaN for one output token), e2e_s
    steps      one row per step or run of equal decode steps: start_s, time_s, steps, decodes, prompt_tokens, chunks, blocks
    """

    requests: pd.DataFrame
    steps: pd.DataFrame
    preemptions: int
    computed_tokens: int
    num_gpu_blocks: int
    scheduler: Scheduler
    calibration: str
    n_devices: int
    flops_per_token: float
    peak_flops_per_s: float

    @property
    def horizon_s(self) -> float:
        """From the first arrival to the last token [s]."""
        return float(self.requests["finish_s"].max() - self.requests["arrival_s"].min())

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation of the run: weights' products of every computed token over what all devices could do [0..1]."""
        return self.computed_tokens * self.flops_per_token / (self.peak_flops_per_s * self.horizon_s)

    def summary(self) -> pd.Series:
        """Means and percentiles over all requests [s], throughput [tokens/s]."""
        r, horizon = self.requests, self.horizon_s
        out = {f"{name}_{label}": value for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s")
               for label, value in (("mean", r[name].mean()), *((f"p{q}", r[name].quantile(q / 100)) for q in (50, 90, 99)))}
        out["output_tok_per_s"] = r["output_tokens"].sum() / horizon
        out["output_tok_per_s_device"] = out["output_tok_per_s"] / self.n_devices
        out["requests_per_s"] = len(r) / horizon
        out["mfu"], out["preemptions"] = self.mfu, self.preemptions
        return pd.Series(out)

    @cached_property
    def checks(self) -> dict[str, bool]:
        """Conservation and order; all must hold."""
        r, s = self.requests, self.steps
        tokens = (r["prompt_tokens"] + r["output_tokens"] - 1).sum()
        ends = s["start_s"] + s["time_s"]
        return {"every request finished": bool(np.isfinite(r["finish_s"]).all()),
                "tokens computed = prompts + answers - 1 each, plus what preemption repeats": bool(self.computed_tokens >= tokens and (self.preemptions or self.computed_tokens == tokens)),
                "times in order": bool((r["scheduled_s"] >= r["arrival_s"]).all() and (r["first_token_s"] > r["scheduled_s"]).all() and (r["finish_s"] >= r["first_token_s"]).all()),
                "steps do not overlap": bool((s["start_s"].to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e-9).all()),
                "token budget kept": bool((s["decodes"] + s["prompt_tokens"] <= self.scheduler.max_num_batched_tokens).all()),
                "no more arithmetic than the devices can do": bool(self.mfu <= 1.0),
                "cache never over capacity": bool((s["blocks"] <= self.num_gpu_blocks).all())}


def simulate(arch: Architecture, device_or_cluster: Device | Cluster, plan: Plan | None, requests: Requests, scheduler: Scheduler | None = None, *, engine: str | EngineProfile | None = None,
             cost_model: str = "calibrated") -> Served:
    """Requests through one replica of an engine.

    scheduler    Scheduler() when None; num_gpu_blocks None = what memory leaves
    engine       "vllm" | "sglang" | "trtllm" or a profile: host time, kernels, memory share and front-end delay of that engine;
                 None = device time alone
    Raises PlanError for pp or dp above 1, WorkloadError for a request that can never run.
    """
    plan = resolved(plan or Plan(), arch)
    cluster = machine_for(device_or_cluster, plan)
    rules, profile = scheduler or Scheduler(), load_engine(engine) if isinstance(engine, str) else engine
    longest = int(np.max(requests.prompt_tokens + requests.output_tokens))
    blocks = rules.num_gpu_blocks or kv_blocks(arch, cluster.device, plan, rules, profile)
    queue = Queue(requests.prompt_tokens, requests.output_tokens, rules, blocks)
    queue.refuse_impossible()
    most = min(rules.slots, len(requests))
    budget = min(rules.max_num_batched_tokens, int(np.sum(requests.prompt_tokens)) + most + longest)
    times = step_times(arch, cluster, plan, profile, cost_model, max_seqs=_round_up(most), max_tokens=_round_up(budget), max_context=_round_up(longest))
    loop = _Loop(requests, queue, times, profile.frontend_s if profile else 0.0, rules.async_scheduling, profile.frontend_per_token_s if profile else 0.0)
    loop.run()
    return Served(loop.table(), loop.steps_table(), queue.preemptions, queue.computed_tokens, blocks, rules, times.calibration, plan.n_devices,
                  2.0 * (arch.active_params - arch.embed_params), cluster.device.peak_flops_per_s(plan.linear().math) * plan.n_devices)


def kv_blocks(arch: Architecture, device: Device, plan: Plan, rules: Scheduler, profile: EngineProfile | None = None) -> int:
    """Blocks that memory leaves after weights, activations of the largest step and the engine's reserve."""
    held = memory(arch, device, plan, Prefill(1, rules.max_num_batched_tokens), profile.memory_share if profile else None)
    room = held.capacity - (held.total - held["kv_cache"])
    each = float(cache_bytes(arch, plan, 1, rules.block_size))
    if each <= 0:
        return 1 << 40  # no cache grows with tokens
    if room < each:
        raise WorkloadError(f"{arch.name} leaves no memory for a KV cache on {device.label} with this plan; use more devices or narrower weights")
    return int(room // each)


def _round_up(value: int) -> int:
    """Next of 1, 2, 3, 4, 6, 8, 12, ...: so that similar runs share their tables."""
    power = 1 << max(int(value) - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and value <= power * 3 // 4 else power


def _before(seen: float, first: float, growth: float, most: int) -> int:
    """Steps j = 0, 1, ... that start before `seen`, where step j starts at j first + growth j (j - 1) / 2; at most `most`."""
    if most * first + growth * (most * (most - 1) / 2) < seen:
        return most
    low, high = 0, most  # step `low - 1` starts before, step `high` does not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle * first + growth * (middle * (middle - 1) / 2) < seen else (low, middle)
    return low


class _Loop:
    """The clock. Times of requests are kept in lists; a request's arrival in a closed loop is when a client is free.

    Tokens pass the front end one after the other, `per_token` [s] each: a client sees a token when those before it have passed.
    `backlog` is the front end's work left at the end of the last step [s].
    """

    def __init__(self, requests: Requests, queue: Queue, times: StepTimes, delay: float, ahead: bool, per_token: float = 0.0) -> None:
        n = len(requests)
        self.requests, self.queue, self.times, self.delay, self.ahead = requests, queue, times, delay, ahead
        self.arrival = [float(a) for a in requests.arrival_s]
        self.scheduled, self.first, self.finish = [np.nan] * n, [np.nan] * n, [np.nan] * n
        self.unsent = n  # closed loop: next request to send
        self.coming: list[tuple[float, int]] = []
        if requests.concurrency is None:
            self.coming = [(a + delay, i) for i, a in enumerate(self.arrival)]
        else:
            self.unsent = min(requests.concurrency, n)
            self.coming = [(delay, i) for i in range(self.unsent)]
        heapq.heapify(self.coming)
        self.done = 0
        self.per_token, self.backlog = per_token, 0.0
        self.every = self.since = queue.rules.receive_interval  # decode steps between looks for new requests, and since the last
        self.log: list[tuple] = []

    def run(self) -> None:
        now, step, total = 0.0, None, len(self.requests)
        while self.done < total:
            if step is None:
                if not self.queue.running:
                    self.since = self.every  # an idle engine looks all the time
                self._arrive(now)
                step = self._compose(now)
                if step.empty:
                    if not self.coming:
                        raise AssertionError("requests wait and nothing can run")
                    now, step = max(now, self.coming[0][0]), None
                    continue
            if step.plain:
                now = self._jump(step, now)
            duration = self.times.step_s(step.decodes, step.cached, step.chunks, step.sampled)
            end, following = now + duration, None
            self._note(step, now, duration, 1)
            self.since += self.every if step.chunks else 1
            if self.ahead:
                self._arrive(now)
                following = self._compose(end)
                following = None if following.empty else following
            self._pass_on(step.sampled, duration)
            self._complete(step, end)
            now, step = end, following

    def _arrive(self, now: float) -> None:
        if self.since < self.every:
            return
        self.since = 0
        while self.coming and self.coming[0][0] <= now:
            self.queue.waiting.append(heapq.heappop(self.coming)[1])

    def _compose(self, start: float) -> ComposedStep:
        step = self.queue.compose()
        for request in step.started:
            if np.isnan(self.scheduled[request]):
                self.scheduled[request] = start
        return step

    def _jump(self, step: ComposedStep, now: float) -> float:
        """Run equal decode steps until something happens; `step` becomes the next one. Returns the time it starts."""
        steps = self.queue.steps_without_event()
        if steps < 1:
            return now
        first, growth, holds = self.times.run(step.decodes, step.cached)
        steps = int(min(steps, holds))
        look = max(self.every - self.since - self.ahead, 0)  # compositions until the engine looks for new requests
        if self.coming and not self.queue.blocked:
            seen = _before(self.coming[0][0] - now, first, growth, steps)  # compositions before the newcomer is there
            seen = look + -(-max(seen - look, 0) // self.every) * self.every
            steps = min(steps, seen - (not self.ahead))
        if steps < 1:
            return now
        last = steps - self.ahead
        self.since = self.since + steps if last < look else (last - look) % self.every
        taken = steps * first + growth * (steps * (steps - 1) / 2)
        self._note(step, now, taken, steps)
        if self.per_token:
            self._pass_on(step.decodes, first)
            work = step.decodes * self.per_token
            self.backlog = max(self.backlog - (taken - first) + (steps - 1) * work, work)
        self.queue.skip(steps)
        step.cached += steps * step.decodes
        return now + taken

    def _pass_on(self, tokens: int, duration: float) -> None:
        """The front end works through a step's time and gets the step's tokens."""
        self.backlog = max(self.backlog - duration, 0.0) + tokens * self.per_token

    def _complete(self, step: ComposedStep, end: float) -> None:
        seen = end + max(self.backlog - step.sampled * self.per_token / 2, 0.0)  # the middle one of the step's tokens
        for request in step.firsts:
            self.first[request] = seen
        for request in step.finishing:
            self.finish[request] = seen
            self.queue.release(request)
            self.done += 1
            if self.unsent < len(self.requests):
                self.arrival[self.unsent] = seen
                heapq.heappush(self.coming, (seen + self.delay, self.unsent))
                self.unsent += 1

    def _note(self, step: ComposedStep, start: float, duration: float, steps: int) -> None:
        self.log.append((start, duration, steps, step.decodes, sum(q for q, _ in step.chunks), len(step.chunks), self.queue.pool.used))

    def table(self) -> pd.DataFrame:
        r = self.requests
        out = pd.DataFrame({"arrival_s": self.arrival, "prompt_tokens": r.prompt_tokens, "output_tokens": r.output_tokens, "scheduled_s": self.scheduled,
                            "first_token_s": self.first, "finish_s": self.finish})
        out["queue_s"], out["ttft_s"], out["e2e_s"] = out["scheduled_s"] - out["arrival_s"], out["first_token_s"] - out["arrival_s"], out["finish_s"] - out["arrival_s"]
        later = (out["output_tokens"] - 1).where(out["output_tokens"] > 1)
        out["tpot_s"] = (out["finish_s"] - out["first_token_s"]) / later
        return out

    def steps_table(self) -> pd.DataFrame:
        return pd.DataFrame(self.log, columns=["start_s", "time_s", "steps", "decodes", "prompt_tokens", "chunks", "blocks"])
