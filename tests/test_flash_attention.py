"""FlashAttention accounting against what the papers print and measured; counts against brute force; laws.

Tolerance of a counted row: the digits it is stated with. Of a measured time: what the papers' own repeats and unstated kernels leave, per row.
Constants of the `fa1` and `standard` kernels were fitted on the rows marked TRAIN; the others are predictions.
"""
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofkit.cost import flash_attention as fa
from roofkit.errors import CostModelError, WorkloadError
from roofkit.hardware.presets import load_device
from roofkit.ops.kinds import Attention

V1, V2 = "FlashAttention, arXiv 2205.14135v2", "FlashAttention-2, arXiv 2307.08691"
COUNTED = "counted from the algorithm"
A100, A100_80, H100 = load_device("a100-sxm-40gb"), load_device("a100-sxm-80gb"), load_device("h100-sxm-80gb")
FIG2 = fa.AttentionShape(64, 16, 1024, 1024, 64, causal=False)  # the workload of figure 2: batch 64, 16 heads, N 1024, d 64, fp16
DROPOUT_PASSES = 7  # mask and dropout, forward and backward together: 18 N^2 - 11 N^2, inferred from the printed 40.3 GB


def long(tokens, causal=False):
    return fa.AttentionShape(1, 32, tokens, tokens, 128, causal=causal)


def table18(tokens):
    """Batch 16, 8 heads, d 64, fp16, no mask: the shape of tables 12, 18, 19 and 21."""
    return fa.AttentionShape(16, 8, tokens, tokens, 64, causal=False)


def both(count, *args, **more):
    return sum(count(*args, direction=direction, **more) for direction in fa.DIRECTIONS)


# ---------------------------------------------------------------- counts and bytes
BC256, BLOCK128 = fa.Tiles(64, 256), fa.Tiles(128, 128)
COUNTS = [  # name in the reference table, ours, expected, relative tolerance, source
    ("fa1.std.bytes_algorithmic_fwd", fa.standard_attention_bytes(FIG2), 9126805504, 1e-9, COUNTED),
    ("fa1.std.bytes_algorithmic_fwd_bwd", both(fa.standard_attention_bytes, FIG2), 25232932864, 1e-9, COUNTED),
    ("fa1.std.bytes_with_mask_dropout_GB", (both(fa.standard_attention_bytes, FIG2, passes=DROPOUT_PASSES / 2)) / 1e9, 40.2653184, 1e-9, V1 + " figure 2"),
    ("fa.bwd_over_fwd_flops", fa.attention_flops(FIG2, "backward") / fa.attention_flops(FIG2), 2.5, 1e-9, V2 + ", section 4"),
    ("fa1.tile_Bc", fa.block_sizes(64, 51200).keys, 200, 1e-9, V1 + " algorithm 1"),
    ("fa1.tile_Br", fa.block_sizes(64, 51200).rows, 64, 1e-9, V1 + " algorithm 1"),
    ("fa2.hbm_bytes_compulsory.N8192", fa.compulsory_bytes(long(8192)), 269484032, 1e-9, COUNTED),
    ("fa2.hbm_bytes_compulsory.N16384", fa.compulsory_bytes(long(16384)), 538968064, 1e-9, COUNTED),
    ("fa2.hbm_bytes_noL2.N16384", fa.fa2_bytes(long(16384), BLOCK128), 34630270976, 1e-9, COUNTED),
    ("fa2.hbm_bytes_noL2.N32768", fa.fa2_bytes(long(32768), BLOCK128), 137980018688, 1e-9, COUNTED),
    ("fa2.hbm_bytes_noL2_causal.N16384", fa.fa2_bytes(long(16384, True), BLOCK128), 17584619520, 1e-9, COUNTED),
    ("fa2.hbm_bytes_noL2_causal.N32768", fa.fa2_bytes(long(32768, True), BLOCK128), 69528977408, 1e-9, COUNTED),
    ("fa.flops_causal.N16384", fa.attention_flops(long(16384, True)), 2199157473280, 1e-9, COUNTED),
    ("fa.flops_causal.N32768", fa.attention_flops(long(32768, True)), 8796361457664, 1e-9, COUNTED),
    ("fa1.memory_MB.N1024", fa.training_memory_bytes(table18(1024)) / 1e6, 209, 0.035, V1 + " table 21"),
    ("fa1.memory_MB.N2048", fa.training_memory_bytes(table18(2048)) / 1e6, 418, 0.035, V1 + " table 21"),
    ("fa1.memory_MB.N4096", fa.training_memory_bytes(table18(4096)) / 1e6, 836, 0.035, V1 + " table 21"),
    ("fa1.memory_MB.N8192", fa.training_memory_bytes(table18(8192)) / 1e6, 1672, 0.035, V1 + " table 21"),
]


