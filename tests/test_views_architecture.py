"""The architecture card's values: every preset gives a card whose parts add up, and refusals come back in words."""
import json

import numpy as np
import pytest

from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.mixers import MLA, Attention, GatedDeltaNet, Indexer, LightningAttention, Mamba1, Mamba2, ShortConv
from roofkit.architectures.presets import list_architectures, load_architecture, load_architecture_text
from roofkit.views.architecture import architecture_controls, architecture_facts, architecture_view, card
from roofkit.views.architecture_words import component_words, ffn_kind, ffn_label, mixer_kind, mixer_label, ordinal, positions_words

PRESETS = sorted(list_architectures()["name"])
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 1000, "max_position_embeddings": 512, "tie_word_embeddings": True}
GEMMA = {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "vocab_size": 1000, "sliding_window": 256, "sliding_window_pattern": 6, "max_position_embeddings": 8192}


def texts(view):
    yield view.title
    for tile in view.tiles:
        yield from (tile.label, tile.value, tile.note)
    yield from (s.text for s in view.statements)
    yield from view.notes
    yield from view.alt.values()
    yield from (" ".join(b) for b in view.badges)
    yield from view.layers["sentence"]
    yield from view.groups[["layers", "mixer", "ffn"]].to_numpy().ravel()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gives_a_card_that_adds_up(name):
    view, arch = architecture_view({"model": name}), load_architecture(name)
    assert view.problem is None and view.selection == {"model": name}
    assert view.components["total"].sum() == arch.text_params and view.components["active"].sum() == arch.active_params
    outside = arch.embed_params + arch.head_params + arch.head_bias + arch.other_params
    assert view.layers["params"].sum() + outside == arch.text_params
    assert view.layers["active_params"].sum() + outside == arch.active_params
    assert (view.groups["count"] * view.groups["params"]).sum() == view.layers["params"].sum()
    assert view.layers["layer"].tolist() == list(range(arch.n_layers))
    assert view.layers["kv_bytes_per_token"].sum() == arch.kv_bytes_per_token()
    assert view.components["share"].sum() == pytest.approx(1, abs=1e-12) and view.components["active_share"].sum() == pytest.approx(1, abs=1e-12)
    assert (view.components["idle"] == view.components["total"] - view.components["active"]).all() and view.components["total"].is_monotonic_decreasing


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_speaks_in_whole_words(name):
    view = architecture_view({"model": name})
    for text in texts(view):
        words = text.lower().replace(",", " ").split()
        assert not {"nan", "none", "inf", "not finite"} & set(words), text
    assert {s.target for s in view.statements} == {"layers", "components", "kv"} == set(view.alt)


@pytest.mark.parametrize("name", PRESETS)
def test_cache_grows_and_ends_at_the_longest_context(name):
    kv, arch = architecture_view({"model": name}).kv, load_architecture(name)
    assert np.isfinite(kv.to_numpy()).all() and (kv["total_bytes"] > 0).all()
    assert (np.diff(kv["context_tokens"]) > 0).all() and (np.diff(kv["kv_bytes"]) >= 0).all()
    assert kv["context_tokens"].iloc[-1] == (arch.max_context or 1 << 20)
    assert (kv["total_bytes"] == kv["kv_bytes"] + kv["state_bytes"]).all()


def test_a_mixture_says_what_a_token_uses_and_a_dense_model_that_it_uses_all():
    said = " ".join(s.text for s in architecture_view({"model": "deepseek-v3"}).statements)
    assert "A token uses 37.6B of 671B parameters (5.6 %)" in said and "97 % of the parameters are routed experts" in said
    assert "61 layers: 3 × latent attention, dense feed-forward; 58 × latent attention, experts." in said
    assert "One sequence of 32,768 tokens holds 2.3 GB" in said
    assert "Every token uses every parameter: a dense model." in [s.text for s in architecture_view({"model": "llama-3.1-8b"}).statements]


def test_windows_are_said_and_drawn():
    view = architecture_view({"model": "custom", "config": json.dumps(GEMMA)})
    assert view.problem is None, view.problem
    assert any(s.text.startswith("Once its windows are full, a further token adds 256 B instead of 1.54 kB") for s in view.statements)
    growth = np.diff(view.kv["kv_bytes"]) / np.diff(view.kv["context_tokens"])
    assert growth[0] == 12 * 128 and growth[-1] == 2 * 128
    assert view.groups["layers"].tolist() == ["0–4, 6–10", "5, 11"]


def test_a_tied_head_is_said_and_counted_once():
    view = architecture_view({"model": "custom", "config": json.dumps(LLAMA)})
    assert "head" not in set(view.components["component"]) and any("tied" in n for n in view.notes)
    assert view.kv["context_tokens"].tolist() == [128, 256, 512]
    facts = architecture_facts({"model": "custom", "config": json.dumps(LLAMA)})
    assert dict(zip(facts["figure"], facts["a"], strict=True))["output head"] == "tied to the embedding"


@pytest.mark.parametrize("config, part", [
    ('{"model_type": "bart", "is_encoder_decoder": true}', "bart"), ("{}", "model_type"), ("[1, 2]", ""), ("not json", ""), ("/etc/passwd", ""),
    ('{"model_type": "<script>alert(1)</script>"}', ""), (json.dumps({**LLAMA, "hidden_size": -3}), "hidden_size"),
    (json.dumps({**LLAMA, "num_hidden_layers": "many"}), "num_hidden_layers")])
