"""The scheduler: worked examples, the plain reference on random cases, the laws of a queue."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_scheduler import Plain

from roofkit.errors import WorkloadError
from roofkit.serving.blocks import BlockPool
from roofkit.serving.requests import Requests, closed_loop, poisson_requests
from roofkit.serving.scheduler import Queue, Scheduler
from roofkit.serving.simulate import _Loop


class Clock:
    """Step times that depend on tokens alone."""

    def __init__(self, base=1.0, per_token=0.0, per_cached=0.0):
        self.base, self.per_token, self.per_cached = base, per_token, per_cached

    def __call__(self, tokens, cached):
        return self.base + self.per_token * tokens + self.per_cached * cached

    def step_s(self, decodes, cached, chunks, sampled):
        return self(decodes + sum(q for q, _ in chunks), cached + sum(c for _, c in chunks))

    def run(self, decodes, cached):
        return self(decodes, cached), self.per_cached * decodes, np.inf


def run(requests, rules, blocks=10**6, clock=None, delay=0.0, per_token=0.0, walk=False):
    queue = Queue(requests.prompt_tokens, requests.output_tokens, rules, blocks)
    queue.refuse_impossible()
    loop = _Loop(requests, queue, clock or Clock(), delay, rules.async_scheduling, per_token)
    if walk:
        loop._jump = lambda step, now: now
    loop.run()
    return loop, queue


def of(*rows, concurrency=None):
    return Requests(*(np.array(x, float) for x in zip(*rows, strict=True)), concurrency)


# SCHEDULER.md, worked examples printed by a reference of the vLLM 0.33 scheduler; block 4, one second a step
EXAMPLES = [
    ("E1", [(0, 6, 3), (0, 10, 2), (0, 3, 2)], dict(budget=8, seqs=9, blocks=99), [[(0, 6), (1, 2)], [(0, 1), (1, 7)], [(0, 1), (1, 1), (2, 3)], [(1, 1), (2, 1)]], [0, 2, 2]),
    ("E2", [(0, 4, 6), (0, 4, 6)], dict(budget=8, seqs=9, blocks=4), [[(0, 4), (1, 4)]] + [[(0, 1), (1, 1)]] * 4 + [[(0, 1)], [(1, 8)], [(1, 1)]], [0, 0]),
    ("E6", [(0, 1, 8), (0, 1, 8), (2, 20, 1)], dict(budget=4, seqs=9, blocks=99), None, [0, 0, 9]),
    ("E7", [(0, 4, 4), (0, 4, 4), (0, 4, 1)], dict(budget=16, seqs=2, blocks=99), None, [0, 0, 4]),
]


@pytest.mark.parametrize("name, rows, limits, trace, firsts", EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_worked_examples(name, rows, limits, trace, firsts):
    plain = Plain(rows, size=4, **limits).run()
    assert [int(r.first) - 1 for r in plain.requests] == firsts
    if trace is not None:
        assert plain.trace == trace
    loop, queue = run(of(*rows), Scheduler(limits["seqs"], limits["budget"], block_size=4, async_scheduling=False), limits["blocks"])
    assert [int(f) - 1 for f in loop.first] == firsts
    assert queue.preemptions == plain.preemptions


CASES = st.fixed_dictionaries(dict(
    rows=st.lists(st.tuples(st.integers(0, 30).map(lambda t: t * 1.0713), st.integers(1, 24), st.integers(1, 40)), min_size=1, max_size=14), budget=st.integers(2, 40), seqs=st.integers(1, 12),
    blocks=st.integers(17, 60), size=st.sampled_from([1, 4, 16]), ahead=st.booleans(), clients=st.one_of(st.none(), st.integers(1, 6)), delay=st.sampled_from([0.0, 0.31373]),
    per_token=st.sampled_from([0.0, 0.0137117]), per_cached=st.sampled_from([0.0, 0.000717])))


@settings(max_examples=400, deadline=None)
@given(CASES)
def test_equals_the_plain_scheduler(case):
    """First and last token of every request and the number of preemptions, with and without scheduling ahead, in open and closed loop."""
    rows = sorted(case["rows"]) if case["clients"] is None else [(0, p, m) for _, p, m in case["rows"]]
    blocks = case["blocks"] * 16 // case["size"] if case["size"] < 16 else max(case["blocks"], 4)
    clock = Clock(1.0, case["per_token"], case["per_cached"])
    plain = Plain(rows, case["budget"], case["seqs"], blocks, case["size"], case["ahead"], case["clients"], case["delay"], clock).run()
    rules = Scheduler(case["seqs"], case["budget"], block_size=case["size"], async_scheduling=case["ahead"])
    loop, queue = run(of(*rows, concurrency=case["clients"]), rules, blocks, clock, case["delay"])
    assert queue.preemptions == plain.preemptions
    np.testing.assert_allclose(loop.first, [r.first for r in plain.requests], rtol=1e-9)
    np.testing.assert_allclose(loop.finish, [r.last for r in plain.requests], rtol=1e-9)
    np.testing.assert_allclose(loop.scheduled, [r.scheduled for r in plain.requests], rtol=1e-9)
    assert queue.pool.used == 0, "every block is given back"


@settings(max_examples=150, deadline=None)
@given(CASES, st.sampled_from(["whole_prompt", "prefill_first"]))
def test_other_orders_finish_and_conserve(case, order):
    rows = sorted(case["rows"]) if case["clients"] is None else [(0, p, m) for _, p, m in case["rows"]]
    rules = Scheduler(case["seqs"], max(case["budget"], 24), block_size=case["size"], order=order, async_scheduling=case["ahead"], reserve_output=1.0 if order == "whole_prompt" else 0.7)
    blocks = case["blocks"] * 16 // case["size"]
    loop, queue = run(of(*rows, concurrency=case["clients"]), rules, blocks, Clock(1.0, case["per_token"]), case["delay"])
    table, steps = loop.table(), loop.steps_table()
    assert np.isfinite(table["finish_s"]).all() and queue.pool.used == 0
    computed = sum(p + m - 1 for _, p, m in rows)
    assert queue.computed_tokens == computed if not queue.preemptions else queue.computed_tokens > computed
    assert (steps["blocks"] <= blocks).all() and (steps["decodes"] + steps["prompt_tokens"] <= rules.max_num_batched_tokens).all()
    if order == "prefill_first":
        assert not ((steps["decodes"] > 0) & (steps["chunks"] > 0)).any(), "a step holds prompts or decodes, never both"
    if order == "whole_prompt":
        assert not queue.preemptions and steps["chunks"].sum() == len(rows), "prompts are never cut"


def test_lindley_recursion_of_a_single_server():
    """max_num_seqs = 1, equal requests: wait_i = max(0, wait_(i-1) + S - gap_i). Lindley 1952."""
    requests = poisson_requests(1 / 14, 3000, 8, 10, seed=3)
    loop, _ = run(requests, Scheduler(1, 64, async_scheduling=False))
    service, wait = 10.0, 0.0  # one prompt step and nine decodes of 1 s
    expected = [0.0]
    for gap in np.diff(requests.arrival_s):
        wait = max(0.0, wait + service - gap)
        expected.append(wait)
    table = loop.table()
    np.testing.assert_allclose(table["queue_s"], expected, atol=1e-6)


def test_mean_wait_of_md1():
    """Poisson arrivals, fixed service: mean wait = rho S / (2 (1 - rho)), within 5 % over 40,000 requests. Pollaczek-Khinchine."""
    rho, service = 0.6, 10.0
    loop, _ = run(poisson_requests(rho / service, 40_000, 8, 10, seed=1), Scheduler(1, 64, async_scheduling=False))
    assert loop.table()["queue_s"].mean() == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.05)


def test_littles_law():
    """Time-average number in the system = completions / horizon x mean time in it: an identity of the event log."""
    loop, _ = run(poisson_requests(0.4, 500, 20, 12, seed=2), Scheduler(4, 64), clock=Clock(0.5, 0.01))
    table = loop.table()
    events = np.sort(np.concatenate([table["arrival_s"], table["finish_s"]]))
    inside = [(table["arrival_s"] <= t).sum() - (table["finish_s"] <= t).sum() for t in events[:-1]]
    horizon = events[-1] - events[0]
    average = float(np.dot(inside, np.diff(events))) / horizon
    assert average == pytest.approx(len(table) / horizon * table["e2e_s"].mean(), rel=1e-9)


@pytest.mark.parametrize("ahead, steps", [(True, 3), (False, 2)])
def test_lock_step_clients_wait_for_whole_steps(ahead, steps):
    """Fixed lengths, one prompt a step, a little client delay: a request that follows a finished one waits for the step that runs
    and, with scheduling ahead, for the one already composed; then its own: TTFT is 3 steps, or 2."""
    loop, _ = run(closed_loop(4, 40, 16, 8), Scheduler(4, 20, async_scheduling=ahead), delay=0.01)
    np.testing.assert_allclose(loop.table()["ttft_s"].to_numpy()[4:], steps, rtol=1e-9)


def test_an_idle_engine_starts_at_once():
    loop, _ = run(closed_loop(1, 6, 16, 8), Scheduler(4, 64), delay=0.01)
    np.testing.assert_allclose(loop.table()["ttft_s"].to_numpy(), 1.01)


def test_one_slot_too_few_makes_one_client_wait():
    """With c - 1 slots the mean TTFT grows by about a whole generation over c."""
    base, _ = run(closed_loop(8, 160, 16, 50), Scheduler(8, 64))
    less, _ = run(closed_loop(8, 160, 16, 50), Scheduler(7, 64))
    grown = less.table()["ttft_s"][8:].mean() - base.table()["ttft_s"][8:].mean()
    assert grown == pytest.approx(50 / 8, rel=0.2)


@settings(max_examples=100, deadline=None)
@given(CASES, st.sampled_from(["decode_first", "whole_prompt", "prefill_first"]), st.sampled_from([0.0, 0.07191, 0.31171, 1.1]), st.sampled_from([1, 1, 3, 10]))
def test_jumps_change_nothing(case, order, front_end, interval):
    """A run that jumps over decode steps equals one that walks them, with a front end that tokens queue at and looks for requests now and then."""
    rows = sorted(case["rows"]) if case["clients"] is None else [(0, p, m) for _, p, m in case["rows"]]
    rules = Scheduler(case["seqs"], max(case["budget"], 24), block_size=case["size"], order=order, async_scheduling=case["ahead"], reserve_output=1.0 if order == "whole_prompt" else 0.0,
                      receive_interval=interval)
    more = dict(blocks=case["blocks"] * 16 // case["size"], clock=Clock(1.0, case["per_token"], case["per_cached"]), delay=case["delay"], per_token=front_end)
    jumped, walked = (run(of(*rows, concurrency=case["clients"]), rules, walk=walk, **more)[0] for walk in (False, True))
    np.testing.assert_allclose(jumped.first, walked.first, rtol=1e-9)
    np.testing.assert_allclose(jumped.finish, walked.finish, rtol=1e-9)


def test_a_front_end_caps_tokens_per_second():
    """Tokens pass one after the other: no more than 1 / per_token a second however many clients, and first tokens wait for it."""
    found = {c: run(closed_loop(c, 20 * c, 16, 50, 0.8, seed=1), Scheduler(64, 256), per_token=0.05)[0].table() for c in (4, 64)}
    rates = {c: t["output_tokens"].sum() / t["finish_s"].max() for c, t in found.items()}
    assert rates[4] < 8 and 15 < rates[64] <= 20
    assert found[64]["ttft_s"][64:].mean() > 5 * found[4]["ttft_s"][4:].mean()


def test_a_receive_interval_delays_by_half_of_it():
    """Arrivals at random wait half the interval on average while others decode, at most all of it."""
    sent = of(*[(0, 8, 4000)], *[(50.37 + 97.13 * i, 8, 2) for i in range(30)])
    waits = [run(sent, Scheduler(8, 64, receive_interval=n))[0].table()["queue_s"][1:] for n in (1, 20)]
    more = waits[1] - waits[0]
    assert 0 <= more.min() and more.max() <= 20 and more.mean() == pytest.approx(9.5, abs=3)


def test_batch_wait_adds_at_most_its_steps():
    rules = dict(max_num_seqs=8, max_num_batched_tokens=1000, order="whole_prompt", reserve_output=1.0)
    plain, _ = run(closed_loop(4, 40, 16, 60, 0.5, seed=1), Scheduler(**rules))
    held, _ = run(closed_loop(4, 40, 16, 60, 0.5, seed=1), Scheduler(**rules, batch_wait_timeout_iters=20, batch_wait_max_tokens_ratio=0.9))
    more = held.table()["ttft_s"].mean() - plain.table()["ttft_s"].mean()
    assert 5 < more <= 20 + 1e-9


def test_start_burst_scales_with_requests_per_client():
    """The burst's part of the mean TTFT is 1/K of itself when every client sends K requests."""
    def mean(per_client):
        loop, _ = run(closed_loop(16, 16 * per_client, 64, 30, 0.7, seed=1), Scheduler(16, 64), clock=Clock(0.2, 0.02))
        ttft = loop.table()["ttft_s"].to_numpy()
        return ttft.mean(), ttft[:16].mean(), ttft[16:].mean()
    for k in (5, 20):
        whole, burst, steady = mean(k)
        assert whole == pytest.approx(burst / k + steady * (1 - 1 / k))
        assert burst > 2 * steady


