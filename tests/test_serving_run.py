"""A simulated engine: its step times against the estimate, its limits, its benchmark presets."""
import numpy as np
import pytest

import roofkit as rk
from roofkit.errors import DataError, PlanError, WorkloadError
from roofkit.inference.engines import load_engine
from roofkit.inference.step import machine_for
from roofkit.ops.plan import resolved
from roofkit.serving.benchmark import emulate_benchmark, list_protocols, load_protocol, settings_of
from roofkit.serving.requests import Requests, closed_loop, load_trace, poisson_requests
from roofkit.serving.scheduler import Scheduler
from roofkit.serving.simulate import kv_blocks, simulate
from roofkit.serving.step_times import step_times

CASES = [("llama-3.1-8b", "h100-sxm-80gb", "vllm", 1), ("llama-3.1-70b", "b200-sxm-180gb", "trtllm", 4), ("deepseek-v3", "h200-sxm-141gb", "sglang", 8),
         ("qwen3-30b-a3b", "rtx-pro-6000-workstation", "vllm", 1), ("mamba2-780m", "a100-sxm-80gb", None, 1), ("gpt-oss-20b", "l40s", None, 1)]
EACH = pytest.mark.parametrize("model, device, engine, tp", CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])


def tables(model, device, engine, tp):
    arch, plan = rk.load_architecture(model), rk.Plan(tp=tp)
    cluster = machine_for(rk.load_device(device), plan)
    profile = load_engine(engine) if engine else None
    return arch, cluster, plan, step_times(arch, cluster, resolved(plan, arch), profile, max_seqs=64, max_tokens=4096, max_context=8192)


def exact(arch, cluster, plan, work, engine):
    step = rk.estimate(arch, cluster, plan, work, engine=engine)
    return step.time_s, step.ideal_s


@EACH
def test_tables_give_the_estimate(model, device, engine, tp):
    """Pure decodes within 0.1 % of the estimate between grid points and prompts within 1 %, and no step beats its bound."""
    arch, cluster, plan, times = tables(model, device, engine, tp)
    for batch, context in [(1, 100), (7, 1500), (64, 8000), (33, 777)]:
        true, bound = exact(arch, cluster, plan, rk.Decode(batch, context), engine)
        said = times.step_s(batch, batch * context, [], batch)
        assert said == pytest.approx(true, rel=0.001) and said >= bound * (1 - 1e-9)
    for new, done in [(17, 0), (512, 0), (2048, 4000), (4096, 0), (1000, 3000)]:
        true, bound = exact(arch, cluster, plan, rk.Prefill(1, new + done, done), engine)
        said = times.step_s(0, 0, [(new, done)], 1)
        assert said == pytest.approx(true, rel=0.01) and said >= bound * (1 - 1e-9)


@EACH
def test_mixed_steps_are_near_the_estimate(model, device, engine, tp):
    arch, cluster, plan, times = tables(model, device, engine, tp)
    for batch, context, new, done in [(8, 1000, 512, 0), (60, 3000, 2000, 1000), (1, 50, 4000, 0), (9, 700, 1, 15)]:
        true, bound = exact(arch, cluster, plan, rk.MixedBatch(batch, context, new, done), engine)
        said = times.step_s(batch, batch * context, [(new, done)], batch + 1)
        assert said == pytest.approx(true, rel=0.025) and said >= bound * (1 - 1e-9)


@EACH
def test_a_run_of_decodes_is_its_steps(model, device, engine, tp):
    *_, times = tables(model, device, engine, tp)
    for context in (900, 20, 8190, 20000):
        first, growth, steps = times.run(13, 13 * context)
        count = int(min(steps, 50))
        assert count >= 1
        np.testing.assert_allclose([first + growth * i for i in range(count)], [times.step_s(13, 13 * (context + i), [], 13) for i in range(count)], rtol=1e-12)


