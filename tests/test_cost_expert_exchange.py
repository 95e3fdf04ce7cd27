"""Dispatch and combine inside one machine: measured times, laws, and where the form applies."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roofkit as rk
from roofkit.cost import bounds, expert_exchange
from roofkit.cost.calibration import device_fits
from roofkit.formats import gemm_format
from roofkit.ops.ffn_blocks import ranks_reached
from roofkit.ops.kinds import Collective, GroupedGemm

SOURCE = "aic:deepep-sglang-0.5.12, github ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA)"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "measured" / "moe_all2all_deepep.csv"
CLUSTERS = {name: rk.load_cluster(name) for name in ("dgx-h100", "dgx-b200", "dgx-h200")}
LIMIT = expert_exchange.LOW_LATENCY_TOKENS

MEASURED = [  # machine, tokens per rank, hidden, top_k, experts, dispatch_us, combine_us; low latency up to 256 tokens, 20 SMs beyond
    ("dgx-h100", 1, 7168, 8, 256, 13.19, 14.4),
    ("dgx-h100", 64, 7168, 8, 256, 24.57, 39.72),
    ("dgx-h100", 256, 7168, 8, 256, 62.56, 129.5),
    ("dgx-h100", 16, 2048, 8, 128, 11.05, 12.67),
    ("dgx-h100", 256, 2048, 8, 128, 25.14, 41.41),
    ("dgx-h100", 128, 4096, 2, 8, 44.32, 20.93),
    ("dgx-h100", 512, 7168, 8, 256, 100.2, 187.1),
    ("dgx-h100", 4096, 7168, 8, 256, 492.2, 982.7),
    ("dgx-h100", 32768, 7168, 8, 256, 3936, 6961),
    ("dgx-h100", 2048, 4096, 8, 128, 187.8, 331.5),
    ("dgx-h100", 8192, 4096, 10, 512, 676.1, 1208),
    ("dgx-b200", 1, 7168, 8, 256, 22.08, 22.06),
    ("dgx-b200", 64, 7168, 8, 256, 26.61, 31.45),
    ("dgx-b200", 256, 7168, 8, 256, 44.5, 62.91),
    ("dgx-b200", 16, 2048, 8, 128, 17.19, 16.79),
    ("dgx-b200", 256, 2048, 8, 128, 23.91, 28.07),
    ("dgx-b200", 128, 4096, 2, 8, 58.72, 21.07),
    ("dgx-b200", 512, 7168, 8, 256, 113.1, 179.3),
    ("dgx-b200", 4096, 7168, 8, 256, 515, 882.3),
    ("dgx-b200", 32768, 7168, 8, 256, 3907, 6019),
    ("dgx-b200", 2048, 4096, 8, 128, 212.1, 328.1),
    ("dgx-b200", 8192, 4096, 10, 512, 781.3, 1174),
]


def layer(name, tokens, hidden=7168, top_k=8, experts=256, ranks=8, bytes_per_el=None):
    """(collective, its experts) of one rank with `tokens` tokens; arrays sweep."""
    bytes_per_el = bytes_per_el or expert_exchange.MEASURED_BYTES[name]
    total = np.asarray(tokens) * float(ranks)
    routed = GroupedGemm("experts", "experts", total, total * top_k / ranks, 1.0, experts // ranks, experts, top_k, hidden, 2048, 3, gemm_format("fp8", "fp8"), ranks)
    needed = ranks_reached(experts, top_k, ranks) / top_k
    return Collective(name, "collectives", "all_to_all", tokens * top_k * hidden * bytes_per_el, ranks, "ep", needed=needed), routed


def timing(name, tokens, *shape, machine="dgx-h100", **more):
    cluster = CLUSTERS[machine]
    return expert_exchange.exchange(*layer(name, tokens, *shape, **more), cluster, device_fits(cluster.device))


@pytest.mark.parametrize("machine, tokens, hidden, top_k, experts, dispatch_us, combine_us", MEASURED, ids=["-".join(map(str, r[:5])) for r in MEASURED])
def test_measured_calls(machine, tokens, hidden, top_k, experts, dispatch_us, combine_us):
    for name, measured in (("dispatch", dispatch_us), ("combine", combine_us)):
        found = timing(name, tokens, hidden, top_k, experts, machine=machine)
        assert found.time_s * 1e6 == pytest.approx(measured, rel=0.15), (name, SOURCE)
        assert found.calibration == "fitted"


def test_the_bound_is_a_copy_per_rank_so_many_experts_per_token_stay_near_their_measured_time():
    """A copy per expert (22 of them) is no bound: it is 45,900 us. H100, 20 SMs, 131,072 tokens: 22,280 us measured."""
    assert timing("combine", 131072, 4096, 22, 512).time_s * 1e6 == pytest.approx(22_280, rel=0.15), SOURCE


shapes = {"name": st.sampled_from(["dispatch", "combine"]), "hidden": st.sampled_from([2048, 4096, 7168]), "top_k": st.sampled_from([1, 2, 8, 22]),
          "experts": st.sampled_from([32, 128, 256, 512]), "ranks": st.sampled_from([2, 4, 8]), "machine": st.sampled_from(list(CLUSTERS)),
          "bytes_per_el": st.sampled_from([0.5, 1.0, 2.0])}


@settings(max_examples=150, deadline=None)
@given(**shapes, tokens=st.floats(0.125, 2e5))
def test_no_call_beats_the_wire_and_terms_are_parts_of_it(name, machine, tokens, **shape):
    op, _ = layer(name, tokens, **shape)
    found = timing(name, tokens, machine=machine, **shape)
    assert found.time_s >= bounds.network_s(op, CLUSTERS[machine]) * (1 - 1e-9)
    assert 0 < found.launch_s <= found.time_s and found.network_s == pytest.approx(found.time_s - found.launch_s)


@settings(max_examples=150, deadline=None)
@given(**shapes)
def test_more_tokens_are_never_faster(name, machine, **shape):
    tokens = np.unique(np.concatenate([np.geomspace(0.1, 2e5, 300), [LIMIT - 1, LIMIT, LIMIT + 1e-6, LIMIT + 1]]))
    times = timing(name, tokens, machine=machine, **shape).time_s
    assert (np.diff(times) >= -1e-12 * times[1:]).all()


@settings(max_examples=60, deadline=None)
@given(**shapes, tokens=st.sampled_from([1, 64, 256, 257, 8192]), factor=st.floats(1, 4))
def test_a_faster_link_never_slows(name, machine, tokens, factor, **shape):
    cluster = CLUSTERS[machine]
    fits, quick = device_fits(cluster.device), replace(cluster, scaleup_bytes_per_s=cluster.scaleup_bytes_per_s * factor)
    times = [expert_exchange.exchange(*layer(name, tokens, **shape), c, fits).time_s for c in (cluster, quick)]
    assert times[1] <= times[0] * (1 + 1e-9)


def test_arrays_and_points_agree():
    tokens = np.array([1.0, 64, 256, 300, 4096])
    sweep = timing("combine", tokens)
    assert sweep.form == "expert exchange: low latency to normal"
    for i, one in enumerate(tokens):
        point = timing("combine", one)
        assert point.time_s == pytest.approx(sweep.time_s[i]) and point.launch_s == pytest.approx(sweep.launch_s[i])


def test_no_tokens_cost_a_launch_and_no_more():
    found = timing("dispatch", 0.0)
    assert found.time_s == pytest.approx(found.launch_s)


@pytest.mark.parametrize("top_k, experts, expected", [(1, 16, 1.0), (2, 8, 2.0), (256, 256, 8.0), (8, 256, 8 * (1 - np.prod([(224 - i) / (256 - i) for i in range(8)])))])
def test_ranks_that_a_token_reaches(top_k, experts, expected):
    """k different experts of E on 8 ranks: one rank for k = 1, k where a rank holds one expert, all ranks for k = E."""
    assert expert_exchange.Exchange(1, 1, 1, top_k, experts, 8).ranks_per_token == pytest.approx(expected)


def test_one_rank_is_free_and_other_exchanges_keep_their_form():
    cluster = CLUSTERS["dgx-h100"]
    step = rk.estimate(rk.load_architecture("deepseek-v3"), rk.load_cluster("dgx-h100", nodes=4), rk.Plan(dp=32, ep=32), rk.Decode(256, 1024))
    assert {c.timing.form for c in step.costed if c.op.name in ("dispatch", "combine")} == {"hierarchical"}
    op, routed = layer("dispatch", 64.0)
    fits = device_fits(cluster.device)
    assert expert_exchange.exchange(replace(op, ranks=1), routed, cluster, fits) is None  # collectives price it: zero
    assert expert_exchange.exchange(replace(op, group="tp"), routed, cluster, fits) is None
    assert expert_exchange.exchange(op, None, cluster, fits) is None and expert_exchange.exchange(op, routed, cluster, None) is None
    a100 = rk.load_cluster("dgx-a100")
    assert expert_exchange.exchange(op, routed, a100, device_fits(a100.device)) is None


@pytest.mark.parametrize("machine, calibration", [("dgx-h100", "fitted"), ("dgx-b200", "fitted"), ("dgx-h200", "inherited")])
@pytest.mark.parametrize("batch, mode", [(8 * 32, "low latency"), (8 * 4096, "normal")])
def test_deepseek_v3_over_eight_ranks(machine, calibration, batch, mode):
    """The hook: form and calibration of both exchanges; tokens per rank come from the op's bytes."""
    step = rk.estimate(rk.load_architecture("deepseek-v3"), CLUSTERS[machine], rk.Plan(dp=8, ep=8), rk.Decode(batch, 1024))
    found = {c.op.name: c for c in step.costed if c.op.name in ("dispatch", "combine")}
    assert set(found) == {"dispatch", "combine"}
    for name, costed in found.items():
        assert costed.timing.form == f"expert exchange: {mode}" and costed.timing.calibration == calibration
        assert costed.timing.time_s == pytest.approx(timing(name, batch / 8, machine=machine).time_s, rel=1e-3)