@pytest.mark.parametrize("make, said", [
    (lambda: Scheduler(order="random"), "decode_first"), (lambda: Scheduler(max_num_seqs=0), "max_num_seqs"), (lambda: Scheduler(num_gpu_blocks=0), "num_gpu_blocks"),
    (lambda: Scheduler(reserve_output=2), "reserve_output"), (lambda: poisson_requests(0, 3, 1, 1), "rate"), (lambda: poisson_requests(float("nan"), 3, 1, 1), "rate"),
    (lambda: closed_loop(1, 0, 5, 5), "n=0"), (lambda: closed_loop(1, 2, 5, 5, shortest=0), "shortest"), (lambda: of((1, 2, 3), (0, 2, 3)), "sorted"),
    (lambda: of((0, 2, 0.5)), "output_tokens"), (lambda: Requests(np.array([]), np.array([]), np.array([])), "at least 1"), (lambda: BlockPool(0, 16), "KV cache"),
    (lambda: run(of((0, 100, 100)), Scheduler(block_size=4), 20), "can never run"),
    (lambda: run(of((0, 100, 1)), Scheduler(max_num_batched_tokens=50, order="whole_prompt", max_num_seqs=1)), "does not cut prompts"),
])
def test_bad_input_is_refused_by_name(make, said):
    with pytest.raises(WorkloadError, match=said):
        make()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 40), st.sampled_from([1, 4, 16]), st.integers(0, 9))
def test_growth_of_blocks_equals_the_walk(cached, steps, size, now):
    pool = BlockPool(10**6, size)
    for c in cached:
        pool.joins(c, now)
    walked = sum(pool.of(c + steps) - pool.of(c) for c in cached)
    assert pool.growth(now, steps) == walked
    assert sum(pool.due(now + i) for i in range(steps)) == walked
    pool.capacity = walked
    assert pool.steps_that_fit(now, steps) == steps