def test_a_lone_request_is_a_prefill_and_its_decodes():
    """TTFT = the prompt's step and the front end; the rest = decode steps at contexts P .. P + M - 2. Equal to 1e-9."""
    arch, cluster, plan, _ = tables("llama-3.1-8b", "h100-sxm-80gb", "vllm", 1)
    profile = load_engine("vllm")
    found = simulate(arch, cluster, plan, Requests(np.zeros(1), np.array([1000]), np.array([40])), engine="vllm")
    times = step_times(arch, cluster, resolved(plan, arch), profile, max_seqs=1, max_tokens=2048, max_context=1536)
    row = found.requests.iloc[0]
    assert row.ttft_s == pytest.approx(profile.frontend_s + times.step_s(0, 0, [(1000, 0)], 1), rel=1e-9)
    assert row.e2e_s - row.ttft_s == pytest.approx(sum(times.step_s(1, 1000 + i, [], 1) for i in range(39)), rel=1e-9)
    assert all(found.checks.values())


def test_load_raises_latency_and_is_deterministic():
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb")
    runs = [simulate(arch, device, None, poisson_requests(rate, 300, 1024, 128, seed=4), engine="vllm") for rate in (2, 8, 16)]
    again = simulate(arch, device, None, poisson_requests(8, 300, 1024, 128, seed=4), engine="vllm")
    assert runs[1].requests.equals(again.requests)
    means = [r.summary() for r in runs]
    for name in ("ttft_s_mean", "e2e_s_mean", "tpot_s_mean"):
        assert np.all(np.diff([m[name] for m in means]) >= 0), name
    assert all(all(r.checks.values()) for r in runs)
    quantiles = means[0][["ttft_s_p50", "ttft_s_p90", "ttft_s_p99"]]
    assert quantiles.is_monotonic_increasing and quantiles["ttft_s_p90"] == pytest.approx(np.quantile(runs[0].requests["ttft_s"], 0.9))


def test_throughput_grows_with_clients_and_obeys_little():
    """Closed loop: throughput x latency = clients, once the start and the end are left out; more clients, more tokens a second."""
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb")
    rates = []
    for clients in (4, 16, 64):
        run = simulate(arch, device, None, closed_loop(clients, clients * 20, 512, 128, 0.8), engine="vllm").requests
        middle = run.iloc[clients * 5:clients * 15]
        span = middle["finish_s"].max() - middle["finish_s"].min()
        assert len(middle) / span * middle["e2e_s"].mean() == pytest.approx(clients, rel=0.1)
        rates.append(len(middle) / span)
    assert np.all(np.diff(rates) > 0)


def test_memory_limits_who_runs():
    """A cache for few tokens keeps requests waiting; the blocks are what memory leaves beside the weights."""
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb")
    room = kv_blocks(arch, device, resolved(rk.Plan(), arch), Scheduler(), load_engine("vllm"))
    used = 0.9 * device.memory_bytes - 16.06e9
    assert used > room * 16 * 131072 > used - 4e9
    small = simulate(arch, device, None, closed_loop(32, 64, 512, 64), Scheduler(num_gpu_blocks=150), engine="vllm")
    large = simulate(arch, device, None, closed_loop(32, 64, 512, 64), engine="vllm")
    assert small.requests["queue_s"].mean() > 3 * large.requests["queue_s"].mean() and small.steps["decodes"].max() <= 4
    with pytest.raises(WorkloadError, match="can never run"):
        simulate(arch, device, None, closed_loop(1, 1, 5000, 64), Scheduler(num_gpu_blocks=150))
    with pytest.raises(WorkloadError, match="leaves no memory"):
        simulate(rk.load_architecture("llama-3.1-70b"), device, None, closed_loop(1, 1, 100, 10))


def test_layouts_that_are_not_simulated_are_refused():
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb")
    for plan in (rk.Plan(pp=2), rk.Plan(dp=2)):
        with pytest.raises(PlanError, match="one replica"):
            simulate(arch, device, plan, closed_loop(1, 1, 100, 10))