@pytest.mark.parametrize("name, found, expected, rel, source", COUNTS, ids=[r[0] for r in COUNTS])
def test_counts_match(name, found, expected, rel, source):
    assert found == pytest.approx(expected, rel=rel), source


PRINTED = [  # skip first read, D before, expected GB as counted, and how far above the printed 4.4 GB (figure 2)
    (False, False, 5.201, 0.182), (True, False, 4.924, 0.119), (True, True, 4.677, 0.063),
]


@pytest.mark.parametrize("skip, delta, expected, above", PRINTED)
def test_printed_4_4_gb(skip, delta, expected, above):
    """The paper prints 4.4 GB by a counter; algorithms 1 and 4 as written count 18 % more, with both skips of real kernels 6 %."""
    found = sum(fa.fa1_bytes(FIG2, BC256, d, skip_first_read=skip, precomputed_delta=delta) for d in fa.DIRECTIONS) / 1e9
    assert found == pytest.approx(expected, abs=5e-4)
    assert found / 4.4 - 1 == pytest.approx(above, abs=5e-4), V1 + " figure 2; reference name fa1.flash.bytes_fwd_bwd_GB_printed"


def test_printed_40_3_gb():
    """18 N^2 s + 12 N d s: three more passes forward, four backward than algorithms 0 and 3; the paper prints 40.3."""
    found = fa.standard_attention_bytes(FIG2, "forward", 3) + fa.standard_attention_bytes(FIG2, "backward", 4)
    n, d = 1024, 64
    assert found == (18 * n * n + 12 * n * d) * 2 * 64 * 16
    assert round(found / 1e9, 1) == 40.3, V1 + " figure 2"


def test_smaller_tiles_move_more():
    """Figure 2 of the FlashAttention paper, middle: traffic falls with the tile; 128 keys double the bytes of 256."""
    assert both(fa.fa1_bytes, FIG2, tiles=fa.Tiles(64, 128)) / 1e9 == pytest.approx(9.6, abs=0.05)


# ---------------------------------------------------------------- times
TRAIN = "train"
TIMES = [  # kernel, direction, tokens, published ms, tolerance of the reference, "train" | "", table
    ("fa1", "forward", 1024, 0.68, 0.35, TRAIN, "table 18"), ("fa1", "forward", 4096, 8.42, 0.15, "", "table 18"),
    ("fa1", "forward", 32768, 535.95, 0.15, TRAIN, "table 18"), ("fa1", "forward", 65536, 2147.05, 0.15, "", "table 18"),
    ("fa1", "backward", 1024, 1.62, 0.35, TRAIN, "table 19"), ("fa1", "backward", 2048, 5.45, 0.15, "", "table 19"),
    ("fa1", "backward", 16384, 336, 0.15, TRAIN, "table 19"), ("fa1", "backward", 32768, 1338.56, 0.15, "", "table 19"),
    ("fa1", "masked", 1024, 0.68, 0.35, "", "table 12"), ("fa1", "masked", 8192, 33.55, 0.15, "", "table 12"),
    ("fa1", "masked", 32768, 537.5, 0.15, "", "table 12"),
    ("standard", "forward", 2048, 4.32, 0.2, TRAIN, "table 18"), ("standard", "forward", 4096, 16.47, 0.2, "", "table 18"),
    ("standard", "backward", 1024, 2.44, 0.25, "", "table 19"),
]


def time_ms(kernel, direction, tokens, mode="overlap"):
    """A padding mask that masks nothing changes neither bytes nor FLOP of FlashAttention."""
    return 1e3 * fa.flash_attention(table18(tokens), A100, kernel, "forward" if direction == "masked" else direction, mode).time_s


MODED = [(*row[:5], row[6], mode) for row in TIMES for mode in fa.MODES if mode == "overlap" or row[0] != "standard"]  # em of standard: overlap


