"""Quantisation sections -> formats, bytes with scales, excluded modules."""
import pytest

from roofkit.architectures.checkpoint import bytes_per_weight, is_excluded, quantized_params, scale_elements, weight_bytes
from roofkit.architectures.config import read_config
from roofkit.architectures.quantization_config import collapse_layers
from roofkit.errors import UnsupportedQuantizationError
from roofkit.formats import FORMATS, KV_FORMATS

BASE = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 512, "vocab_size": 100, "torch_dtype": "bfloat16"}
LINEAR = 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)  # all matrices of the layers


def compressed(bits, kind, strategy, group=None, acts=None):
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": acts,
                                          "weights": {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group}}}}


ACT8 = {"num_bits": 8, "type": "float", "dynamic": True}
ROWS = [  # section, weights, activations, kv, bytes per weight with scales
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, "fp8_block", "fp8_block", None, 1 + 4 / 16384),
    ({"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}, "fp8", "fp8", None, 1.0),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", "bf16", None, 0.5 + 2.5 / 128),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4", "bf16", None, 0.5 + 2.5 / 32),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", "bf16", None, 1.0),
    ({"quant_method": "mxfp4"}, "mxfp4", "bf16", None, 0.5 + 1 / 32),
    ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", "fp8", None, 1.0),
    (compressed(8, "float", "channel", acts=ACT8), "fp8", "fp8", None, 1.0),
    (compressed(8, "int", "channel", acts={"num_bits": 8, "type": "int"}), "int8", "int8", None, 1.0),
    (compressed(4, "int", "group", 128), "int4", "bf16", None, 0.5 + 2 / 128),
    (compressed(4, "float", "group", 16, acts={"num_bits": 4, "type": "float"}), "nvfp4", "nvfp4", None, 0.5625),
    ({**compressed(8, "float", "tensor", acts=ACT8), "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8", "fp8", "fp8", 1.0),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}, "nvfp4", "nvfp4", "fp8", 0.5625),
    ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8", "fp8", None, 1.0),
    ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "NVFP4"}, "c": {"quant_algo": "FP8"}}},
     "nvfp4", "nvfp4", None, 0.5625),
]


@pytest.mark.parametrize("section, weights, activations, kv, each", ROWS, ids=range(len(ROWS)))
def test_section_is_read(section, weights, activations, kv, each):
    arch = read_config({**BASE, "quantization_config": section})
    q = arch.quantization
    assert (q.weights, q.activations, q.kv) == (weights, activations, kv)
    assert bytes_per_weight(arch) == pytest.approx(each, rel=1e-12)
    assert q.weights in FORMATS and q.activations in FORMATS and (q.kv is None or q.kv in KV_FORMATS)
    assert quantized_params(arch) == LINEAR
    assert weight_bytes(arch) == pytest.approx(LINEAR * each + 2 * (arch.text_params - LINEAR))
    assert arch.text_params == read_config(BASE).text_params


def test_formats_and_schemes_agree_on_the_common_block_sizes():
    for section, name in ((ROWS[0][0], "fp8_block"), (ROWS[2][0], "int4"), (ROWS[5][0], "mxfp4"), (ROWS[12][0], "nvfp4")):
        assert bytes_per_weight(read_config({**BASE, "quantization_config": section})) == FORMATS[name].bytes_per_el


def test_second_file_is_used_when_the_first_says_nothing():
    second = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    q = read_config(BASE, second).quantization
    assert (q.weights, q.kv, q.excluded, q.static_activations) == ("fp8", "fp8", ("lm_head",), True)
    own = {"quant_method": "awq", "bits": 4, "group_size": 64}
    assert read_config({**BASE, "quantization_config": own}, second).quantization.method == "awq"


def test_mlx_section_and_nested_section():
    q = read_config({**BASE, "quantization": {"bits": 4, "group_size": 64}}).quantization
    assert (q.method, q.weights, q.bytes_per_weight) == ("mlx", "int4", 0.5 + 4 / 64)
    nested = {"model_type": "llava", "text_config": {**BASE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}}
    assert read_config(nested).quantization.weights == "fp8_block"


EXCLUDED = [  # pattern, module, excluded
    ("lm_head", "lm_head", True), ("model.layers.3.self_attn", "model.layers.3.self_attn.q_proj", True),
    ("model.layers.3", "model.layers.30.mlp.up_proj", False), ("model.layers.*.self_attn*", "model.layers.7.self_attn.k_proj", True),
    ("re:.*self_attn.*", "model.layers.7.self_attn.k_proj", True), ("re:.*router", "model.layers.7.mlp.up_proj", False),
    ("self_attn", "model.layers.7.self_attn.k_proj", True), ("gate", "model.layers.7.mlp.gate_proj", False),
    ("re:(a+)+$", "a" * 60 + "b", False), ("re:(", "model", False)]


@pytest.mark.parametrize("pattern, name, out", EXCLUDED)
def test_exclusion_patterns(pattern, name, out):
    assert is_excluded((pattern,), name) is out


def test_excluded_modules_stay_wide():
    section = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp", "model.layers.*.self_attn.o_proj"]}
    arch = read_config({**BASE, "quantization_config": section})
    assert quantized_params(arch) == LINEAR - 3 * 256 * 512 - 2 * 256 * 256
    assert scale_elements(arch) == 2 * (4 + 2 + 2) + 3 * 2 * 4


def test_numbered_patterns_collapse_when_every_layer_is_named():
    listed = tuple(f"model.layers.{i}.mlp.gate" for i in range(4)) + ("lm_head", "model.layers.2.self_attn")
    assert collapse_layers(listed, 4) == ("model.layers.*.mlp.gate", "lm_head", "model.layers.2.self_attn")
    assert collapse_layers(listed, 5)[0] == "model.layers.0.mlp.gate"


BROKEN = [{"quant_method": 5}, {"quant_method": "bitsandbytes"}, {"foo": 1}, {"quant_method": "fp8", "weight_block_size": [128]},
          {"quant_method": "fp8", "weight_block_size": "x"}, {"quant_method": "awq", "bits": "4"}, {"quant_method": "gptq", "bits": 2},
          {"quant_method": "compressed-tensors"}, {"quant_method": "compressed-tensors", "config_groups": {"a": 1}},
          {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 3}}}}, {"quant_algo": "NVFP9"},
          {"quant_method": "mxfp4", "modules_to_not_convert": "lm_head"}, {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 5}},
          {"quant_algo": "FP8", "kv_cache_quant_algo": 8}, {"quant_algo": "MIXED_PRECISION"}]


@pytest.mark.parametrize("section", BROKEN, ids=range(len(BROKEN)))
def test_unknown_schemes_are_refused_by_name_unless_ignored(section):
    with pytest.raises(UnsupportedQuantizationError, match="model_type 'llama'"):
        read_config({**BASE, "quantization_config": section})
    assert read_config({**BASE, "quantization_config": section}, ignore_quantization=True).quantization is None
