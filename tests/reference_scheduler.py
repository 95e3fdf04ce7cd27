"""A plain scheduler, one request and one step at a time, written from the rules alone: what the fast one is compared with."""
from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    id: int
    arrival: float
    prompt: int
    answer: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    scheduled: float | None = None
    first: float | None = None
    last: float | None = None
    pending: list = field(default_factory=list)  # for each step that is composed and not ended: does it sample?

    @property
    def ended(self):
        return self.generated == self.answer


class Plain:
    """decode_first order of vLLM: running requests in order of admission, then waiting ones while tokens, slots and blocks last."""

    def __init__(self, requests, budget, seqs, blocks, size, ahead=False, clients=None, delay=0.0, time=lambda tokens, cached: 1.0):
        self.requests = [Request(i, *r) for i, r in enumerate(requests)]
        self.budget, self.seqs, self.free, self.size, self.ahead = budget, min(seqs, budget), blocks, size, ahead
        self.delay, self.clients, self.time = delay, clients, time
        self.running, self.waiting, self.preemptions, self.trace = [], deque(), 0, []

    def need(self, tokens):
        return -(-tokens // self.size)

    def compose(self):
        left, plan, before = self.budget, [], self.preemptions
        for r in list(self.running):
            tokens = min(r.prompt + r.generated - r.computed, left)
            if r in self.running and not r.ended and tokens > 0 and self.take(r, tokens):
                plan.append((r, tokens, r.computed))
                left -= tokens
        while self.waiting and left > 0 and self.preemptions == before:
            r = self.waiting[0]
            known = r.prompt + r.generated
            if len(self.running) >= self.seqs or self.need(known) > self.free:
                break
            self.running.append(self.waiting.popleft())
            self.take(r, min(known, left))
            plan.append((r, min(known, left), 0))
            left -= min(known, left)
        for r, tokens, _ in plan:
            r.computed += tokens
            samples = r.computed == r.prompt + r.generated
            r.generated += samples
            r.pending.append(samples)
        return plan

    def take(self, r, tokens):
        """Blocks for the tokens; the latest admitted loses its own while the pool is short."""
        while self.need(r.computed + tokens) - r.blocks > self.free:
            victim = next(v for v in reversed(self.running) if not v.ended)
            self.preemptions += 1
            self.free += victim.blocks
            victim.blocks = victim.computed = 0
            self.running.remove(victim)
            self.waiting.appendleft(victim)
            if victim is r:
                return False
        more = self.need(r.computed + tokens) - r.blocks
        self.free -= more
        r.blocks += more
        return True

    def run(self):
        unsent = len(self.requests) if self.clients is None else min(self.clients, len(self.requests))
        self.coming = sorted((r.arrival + self.delay, r.id) for r in self.requests[:unsent])
        now, step, done = 0.0, None, 0
        while done < len(self.requests):
            if step is None:
                step = self.next_step(now, now)
                if not step:
                    now, step = max(now, self.coming[0][0]), None
                    continue
            end = now + self.time(sum(k for _, k, _ in step), sum(c for _, _, c in step))
            following = self.next_step(now, end) or None if self.ahead else None
            for r, _, _ in step:
                if r.pending.pop(0) and r.first is None:
                    r.first = end
                if r.ended and not r.pending:
                    r.last = end
                    self.running.remove(r)
                    self.free += r.blocks
                    done += 1
                    if unsent < len(self.requests):
                        self.requests[unsent].arrival = end
                        self.coming = sorted([*self.coming, (end + self.delay, unsent)])
                        unsent += 1
            now, step = end, following
        return self

    def next_step(self, now, start):
        while self.coming and self.coming[0][0] <= now:
            self.waiting.append(self.requests[self.coming.pop(0)[1]])
        plan = self.compose()
        for r, _, _ in plan:
            r.scheduled = start if r.scheduled is None else r.scheduled
        if plan:
            self.trace.append([(r.id, tokens) for r, tokens, _ in plan])
        return plan
