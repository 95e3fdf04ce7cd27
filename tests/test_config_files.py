"""Published config.json files -> the integers of their index. Needs ../shared/data/configs; skipped, visibly, without it."""
import csv
import json
from pathlib import Path

import pytest
from test_architectures_presets import mismatches

from roofkit.architectures import counting
from roofkit.architectures.checkpoint import quantized_params, scale_elements, weight_bytes
from roofkit.architectures.presets import load_architecture, load_architecture_text
from roofkit.errors import RoofkitError

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "configs"
INDEX = FOLDER / "INDEX.csv"
ROWS = list(csv.DictReader(INDEX.read_text().splitlines())) if INDEX.is_file() else []
pytestmark = pytest.mark.skipif(not ROWS, reason="../shared/data/configs is not there")
LOADED = [r for r in ROWS if not r["expect"].startswith("refuse:")]
REFUSED = [r for r in ROWS if r["expect"].startswith("refuse:")]


def test_the_reference_set_is_complete():
    assert len(ROWS) == 81


@pytest.mark.parametrize("row", LOADED, ids=[r["file"] for r in LOADED])
def test_file_gives_its_integers(row):
    arch = load_architecture(FOLDER / row["file"])
    assert mismatches(arch, row) == [], row["how_known"]
    for column, value in (("embed_params", arch.embed_params), ("lm_head_params", arch.head_params), ("vision_params", arch.vision_params)):
        assert row[column] == "" or int(row[column]) == value, column
    if row["routed_expert_params"]:
        routed = sum(g.count * counting.routed_params(g.ffn, arch.hidden) for g in arch.groups)
        assert int(row["routed_expert_params"]) == routed
    assert arch.confidence == ("generic" if row["expect"] == "generic, exact" else "exact")
    assert arch.model_type == row["model_type"]


@pytest.mark.parametrize("row", REFUSED, ids=[r["file"] for r in REFUSED])
def test_file_is_refused_by_name(row):
    with pytest.raises(RoofkitError) as caught:
        load_architecture(FOLDER / row["file"])
    assert type(caught.value).__name__ == row["expect"].removeprefix("refuse:")
    assert row["model_type"] in str(caught.value) and "key" in str(caught.value)


@pytest.mark.parametrize("row", LOADED, ids=[r["file"] for r in LOADED])
def test_pasted_text_gives_the_same_and_unread_sizes_are_none(row):
    text = (FOLDER / row["file"]).read_text()
    assert load_architecture_text(text).text_params == int(row["text_params"])
    assert load_architecture(json.loads(text)).groups == load_architecture(FOLDER / row["file"]).groups


SCALES = [  # file, draft layers too?, scales, source
    ("MiniMaxAI--MiniMax-M2.5.json", False, 13_880_064, "Hub total minus parameters"),
    ("Qwen--Qwen3-32B-FP8.json", False, 1_904_640, "Hub total minus parameters"),
    ("mistralai--Devstral-Small-2-24B-Instruct-2512.json", False, 560, "two per matrix, Hub total"),
    ("deepseek-ai--DeepSeek-V3.json", True, 41_540_496, "Hub total minus parameters, draft layer and biases"),
]


@pytest.mark.parametrize("file, mtp, scales, source", SCALES, ids=[r[0] for r in SCALES])
def test_scales_are_counted_apart(file, mtp, scales, source):
    assert scale_elements(load_architecture(FOLDER / file), mtp) == scales, source


QUANTIZED = [  # file, method, weights, activations, kv, share of the text parameters that is quantised
    ("nvidia--Llama-3.1-70B-Instruct-FP8.json", "modelopt", "fp8", "fp8", "fp8", 0.970),
    ("nvidia--Qwen3-235B-A22B-NVFP4.json", "modelopt", "nvfp4", "nvfp4", "fp8", 0.994),
    ("nvidia--Gemma-4-31B-IT-NVFP4.json", "modelopt", "nvfp4", "nvfp4", "fp8", 0.678),
    ("Qwen--Qwen3-30B-A3B-GPTQ-Int4.json", "gptq", "int4", "bf16", None, 0.979),
    ("openai--gpt-oss-120b.json", "mxfp4", "mxfp4", "bf16", None, 0.981),
    ("meta-llama--Llama-4-Maverick-17B-128E-Instruct-FP8.json", "compressed-tensors", "fp8", "fp8", None, 0.995),
    ("deepseek-ai--DeepSeek-V3.json", "fp8", "fp8_block", "fp8_block", None, 0.997),
]


@pytest.mark.parametrize("file, method, weights, activations, kv, share", QUANTIZED, ids=[r[0] for r in QUANTIZED])
def test_quantisation_is_read(file, method, weights, activations, kv, share):
    arch = load_architecture(FOLDER / file)
    q = arch.quantization
    assert (q.method, q.weights, q.activations, q.kv) == (method, weights, activations, kv)
    assert quantized_params(arch) / arch.text_params == pytest.approx(share, abs=5e-4)
    assert load_architecture(FOLDER / file, ignore_quantization=True).quantization is None


def test_gpt_oss_checkpoint_bytes_match_the_repository():
    assert weight_bytes(load_architecture(FOLDER / "openai--gpt-oss-20b.json")) == pytest.approx(13.76e9, rel=1e-3)
