"""Scheduler: what runs in the next step. Room: serving.

Continuous batching in three orders. All admit first come, first served; nobody overtakes the head of the queue.
  decode_first   running requests, then prompts cut to the tokens left (vLLM v1: chunked prefill)
  whole_prompt   running requests, beside them whole prompts that fit the tokens left (TensorRT-LLM in-flight batching)
  prefill_first  while prompts wait, steps of prompts alone; decodes wait meanwhile (SGLang)
The rules of decode_first follow the vLLM 0.33 scheduler (vllm/v1/core/sched), told in our words; no prefix caching yet.
"""
import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from roofkit.errors import WorkloadError
from roofkit.serving.blocks import BlockPool

ORDERS = ("decode_first", "whole_prompt", "prefill_first")


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Limits and order of an engine's scheduler, with vLLM's option names.

    max_num_seqs             requests in a step at most;  max_num_batched_tokens   tokens in a step at most
    num_gpu_blocks           blocks of the KV cache; None = what the device's memory leaves
    block_size               tokens of a block
    order                    "decode_first" | "whole_prompt" | "prefill_first"
    async_scheduling         a step is composed when the one before it starts, so that the host works in its shadow
    scheduler_reserve_full_isl   admit a prompt only when all of it fits, not only its first chunk
    reserve_output           share of the answer that must fit too at admission; 1 = never preempt (GUARANTEED_NO_EVICT)
    receive_interval         new requests are looked for every so many decode steps, and after a step with prompts (SGLang's
                             scheduler_recv_interval); 1 = always
    batch_wait_timeout_iters, batch_wait_max_tokens_ratio   hold prompts back so many steps unless they fill this share of the
                             tokens (TensorRT-LLM, whole_prompt only); 0 = off
    Raises WorkloadError for an unknown order or a limit below 1.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    num_gpu_blocks: int | None = None
    block_size: int = 16
    order: str = "decode_first"
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    reserve_output: float = 0.0
    receive_interval: int = 1
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise WorkloadError(f"Scheduler: order={self.order!r} is not known; choose one of {', '.join(ORDERS)}")
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "receive_interval"):
            if int(getattr(self, name)) != getattr(self, name) or getattr(self, name) < 1:
                raise WorkloadError(f"Scheduler: {name}={getattr(self, name)!r} must be a whole number of at least 1")
        if self.num_gpu_blocks is not None and self.num_gpu_blocks < 1:
            raise WorkloadError(f"Scheduler: num_gpu_blocks={self.num_gpu_blocks!r} must be at least 1, or None for what memory leaves")
        if not 0 <= self.reserve_output <= 1:
            raise WorkloadError(f"Scheduler: reserve_output={self.reserve_output!r} must be a share in [0, 1]")

    @property
    def slots(self) -> int:
        """Requests in a step at most: never more than tokens."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(slots=True)
class ComposedStep:
    """What one step runs: `decodes` sequences with `cached` tokens in all, chunks (new tokens, cached tokens), requests that get
    their first token or their last one in it."""

    decodes: int = 0
    cached: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)
    sampled: int = 0
    firsts: list[int] = field(default_factory=list)
    finishing: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks

    @property
    def plain(self) -> bool:
        """Only decodes, none of which ends here."""
        return not self.chunks and not self.finishing


class Queue:
    """Requests in an engine, as of the last composed step: waiting, in mid-prompt, decoding, leaving.

    Every decoding request advances in every decode step, so a request is kept as (count of decode steps at which it gets its last
    token) in a heap, and the cached tokens of all of them as one sum.
    """

    def __init__(self, prompts: np.ndarray, outputs: np.ndarray, scheduler: Scheduler, blocks: int) -> None:
        self.prompts, self.outputs, self.rules = [int(x) for x in prompts], [int(x) for x in outputs], scheduler
        self.pool = BlockPool(blocks, scheduler.block_size)
        n = len(self.prompts)
        self.generated, self.computed, self.joined = [0] * n, [0] * n, [0] * n
        self.waiting: deque[int] = deque()
        self.partial: int | None = None  # request in mid-prompt
        self.running: list[int] = []  # decoding and in mid-prompt, in order of admission
        self.heap: list[tuple[int, int]] = []  # (decode count of the last token, request), ended ones dropped lazily
        self.ends_at = [-1] * n
        self.decoding = self.cached = self.to_come = 0  # requests; their cached tokens; their tokens still to come
        self.count = 0  # decode steps so far
        self.leaving = 0  # requests whose last token is in a step that still runs: they keep slot and blocks
        self.blocked = False  # the head of the queue waits for a slot or for memory, not for tokens
        self.waited = 0  # steps for which batch_wait has held prompts back
        self.preemptions = self.computed_tokens = 0
        self.compose = {"decode_first": self._decode_first, "whole_prompt": self._whole_prompt, "prefill_first": self._prefill_first}[scheduler.order]

    def refuse_impossible(self) -> None:
        """Raises WorkloadError when a request could never be admitted: it would block everything behind it for ever."""
        for p, m in zip(self.prompts, self.outputs, strict=True):
            need = self.pool.of(p + m - 1)
            if need > self.pool.capacity:
                raise WorkloadError(f"a request of {p} + {m} tokens needs {need} KV blocks and the cache has {self.pool.capacity}; it can never run: "
                                    f"shorten it, use more devices or a narrower cache")
            if self.rules.order == "whole_prompt" and p > self.rules.max_num_batched_tokens:
                raise WorkloadError(f"a prompt of {p} tokens is larger than max_num_batched_tokens={self.rules.max_num_batched_tokens} and this order "
                                    f"does not cut prompts; raise the limit")

    # -- orders ---------------------------------------------------------------------------------------------------------
    def _decode_first(self) -> ComposedStep:
        step, before = ComposedStep(), self.preemptions
        left = self.rules.max_num_batched_tokens - self._decode(step)
        if self.partial is not None:
            left -= self._chunk(self.partial, left, step, may_preempt=True)
        if self.preemptions == before:
            self._admit(left, step, cut=True)
        return step

    def _whole_prompt(self) -> ComposedStep:
        step = ComposedStep()
        left = self.rules.max_num_batched_tokens - self._decode(step)
        if self.waiting and step.decodes and self._holds_back(left, step.decodes):
            return step
        self._admit(left, step, cut=False)
        return step

    def _prefill_first(self) -> ComposedStep:
        step, left = ComposedStep(), self.rules.max_num_batched_tokens
        if self.partial is not None:
            left -= self._chunk(self.partial, left, step, may_preempt=False)
        self._admit(left, step, cut=True)
        if step.empty:
            self._decode(step)
        return step

    def _holds_back(self, left: int, decodes: int) -> bool:
        """Whether TensorRT-LLM's batch_wait keeps the prompts that fit out of this step."""
        if self.waited >= self.rules.batch_wait_timeout_iters:
            self.waited = 0
            return False
        fitting, slots = 0, self.rules.slots - len(self.running) - self.leaving
        for request in list(self.waiting)[:max(slots, 0)]:
            if fitting + self.prompts[request] > left:
                break
            fitting += self.prompts[request]
        if fitting and fitting + decodes < self.rules.batch_wait_max_tokens_ratio * self.rules.max_num_batched_tokens:
            self.waited += 1
            self.blocked = False
            return True
        self.waited = 0
        return False

    # -- parts ----------------------------------------------------------------------------------------------------------
    def _decode(self, step: ComposedStep) -> int:
        """One token for every decoding request; preempts the latest admitted while blocks are short. Returns tokens used."""
        if not self.decoding:
            return 0
        if not self._reserved and self.pool.due(self.count) > self.pool.free:
            self._make_room()
        if not self._reserved:
            self.pool.used += self.pool.due(self.count)
        step.decodes, step.cached = self.decoding, self.cached
        step.sampled += self.decoding
        self.count += 1
        self.cached += self.decoding
        self.to_come -= self.decoding
        self.computed_tokens += self.decoding
        while self.heap and self.heap[0][0] <= self.count:
            ends, request = heapq.heappop(self.heap)
            if self.ends_at[request] == ends:
                self._stop(request)
                self.leaving += 1
                step.finishing.append(request)
        return step.decodes

    def _make_room(self) -> None:
        """Give blocks in order of admission; whoever is last loses its blocks and goes back to the front of the queue."""
        pool, size = self.pool, self.pool.block_size
        needy = [r for r in self.running if r != self.partial and self._cached_of(r) % size == 0]
        given = 0
        for request in needy:
            while request in self.running and given + 1 > pool.free:
                self._preempt(self.running[-1])
            given += request in self.running

    def _cached_of(self, request: int) -> int:
        return self.computed[request] + self.count - self.joined[request]

    def _preempt(self, request: int) -> None:
        self.preemptions += 1
        self.blocked = False  # what it gave back may let the head of the queue in
        if request == self.partial:
            self.pool.used -= self.pool.of(self.computed[request])
            self.partial = None
        else:
            cached = self._cached_of(request)
            self.pool.used -= self.pool.of(cached)
            self.generated[request] += self.count - self.joined[request]
            self._stop(request)
        if request in self.running:
            self.running.remove(request)
        self.computed[request] = 0
        self.waiting.appendleft(request)

    def _stop(self, request: int) -> None:
        """The request no longer decodes."""
        cached = self._cached_of(request)
        self.pool.joins(cached, self.count, -1)
        self.to_come -= self.ends_at[request] - self.count
        self.ends_at[request] = -1
        self.decoding -= 1
        self.cached -= cached
        self.running.remove(request)

    def _known(self, request: int) -> int:
        """Tokens that must be computed before the next one can be sampled: the prompt, and answers lost to preemption."""
        return self.prompts[request] + self.generated[request]

    def _chunk(self, request: int, left: int, step: ComposedStep, may_preempt: bool) -> int:
        """The next tokens of the request in mid-prompt; returns how many."""
        done = self.computed[request]
        tokens = min(self._known(request) - done, left)
        if tokens <= 0:
            return 0
        need = 0 if self._reserved else self.pool.of(done + tokens) - self.pool.of(done)
        if need > self.pool.free:
            if may_preempt:
                self._preempt(request)
            return 0
        self.pool.used += need
        self._run(request, tokens, step)
        return tokens

    @property
    def _reserved(self) -> bool:
        """Whether admission takes every block a request will ever need."""
        return self.rules.reserve_output >= 1.0

    def _admit(self, left: int, step: ComposedStep, cut: bool) -> None:
        self.blocked = False
        while self.waiting and left > 0:
            request = self.waiting[0]
            known = self._known(request)
            if len(self.running) + self.leaving >= self.rules.slots:
                self.blocked = True
                return
            if not cut and known > left or self.partial is not None:
                return
            tokens = min(known, left)
            if not self._fits(request, known, tokens):
                self.blocked = True
                return
            self.waiting.popleft()
            self.running.append(request)
            step.started.append(request)
            self.pool.used += self._whole(request) if self._reserved else self.pool.of(tokens)
            self.partial = request
            self._run(request, tokens, step)
            left -= tokens

    def _whole(self, request: int) -> int:
        return self.pool.of(self.prompts[request] + self.outputs[request] - 1)

    def _fits(self, request: int, known: int, tokens: int) -> bool:
        if self._reserved:
            return self._whole(request) <= self.pool.free
        share = self.rules.reserve_output
        more = share * (self.to_come + self.outputs[request] - self.generated[request])
        whole = known if self.rules.scheduler_reserve_full_isl else tokens
        return self.pool.of(whole) + more / self.pool.block_size <= self.pool.free

    def _run(self, request: int, tokens: int, step: ComposedStep) -> None:
        """Compute `tokens` of the prompt; when it is complete the request samples, and decodes from the next step on."""
        done = self.computed[request]
        step.chunks.append((tokens, done))
        self.computed_tokens += tokens
        self.computed[request] = done = done + tokens
        if done < self._known(request):
            self.partial = request
            return
        self.partial = None
        step.sampled += 1
        if self.generated[request] == 0:
            step.firsts.append(request)
        self.generated[request] += 1
        if self.generated[request] >= self.outputs[request]:
            self.running.remove(request)
            self.leaving += 1
            step.finishing.append(request)
            return
        left = self.outputs[request] - self.generated[request]
        self.joined[request], self.ends_at[request] = self.count, self.count + left
        heapq.heappush(self.heap, (self.count + left, request))
        self.pool.joins(done, self.count)
        self.decoding += 1
        self.cached += done
        self.to_come += left

    def release(self, request: int) -> None:
        """The step with the request's last token has ended: its slot and blocks are free."""
        self.leaving -= 1
        self.blocked = False
        self.pool.used -= self._whole(request)

    # -- runs of equal steps --------------------------------------------------------------------------------------------
    def steps_without_event(self) -> int:
        """Decode steps that can follow with the same requests: nobody ends, nobody can be admitted, memory suffices."""
        if self.partial is not None or not self.decoding or (self.waiting and not self.blocked):
            return 0
        while self.ends_at[self.heap[0][1]] != self.heap[0][0]:
            heapq.heappop(self.heap)
        steps = self.heap[0][0] - self.count - 1
        return steps if self._reserved or steps <= 0 else self.pool.steps_that_fit(self.count, steps)

    def skip(self, steps: int) -> None:
        """Advance by `steps` such decode steps."""
        if not self._reserved:
            self.pool.used += self.pool.growth(self.count, steps)
        self.count += steps
        self.cached += steps * self.decoding
        self.to_come -= steps * self.decoding
        self.computed_tokens += steps * self.decoding