def test_a_refused_config_comes_back_with_its_reason(config, part):
    view = architecture_view({"model": "custom", "config": config})
    assert view.problem and part in view.problem.reason and view.problem.reason.endswith(".") and not len(view.layers)
    assert not len(architecture_facts({"model": "custom", "config": config}))


def test_an_unknown_preset_is_a_problem_and_no_exception():
    assert "nope" in architecture_view({"model": "nope"}).problem.reason
    assert architecture_view({}).selection["model"] == architecture_controls({})[0].default


def test_a_config_of_an_unknown_type_is_marked_generic():
    view = architecture_view({"model": "custom", "config": json.dumps({**LLAMA, "model_type": "zorblax", "hidden_act": "silu"})})
    assert [b[0] for b in view.badges] == ["generic"] and "zorblax" in view.badges[0][1]
    assert len(view.notes) > len(architecture_view({"model": "custom", "config": json.dumps(LLAMA)}).notes)


def test_figures_of_two_models_with_their_ratio():
    a, b = {"model": "deepseek-v3"}, {"model": "llama-3.1-8b"}
    facts = architecture_facts(a, b).set_index("figure")
    assert facts.loc["parameters"].tolist() == ["671,026,404,352", "8,030,261,248", "0.012×"]
    assert facts.loc["layers", "ratio"] == "0.525×" and facts.loc["kinds of layers", "ratio"] == ""
    assert facts.loc["active, without embedding and head", "a"] == "35,698,924,544"
    back = architecture_facts(b, a).set_index("figure")
    assert back.loc["parameters", "ratio"] == "83.6×" and back.loc["layers", "ratio"] == "1.91×"
    alone = architecture_facts(a).set_index("figure")
    assert (alone["b"] == "").all() and (alone["ratio"] == "").all() and "recurrent state" not in alone.index
    same = architecture_facts(a, a).set_index("figure")
    assert set(same["ratio"]) == {"", "same"}
    assert (architecture_facts(a, {"model": "nope"})["b"] == "").all()


def test_the_card_is_the_same_from_a_preset_and_from_its_architecture():
    arch = load_architecture("mixtral-8x7b")
    assert card(arch).components.equals(architecture_view({"model": "mixtral-8x7b"}).components)
    assert card(load_architecture_text(json.dumps(LLAMA))).title.endswith("parameters in 3 layers")


@pytest.mark.parametrize("positions, words", [
    ((0,), "0"), ((0, 1, 2), "0–2"), ((0, 1, 5), "0–1, 5"), ((3, 7, 11, 15, 19), "3, 7, … 19 (every 4th)"), ((1, 3, 5, 7, 9), "1, 3, … 9 (every 2nd)"),
    ((2, 5), "2, 5"), (tuple(i for i in range(40) if i % 4), "1–3, 5–7, 9–11, 13–15, … 37–39")])
def test_positions_in_words(positions, words):
    assert positions_words(positions) == words


def test_ordinals():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]


MLA_V3 = dict(n_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


@pytest.mark.parametrize("mixer, kind, label", [
    (Attention(32, 8, 128), "full attention", "GQA 32/8 × 128"), (Attention(32, 32, 128), "full attention", "MHA 32/32 × 128"),
    (Attention(8, 1, 256), "full attention", "MQA 8/1 × 256"), (Attention(8, 4, 64, window=4096), "sliding-window attention", "GQA 8/4 × 64, window 4,096"),
    (Attention(8, 4, 64, window=8192, chunked=True), "chunked attention", "GQA 8/4 × 64, chunk 8,192"),
    (Attention(8, 4, 64, kv="shared"), "shared-cache attention", "GQA 8/4 × 64, cache of an earlier layer"),
    (Attention(8, 4, 64, kv="cross"), "cross-attention", "GQA 8/4 × 64, cross-attention"),
    (Attention(8, 4, 64, v_head_dim=32, sinks=True), "full attention", "GQA 8/4 × 64 (values 32), sinks"),
    (MLA(**MLA_V3), "latent attention", "MLA 128 heads, latent 512 + 64"),
    (MLA(**MLA_V3, indexer=Indexer(64, 128, 2048)), "sparse latent attention", "MLA 128 heads, latent 512 + 64, sparse top 2,048"),
    (GatedDeltaNet(16, 32, 128, 128, 4), "linear attention", "gated delta net 32 × 128 × 128"),
    (LightningAttention(64, 96), "linear attention", "lightning attention 64 × 96"), (Mamba1(8192, 16, 4, 256), "state space", "Mamba, inner 8,192, state 16"),
    (Mamba2(64, 64, 128, 8, 4), "state space", "Mamba-2 64 × 64, state 128"), (ShortConv(2048, 3), "short convolution", "short convolution, kernel 3"),
    (None, "no mixer", "no mixer")])
def test_mixers_in_words(mixer, kind, label):
    assert (mixer_kind(mixer), mixer_label(mixer)) == (kind, label)


@pytest.mark.parametrize("ffn, kind, label", [
    (Dense(14336), "dense feed-forward", "gated 14,336"), (Dense(3072, gated=False), "dense feed-forward", "plain 3,072"),
    (MoE(256, 8, 2048, shared_width=2048), "experts", "MoE 8 of 256 × 2,048 + shared 2,048"),
    (MoE(128, 8, 704, dense_width=2112), "experts beside dense", "MoE 8 of 128 × 704 + dense 2,112"), (None, "no feed-forward", "no feed-forward")])
def test_feed_forwards_in_words(ffn, kind, label):
    assert (ffn_kind(ffn), ffn_label(ffn)) == (kind, label)


def test_components_in_words():
    assert component_words("routed_experts") == "routed experts" and component_words("head") == "output head"
