"""Memory hierarchy: traffic of tiles by hand, levels that bind, laws, and levels a device has no figure for."""
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofkit.cost.bounds import ideal_s
from roofkit.cost.hierarchy import FIGURES, ORDER, gemm_traffic, hierarchical_roofline
from roofkit.errors import CostModelError
from roofkit.formats import gemm_format
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import list_devices, load_device
from roofkit.ops.kinds import Attention, Collective, Elementwise, Gemm, GroupedGemm

H100, A100, CARD = load_device("h100-sxm-80gb"), load_device("a100-sxm-40gb"), load_device("rtx-pro-6000-workstation")
BF16 = gemm_format("bf16", "bf16")


def gemm(m, n=4096, k=4096, fmt=BF16, **more):
    return Gemm("proj", "projections", m, k, n, fmt, **more)


def attention(phase="decode", batch=32, q=1, kv=8192, heads=32, kv_heads=8, dim=128, **more):
    return Attention("attention", "attention", phase, batch, q, kv, heads, kv_heads, dim, dim, 2 * dim, **more)


def experts(tokens=256, held=8, distinct=8.0):
    return GroupedGemm("experts", "experts", tokens, 2.0 * tokens, distinct, held, held, 2, 4096, 14336, 3, BF16)


def norm(rows=4096):
    return Elementwise("norm", "norm_elementwise", rows, 8192, 4096, 5 * 4096)


BY_HAND = [  # m, k, n, tile, L2 bytes: X by columns of tiles, W by rows of tiles, Y once; bf16
    (4096, 4096, 4096, (128, 128), 2 * (4096 * 4096 * 32 + 4096 * 4096 * 32 + 4096 * 4096)),
    (4096, 4096, 4096, (256, 128), 2 * (4096 * 4096 * 32 + 4096 * 4096 * 16 + 4096 * 4096)),
    (1, 4096, 4096, (128, 128), 2 * (4096 * 32 + 4096 * 4096 + 4096)),
    (300, 512, 1000, (128, 128), 2 * (300 * 512 * 8 + 512 * 1000 * 3 + 300 * 1000)),
]


@pytest.mark.parametrize("m, k, n, tile, l2", BY_HAND)
def test_tiles_read_their_operands_again(m, k, n, tile, l2):
    assert gemm_traffic(m, k, n, (2.0, 2.0, 2.0), H100, tile=tile)[1] == l2
    assert gemm_traffic(m, k, n, (2.0, 2.0, 2.0), H100, tile=tile, l2_reuse=False)[0] == l2


def test_a_product_whose_operand_stays_in_l2_reads_memory_once():
    small = gemm(65536, 1024, 1024)  # W is 2 MB
    assert hierarchical_roofline(small, H100)["hbm"].amount == small.bytes_moved
    large = gemm(65536, 65536, 65536)  # neither operand fits: super-tiles of the SMs at work read it again
    hbm, l2 = (hierarchical_roofline(large, H100)[level].amount for level in ("hbm", "l2"))
    assert 10 * large.bytes_moved < hbm < l2 / 8


BINDING = [  # op, level that binds on an A100, why
    (gemm(1), "hbm", "one token: weights from memory"), (gemm(8192), "arithmetic", "large product: 1.4 kFLOP a byte"),
    (attention(), "hbm", "decode: two FLOP a byte per query head"), (attention("prefill", 1, 8192, 8192), "arithmetic", "prefill at 8k"),
    (norm(65536), "hbm", "one pass"), (experts(16), "hbm", "few rows per expert"),
]


@pytest.mark.parametrize("op, level, why", BINDING, ids=[r[2] for r in BINDING])
def test_binding_level(op, level, why):
    found = hierarchical_roofline(op, A100)
    assert found.binding == level
    assert found[level].time_s == found.time_s


def test_small_tiles_move_the_bound_into_l2():
    """On H100 128 x 128 tiles ask L2 for 17 GB, 2.1 ms, where the tensor cores need 1.1 ms; 256 x 256 tiles do not."""
    op = gemm(8192, 8192, 8192)
    found = hierarchical_roofline(op, H100, tile=(128, 128))
    assert found.binding == "l2" and found.time_s == pytest.approx(2.13e-3, rel=0.01)
    assert hierarchical_roofline(op, H100).binding == "arithmetic"


MEASURED = [  # m, n, k, device, measured us of large bf16 products: no level may take longer than a kernel did
    (8192, 8192, 8192, "h100-sxm-80gb", 1e6 * 2 * 8192**3 / 794.5e12, "best shape found, achieved_bf16 of the preset"),
    (8192, 8192, 8192, "a100-sxm-80gb", 1e6 * 2 * 8192**3 / 271.2e12, "the same"),
]


@pytest.mark.parametrize("m, n, k, device, us, source", MEASURED)
def test_no_level_takes_longer_than_a_measured_kernel(m, n, k, device, us, source):
    assert hierarchical_roofline(gemm(m, n, k), load_device(device)).time_s * 1e6 <= us, source


