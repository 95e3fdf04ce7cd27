"""Inventory: sizes, counts and bytes of every op, against closed forms and published figures."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofkit.architectures.architecture import Attention, MLA
from roofkit.architectures.shapes import layer_matrices
from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.errors import PlanError, WorkloadError
from roofkit.ops.attention_blocks import cache_elements_per_token
from roofkit.ops.ffn_blocks import distinct_experts, ranks_reached
from roofkit.ops.inventory import draft_inventory, inventory
from roofkit.ops.kinds import Attention as AttentionOp
from roofkit.ops.kinds import Collective, Gemm, GroupedGemm
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, MixedBatch, Prefill

DENSE = ["llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "mistral-7b"]


def ops_by_name(arch, plan, workload):
    ops = inventory(arch, plan, workload)
    assert len({op.name for op in ops}) == len(ops)
    return {op.name: op for op in ops}


def matrix_params(arch):
    """Parameters that multiply activations: all but the input table, norms, biases."""
    vectors = sum(g.count * g.norm_params for g in arch.groups) + arch.hidden
    for g in arch.groups:
        m = g.mixer
        if isinstance(m, Attention):
            vectors += g.count * 2 * m.head_dim * (m.qk_norm == "head")
            vectors += g.count * (m.n_heads + 2 * m.n_kv_heads) * m.head_dim * m.qkv_bias
    return arch.active_params - arch.embed_params - vectors + (arch.embed_params if arch.tied else 0)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("batch", [1, 7, 512])
def test_flops_of_a_dense_forward_are_two_per_active_matrix_parameter_and_token(name, batch):
    arch = load_architecture(name)
    ops = inventory(arch, Plan(), Decode(batch, 2048))
    products = sum(op.flops for op in ops if isinstance(op, Gemm))
    assert products == pytest.approx(2.0 * matrix_params(arch) * batch, rel=1e-9)
    pairs = sum(g.count * 4 * g.mixer.n_heads * g.mixer.head_dim * min(2048, g.mixer.window or 2048) for g in arch.groups)
    assert sum(op.flops for op in ops if isinstance(op, AttentionOp)) == pytest.approx(pairs * batch, rel=1e-9)


def test_prefill_logits_are_for_the_last_token_only():
    ops = ops_by_name(load_architecture("llama-3.1-8b"), Plan(), Prefill(3, 2048))
    assert ops["logits"].m == 3 and ops["gate_up_proj"].m == 3 * 2048
    assert ops["logits"].flops == 2.0 * 3 * 4096 * 128256


DISTINCT = [  # experts, top_k, tokens, expected distinct, source
    (8, 2, 1, 2.0, "Mixtral, one token reads its two experts"),
    (8, 2, 32, 8 * (1 - 0.75**32), "Mixtral, essentially all eight"),
    (256, 8, 1, 8.0, "DeepSeek-V3, one token"),
    (256, 9, 32, 174.6, "exact expectation; the flooring public code gives 176.0"),
    (128, 128, 1, 128.0, "every expert chosen"),
]


@pytest.mark.parametrize("experts, top_k, tokens, expected, source", DISTINCT)
def test_expected_distinct_experts(experts, top_k, tokens, expected, source):
    assert distinct_experts(experts, top_k, tokens) == pytest.approx(expected, abs=0.05 if expected == 174.6 else 1e-6), source


@given(st.integers(1, 512), st.data())
def test_distinct_experts_lies_between_top_k_and_all(experts, data):
    top_k = data.draw(st.integers(1, experts))
    tokens = np.arange(1, 300)
    touched = distinct_experts(experts, top_k, tokens)
    assert (touched >= top_k * (1 - 1e-9)).all() and (touched <= np.minimum(experts, tokens * top_k) * (1 + 1e-9)).all()
    assert (np.diff(touched) >= -1e-9).all()


def test_routed_experts_use_the_expert_width_not_the_dense_one():
    ops = ops_by_name(load_architecture("deepseek-v3"), Plan(), Decode(1, 4096))
    assert ops["experts"].inter == 2048 and ops["gate_up_proj"].n == 2 * 18432
    assert ops["experts"].count == 58 and ops["gate_up_proj"].count == 3


KV = [("llama-3.1-8b", 131072), ("llama-3.1-70b", 327680), ("deepseek-v3", 70272), ("qwen3-30b-a3b", 98304), ("mixtral-8x7b", 131072)]


@pytest.mark.parametrize("name, per_token", KV)
def test_cache_per_token_of_one_rank_is_the_published_one(name, per_token):
    arch = load_architecture(name)
    assert 2.0 * sum(cache_elements_per_token(g.mixer, 1) * g.count for g in arch.groups) == per_token


def test_kv_heads_replicate_when_tp_exceeds_them_and_latents_always():
    llama, v3 = load_architecture("llama-3.1-8b"), load_architecture("deepseek-v3")
    gqa = next(g.mixer for g in llama.groups)
    mla = next(g.mixer for g in v3.groups)
    assert isinstance(gqa, Attention) and isinstance(mla, MLA)
    assert [cache_elements_per_token(gqa, tp) for tp in (1, 2, 8, 16)] == [2048, 1024, 256, 256]
    assert cache_elements_per_token(mla, 8) == 576
    assert ops_by_name(llama, Plan(tp=16), Decode(1, 128))["attention"].n_kv_heads == 1


def test_mla_decodes_absorbed_and_prefills_plain():
    arch = load_architecture("deepseek-v3")
    decode = ops_by_name(arch, Plan(tp=8), Decode(4, 4096))
    assert (decode["attention"].qk_dim, decode["attention"].v_dim, decode["attention"].n_kv_heads, decode["attention"].kv_elements) == (576, 512, 1, 576)
    assert decode["attention"].flops == 61 * 4 * 2 * 16 * (576 + 512) * 4096
    assert (decode["absorb_q"].batch, decode["absorb_q"].k, decode["absorb_q"].n) == (16, 128, 512)
    prefill = ops_by_name(arch, Plan(tp=8), Prefill(1, 1024, cached_tokens=512))
    assert prefill["kv_b_proj"].m == 1024 and "absorb_q" not in prefill
    assert (prefill["attention"].qk_dim, prefill["attention"].v_dim, prefill["attention"].n_kv_heads) == (192, 128, 16)
    # absorbed products and the plain up-projection hold the same weights
    per_layer = decode["absorb_q"].weight_bytes + decode["absorb_v"].weight_bytes
    assert per_layer == prefill["kv_b_proj"].weight_bytes


def test_causal_prefill_counts_half_of_the_square_and_windows_bound_it():
    def pairs(q, kv, window=None):
        return AttentionOp("a", "attention", "prefill", 1, q, kv, 8, 8, 64, 64, 128, window=window).pairs

    def brute(q, kv, window):
        return sum(min(kv - q + j, window or 10**9) for j in range(1, q + 1))

    assert pairs(2048, 2048) == 2048 * 2049 / 2
    for q, kv, window in [(10, 10, 4), (10, 30, 4), (10, 30, 25), (1, 1, 1), (7, 7, 100), (64, 1000, 980)]:
        assert pairs(q, kv, window) == brute(q, kv, window)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_no_collective_on_one_device_and_two_all_reduces_a_layer_under_tp(name):
    arch = load_architecture(name)
    assert not [op for op in inventory(arch, Plan(), Decode(1, 128)) if isinstance(op, Collective)]
    reduces = [op for op in inventory(arch, Plan(tp=8), Decode(4, 128)) if isinstance(op, Collective) and op.kind == "all_reduce"]
    assert sum(op.count for op in reduces) == 2 * arch.n_layers + 1
    assert {float(op.bytes_in) for op in reduces} == {4 * arch.hidden * 2.0}


def test_dp_attention_with_expert_parallelism_exchanges_tokens():
    arch = load_architecture("deepseek-v3")
    ops = ops_by_name(arch, Plan(dp=32, ep=32, weights="fp8", activations="fp8"), Decode(32 * 64, 4096))
    experts = ops["experts"]
    assert experts.experts == 8 and experts.tokens == 2048 and experts.rows == 2048 * 8 / 32
    assert ops["dispatch"].bytes_in == 64 * 8 * 7168 * 1.0 and ops["combine"].bytes_in == 64 * 8 * 7168 * 2.0
    assert ops["dispatch"].ranks == 32 and ops["qkv_a_proj"].m == 64
    assert not [n for n in ops if n.startswith("all_reduce")]


def test_expert_parallelism_inside_tp_keeps_the_all_reduce():
    ops = ops_by_name(load_architecture("mixtral-8x7b"), Plan(tp=8, ep=4), Decode(8, 1024))
    assert ops["experts"].experts == 2 and ops["experts"].inter == 14336 // 2
    assert "all_reduce_ffn" in ops and "dispatch" not in ops


BAD = [  # plan, model, words the message must hold
    (Plan(tp=3), "llama-3.1-8b", "not divisible"), (Plan(tp=64), "llama-3.1-8b", "query heads"), (Plan(pp=64), "llama-3.1-8b", "32 layers"),
    (Plan(tp=16, ep=16), "mixtral-8x7b", "routed experts"), (Plan(cp=2), "llama-3.1-8b", "cp"),
]


@pytest.mark.parametrize("plan, name, words", BAD)
def test_a_plan_that_does_not_divide_says_so(plan, name, words):
    with pytest.raises(PlanError, match=words):
        inventory(load_architecture(name), plan, Decode(1, 128))


@pytest.mark.parametrize("make", [lambda: Decode(0, 1), lambda: Decode(1, -1), lambda: Prefill(1, 0), lambda: Prefill(1.5, 8), lambda: Decode("x", 1),
                                  lambda: Prefill(1, 8, 8), lambda: Decode(float("nan"), 1), lambda: MixedBatch(1, 1, 0), lambda: Decode(np.array([]), 1)])
def test_an_impossible_workload_is_refused(make):
    with pytest.raises(WorkloadError):
        make()


@pytest.mark.parametrize("make", [lambda: Plan(tp=0), lambda: Plan(tp=2.5), lambda: Plan(weights="fp3"), lambda: Plan(weights="bf16", activations="nvfp4"),
                                  lambda: Plan(kv="x"), lambda: Plan(tp=2, ep=3), lambda: Plan(tp=True)])
def test_an_impossible_plan_is_refused(make):
    with pytest.raises(PlanError):
        make()


@pytest.mark.parametrize("name", sorted(list_architectures()["name"]))
def test_products_of_every_preset_account_for_each_active_matrix_parameter(name):
    """2 FLOPs per active matrix parameter and token, plus the output matrix for the rows that need logits: to 1e-9."""
    arch = load_architecture(name)
    for workload, new, rows in ((Decode(2, 512), 2, 2), (Prefill(2, 300), 600, 2)):
        ops = inventory(arch, Plan(), workload)
        assert all(op.bytes_moved > 0 and op.count > 0 for op in ops if not isinstance(op, Collective))
        products = sum(op.flops for op in ops if isinstance(op, Gemm | GroupedGemm) and op.name not in ("logits", "shared_gate", "outside_layers"))
        per_token = 0
        for g in arch.groups:
            for m in layer_matrices(g, arch.hidden):
                unused = 1.0 if m.part != "routed" else g.ffn.top_k / g.ffn.n_experts
                cross = isinstance(g.mixer, Attention) and g.mixer.kv == "cross" and m.name in ("self_attn.k_proj", "self_attn.v_proj")
                per_token += 0 if cross else g.count * m.params * unused
        assert products == pytest.approx(2.0 * per_token * new, rel=1e-9)
        assert next(op for op in ops if op.name == "logits").flops == 2.0 * arch.hidden * arch.vocab * rows


def test_parameters_that_no_block_describes_are_not_free():
    ops = ops_by_name(load_architecture("opt-350m"), Plan(), Decode(3, 64))
    assert ops["outside_layers"].flops >= 2 * 3 * 2 * 512 * 1024  # the projections around its narrow embedding
    assert "outside_layers" not in ops_by_name(load_architecture("gpt2"), Plan(), Decode(3, 64))  # positions are looked up


def test_a_batch_axis_gives_the_same_numbers_as_its_points():
    arch, batches = load_architecture("mixtral-8x7b"), np.array([1, 5, 64, 512])
    swept = {op.name: op for op in inventory(arch, Plan(tp=2, pp=2), Decode(batches, 700))}
    for i, batch in enumerate(batches):
        for op in inventory(arch, Plan(tp=2, pp=2), Decode(int(batch), 700)):
            both = swept[op.name]
            for field in ("flops", "bytes_moved", "network_bytes"):
                assert np.broadcast_to(getattr(both, field), batches.shape)[i] == pytest.approx(getattr(op, field), rel=1e-12), (op.name, field)


def test_a_mixed_batch_keeps_its_two_attentions_apart():
    ops = ops_by_name(load_architecture("llama-3.1-8b"), Plan(), MixedBatch(16, 1000, chunk_tokens=512, cached_tokens=256))
    assert ops["qkv_proj"].m == 16 + 512 and ops["logits"].m == 17
    assert ops["attention_prefill"].kv_tokens == 768 and ops["attention_decode"].batch == 16


STORED = [  # preset, formats of (mixer, experts or ffn), KV, where the checkpoint says so
    ("llama-3.1-8b", "bf16", "bf16", "bf16", "no quantization_config: torch_dtype bfloat16"),
    ("deepseek-v3", "fp8_block", "fp8_block", "bf16", "quantization_config fp8, weight_block_size 128 x 128"),
    ("gpt-oss-120b", "bf16", "w4a16_mxfp4", "bf16", "mxfp4, modules_to_not_convert lists self_attn"),
    ("qwen3-30b-a3b-gptq-int4", "int4_wo", "int4_wo", "fp16", "gptq, 4 bits, groups of 128; torch_dtype float16"),
    ("llama-3.1-70b-fp8", "fp8", "fp8", "fp8", "hf_quant_config.json: FP8 weights and KV"),
    ("gemma-4-31b-nvfp4", "bf16", "nvfp4", "fp8", "hf_quant_config.json excludes self_attn"),
]


@pytest.mark.parametrize("name, mixer, second, kv, source", STORED)
def test_formats_default_to_those_of_the_checkpoint(name, mixer, second, kv, source):
    arch = load_architecture(name)
    ops = ops_by_name(arch, Plan(), Decode(1, 128))
    assert ops["qkv_proj" if "qkv_proj" in ops else "qkv_a_proj"].format.name == mixer, source
    assert ops["experts" if "experts" in ops else "gate_up_proj"].format.name == second, source
    assert next(op for op in ops.values() if isinstance(op, AttentionOp)).kv_format == kv, source
    assert ops["logits"].format.name == arch.dtype
    forced = ops_by_name(arch, Plan(weights="bf16", activations="bf16"), Decode(1, 128))
    assert {op.format.name for op in forced.values() if isinstance(op, Gemm | GroupedGemm)} == {"bf16"}


def test_naming_only_activations_keeps_the_stored_weights():
    ops = ops_by_name(load_architecture("qwen3-235b-a22b-nvfp4"), Plan(activations="bf16"), Decode(1, 128))
    assert ops["qkv_proj"].format.name == "w4a16_nvfp4" and ops["qkv_proj"].format.math == "bf16"


def test_naming_narrow_activations_beside_wide_weights_is_refused():
    with pytest.raises(PlanError, match="narrower"):
        inventory(load_architecture("llama-3.1-8b"), Plan(activations="fp8"), Decode(1, 128))


@pytest.mark.parametrize("name", [n for n in sorted(list_architectures()["name"]) if load_architecture(n).mtp])
def test_a_draft_pass_is_the_multi_token_prediction_layers_and_the_head(name):
    arch = load_architecture(name)
    ops = draft_inventory(arch, Plan(weights="bf16", activations="bf16"), Decode(1, 512))
    products = sum(op.flops for op in ops if isinstance(op, Gemm | GroupedGemm))
    matrices = sum(m.params * (g.ffn.top_k / g.ffn.n_experts if m.part == "routed" else 1.0)
                   for g in (arch.mtp,) for m in layer_matrices(g, arch.hidden)) * arch.mtp.count
    assert products == pytest.approx(2.0 * (matrices + arch.mtp.count * 2 * arch.hidden**2 + arch.hidden * arch.vocab), rel=1e-3)
    assert sum(op.flops for op in ops) < 0.2 * sum(op.flops for op in inventory(arch, Plan(), Decode(1, 512)))


def test_a_draft_of_a_model_without_such_layers_is_refused():
    with pytest.raises(PlanError, match="multi-token-prediction"):
        draft_inventory(load_architecture("llama-3.1-8b"), Plan(), Decode(1, 512))


REACHED = [  # experts, top_k, ranks, expected ranks reached
    (256, 8, 1, 1.0), (256, 8, 256, 8.0), (8, 2, 2, 2 * (1 - 4 * 3 / (8 * 7))), (8, 8, 4, 4.0), (4, 1, 4, 1.0),
]


@pytest.mark.parametrize("experts, top_k, ep, expected", REACHED)
def test_ranks_that_a_token_reaches(experts, top_k, ep, expected):
    assert ranks_reached(experts, top_k, ep) == pytest.approx(expected, rel=1e-12)


def test_the_bound_of_an_exchange_counts_one_copy_per_rank():
    from roofkit.cost.bounds import ideal_s
    from roofkit.hardware.presets import load_cluster

    op = ops_by_name(load_architecture("deepseek-v3"), Plan(dp=8, ep=8), Decode(64, 128))["dispatch"]
    assert op.needed == pytest.approx(ranks_reached(256, 8, 8) / 8) and 0.6 < op.needed < 0.7
    assert ideal_s(op, load_cluster("dgx-h100")) == pytest.approx(op.bytes_in * op.needed * 7 / 8 / 450e9)
