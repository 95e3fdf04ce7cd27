"""Laws of the fitted forms, for every shape: bounds, monotony, more hardware never slower, collectives against each other."""
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from roofkit.cost import attention, bounds, collectives, elementwise, gemm, moe
from roofkit.cost.calibration import bind, device_fits
from roofkit.formats import gemm_format
from roofkit.hardware.presets import default_cluster, load_device
from roofkit.ops.kinds import Attention, Collective, Elementwise, Gemm, GroupedGemm, Transfer

DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "l40s", "rtx-pro-6000-server")
FORMATS = {"a100-sxm-80gb": (("bf16", "bf16"), ("int8", "int8"), ("int4", "bf16"), ("int8", "bf16")), "b200-sxm-180gb": (("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "nvfp4")),
           "rtx-pro-6000-server": (("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "nvfp4"))}
HOPPER = (("bf16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8_block"), ("int8", "int8"), ("mxfp4", "bf16"))
TINY = 1 - 1e-9

width = st.sampled_from([1, 64, 100, 128, 640, 1024, 2048, 4096, 7168, 14336, 28672, 128256])
device = st.sampled_from(DEVICES)
engine = st.sampled_from([None, "vllm", "sglang", "trtllm"])
sizes = st.lists(st.integers(1, 1 << 15), min_size=2, max_size=60, unique=True).map(lambda v: np.array(sorted(v), dtype=float))


def formats_of(name):
    return FORMATS.get(name, HOPPER)


def grows(times) -> bool:
    return bool((times[1:] >= times[:-1] * TINY).all())


@st.composite
def attentions(draw, phase, batch=None, tokens=None):
    kv_heads, group = draw(st.sampled_from([1, 2, 4, 8, 32])), draw(st.sampled_from([1, 2, 4, 7, 8, 16, 48]))
    kv, dim = draw(st.sampled_from(["bf16", "fp8"])), draw(st.sampled_from([64, 128, 256]))
    past = draw(st.sampled_from([0, 0, 300, 5000])) if phase == "prefill" else 0
    batch = float(draw(st.integers(1, 300))) if batch is None else draw(batch)
    tokens = float(draw(st.integers(1, 8000))) if tokens is None else draw(tokens)
    return Attention("a", "attention", phase, batch, tokens if phase == "prefill" else 1.0, tokens + past, kv_heads * group, kv_heads, dim, dim, 2 * dim,
                     1.0 if kv == "fp8" else 2.0, kv, "bf16", draw(st.sampled_from([None, None, 128, 1024, 4096])))


@given(device, engine, st.integers(0, 4), width, width, sizes, st.sampled_from([1, 16]))
def test_a_product_grows_with_its_rows_and_never_beats_its_roofline(name, engine, which, n, k, m, batch):
    d = load_device(name)
    fmt = gemm_format(*formats_of(name)[which % len(formats_of(name))])
    time_s = gemm.calibrated(m, float(n), float(k), fmt, batch, device_fits(d, engine)).time_s
    op = Gemm("g", "ffn", m, k, n, fmt, batch=batch)
    assert grows(time_s)
    assert (time_s >= TINY * op.flops / d.peak_flops_per_s(fmt.math)).all()
    assert (time_s >= TINY * op.bytes_moved / d.hbm_bytes_per_s).all()


@given(device, engine, st.one_of(attentions("decode", batch=sizes), attentions("decode", tokens=sizes)))
def test_decode_grows_with_batch_and_context_and_never_beats_its_roofline(name, engine, op):
    d = load_device(name)
    time_s = attention.decode(op, device_fits(d, engine)).time_s
    assert grows(time_s)
    assert (time_s >= TINY * bounds.ideal_s(op, default_cluster(d))).all()


@given(device, engine, st.one_of(attentions("prefill", batch=sizes), attentions("prefill", tokens=sizes)))
def test_prefill_grows_with_batch_and_tokens_and_never_beats_its_roofline(name, engine, op):
    d = load_device(name)
    time_s = attention.prefill(op, device_fits(d, engine)).time_s
    assert grows(time_s)
    assert (time_s >= TINY * bounds.ideal_s(op, default_cluster(d))).all()


@given(st.sampled_from(DEVICES[:4]), st.sampled_from(["prefill", "decode"]), st.sampled_from([1, 8, 16, 32, 128]), st.sampled_from(["bf16", "fp8"]), sizes, st.booleans())
def test_latent_attention_grows_and_never_beats_its_roofline(name, phase, heads, kv, sizes, over_batch):
    d = load_device(name)
    batch, tokens = (sizes, 700.0) if over_batch else (4.0, sizes)
    per_el = 1.0 if kv == "fp8" else 2.0
    op = Attention("a", "attention", "decode", batch, 1.0, tokens, heads, 1, 576, 512, 576, per_el, kv, latent=True) if phase == "decode" else \
        Attention("a", "attention", "prefill", batch, tokens, tokens, heads, heads, 192, 128, 320, per_el, kv, latent=True)
    time_s = (attention.decode if phase == "decode" else attention.prefill)(op, device_fits(d)).time_s
    assert grows(time_s)
    assert (time_s >= TINY * bounds.ideal_s(op, default_cluster(d))).all()


@given(device, st.integers(0, 4), st.sampled_from([8, 64, 256]), st.sampled_from([2, 8]), st.sampled_from([2, 3]), st.sampled_from([1, 8]), sizes)
def test_experts_grow_with_tokens_and_never_beat_their_roofline(name, which, total, top_k, matrices, ep, tokens):
    d = load_device(name)
    fmt = gemm_format(*formats_of(name)[which % len(formats_of(name))])
    distinct = total * (1 - (1 - top_k / total) ** tokens) / ep
    op = GroupedGemm("e", "experts", tokens, tokens * top_k / ep, distinct, max(1, total // ep), total, top_k, 4096, 1536, matrices, fmt, ep)
    time_s = moe.experts(op, device_fits(d)).time_s
    assert grows(time_s)
    assert (time_s >= TINY * op.flops / d.peak_flops_per_s(fmt.math)).all()
    assert (time_s >= TINY * op.weight_bytes / d.hbm_bytes_per_s).all()


@given(device, st.sampled_from(["add_norm", "rope_kv_write", "activation", "embedding", "sampling", "router_top_k"]), sizes)
def test_elementwise_grows_and_never_costs_less_than_a_kernel(name, op, rows):
    timing = elementwise.elementwise(Elementwise(op, "norm_elementwise", rows, 8192, 4096, 1), device_fits(load_device(name)))
    assert grows(timing.time_s)
    assert (timing.time_s >= 0.9e-6).all() and timing.launch_s >= 0.9e-6


def faster(d, key, factor):
    figures = dict(d.figures)
    for k in [k for k in figures if k.startswith(key)]:
        figures[k] = replace(figures[k], value=figures[k].value * factor)
    return replace(d, figures=figures)


@given(device, st.sampled_from(["hbm_bandwidth", "peak_"]), st.floats(1.0, 4.0), st.integers(0, 4), st.data())
def test_more_bandwidth_or_arithmetic_never_slows(name, key, factor, which, data):
    d = load_device(name)
    fits = device_fits(d)
    quick = bind(faster(d, key, factor), fits._book, fits.parent)
    m = np.array([1.0, 17, 64, 65, 300, 1000, 9000])
    fmt = gemm_format(*formats_of(name)[which % len(formats_of(name))])
    n, k = data.draw(width), data.draw(width)
    cases = [(gemm.calibrated(m, float(n), float(k), fmt, 1, f).time_s for f in (fits, quick))]
    for phase, form in (("decode", attention.decode), ("prefill", attention.prefill)):
        op = data.draw(attentions(phase, batch=st.just(m)))
        cases.append(form(op, f).time_s for f in (fits, quick))
    for before, after in cases:
        assert (after <= before / TINY).all()


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("name", [*DEVICES, "t4", "mi300x", "tpu-v5p"])
def test_a_collective_is_free_at_one_rank_and_grows_with_its_message(kind, name):
    cluster = default_cluster(load_device(name))
    size = np.geomspace(1, 1e9, 300)
    for fits in (device_fits(cluster.device), None):
        assert np.all(collectives.collective(Collective("c", "collectives", kind, size, 1), cluster, fits).time_s == 0)
        timing = collectives.collective(Collective("c", "collectives", kind, size, 2), cluster, fits)
        assert grows(timing.time_s) and (timing.time_s > 1e-6).all()
        assert fits is not None or timing.calibration == "generic"


@pytest.mark.parametrize("size", [1e2, 1e5, 1e7, 1e9])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, ranks):
    ring = {kind: sum(collectives._generic(kind, np.array(size), ranks, 450e3, hop_us=1.0)) for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    assert ring["all_reduce"] == pytest.approx(ring["reduce_scatter"] + ring["all_gather"], rel=1e-12)


def test_serving_takes_the_fastest_kernel_and_large_messages_reach_the_link():
    cluster, fits = default_cluster("h100-sxm-80gb"), device_fits(load_device("h100-sxm-80gb"))
    reduce = lambda size: collectives.collective(Collective("c", "collectives", "all_reduce", size, 8), cluster, fits).time_s
    assert reduce(8192.0 * 2) < 5e-6  # NCCL alone: 15 us
    assert 2 * 7 / 8 * 1e9 / reduce(1e9) == pytest.approx(450e9, rel=0.25)


def test_groups_over_several_machines_cost_more_than_inside_one():
    from roofkit.hardware.presets import load_cluster
    cluster = load_cluster("dgx-h100", nodes=4)
    fits = device_fits(cluster.device)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        inside, across = (collectives.collective(Collective("c", "collectives", kind, np.array([1e4, 1e8]) / (n if kind == "all_gather" else 1), n), cluster, fits).time_s
                          for n in (8, 32))
        assert (across > inside).all(), kind
    strided = collectives.collective(Collective("c", "collectives", "all_reduce", 1e8, 4, "dp", 8), cluster, fits).time_s
    assert strided > collectives.collective(Collective("c", "collectives", "all_reduce", 1e8, 4), cluster, fits).time_s
    near, far = (collectives.transfer(Transfer("t", "collectives", 1e6, stride), cluster, fits).time_s for stride in (1, 8))
    assert far > near
