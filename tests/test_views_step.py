"""The step explorer's page: what it says agrees with the step, and every refusal offers a selection that works."""
import json

import numpy as np
import pytest

from roofkit.tables import BREAKDOWN, MEMORY_INDEX, OPS_COLUMNS
from roofkit.views.choices import completed, step_controls
from roofkit.views.step import step_of, step_view

LLAMA_CONFIG = json.dumps({
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "intermediate_size": 14336, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 131072})


def test_the_default_page_is_complete_and_agrees_with_its_step():
    view = step_view({})
    step = step_of({})
    assert view.problem is None and list(view.ops.columns) == list(OPS_COLUMNS) and list(view.breakdown.index) == list(BREAKDOWN)
    assert view.breakdown.sum() == pytest.approx(step.time_s, rel=1e-9)
    assert view.ops["time_s"].is_monotonic_decreasing
    assert set(view.memory.index) == {*MEMORY_INDEX, "capacity"}
    assert set(view.explain) == set(view.ops["name"]) and {"roofline", "breakdown", "ops", "memory"} <= set(view.alt)
    assert 3 <= len(view.statements) <= 5 and [r.kind for r in view.roofs] == ["peak", "achievable"]
    assert {t.key for t in view.tiles} >= {"time", "throughput", "mfu", "mbu", "memory"}


def test_no_dot_is_above_the_peak_roof():
    for selection in ({}, {"phase": "prefill"}, {"batch": 512}, {"model": "deepseek-v3", "tp": 8, "device": "h200-sxm-141gb", "weights": "fp8", "activations": "fp8"}):
        ops = step_view(selection).ops
        dots = ops[ops["flops"] > 0]
        assert (dots["flops_per_s"] <= dots["roof_flops_per_s"] * (1 + 1e-9)).all(), selection


PROBLEMS = [  # selection, words of the reason
    ({"tp": 32, "model": "qwen2.5-7b"}, "query heads"),
    ({"model": "llama-3.1-70b"}, "does not fit"),
    ({"model": "deepseek-v3"}, "does not fit"),
    ({"batch": 1024, "context_tokens": 131072}, "does not fit"),
    ({"device": "t4"}, "bf16"),
    ({"weights": "fp8", "activations": "fp8", "device": "a100-sxm-80gb"}, "fp8"),
    ({"activations": "fp8"}, "narrower"),
    ({"model": "qwen3-235b-a22b-nvfp4", "tp": 8}, "fp4"),
    ({"ep": 4, "model": "mixtral-8x7b"}, "ep=4"),
    ({"model": "mixtral-8x7b", "ep": 16, "dp": 16}, "routed experts"),
]


@pytest.mark.parametrize("selection, words", PROBLEMS, ids=[w for _, w in PROBLEMS])
def test_a_bad_choice_says_why_and_offers_one_that_works(selection, words):
    view = step_view(selection)
    assert view.problem and words in view.problem.reason
    assert view.problem.fix, f"no way out offered for {selection}"
    mended = step_view({**view.selection, **view.problem.fix})
    assert mended.problem is None and view.problem.fix_label


BAD_TEXT = ["{", "[]", "null", '{"model_type": "bert"}', '{"model_type": "llama"}', "a" * 1000, "1e999", '{"model_type": ' * 2000, "\x00", '"/etc/passwd"']


@pytest.mark.parametrize("text", BAD_TEXT)
def test_a_bad_config_is_a_sentence_not_an_exception(text):
    view = step_view({"config": text, "model": "custom"})
    assert view.problem and view.ops.empty and len(view.problem.reason) > 20 and "Traceback" not in view.problem.reason


def test_a_pasted_config_is_the_model():
    view = step_view({"config": LLAMA_CONFIG, "model": "custom"})
    assert view.problem is None
    assert view.tiles[0].number == pytest.approx(step_view({}).tiles[0].number, rel=1e-9)
    assert "custom" in [v for _, v in step_controls({"config": LLAMA_CONFIG})[0].options]


@pytest.mark.parametrize("selection", [{"model": "/etc/passwd"}, {"model": "../x"}, {"device": "nope"}, {"batch": "x"}, {"tp": None}, {"tp": -1}, {"batch": 0},
                                       {"weights": "fp3"}, {"engine": "x"}, {"cost_model": "x"}, {"kv": 3}, {"context_tokens": "1e99"}, {"phase": "train"}])
def test_a_hostile_selection_never_raises(selection):
    view = step_view(selection)
    assert view.problem is not None or not view.ops.empty


def test_every_option_of_every_control_gives_a_page():
    for control in step_controls({}):
        for _, value in control.options[:: max(1, len(control.options) // 12)]:
            view = step_view({control.key: value})
            assert view.problem is not None or np.isfinite(view.tiles[0].number)
            assert view.title and "nan" not in " ".join(t.value for t in view.tiles).lower()


def test_the_length_control_follows_the_phase():
    assert "context_tokens" in {c.key for c in step_controls({})} and "prompt_tokens" in {c.key for c in step_controls({"phase": "prefill"})}
    assert "prompt_tokens" not in completed({}) and completed({"junk": 1}).get("junk") is None


def test_unverified_and_uncalibrated_figures_are_marked():
    labels = [b for b, _ in step_view({"device": "mi455x"}).badges]
    assert any("not calibrated" in b for b in labels) and any("unverified" in b for b in labels)
    assert any("fitted" in b for b, _ in step_view({}).badges)
    assert any("bound" in b for b, _ in step_view({"cost_model": "ideal"}).badges)


def test_statements_follow_the_numbers():
    decode, prefill = step_view({}), step_view({"phase": "prefill", "batch": 1})
    assert "bound by memory" in decode.statements[1].text and "bound by compute" in prefill.statements[1].text
    assert any("Collectives" in s.text for s in step_view({"tp": 8}).statements)