def test_a_level_without_a_figure_is_unknown_not_zero():
    """The RTX PRO 6000 has no published L2 or SRAM bandwidth."""
    found = hierarchical_roofline(gemm(64), CARD)
    assert found.unknown == ("l2", "sram")
    assert math.isnan(found["l2"].time_s) and found["l2"].amount > 0 and found["l2"].rate is None
    assert "no figure l2_bandwidth" in found["l2"].source and found["hbm"].time_s > 0
    assert found.binding in ("hbm", "arithmetic") and np.isfinite(found.time_s)
    table = found.table.set_index("level")
    assert math.isnan(table.loc["sram", "time_s"]) and math.isnan(table.loc["sram", "rate"]) and table["binds"].sum() == 1
    assert list(table["unit"]) == ["bytes"] * 3 + ["FLOP"]


def test_every_known_level_cites_its_figure():
    for row in hierarchical_roofline(gemm(64), H100).table.itertuples():
        assert row.source and row.rate > 0, row


sizes = st.integers(1, 40000)
OPS = st.one_of(
    st.builds(lambda m, n, k, w: gemm(m, n, k, gemm_format(w, "bf16")), sizes, sizes, sizes, st.sampled_from(["bf16", "fp8", "int4"])),
    st.builds(lambda b, kv, g, d, w: attention("decode", b, 1, kv, 32, 32 // g, d, window=w), st.integers(1, 256), sizes, st.sampled_from([1, 4, 32]),
              st.sampled_from([64, 128]), st.sampled_from([None, 1024])),
    st.builds(lambda b, q, past, g, w: attention("prefill", b, q, q + past, 32, 32 // g, window=w), st.integers(1, 8), st.integers(1, 8192),
              st.integers(0, 8192), st.sampled_from([1, 8]), st.sampled_from([None, 4096])),
    st.builds(lambda t, d: experts(t, 8, d), sizes, st.floats(1, 8)), st.builds(norm, sizes))


@settings(max_examples=200, deadline=None)
@given(op=OPS, device=st.sampled_from(["h100-sxm-80gb", "a100-sxm-40gb"]), reuse=st.booleans())
def test_traffic_grows_towards_the_units_and_no_level_beats_the_bound(op, device, reuse):
    device = load_device(device)
    found = hierarchical_roofline(op, device, l2_reuse=reuse)
    least, hbm, l2, sram = op.bytes_moved / op.count, *(found[level].amount for level in ORDER)
    assert least <= hbm * (1 + 1e-9) and hbm <= l2 * (1 + 1e-9) and l2 <= sram * (1 + 1e-9)
    assert found.time_s >= ideal_s(op, Cluster(device, 1)) * (1 - 1e-9)
    assert found["hbm"].amount <= hierarchical_roofline(op, device, l2_reuse=False)["hbm"].amount * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(op=OPS, level=st.sampled_from(list(FIGURES)), faster=st.floats(1, 10))
def test_more_bandwidth_never_slows_an_op(op, level, faster):
    faster = {key: replace(H100.figures[key], value=H100.figures[key].value * faster) for key in FIGURES[level] if key in H100.figures}
    better = replace(H100, figures={**H100.figures, **faster})
    assert hierarchical_roofline(op, better).time_s <= hierarchical_roofline(op, H100).time_s * (1 + 1e-12)


def test_sweeps_equal_points():
    m = np.array([1.0, 64, 4096, 32768])
    sweep = hierarchical_roofline(gemm(m), H100)
    for i, one in enumerate(m):
        point = hierarchical_roofline(gemm(one), H100)
        assert sweep.time_s[i] == point.time_s and sweep.binding[i] == point.binding
    kv = np.array([512, 16384])
    assert hierarchical_roofline(attention(kv=kv), H100)["l2"].amount[1] == hierarchical_roofline(attention(kv=16384), H100)["l2"].amount


def test_one_call_whatever_the_count():
    assert hierarchical_roofline(gemm(64, count=32), H100).time_s == hierarchical_roofline(gemm(64), H100).time_s
    assert hierarchical_roofline(replace(norm(), count=9), H100).time_s == hierarchical_roofline(norm(), H100).time_s


def test_kinds_without_a_model_say_so():
    with pytest.raises(CostModelError, match="collective"):
        hierarchical_roofline(Collective("all_reduce", "collectives", "all_reduce", 1e6, 8), H100)


def test_every_preset_with_bf16_has_a_hierarchy():
    for name in list_devices()["name"]:
        device = load_device(name)
        if device.has_math("bf16"):
            found = hierarchical_roofline(gemm(256), device)
            assert found.time_s >= found["hbm"].time_s > 0, name
            assert set(found.unknown) == {level for level, keys in FIGURES.items() if not any(device.value(k) for k in keys)}