@pytest.mark.parametrize("kernel, direction, tokens, ms, rel, table, mode", MODED, ids=[f"{r[0]}-{r[1]}-{r[2]}-{r[6]}" for r in MODED])
def test_published_kernel_times(kernel, direction, tokens, ms, rel, table, mode):
    assert time_ms(kernel, direction, tokens, mode) == pytest.approx(ms, rel=rel), f"{V1} {table}, A100-40GB"


@pytest.mark.parametrize("mode, worst_train, worst_held_out", [("overlap", 0.025, 0.04), ("sum", 0.085, 0.09)])
def test_held_out_error_of_the_fa1_kernel(mode, worst_train, worst_held_out):
    """Two constants (achieved share 0.22, or 0.275 in the sum, and 154 us a kernel call); largest error on each half of the tables."""
    errors = {split: [abs(time_ms(k, d, n, mode) / ms - 1) for k, d, n, ms, _, s, _ in TIMES if k == "fa1" and s == split] for split in (TRAIN, "")}
    assert max(errors[TRAIN]) < worst_train and max(errors[""]) < worst_held_out, errors


def test_memory_does_not_bind_the_2022_kernel():
    """Table 18: 2147 ms at 64k is 0.21 of the A100 peak, and the bytes of FlashAttention-1 need a quarter of it: a time cannot test them."""
    cost = fa.flash_attention(table18(65536), A100, "fa1")
    assert cost.executed_flops / 2.14705 / 312e12 == pytest.approx(0.210, abs=0.001)
    assert cost.memory_s == pytest.approx(0.25 * 2.147, rel=0.1)


def test_figure_2_runtime_of_standard_attention():
    """Reference fa1.fig2.runtime_ms_std: 41.7 ms printed; 18 N^2 s + 12 N d s at the bandwidth fitted elsewhere gives 39.2."""
    bytes_moved = fa.standard_attention_bytes(FIG2, "forward", 3) + fa.standard_attention_bytes(FIG2, "backward", 4)
    assert bytes_moved / (fa.KERNELS["standard"].em * A100.hbm_bytes_per_s) * 1e3 == pytest.approx(41.7, rel=0.07), V1 + " figure 2"


UTILISATION = [  # kernel, device, direction, published share of the peak at d 128, long context, no mask
    ("fa2", A100_80, "forward", 0.73, V2 + ": up to 73 % forward"), ("fa2", A100_80, "backward", 0.63, V2 + ": up to 63 % backward"),
    ("fa3", H100, "forward", 0.75, "FlashAttention-3, arXiv 2407.08608: 740 TFLOP/s, 75 %"),
]


@pytest.mark.parametrize("kernel, device, direction, share, source", UTILISATION)
def test_published_utilisation(kernel, device, direction, share, source):
    cost = fa.flash_attention(fa.AttentionShape(1, 16, 16384, 16384, 128, causal=False), device, kernel, direction)
    assert cost.useful_flops / cost.time_s / device.peak_flops_per_s("fp16") == pytest.approx(share, abs=0.01), source


# ---------------------------------------------------------------- training steps made of these kernels
LINEAR_SHARE = 0.59  # of the A100 peak in everything but attention: set by the two 1.3B rows at 2k, assumed for the rest
MODELS = {"1.3B": (1.31e9, 24, 2048, 16), "2.7B": (2.65e9, 32, 2560, 20), "gpt2-small": (124e6, 12, 768, 12), "gpt2-medium": (355e6, 24, 1024, 16)}
TRAINING = [  # name in the reference table, model, sequence, kernel, TFLOP/s per GPU as 6 P + 12 L h S
    ("fa2.train_tflops.1.3B_2k.fa2", "1.3B", 2048, "fa2", 196), ("fa2.train_tflops.1.3B_2k.none", "1.3B", 2048, "standard", 142),
    ("fa2.train_tflops.2.7B_2k.none", "2.7B", 2048, "standard", 149), ("fa2.train_tflops.1.3B_8k.fa1", "1.3B", 8192, "fa1-2023", 170),
    ("fa2.train_tflops.1.3B_8k.fa2", "1.3B", 8192, "fa2", 220), ("fa2.train_tflops.2.7B_8k.fa1", "2.7B", 8192, "fa1-2023", 175),
    ("fa2.train_tflops.2.7B_8k.fa2", "2.7B", 8192, "fa2", 225),
]