@pytest.mark.parametrize("name", list_protocols())
def test_presets_load_and_run(name):
    protocol = load_protocol(name)
    assert protocol.source and 0 < protocol.shortest <= 1
    found = emulate_benchmark(rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb"), rk.Plan(), "vllm", clients=8, prompt_tokens=256, output_tokens=32, preset=name)
    said = found.summary()
    assert len(found.served.requests) == 8 * protocol.requests_per_client and all(found.served.checks.values())
    assert said["ttft_s_mean"] == pytest.approx(found.ttft_s) and said["ttft_s_burst"] > said["ttft_s_steady"] * 0.5


@pytest.mark.parametrize("preset, engine, plan, sizes, expected", [
    ("inferencemax", "vllm", dict(weights="fp8"), (64, 1024, 1024), dict(max_num_batched_tokens=8192, max_num_seqs=512)),
    ("inferencemax", "trtllm", dict(weights="nvfp4", tp=8), (64, 1024, 8192), dict(max_num_batched_tokens=9416, kv="fp8")),
    ("inferencemax", "trtllm", dict(weights="fp8", tp=4), (64, 1024, 1024), dict(batch_wait_timeout_iters=20)),
    ("aiperf", "trtllm", dict(weights="bf16"), (64, 2048, 512), dict(max_num_seqs=63, max_num_batched_tokens=2112)),
    ("aiperf", "vllm", dict(weights="fp8"), (64, 2048, 512), dict(max_num_seqs=64, profile="vllm-0.12"))])
def test_settings_follow_the_run_scripts(preset, engine, plan, sizes, expected):
    found = settings_of(load_protocol(preset), engine, rk.Plan(**plan), "h100-sxm-80gb", *sizes)
    assert expected.items() <= found.items()
    if preset == "inferencemax" and engine == "trtllm" and (plan["tp"] >= 8 or sizes[2] != 1024):
        assert "batch_wait_timeout_iters" not in found


def test_requests_take_plain_lists():
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb")
    found = simulate(arch, device, None, Requests([0.0, 0.1], [100, 200], [5, 6]))
    assert all(found.checks.values()) and found.computed_tokens == 100 + 4 + 200 + 5


def test_bad_benchmarks_are_refused():
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb")
    run = dict(clients=2, prompt_tokens=64, output_tokens=8)
    with pytest.raises(DataError, match="inferencemax"):
        emulate_benchmark(arch, device, preset="mlperf", **run)
    with pytest.raises(WorkloadError, match="max_num_seqs"):
        emulate_benchmark(arch, device, max_seqs=3, **run)
    with pytest.raises(WorkloadError, match="does not cut prompts"):  # what the user sets is kept
        emulate_benchmark(arch, device, None, "trtllm", max_num_batched_tokens=32, **run)
    with pytest.raises(DataError, match="vllm"):
        emulate_benchmark(arch, device, None, "tgi", **run)
    with pytest.raises(WorkloadError, match="prompt_tokens"):
        load_trace("nowhere.csv")


def test_engine_orders_show_in_the_latencies():
    """SGLang serves prompts first, so first tokens come early and decodes wait; with slots for all, whole prompts beside decodes are between."""
    arch, device = rk.load_architecture("qwen3-32b"), rk.load_device("h100-sxm-80gb")
    run = dict(clients=32, prompt_tokens=2048, output_tokens=256, preset="inferencemax", profile=load_engine("vllm"), num_gpu_blocks=10**6)
    first = emulate_benchmark(arch, device, rk.Plan(tp=2), "vllm", **run, order="prefill_first", block_size=1)
    mixed = emulate_benchmark(arch, device, rk.Plan(tp=2), "vllm", **run, order="decode_first")
    assert (first.served.steps.query("chunks > 0")["decodes"] == 0).all()
    assert (mixed.served.steps.query("chunks > 0")["decodes"] > 0).mean() > 0.5