def test_formats_and_ranks_that_were_not_measured_are_inherited():
    assert timing("dispatch", 64.0, bytes_per_el=2.0).calibration == "inherited"
    assert timing("dispatch", 64.0, ranks=4).calibration == "inherited"


@pytest.mark.skipif(not SHARED.is_file(), reason="the measured table is not here; the rows above still hold")
@pytest.mark.parametrize("gpu, device", [("H100-SXM", "h100-sxm-80gb"), ("B200-SXM", "b200-sxm-180gb")])
def test_error_on_every_measured_row(gpu, device):
    """Shipped constants on the rows that pricing uses, before the bound; left-out errors are stored in expert_exchange.toml."""
    import pandas as pd
    rows = pd.read_csv(SHARED).query("gpu == @gpu and (mode == 'low_latency' and tokens <= 256 or mode == 'normal' and sms == 20 and tokens > 256)")
    fits = device_fits(rk.load_device(device))
    for mode, part in rows.groupby("mode"):
        tokens, hidden, top_k, experts = (part[c].to_numpy(float) for c in ("tokens", "hidden", "topk", "experts"))
        assert len(part) > 100
        for name, width in expert_exchange.MEASURED_BYTES.items():
            call = expert_exchange.Exchange(tokens, tokens * top_k * hidden * width, hidden, top_k, experts, 8)
            found = sum(expert_exchange.parts_us(call, mode, expert_exchange._fits()[device, name, mode].constants, fits.link_us, fits.sm))
            error = np.abs(found / part[f"{name}_us"].to_numpy() - 1)
            assert error.mean() < 0.06 and np.median(error) < 0.05, (mode, name, error.mean())