def token_s(model, sequence, kernel, device):
    """(linear layers, attention) seconds of one training token: forward and backward, mask causal, dropout in standard attention."""
    params, layers, hidden, heads = MODELS[model]
    shape = fa.AttentionShape(1, heads, sequence, sequence, hidden / heads)
    kernel = fa.KERNELS[kernel]
    if kernel.algorithm == "standard":
        kernel = replace(kernel, passes={"forward": 3, "backward": 4})
    costs = [fa.flash_attention(shape, device, kernel, direction) for direction in fa.DIRECTIONS]
    return 6 * params / (LINEAR_SHARE * device.peak_flops_per_s("fp16")), layers / sequence * sum(c.time_s - c.launch_s for c in costs)


@pytest.mark.parametrize("name, model, sequence, kernel, tflops", TRAINING, ids=[r[0] for r in TRAINING])
def test_published_training_rates(name, model, sequence, kernel, tflops):
    params, layers, hidden, _ = MODELS[model]
    found = fa.training_flops(params, 1, layers, hidden, sequence) / sum(token_s(model, sequence, kernel, A100_80)) / 1e12
    assert found == pytest.approx(tflops, rel=0.06), f"{V2} table 1, A100-80GB"


DAYS = 400_000 * 512 * 1024 / 86400 / 8  # tokens of the GPT-2 runs (400,000 steps of 512 x 1024) per GPU: seconds a token -> days
REST = 4.7 / DAYS - sum(token_s("gpt2-small", 1024, "standard", A100))  # Megatron's norms, logits, optimiser: what these kernels are not [s/token]
HF_REST = 9.5 / DAYS - sum(token_s("gpt2-small", 1024, "standard", A100))  # the same of the Hugging Face baseline
FINDINGS = [  # name in the reference table, ours, published, signed error: NOT within what Guo et al. claim (8 %)
    ("fa1.train.gpt2s_flash_4k_days", (REST + sum(token_s("gpt2-small", 4096, "fa1", A100))) * DAYS, 3.6, 0.21),
    ("fa1.speedup_vs_megatron1k.gpt2s_1k", 4.7 / DAYS / (REST + sum(token_s("gpt2-small", 1024, "fa1", A100))), 1.7, -0.20),
    ("fa1.speedup_vs_megatron1k.gpt2s_4k", 4.7 / DAYS / (REST + sum(token_s("gpt2-small", 4096, "fa1", A100))), 1.3, -0.17),
    ("fa1.train.gpt2m_hf_days", (HF_REST * 24 * 1024 / (12 * 768) + sum(token_s("gpt2-medium", 1024, "standard", A100))) * DAYS, 21, 0.22),
]


@pytest.mark.parametrize("name, found, published, error", FINDINGS, ids=[r[0] for r in FINDINGS])
def test_whole_training_runs_are_not_explained_by_attention_alone(name, found, published, error):
    """The published GPT-2 speed-ups (the ones Guo et al., arXiv 2507.02456, claim within 8 %) hold more than the attention kernel.

    Swapping only the kernel gives 20 and 17 % less: that code also fused losses, norms and dropout. The error is kept as a finding, with its sign.
    """
    assert found / published - 1 == pytest.approx(error, abs=0.02), V1 + " tables 2 and 4"
    assert abs(found / published - 1) > 0.08


def test_share_of_attention_in_the_gpt2_baselines():
    """gpt2s_megatron_days 4.7 and gpt2s_hf_days 9.5: linear layers and standard attention explain 61 and 30 % of them."""
    explained = sum(token_s("gpt2-small", 1024, "standard", A100)) * DAYS
    assert explained / 4.7 == pytest.approx(0.61, abs=0.02) and explained / 9.5 == pytest.approx(0.30, abs=0.02)


# ---------------------------------------------------------------- brute force and laws
def brute_tiles(shape, rows, keys):
    """(pairs let through, keys loaded by row blocks, rows loaded by key blocks) of one head, by looking at every pair."""
    q, kv = int(shape.q_tokens), int(shape.kv_tokens)
    i, j = np.arange(q)[:, None], np.arange(kv)[None, :]
    seen = np.ones((q, kv), bool)
    if shape.causal:
        seen = (j <= kv - q + i) & (j > kv - q + i - shape.reach)
    def size(at, step, whole):
        return min(step, whole - at)
    tiles = [(a, b) for a in range(0, q, rows) for b in range(0, kv, keys) if seen[a:a + rows, b:b + keys].any()]
    return seen.sum(), sum(size(b, keys, kv) for _, b in tiles), sum(size(a, rows, q) for a, _ in tiles)


