"""The traps of real config files, one row each: a small config, one figure, and why."""
import pytest

from roofkit.architectures.architecture import MLA, Attention, MoE
from roofkit.architectures.config import known_model_types, read_config
from roofkit.errors import (ConfigError, ConflictingConfigError, MissingKeyError, UnsupportedArchitectureError,
                            UnsupportedQuantizationError)

BASE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 100, "tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 4096}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8,
          "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1}
SPARSE = {k: v for k, v in LATENT.items() if "rank" not in k and "head_dim" not in k}


def config(model_type, **over) -> dict:
    """BASE with changes; a value of `...` removes the key."""
    return {k: v for k, v in {**BASE, "model_type": model_type, **over}.items() if v is not ...}


def first(arch):
    return arch.groups[0].mixer


def last(arch):
    return arch.groups[-1]


TRAPS = [  # number in the list of traps, config, what is looked at, its value
    ("1 head_dim missing", config("llama"), lambda a: first(a).head_dim, 8),
    ("2 head_dim is not hidden/heads", config("llama", head_dim=32), lambda a: first(a).head_dim, 32),
    ("4 head_dim with latent attention is ignored", config("deepseek_v3", **LATENT, head_dim=999), lambda a: a.kv_bytes_per_token(1), 4 * 36),
    ("5 kv heads missing", config("llama", num_key_value_heads=...), lambda a: first(a).n_kv_heads, 8),
    ("5 kv heads null", config("mistral", num_key_value_heads=None), lambda a: first(a).n_kv_heads, 8),
    ("5 multi_query wins", config("falcon", num_kv_heads=8, num_key_value_heads=..., multi_query=True), lambda a: first(a).n_kv_heads, 1),
    ("5 n_head_kv of the first Falcon-40B", config("RefinedWeb", n_head_kv=2, num_key_value_heads=...), lambda a: (first(a).n_kv_heads, a.groups[0].n_norms), (2, 2)),
    ("6 kv heads do not count with latent attention", config("deepseek_v3", **LATENT, num_key_value_heads=8), lambda a: a.kv_bytes_per_token(1), 4 * 36),
    ("7 q_lora_rank null", config("deepseek_v2", **{**LATENT, "q_lora_rank": None}), lambda a: first(a).q_lora_rank, None),
    ("7 kv_lora_rank null is ordinary attention", config("deepseek_v2", **{**LATENT, "kv_lora_rank": None}), lambda a: type(first(a)), Attention),
    ("7 use_mla false is ordinary attention", config("deepseek_v2", **LATENT, use_mla=False), lambda a: type(first(a)), Attention),
    ("7 MiniCPM-3 without v_head_dim", config("minicpm3", **{k: v for k, v in LATENT.items() if "rank" in k or "head_dim" in k and k[0] == "q"}),
     lambda a: first(a).v_head_dim, 8),
    ("8 q/k norms are not announced", config("qwen3", head_dim=8), lambda a: first(a).qk_norm, "head"),
    ("8 full-width q/k norms", config("olmo2"), lambda a: first(a).qk_norm, "full"),
    ("8 use_qk_norm false in GLM-4.5", config("glm4_moe", **SPARSE, use_qk_norm=False),
     lambda a: first(a).qk_norm, "none"),
    ("9 attention_bias in Llama covers o", config("llama", attention_bias=True), lambda a: (first(a).qkv_bias, first(a).o_bias), (True, True)),
    ("9 attention_bias in MiMo does not", config("mimo", attention_bias=True), lambda a: (first(a).qkv_bias, first(a).o_bias), (True, False)),
    ("9 Qwen2 has biases without a key", config("qwen2"), lambda a: (first(a).qkv_bias, first(a).o_bias), (True, False)),
    ("9 Qwen-1 says no_bias", config("qwen", no_bias=True, kv_channels=8, num_key_value_heads=...), lambda a: first(a).qkv_bias, True),
    ("9 InternLM-1 bias covers all four", config("internlm", bias=True, num_key_value_heads=...), lambda a: (first(a).qkv_bias, first(a).o_bias), (True, True)),
    ("9 StableLM use_qkv_bias", config("stablelm", use_qkv_bias=True), lambda a: (first(a).qkv_bias, first(a).o_bias), (True, False)),
    ("10 output gate doubles q_proj", config("qwen3_5_text", head_dim=8), lambda a: last(a).mixer.output_gate, True),
    ("11 K equals V, both cached", config("gemma4_text", head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
                                          hidden_size_per_layer_input=0, num_hidden_layers=6), lambda a: last(a).mixer.n_kv_heads * last(a).mixer.head_dim, 16),
    ("12 sinks", config("gpt_oss", **EXPERTS | {"moe_intermediate_size": ...}), lambda a: first(a).sinks, True),
    ("15 parallel block has one norm", config("cohere"), lambda a: a.groups[0].n_norms, 1),
    ("15 GPT-NeoX is parallel with two norms", config("gpt_neox", num_key_value_heads=...), lambda a: a.groups[0].n_norms, 2),
    ("16 Gemma-2 has four norms", config("gemma2", head_dim=8), lambda a: a.groups[0].n_norms, 4),
    ("17 LayerNorm has a bias", config("stablelm"), lambda a: a.groups[0].norm_params, 4 * 64),
    ("17 Cohere's has none", config("cohere"), lambda a: a.groups[0].norm_params, 64),
    ("18 gelu_pytorch_tanh is gated in Gemma", config("gemma", hidden_act="gelu_pytorch_tanh", head_dim=8), lambda a: a.groups[0].ffn.gated, True),
    ("18 gelu_pytorch_tanh is plain in StarCoder2", config("starcoder2", hidden_act="gelu_pytorch_tanh"), lambda a: a.groups[0].ffn.gated, False),
    ("19 Qwen-1 width is gate and up together", config("qwen", kv_channels=8, num_key_value_heads=...), lambda a: a.groups[0].ffn.width, 48),
    ("19 LFM2 shrinks the width", config("lfm2", intermediate_size=12288, layer_types=["conv"] * 3 + ["full_attention"]), lambda a: a.groups[0].ffn.width, 8192),
    ("20 learned positions are looked up", config("gpt2", n_positions=32, num_key_value_heads=...), lambda a: a.lookup_params, 32 * 64),
    ("22 tied by class default", config("gemma", tie_word_embeddings=..., head_dim=8), lambda a: (a.tied, a.head_params), (True, 0)),
    ("22 untied by class default", config("llama", tie_word_embeddings=...), lambda a: a.tied, False),
    ("22 the outer file decides", {"model_type": "llava", "tie_word_embeddings": True, "text_config": config("llama", tie_word_embeddings=False)},
     lambda a: a.tied, True),
    ("23 nested files leave out class defaults", {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}, lambda a: a.text_params, 6738939904),
    ("25 constant lists collapse", config("hunyuan_v1_moe", num_experts=8, moe_topk=[2] * 4, num_shared_expert=[1] * 4, moe_intermediate_size=[32] * 4),
     lambda a: a.groups[0].ffn.top_k, 2),
    ("26 a Nemotron-H layer is one thing", config("nemotron_h", hybrid_override_pattern="M-*M", mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=1),
     lambda a: [g.count for g in a.groups], [2, 1, 1]),
    ("27 architectures is only a hint", config("llama", architectures=["BertModel"]), lambda a: a.family, "llama"),
    ("28 shared-expert gate", config("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=48), lambda a: a.groups[0].ffn.shared_gate, True),
    ("29 n_shared_experts multiplies the expert width", config("deepseek_v3", **{**LATENT, "n_shared_experts": 2}), lambda a: last(a).ffn.shared_width, 64),
    ("29 shared width is the width itself", config("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=48), lambda a: a.groups[0].ffn.shared_width, 48),
    ("30 dense prefix", config("deepseek_v3", **LATENT), lambda a: [g.count for g in a.groups], [1, 3]),
    ("31 unused intermediate_size", config("qwen3_moe", **EXPERTS, mlp_only_layers=[], decoder_sparse_step=1), lambda a: type(a.groups[0].ffn), MoE),
    ("32 expert biases", config("gpt_oss", **EXPERTS | {"moe_intermediate_size": ...}), lambda a: (a.groups[0].ffn.expert_bias, a.groups[0].ffn.router_bias), (True, True)),
    ("35 window switched off", config("qwen2", sliding_window=16, use_sliding_window=False), lambda a: first(a).window, None),
    ("35 window on from max_window_layers", config("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=3), lambda a: last(a).positions, (3,)),
    ("36 window longer than the context", config("phi3", sliding_window=8192), lambda a: first(a).window, None),
    ("37 Gemma-3 every sixth layer is full", config("gemma3_text", num_hidden_layers=12, sliding_window=16, head_dim=8), lambda a: last(a).positions, (5, 11)),
    ("37 Llama-4 every fourth is full and without rope", config("llama4_text", num_local_experts=4, num_experts_per_tok=1, attention_chunk_size=16),
     lambda a: (last(a).mixer.rope, last(a).mixer.window, first(a).chunked), (False, None, True)),
    ("37 Mistral's cache stops growing", config("mistral", sliding_window=16), lambda a: a.kv_bytes_per_token(2, 16), 0),
    ("37 Mistral's window when the key is absent", config("mistral", max_position_embeddings=32768), lambda a: first(a).window, 4096),
    ("37 null switches it off", config("mistral", sliding_window=None), lambda a: first(a).window, None),
    ("38 shared caches", config("gemma3n_text", num_kv_shared_layers=2, head_dim=8), lambda a: a.kv_bytes_per_token(1), 2 * 2 * 2 * 8),
    ("38 cross-attention caches no text", config("mllama_text_model", cross_attention_layers=[1]), lambda a: a.kv_bytes_per_token(1), 3 * 2 * 2 * 8),
    ("39 indexer keys are cached", config("deepseek_v32", **LATENT, index_n_heads=2, index_head_dim=16, index_topk=8), lambda a: a.kv_bytes_per_token(1), 4 * 52),
    ("39 shared indexers are not", config("glm_moe_dsa", **LATENT, index_n_heads=2, index_head_dim=16, index_topk=8, indexer_types=["full", "shared"] * 2),
     lambda a: a.kv_bytes_per_token(1), 4 * 36 + 2 * 16),
    ("41 Mamba-1 state", config("mamba", state_size=16, conv_kernel=4, intermediate_size=128, num_attention_heads=..., num_key_value_heads=...),
     lambda a: (a.state_elements, a.kv_bytes_per_token()), (4 * 128 * 20, 0)),
    ("42 a written width rules over expand", config("falcon_mamba", expand=16, intermediate_size=128), lambda a: first(a).d_inner, 128),
    ("42 the string Infinity", config("mamba2", num_heads=8, head_dim=16, n_groups=1, state_size=8, time_step_limit=[0.0, "Infinity"]), lambda a: a.confidence, "exact"),
    ("46 head_dim absent with latent attention", config("deepseek_v3", **LATENT), lambda a: type(first(a)), MLA),
]


@pytest.mark.parametrize("trap, data, look, expected", TRAPS, ids=[t[0] for t in TRAPS])
def test_trap(trap, data, look, expected):
    assert look(read_config(data)) == expected


REFUSALS = [  # config, error, words that must appear
    (config("t5", is_encoder_decoder=True), UnsupportedArchitectureError, ("t5", "is_encoder_decoder")),
    (config("bert"), UnsupportedArchitectureError, ("bert", "encoder")),
    (config("deepseek_v4"), UnsupportedArchitectureError, ("deepseek_v4", "model_type")),
    (config("llama", num_hidden_layers=...), MissingKeyError, ("llama", "num_hidden_layers", "n_layer")),
    (config("llama", hidden_size=None), MissingKeyError, ("hidden_size", "d_model")),
    (config("llama", num_key_value_heads=3), ConflictingConfigError, ("num_key_value_heads 3", "8")),
    (config("llama", hidden_size=60), ConflictingConfigError, ("60", "head_dim")),
    (config("llama", num_hidden_layers=4, n_layer=5), ConflictingConfigError, ("n_layer=5",)),
    (config("gpt_oss", **EXPERTS, layer_types=["full_attention"] * 3), ConflictingConfigError, ("layer_types", "3")),
    (config("nemotron_h", hybrid_override_pattern="M-"), ConflictingConfigError, ("2", "4")),
    (config("mixtral", num_local_experts=2, num_experts_per_tok=3), ConflictingConfigError, ("3 experts per token",)),
    (config("llama", kv_lora_rank=16), UnsupportedArchitectureError, ("llama", "kv_lora_rank", "16")),
    (config("llama", num_local_experts=8), UnsupportedArchitectureError, ("num_local_experts",)),
    (config("qwen3", layer_types=["linear_attention"] * 4), UnsupportedArchitectureError, ("layer_types", "linear_attention")),
    (config("unheard_of", state_size=16), UnsupportedArchitectureError, ("unheard_of", "state_size", "16")),
    (config("unheard_of", mamba_d_state=16), UnsupportedArchitectureError, ("mamba_d_state",)),
    (config("unheard_of", linear_attn_config={"a": 1}), UnsupportedArchitectureError, ("linear_attn_config",)),
    (config("unheard_of", hidden_act="gelu"), UnsupportedArchitectureError, ("hidden_act", "gelu")),
    (config("unheard_of", hidden_act=...), UnsupportedArchitectureError, ("hidden_act",)),
    (config("unheard_of", tie_word_embeddings=...), MissingKeyError, ("tie_word_embeddings",)),
    (config("unheard_of", intermediate_size=...), MissingKeyError, ("intermediate_size",)),
    (config("unheard_of", num_experts=8), MissingKeyError, ("num_experts_per_tok",)),
    (config("unheard_of", intermediate_size=[64, 96, 96, 96]), UnsupportedArchitectureError, ("intermediate_size",)),
    (config(...), MissingKeyError, ("model_type",)),
    (config(7), UnsupportedArchitectureError, ("model_type", "7")),
    (config("deepseek_v3", **{k: v for k, v in LATENT.items() if k != "q_lora_rank"}), MissingKeyError, ("q_lora_rank",)),
    ({"model_type": "mistral3", "text_config": config("mistral", tie_word_embeddings=...)}, MissingKeyError, ("tie_word_embeddings",)),
    (config("llama", text_config=[1]), ConfigError, ("text_config",)),
    (config("llama", quantization_config={"quant_method": "mystery"}), UnsupportedQuantizationError, ("llama", "quant_method", "mystery")),
    (config("llama", quantization_config={"quant_method": "gptq", "bits": 3}), UnsupportedQuantizationError, ("bits", "3")),
    (config("llama", quantization_config=[8]), UnsupportedQuantizationError, ("quantization_config",)),
]


@pytest.mark.parametrize("data, error, words", REFUSALS, ids=[f"{i}-{r[0].get('model_type')}-{r[2][-1]}" for i, r in enumerate(REFUSALS)])
def test_refusal_names_what_is_not_understood(data, error, words):
    with pytest.raises(error) as caught:
        read_config(data)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)


def test_generic_path_says_what_it_assumes():
    arch = read_config(config("unheard_of", attention_bias=True))
    assert arch.confidence == "generic" and any("attention_bias" in a for a in arch.assumptions) and len(arch.assumptions) >= 2
    assert arch.text_params - read_config(config("unheard_of")).text_params == 4 * (64 + 2 * 16)


def test_unknown_sizes_are_noted_and_refused_when_strict():
    data = config("llama", memory_bank_size=7)
    assert any("memory_bank_size=7" in a for a in read_config(data).assumptions)
    with pytest.raises(UnsupportedArchitectureError, match="memory_bank_size"):
        read_config(data, strict=True)
    assert read_config(config("llama"), strict=True).assumptions == ()


def test_auto_map_is_never_followed(monkeypatch):
    import importlib

    monkeypatch.setattr(importlib, "import_module", lambda name, *a: pytest.fail(f"imported {name}"))
    read_config(config("llama", auto_map={"AutoConfig": "evil.Config"}, trust_remote_code=True))


def test_a_tower_that_is_not_described_leaves_the_text_exact():
    arch = read_config({"model_type": "kimi_k25", "tie_word_embeddings": False, "vision_config": {"hidden_size": 8}, "text_config": config("kimi_k2", **LATENT)})
    assert arch.text_params > 0 and arch.vision_params is None and any("tower" in a for a in arch.assumptions)
    with pytest.raises(UnsupportedArchitectureError, match="vision_config"):
        arch.total_params


def test_every_family_is_found_by_model_type():
    known = known_model_types()
    assert len(known) == len(set(known)) >= 80 and {"llama", "deepseek_v3", "mamba2", "gemma3"} <= set(known)


MTP = [  # config, parameters beyond the text model; block of the last kind + 2 d d + norms
    (config("deepseek_v3", **LATENT, num_nextn_predict_layers=1), 2 * 64 * 64 + 3 * 64 + 2 * 100 * 64),
    (config("glm_moe_dsa", **LATENT, index_n_heads=2, index_head_dim=16, index_topk=8, num_nextn_predict_layers=1), 2 * 64 * 64 + 3 * 64),
    (config("mimo", num_nextn_predict_layers=1), 2 * 64 * 64 + 3 * 64),
]


@pytest.mark.parametrize("data, extra", MTP, ids=[m[0]["model_type"] for m in MTP])
def test_draft_layers_are_counted_apart(data, extra):
    from roofkit.architectures.counting import layer_params

    arch = read_config(data)
    without = read_config({**data, "num_nextn_predict_layers": 0})
    assert arch.text_params == without.text_params and without.mtp is None and without.mtp_params == 0
    assert arch.mtp_params == layer_params(last(arch), 64) + extra and arch.mtp.mixer == last(arch).mixer
