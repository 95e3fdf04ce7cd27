"""Mistakes found in public tools: each is a regression test here, with what went wrong there."""
import pytest

import roofkit as rk

H100 = "h100-sxm-80gb"


def step(arch, workload, plan=None, model="ideal", device=H100):
    return rk.estimate(rk.load_architecture(arch), rk.load_device(device), plan or rk.Plan(), workload, model)


def test_a_gigabyte_per_second_is_1e9_so_no_decode_is_faster_than_its_bytes():
    """A tool read GB/s as 2**30 and printed 4.19 ms for a step whose bytes take 4.49 ms at its own 3.4 TB/s."""
    s = step("llama-3.1-8b", rk.Decode(1, 2048))
    assert s.time_s >= (15.01e9 + 0.268e9) / 3.35e12 * 0.999
    assert rk.load_device(H100).hbm_bytes_per_s == 3350e9


def test_a_teraflop_is_1e12_and_the_peak_is_dense():
    """Tools used 2**40 or x 1024 (peak 10 % too large) and sparse prints (1979) as dense."""
    assert rk.load_device(H100).peak_flops_per_s("bf16") == pytest.approx(989.4e12)


def test_prefill_attention_is_causal():
    """A tool counted the full square of scores."""
    ops = step("llama-3.1-8b", rk.Prefill(1, 8192)).ops.set_index("name")
    full = 32 * 4 * 32 * 128 * 8192**2
    assert ops.loc["attention", "flops"] == pytest.approx(full / 2, rel=1e-3)


def test_norms_and_elementwise_ops_are_counted():
    """A tool had no softmax, norm or elementwise time at all."""
    names = set(step("llama-3.1-8b", rk.Decode(1, 128)).ops["name"])
    assert {"add_norm", "rope_kv_write", "activation", "sampling", "embedding"} <= names


def test_decode_does_not_multiply_the_batch_by_a_beam():
    """A tool's decode had a default beam of 4 that silently multiplied the batch."""
    ops = step("llama-3.1-8b", rk.Decode(5, 128)).ops.set_index("name")
    assert ops.loc["gate_up_proj", "m"] == 5


def test_routed_experts_have_their_own_width_and_mla_its_own_cache():
    """A tool gave DeepSeek's routed experts the dense width 18432 (9 times the weights) and MLA two KV heads."""
    s = step("deepseek-v3", rk.Decode(1, 4096), rk.Plan(weights="bf16", activations="bf16"))
    experts = s.ops.set_index("name").loc["experts"]
    assert experts["n"] == 2 * 2048 and experts["hbm_bytes"] == pytest.approx(58 * 8 * 3 * 7168 * 2048 * 2, rel=1e-3)
    assert rk.load_architecture("deepseek-v3").kv_bytes_per_token() == 70272


def test_a_name_means_its_own_model():
    """A tool's meta-llama-3.1-70b was the Llama-2-70B file: another vocabulary and context."""
    arch = rk.load_architecture("llama-3.1-70b")
    assert arch.vocab == 128256 and arch.total_params == 70553706496 and arch.max_context == 131072


def test_the_output_matrix_counts_two_flops_per_weight_and_scales_with_batch():
    """One tool counted one, another left the output matrix out."""
    ops = step("llama-3.1-8b", rk.Decode(64, 128)).ops.set_index("name")
    assert ops.loc["logits", "flops"] == 2 * 64 * 4096 * 128256
    assert ops.loc["logits", "hbm_bytes"] > step("llama-3.1-8b", rk.Decode(1, 128)).ops.set_index("name").loc["logits", "hbm_bytes"]


def test_a_decode_step_reads_the_cache_once():
    """A tool charged a full read and a full write: 25.2 ms for a step whose physics is 14.9 (batch 128, context 2048)."""
    s = step("llama-3.1-8b", rk.Decode(128, 2048))
    kv = 128 * 2048 * 131072
    assert s.ops.set_index("name").loc["attention", "hbm_bytes"] == pytest.approx(kv, rel=0.01)
    assert s.time_s == pytest.approx((15.01e9 + kv) / 3.35e12, rel=0.03)


def test_a_moe_step_reads_only_the_experts_it_touches():
    """A tool always loaded all experts: Mixtral at batch 1 took 14.5 ms instead of 3.9 at half the bandwidth demand."""
    one, many = (step("mixtral-8x7b", rk.Decode(b, 128), rk.Plan(tp=2)).ops.set_index("name").loc["experts", "hbm_bytes"] for b in (1, 32))
    expert = 32 * 3 * 4096 * 14336 // 2 * 2
    assert one == pytest.approx(2 * expert, rel=1e-3) and many == pytest.approx(8 * expert, rel=2e-3)


@pytest.mark.parametrize("model", ["ideal", "simple", "calibrated"])
def test_small_batches_give_a_small_mfu_not_a_division_by_zero(model):
    """A tool rounded MFU to three digits, got 0 and divided by it."""
    s = step("llama-3.1-8b", rk.Decode(1, 1), model=model)
    assert 0 < s.mfu < 0.01 and s.time_s > 0


def test_prefill_all_reduces_carry_the_tokens_once():
    """A tool all-reduced world_size x tokens in prefill and printed 371 ms for TP8."""
    s = step("llama-3.1-70b", rk.Prefill(1, 2048), rk.Plan(tp=8), model="calibrated")
    reduces = s.ops[s.ops["name"].str.startswith("all_reduce")]
    sent = (2 * 80 + 1) * 2048 * 8192 * 2 * 2 * 7 / 8
    assert reduces["network_bytes"].sum() == pytest.approx(sent)
    assert s.time_s < 0.15


def test_at_batch_one_latency_constants_are_the_model():
    """A speed-of-light mode without latencies gave 0.72 ms for DeepSeek-V3 at batch 1; measured systems are 15 times slower."""
    plan = rk.Plan(tp=8, weights="fp8", activations="fp8")
    ideal, calibrated = (step("deepseek-v3", rk.Decode(1, 4096), plan, model, "h200-sxm-141gb").time_s for model in ("ideal", "calibrated"))
    assert calibrated > 4 * ideal


@pytest.mark.parametrize("model", ["ideal", "simple", "calibrated"])
@pytest.mark.parametrize("tokens", [128, 2048, 32768])
def test_a_prefill_never_exceeds_the_dense_peak(model, tokens):
    """A trained simulator predicted prefill at 4.8-6.2 times the chip's dense peak."""
    assert step("llama-3.1-8b", rk.Prefill(1, tokens), model=model).mfu <= 1


def test_distinct_experts_are_not_floored():
    """Public code floors E // k: 176.0 instead of 174.6 distinct experts at batch 32."""
    from roofkit.ops.ffn_blocks import distinct_experts

    assert distinct_experts(256, 9, 32) == pytest.approx(174.6, abs=0.05)