masks = {"q": st.integers(1, 90), "past": st.integers(0, 90), "rows": st.integers(1, 40), "keys": st.integers(1, 40),
         "causal": st.booleans(), "window": st.one_of(st.none(), st.integers(1, 60))}


@settings(max_examples=200, deadline=None)
@given(**masks)
def test_tile_counts_equal_brute_force(q, past, rows, keys, causal, window):
    shape = fa.AttentionShape(1, 1, q, q + past, 64, causal=causal, window=window if causal else None)
    pairs, loaded_keys, loaded_rows = brute_tiles(shape, rows, keys)
    assert shape.pairs == pairs
    assert fa.streamed_keys(shape, rows, keys) == loaded_keys
    assert fa.streamed_rows(shape, rows, keys) == loaded_rows


shapes = {"q": st.integers(1, 5000), "past": st.integers(0, 5000), "heads": st.sampled_from([(8, 8), (32, 8), (32, 1)]), "d": st.sampled_from([64, 128, 256]),
          "window": st.one_of(st.none(), st.integers(1, 4096)), "batch": st.integers(1, 64)}


@settings(max_examples=150, deadline=None)
@given(**shapes, kernel=st.sampled_from(list(fa.KERNELS)), direction=st.sampled_from(fa.DIRECTIONS), pack=st.booleans())
def test_bytes_grow_towards_the_arithmetic_and_no_kernel_beats_the_roofline(q, past, heads, d, window, batch, kernel, direction, pack):
    shape = fa.AttentionShape(batch, heads[0], q, q + past, d, heads[1], window=window)
    overlap, total = (fa.flash_attention(shape, A100, kernel, direction, mode, pack_gqa=pack) for mode in fa.MODES)
    if kernel != "standard":
        assert overlap.compulsory_bytes <= overlap.hbm_bytes * (1 + 1e-12) <= overlap.sram_bytes * (1 + 1e-9)
    assert overlap.useful_flops <= overlap.executed_flops
    for cost in (overlap, total):
        bound = max(cost.useful_flops / 312e12, overlap.compulsory_bytes / A100.hbm_bytes_per_s if kernel != "standard" else 0)
        assert cost.time_s >= bound


@pytest.mark.parametrize("tokens", [4096, 16384, 65536])
@pytest.mark.parametrize("count", [lambda s: fa.fa1_bytes(s, BC256), lambda s: fa.fa2_bytes(s, BLOCK128), fa.standard_attention_bytes,
                                   lambda s: fa.fa1_bytes(s, BC256, "backward"), lambda s: fa.fa2_bytes(s, BLOCK128, "backward")])
@pytest.mark.parametrize("causal", [False, True])
def test_twice_the_tokens_move_four_times_the_bytes(count, tokens, causal):
    """R1 of the review of arXiv 2507.02456: bytes(2N)/bytes(N) -> 4, from below, closer at every length."""
    ratios = [count(table18(2 * n) if not causal else long(2 * n, True)) / count(table18(n) if not causal else long(n, True)) for n in (tokens, 2 * tokens)]
    assert 3.7 < ratios[0] <= ratios[1] * (1 + 1e-12) <= 4 * (1 + 1e-12)


