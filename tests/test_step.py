"""Steps: published and measured totals, physical laws over the whole grid, sweeps, engines."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roofkit as rk
from roofkit.tables import BREAKDOWN, OPS_COLUMNS

H100 = "h100-sxm-80gb"
MODELS = ("ideal", "simple", "calibrated")


def estimate(arch, device, plan=None, workload=None, **kw):
    return rk.estimate(rk.load_architecture(arch), rk.load_device(device), plan or rk.Plan(), workload, **kw)


# sums of measured kernels, AIConfigurator tables for H100 SXM (TensorRT-LLM 1.3.0rc20), github ai-dynamo/aiconfigurator @ 095f58a5
SUMS = [  # model, plan, workload, (low, high) in ms
    ("llama-3.1-8b", rk.Plan(), rk.Decode(1, 2048), (6.2, 6.6)),
    ("llama-3.1-8b", rk.Plan(), rk.Decode(32, 2048), (9.5, 9.7)),
    ("llama-3.1-8b", rk.Plan(), rk.Decode(128, 2048), (18.1, 18.5)),
    ("llama-3.1-8b", rk.Plan(), rk.Prefill(1, 2048), (43.5, 46.7)),
    ("llama-3.1-70b", rk.Plan(tp=8), rk.Decode(1, 2048), (9.98, 9.98)),
    ("llama-3.1-70b", rk.Plan(tp=8), rk.Decode(32, 2048), (13.19, 13.19)),
    ("llama-3.1-70b", rk.Plan(tp=8), rk.Decode(128, 2048), (20.28, 20.28)),
    ("llama-3.1-70b", rk.Plan(tp=8), rk.Prefill(1, 2048), (93.7, 93.7)),
]


@pytest.mark.parametrize("arch, plan, workload, window", SUMS, ids=[f"{r[0]}-tp{r[1].tp}-{r[2].phase}-b{r[2].batch}" for r in SUMS])
def test_calibrated_steps_are_within_12_percent_of_sums_of_measured_kernels(arch, plan, workload, window):
    time_ms = estimate(arch, H100, plan, workload).time_s * 1e3
    assert 0.88 * window[0] <= time_ms <= 1.12 * window[1]


def test_ideal_decode_of_llama_8b_is_its_bytes_over_the_bandwidth():
    step = estimate("llama-3.1-8b", H100, workload=rk.Decode(1, 2048), cost_model="ideal")
    weights, kv = 15.01e9, 0.268e9  # 8.03e9 parameters without the input table, 2 bytes; 2048 x 131,072 bytes
    assert step.time_s == pytest.approx((weights + kv) / 3.35e12, rel=0.01)
    assert step.time_s == pytest.approx(4.56e-3, rel=0.01)


def test_breakdown_sums_to_the_step_and_ops_to_the_device_time():
    for workload in (rk.Decode(32, 2048), rk.Prefill(4, 1000), rk.MixedBatch(8, 512, chunk_tokens=256)):
        for plan in (rk.Plan(), rk.Plan(tp=4), rk.Plan(tp=2, pp=2)):
            for engine in (None, "vllm"):
                step = estimate("llama-3.1-8b", H100, plan, workload, engine=engine)
                assert step.breakdown().sum() == pytest.approx(step.time_s, rel=1e-9)
                assert list(step.breakdown().index) == list(BREAKDOWN)
                assert step.ops["time_s"].sum() == pytest.approx(step.device_s, rel=1e-9)
                assert list(step.ops.columns) == list(OPS_COLUMNS)
                assert step.ops["share"].sum() == pytest.approx(1.0, rel=1e-9)


DEVICES = sorted(rk.list_devices()["name"])
ARCHS = sorted(rk.list_architectures()["name"])
FEW_ARCHS = ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b"]
FEW_DEVICES = ["h100-sxm-80gb", "b200-sxm-180gb", "l40s", "mi300x", "t4"]


def grid():
    """Every device with four kinds of model and two plans; every model on five kinds of device."""
    for device in DEVICES:
        yield from ((arch, device, tp) for arch in FEW_ARCHS for tp in (1, 8))
    for arch in ARCHS:
        yield from ((arch, device, 1) for device in FEW_DEVICES if arch not in FEW_ARCHS)


@pytest.mark.parametrize("model", MODELS)
def test_no_op_in_any_preset_device_and_workload_beats_its_bound(model):
    batches, lengths = np.array([[1], [3], [32], [512]]), np.array([[1, 700, 8192, 131072]])
    seen = 0
    for arch_name, device_name, tp in grid():
        arch, device = rk.load_architecture(arch_name), rk.load_device(device_name)
        name = next(f for f in ("bf16", "fp16", "int8", "fp8", "fp32") if device.has_math(f))
        plan = rk.Plan(tp=tp, weights=name, activations=name)
        try:
            steps = [rk.estimate(arch, device, plan, w, model) for w in (rk.Decode(batches, lengths), rk.Prefill(batches, lengths))]
        except rk.PlanError:
            continue  # a width that tp does not divide
        except rk.CostModelError as err:
            assert "bandwidth" in str(err) or "native" in str(err), err  # no link known, or no 16-bit rate for the output matrix
            continue
        for step in steps:
            assert all(step.checks.values()), (arch_name, device_name, plan, step.checks)
            assert np.all(step.mfu <= 1 + 1e-9) and np.all(step.mbu <= 1 + 1e-9), (arch_name, device_name)
            assert np.all(np.isfinite(step.time_s))
            seen += step.time_s.size
    assert seen > 5000


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("arch, device, plan", [("llama-3.1-8b", H100, rk.Plan()), ("llama-3.1-70b", H100, rk.Plan(tp=8)), ("mixtral-8x7b", "b200-sxm-180gb", rk.Plan(tp=2)),
                                                ("deepseek-v3", "h200-sxm-141gb", rk.Plan(tp=8)), ("qwen3-8b", "l40s", rk.Plan()), ("llama-3.1-8b", "mi300x", rk.Plan())])
def test_latency_is_monotone_in_batch_and_length(arch, device, plan, model):
    sizes = np.unique(np.round(np.geomspace(1, 1024, 120)).astype(int))
    lengths = np.unique(np.round(np.geomspace(1, 65536, 200)).astype(int))
    for workload in (rk.Decode(sizes, 2048), rk.Decode(16, lengths), rk.Prefill(1, lengths), rk.Prefill(sizes[:60], 128)):
        time = estimate(arch, device, plan, workload, cost_model=model).time_s
        drop = (time[:-1] - time[1:]) / time[:-1]
        assert drop.max() <= 1e-9, f"{workload.phase}: falls by {drop.max():.2%} at point {drop.argmax()}"


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 512), context=st.integers(0, 100_000), tp=st.sampled_from([1, 2, 4, 8]), faster=st.floats(1.01, 4.0), model=st.sampled_from(MODELS))
def test_more_bandwidth_or_flops_never_slows_a_step(batch, context, tp, faster, model):
    from dataclasses import replace

    device = rk.load_device(H100)
    arch = rk.load_architecture("llama-3.1-8b")
    base = rk.estimate(arch, device, rk.Plan(tp=tp), rk.Decode(batch, context), model).time_s
    for key in ("hbm_bandwidth", "peak_bf16_dense"):
        figure = device.figures[key]
        quick = replace(device, figures={**device.figures, key: replace(figure, value=figure.value * faster)})
        cluster = replace(rk.load_cluster("dgx-h100"), device=quick)
        assert rk.estimate(arch, cluster, rk.Plan(tp=tp), rk.Decode(batch, context), model).time_s <= base * (1 + 1e-9), key


def test_a_sweep_is_its_points_and_at_gives_one_back():
    batches = np.array([1, 8, 64, 512])
    for model in MODELS:
        for plan in (rk.Plan(), rk.Plan(tp=4, pp=2)):
            swept = estimate("mixtral-8x7b", H100, plan, rk.Decode(batches, 1000), cost_model=model)
            for i, batch in enumerate(batches):
                point = estimate("mixtral-8x7b", H100, plan, rk.Decode(int(batch), 1000), cost_model=model)
                assert swept.time_s[i] == pytest.approx(point.time_s, rel=1e-9)
                assert swept.memory.total[i] == pytest.approx(point.memory.total, rel=1e-12)
            assert swept.at(2).ops["time_s"].sum() == pytest.approx(swept.device_s[2], rel=1e-9)
            with pytest.raises(rk.RoofkitError, match="at"):
                _ = swept.ops


def test_memory_of_llama_8b_adds_up_and_the_largest_batch_is_the_largest():
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device(H100)
    step = rk.estimate(arch, device, rk.Plan(), rk.Decode(1, 2048))
    assert step.memory.weights == pytest.approx(2 * arch.total_params, rel=1e-6)
    assert step.memory.kv_cache == 2049 * 131072
    assert step.memory.total == pytest.approx(step.memory.series.drop("capacity").sum())
    assert step.memory.fits and step.memory.headroom > 0
    most = step.largest_batch()
    assert rk.estimate(arch, device, rk.Plan(), rk.Decode(most, 2048)).memory.fits
    assert not rk.estimate(arch, device, rk.Plan(), rk.Decode(most + 1, 2048)).memory.fits
    too_big = rk.estimate(rk.load_architecture("llama-3.1-70b"), device, rk.Plan(), rk.Decode(1, 2048))
    assert not too_big.memory.fits and too_big.memory.headroom < 0 and too_big.largest_batch() == 0


@pytest.mark.parametrize("name", ARCHS)
def test_weights_on_one_device_are_the_parameters(name):
    arch = rk.load_architecture(name)
    step = rk.estimate(arch, rk.load_device(H100), rk.Plan(weights="bf16", activations="bf16"), rk.Decode(1, 128))
    assert step.memory.weights == pytest.approx(2 * arch.text_params, rel=1e-6)


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b-gptq-int4", "llama-3.1-70b-fp8"])
def test_weights_of_a_quantised_checkpoint_are_its_stored_bytes(name):
    from roofkit.architectures.checkpoint import weight_bytes

    arch = rk.load_architecture(name)
    step = rk.estimate(arch, rk.load_device("b200-sxm-180gb"), rk.Plan(), rk.Decode(1, 128))
    assert step.memory.weights == pytest.approx(weight_bytes(arch), rel=0.01)


def test_tensor_parallel_shards_sum_to_the_whole_but_for_what_is_replicated():
    arch = rk.load_architecture("llama-3.1-70b")
    one, eight = (rk.estimate(arch, rk.load_device(H100), rk.Plan(tp=tp), rk.Decode(1, 128)).memory for tp in (1, 8))
    assert one.weights == pytest.approx(8 * eight.weights, rel=1e-3)
    assert one.kv_cache == pytest.approx(8 * eight.kv_cache)


def test_an_engine_adds_host_time_and_never_removes_any():
    for engine in ("vllm", "sglang", "trtllm"):
        for workload in (rk.Decode(32, 2048), rk.Prefill(1, 512)):
            step = estimate("llama-3.1-8b", H100, workload=workload, engine=engine)
            assert step.host_s > 0 and step.time_s >= step.device_s
    eager = estimate("llama-3.1-8b", H100, workload=rk.Prefill(1, 16), engine="trtllm")
    assert eager.exposed_host_s > 0  # 630 us a layer are longer than the kernels of 16 tokens


def test_a_pipeline_waits_in_prefill_and_hides_its_fill_in_decode():
    one = estimate("llama-3.1-8b", H100, rk.Plan(), rk.Prefill(1, 2048))
    two = estimate("llama-3.1-8b", H100, rk.Plan(pp=2), rk.Prefill(1, 2048))
    assert two.breakdown()["pipeline_bubble"] == pytest.approx(two.device_s, rel=1e-6)  # one microbatch: half of the time idle
    assert two.time_s == pytest.approx(one.time_s, rel=0.02)
    assert estimate("llama-3.1-8b", H100, rk.Plan(pp=2), rk.Decode(64, 2048)).bubble_s == pytest.approx(0, abs=1e-12)


BAD = [
    (lambda: estimate("llama-3.1-8b", H100, rk.Plan(tp=3), rk.Decode(1, 1)), "divisible"),
    (lambda: estimate("llama-3.1-8b", H100), "workload"),
    (lambda: rk.estimate("llama-3.1-8b", rk.load_device(H100), rk.Plan(), rk.Decode(1, 1)), "load_architecture"),
    (lambda: rk.estimate(rk.load_architecture("llama-3.1-8b"), "h100", rk.Plan(), rk.Decode(1, 1)), "load_device"),
    (lambda: estimate("llama-3.1-8b", "t4", workload=rk.Decode(1, 1)), "bf16"),
    (lambda: estimate("llama-3.1-8b", H100, workload=rk.Decode(1, 1), cost_model="magic"), "magic"),
    (lambda: estimate("llama-3.1-8b", H100, workload=rk.Decode(1, 1), engine="magic"), "magic"),
    (lambda: rk.estimate(rk.load_architecture("llama-3.1-8b"), rk.load_cluster("dgx-h100"), rk.Plan(tp=8, pp=4), rk.Decode(1, 1)), "devices"),
    (lambda: estimate("llama-3.1-8b", "a100-sxm-80gb", rk.Plan(weights="fp8", activations="fp8"), rk.Decode(1, 1)), "fp8"),
]


@pytest.mark.parametrize("make, words", BAD)
def test_what_a_user_can_get_wrong_is_said(make, words):
    with pytest.raises(rk.RoofkitError, match=words):
        make()


def test_energy_is_positive_within_the_boards_limit_and_adds_up_over_devices():
    arch, device = rk.load_architecture("llama-3.1-8b"), rk.load_device("b200-sxm-180gb")
    one = rk.estimate(arch, device, rk.Plan(), rk.Decode(32, 2048))
    assert 0 < one.energy.average_w <= device.tdp_w * 1.05 and one.energy.calibration == "fitted"
    parts = one.energy
    assert parts.total_j == pytest.approx(parts.static_j + parts.compute_j + parts.hbm_j + parts.l2_j + parts.busy_j + parts.link_j, rel=1e-9)
    assert one.j_per_token == pytest.approx(one.energy_j / 32)
    four = rk.estimate(arch, device, rk.Plan(tp=4), rk.Decode(32, 2048))
    assert four.energy_j == pytest.approx(4 * four.energy.total_j) and four.energy.link_j > 0
    many = rk.estimate(arch, device, rk.Plan(), rk.Decode(np.array([1, 32, 256]), 2048))
    assert many.energy_j[1] == pytest.approx(one.energy_j, rel=1e-9) and (np.diff(many.j_per_token) < 0).all()
