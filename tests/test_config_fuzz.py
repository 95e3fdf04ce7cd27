"""Hostile input: mutated configs end in a RoofkitError within a second or in a valid architecture, never otherwise."""
import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofkit.architectures.architecture import Architecture
from roofkit.architectures.config import MAX_BYTES, read_config
from roofkit.architectures.presets import load_architecture, load_architecture_text
from roofkit.errors import RoofkitError

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "configs"
SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
         "tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 4096, "head_dim": 8}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OWN = [{**SMALL, "model_type": t} for t in ("llama", "qwen2", "gemma2", "mistral", "cohere", "starcoder2", "unknown")] + [
    {**SMALL, **EXPERTS, "model_type": "qwen3_moe"}, {**SMALL, **EXPERTS, "model_type": "unknown_moe"},
    {**SMALL, **EXPERTS, "model_type": "deepseek_v3", "q_lora_rank": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
     "n_shared_experts": 1, "first_k_dense_replace": 1, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}]
REAL = [json.loads(f.read_text()) for f in sorted(FOLDER.glob("*.json")) if "hf_quant" not in f.name] if FOLDER.is_dir() else []
CONFIGS = OWN + REAL
HOSTILE = [None, -1, 0, 1, True, False, "", "12", "NaN", 1.5, -0.0, math.nan, math.inf, -math.inf, 10**30, 2**63, 1e308, [], {}, [[]], [None], {"a": {}}, [1, 2],
           ["full_attention"], "x" * 10000, b"bytes", (1, 2), object()]


def valid(arch) -> bool:
    return (isinstance(arch, Architecture) and isinstance(arch.text_params, int) and 0 < arch.active_params <= arch.text_params < 1e18
            and math.isfinite(arch.kv_bytes_per_token()) and arch.kv_bytes_per_token() >= 0 and arch.state_elements >= 0
            and arch.parameter_table()["total"].sum() == arch.text_params)


def survives(data) -> None:
    start = time.process_time()
    try:
        arch = read_config(data)
    except RoofkitError as error:
        assert str(error) and len(str(error)) < 3000
    else:
        assert valid(arch)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("data", CONFIGS, ids=[f"{i}-{c['model_type']}" for i, c in enumerate(CONFIGS)])
def test_every_key_with_hostile_values(data):
    """One key at a time removed or replaced, in the file and in its text dictionary."""
    for part in [None] + [k for k in ("text_config", "attn_config", "ffn_config", "quantization_config", "vision_config") if isinstance(data.get(k), dict)]:
        for i, key in enumerate((data if part is None else data[part])):
            for value in [...] + HOSTILE[i % 7::7]:
                inner = dict(data if part is None else data[part])
                inner.pop(key) if value is ... else inner.__setitem__(key, value)
                survives(inner if part is None else {**data, part: inner})


keys = st.sampled_from(sorted({k for c in CONFIGS for k in c} | {"kv_lora_rank", "layer_types", "block_configs", "text_config"}))
values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda x: st.lists(x, max_size=3) |
                      st.dictionaries(st.text(max_size=8), x, max_size=3), max_leaves=6)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(base=st.sampled_from(CONFIGS), changes=st.dictionaries(keys, values, max_size=4), drop=st.lists(keys, max_size=2))
def test_random_mutations(base, changes, drop):
    survives({k: v for k, v in {**base, **changes}.items() if k not in drop})


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_random_text(text):
    with pytest.raises(RoofkitError):
        load_architecture_text(text)


def cycle() -> dict:
    data = dict(SMALL, model_type="llama")
    data["text_config"] = data
    return data


def deep(n: int) -> dict:
    data: dict = {}
    for _ in range(n):
        data = {"text_config": data}
    return data


MONSTERS = {
    "cycle": cycle, "cycle in a list": lambda: (lambda x: x.append(x) or {"model_type": "llama", "a": x})([]), "deep": lambda: deep(100_000),
    "deep text": lambda: '{"a":' * 200_000, "deep list": lambda: "[" * 3_000_000, "100 MB": lambda: " " * 100_000_000,
    "100 MB json": lambda: '{"model_type": "llama", "x": "' + "y" * 100_000_000 + '"}', "long number": lambda: '{"hidden_size": ' + "9" * 100_000 + "}",
    "many keys": lambda: {"model_type": "llama", **{str(i): i for i in range(500_000)}}, "many layers": lambda: dict(SMALL, model_type="llama", num_hidden_layers=10**9),
    "long pattern": lambda: dict(SMALL, model_type="nemotron_h", hybrid_override_pattern="M" * 1_000_000),
    "long list": lambda: dict(SMALL, model_type="gpt_oss", layer_types=["full_attention"] * 300_000), "number keys": lambda: {1: 2, "model_type": "llama"},
    "exponential": lambda: (lambda f: f(f, 40))(lambda f, n: {"model_type": "llama"} if n == 0 else (lambda x: {"a": x, "b": x})(f(f, n - 1)))}


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_end_quickly(name):
    data = MONSTERS[name]()
    start = time.process_time()
    with pytest.raises(RoofkitError):
        load_architecture_text(data) if isinstance(data, str) else load_architecture(data)
    assert time.process_time() - start < 1.0


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as f:
        f.truncate(MAX_BYTES + 1)
    with pytest.raises(RoofkitError, match="more than"):
        load_architecture(path)


@pytest.mark.parametrize("text", ["/etc/passwd", "config.json", "llama-3.1-8b", "org/model", "{'a': 1}", '"llama-3.1-8b"', "model_type: llama"])
def test_pasted_text_is_json_and_nothing_else(text):
    with pytest.raises(RoofkitError, match="JSON"):
        load_architecture_text(text)