def test_half_the_sram_doubles_the_traffic():
    """Theta(N^2 d^2 / M): traffic halves as SRAM doubles, up to the parts that do not depend on tiles."""
    shape = table18(65536)
    for count in (lambda m: fa.fa1_bytes(shape, fa.block_sizes(64, m)), lambda m: fa.fa2_bytes(shape, fa.Tiles(m // 256, 64))):
        assert count(32768) / count(65536) == pytest.approx(2, rel=0.01)


def test_packing_a_group_saves_key_loads_in_decode():
    decode = fa.AttentionShape(1, 32, 1, 8192, 128, 4)
    packed, not_packed = (fa.fa2_bytes(decode, BLOCK128, pack_gqa=pack) for pack in (True, False))
    assert not_packed / packed == pytest.approx(8, rel=0.01)
    assert packed == pytest.approx(fa.compulsory_bytes(decode), rel=1e-9)
    prefill = fa.AttentionShape(1, 32, 8192, 8192, 128, 4, causal=False)  # full tiles either way
    assert fa.fa2_bytes(prefill, BLOCK128, pack_gqa=True) == fa.fa2_bytes(prefill, BLOCK128)


def test_split_decode_adds_partials():
    shape = fa.AttentionShape(2, 32, 1, 65536, 128, 8)
    once, partials = fa.split_kv_bytes(shape, np.array([1, 8, 16]))
    assert once == fa.compulsory_bytes(shape)
    assert partials.tolist() == [0, 2 * 8 * 2 * 32 * 129 * 4, 2 * 16 * 2 * 32 * 129 * 4]
    assert fa.split_kv_blocks(shape, 8) == 2 * 8 * 8


@settings(max_examples=60, deadline=None)
@given(l2=st.floats(0, 1e9), more=st.floats(0, 1e9), working=st.floats(1, 1e11))
def test_a_larger_l2_never_misses_more(l2, more, working):
    few, many = fa.l2_miss_share(working, l2 + more), fa.l2_miss_share(working, l2)
    assert 0 <= few <= many <= 1


def test_tile_limit_and_mistakes_name_themselves():
    assert fa.Tiles(128, 128, 2).sram_bytes(128) == (128 + 2 * 128 * 2) * 128 * 2
    fa.Tiles(128, 128, 2).check(128, 228 * 1024)
    with pytest.raises(CostModelError, match="smaller tiles"):
        fa.Tiles(128, 128, 2).check(256, 228 * 1024)
    with pytest.raises(CostModelError, match="fa9.*standard"):
        fa.flash_attention(FIG2, A100, "fa9")
    with pytest.raises(CostModelError, match="sideways"):
        fa.flash_attention(FIG2, A100, "fa2", "sideways")
    with pytest.raises(CostModelError, match="peak_fp32_vector"):
        fa.flash_attention(FIG2, replace(A100, figures={k: v for k, v in A100.figures.items() if k != "peak_fp32_vector"}))
    with pytest.raises(WorkloadError, match="q_tokens"):
        fa.AttentionShape(1, 8, 100, 10, 64)
    with pytest.raises(WorkloadError, match="multiple"):
        fa.AttentionShape(1, 8, 1, 10, 64, 3)


def test_table_of_a_cost_and_shape_of_an_op():
    op = Attention("attention", "attention", "prefill", 2, 512, 1536, 32, 8, 128, 128, 256)
    shape = fa.AttentionShape.of(op)
    cost = fa.flash_attention(shape, A100)
    assert cost.useful_flops == op.flops and cost.exponentials >= op.exponentials
    table = cost.table.set_index("quantity")
    assert table.loc["time_s", "value"] == cost.time_s and set(table["unit"]) == {"FLOP", "count", "bytes", "0..1", "s"}
    sweep = fa.flash_attention(replace(shape, q_tokens=np.array([256, 512]), kv_tokens=np.array([256, 1536])), A100)
    assert sweep.time_s[1] == pytest.approx(cost.time_s)


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "reference" / "reference_values.csv"
KERNEL_NAMES = {("fa1", "forward"): "fa1.kernel_ms_fwd", ("fa1", "backward"): "fa1.kernel_ms_bwd", ("fa1", "masked"): "fa1.kernel_ms_fwd_masked",
                ("standard", "forward"): "fa1.pytorch_std_ms_fwd", ("standard", "backward"): "fa1.pytorch_std_ms_bwd"}


@pytest.mark.skipif(not SHARED.is_file(), reason="the reference table is not here; the rows above still hold")
def test_every_reference_row_of_attention_is_tested_here():
    known = {r[0]: r[2] for r in COUNTS} | {f"{KERNEL_NAMES[k, d]}.N{n}": ms for k, d, n, ms, *_ in TIMES} | {r[0]: r[4] for r in TRAINING}
    known |= {r[0]: r[2] for r in FINDINGS} | {"fa1.flash.bytes_fwd_bwd_GB_printed": 4.4, "fa1.fig2.runtime_ms_std": 41.7,
                                               "fa1.train.gpt2s_megatron_days": 4.7, "fa1.train.gpt2s_hf_days": 9.5}
    with SHARED.open(encoding="utf-8") as file:
        rows = {r["name"]: float(r["expected"]) for r in csv.DictReader(file) if r["name"].startswith(("fa.", "fa1.", "fa2."))}
    assert rows == {name: pytest.approx(value) for name, value in known.items()}
