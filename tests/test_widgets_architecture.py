"""The architecture card without a browser: build it, drive it, read the marks and the HTML back."""
import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofkit.errors import RoofkitError
from roofkit.views.architecture import architecture_controls, architecture_facts, architecture_view
from roofkit_widgets.architecture_cache import CachePlot
from roofkit_widgets.architecture_card import ArchitectureCard, ArchitectureExplorer
from roofkit_widgets.architecture_csv import csv_text
from roofkit_widgets.architecture_layers import LayerMap, row_length
from roofkit_widgets.architecture_look import FFN_COLORS, MIXER_COLORS, PART_COLORS, part_order
from roofkit_widgets.architecture_parts import ComponentBars

V3, LLAMA = {"model": "deepseek-v3"}, {"model": "llama-3.1-8b"}
TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 1000, "max_position_embeddings": 512}
EVIL = "<img src=x onerror=alert(1)>'\""


def explorer(query="", view=architecture_view, facts=architecture_facts):
    return ArchitectureExplorer(architecture_controls, view, facts, against="deepseek-v3", query=query)


@pytest.fixture(scope="module")
def v3():
    return architecture_view(V3)


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_layer_map_has_a_cell_per_layer_with_its_sentence(v3):
    drawn = LayerMap("a")
    drawn.update(v3.layers, v3.groups, v3.alt["layers"])
    html = drawn.html.value
    assert html.count("data-say=") == 61 and "role='img'" in html and "Layer map of 61 layers" in html
    assert html.count(f"--m:{MIXER_COLORS['latent attention']};--f:{FFN_COLORS['experts']}") == 58 + 1  # the cells and their row in the table
    assert "dense feed-forward" in html and ">3–60" not in html and "<b>58 ×</b> 3–60" in html


@pytest.mark.parametrize("groups, width", [
    ([0] * 5, 8), ([0] * 12, 12), ([0] * 61, 16), (([0] * 5 + [1]) * 10, 12), (([0] * 3 + [1]) * 12, 16), (([0] * 6 + [1]) * 5, 14)])
def test_rows_of_the_map_follow_the_pattern(groups, width):
    assert row_length(groups) == width


def test_every_kind_in_the_library_has_a_colour():
    from roofkit.views import architecture_words as words

    source = Path(words.__file__).read_text("utf-8")
    kinds = set(re.findall(r'"([a-z\- ]+attention|state space|short convolution|no mixer)"', source.partition("def mixer_label")[0]))
    assert kinds <= set(MIXER_COLORS) and len(kinds) >= 9
    assert {"dense feed-forward", "experts", "experts beside dense", "no feed-forward"} == set(FFN_COLORS)


def test_component_bars_keep_their_mark_and_stack_to_the_totals(v3):
    drawn = ComponentBars("a")
    mark = drawn.bars
    drawn.update(v3.components)
    assert drawn.bars is mark and mark.y.shape == (len(PART_COLORS), 2) and len(mark.colors) == len(PART_COLORS)
    assert mark.y.sum(axis=0) * 1e9 == pytest.approx([37_552_282_624, 671_026_404_352]) and list(mark.x) == ["active", "total"]
    assert drawn.count.max >= 671 and drawn.figure.axes[1].label == "parameters (billion)"
    drawn.update(v3.components, end=2.1e12)
    assert drawn.count.max >= 2.1 and drawn.figure.axes[1].label == "parameters (trillion)"
    drawn.update(v3.components, shares=True)
    assert mark.y.sum(axis=0) == pytest.approx([100, 100]) and drawn.count.max == 100
    assert "653,908,770,816" in drawn.table.value and "633,474,121,728" in drawn.table.value and "671,026,404,352" in drawn.table.value


def test_component_bars_draw_a_component_they_do_not_know(v3):
    parts = v3.components.assign(component=["novel", *v3.components["component"][1:]], label=[EVIL, *v3.components["label"][1:]])
    drawn = ComponentBars("a")
    drawn.update(parts)
    assert drawn.bars.y.sum(axis=0)[1] * 1e9 == pytest.approx(671_026_404_352) and part_order(["novel"])[-1] == "novel"
    drawn._hover(drawn.bars, {"data": {"sub_index": len(PART_COLORS), "x": "total"}})
    assert "653,908,770,816 total, 97.4 % of the bar" in drawn.tip.value
    assert "<img" not in drawn.table.value + drawn.tip.value


def test_a_late_hover_is_no_error(v3):
    drawn, plot = ComponentBars("a"), CachePlot()
    drawn.update(v3.components)
    plot.update([("m", v3.kv, "")])
    for content in ({}, {"data": {"sub_index": 99, "x": "total"}}, {"data": {"sub_index": 0, "x": "gone"}}, {"data": {"index": 99}}):
        drawn._hover(drawn.bars, content)
        plot._hover("a", content)
        plot._hover("b", content)
    assert drawn.tip.value == "" and plot.tips["a"].value == ""


def test_cache_plot_draws_one_model_or_two_and_drops_what_a_log_axis_cannot_show(v3):
    plot = CachePlot()
    plot.update([("v3", v3.kv, "words")])
    assert plot.lines["a"].visible and not plot.lines["b"].visible and not plot.states["a"].visible
    assert plot.x.min > 0 and plot.y.min > 0 and plot.y.max >= v3.kv["total_bytes"].max() and plot.figure.axes[0].tick_values is not None
    broken = pd.DataFrame({"context_tokens": [128.0, 256.0, 512.0, 0.0], "kv_bytes": [0.0, 1.0, np.nan, 5.0], "state_bytes": [0.0, 4e3, 4e3, 4e3],
                           "total_bytes": [0.0, 4001.0, np.nan, 4005.0]})
    plot.update([("v3", v3.kv, "one"), (EVIL, broken, "two")])
    assert plot.lines["b"].x.tolist() == [256.0] and plot.dots["b"].y.tolist() == [4001.0] and plot.states["b"].visible
    assert plot.y.min <= 4000 and "<img" not in plot.legend.value + plot.table.value
    plot._hover("b", {"data": {"index": 0}})
    assert "<img" not in plot.tips["b"].value and "256 tokens" in plot.tips["b"].value
    plot.update([("v3", v3.kv, "words")])
    assert not plot.lines["b"].visible and not len(plot.dots["b"].x)


def test_cache_table_names_contexts_from_1024_on(v3):
    plot = CachePlot()
    plot.update([("v3", v3.kv, "")])
    assert "<th scope='row'>1,024</th>" in plot.table.value and "<th scope='row'>512</th>" not in plot.table.value and "163,840" in plot.table.value


def test_csv_has_the_configuration_and_units(v3):
    text = csv_text(v3.components, v3.title, {"model": "deepseek-v3", "config": "{}" * 50})
    lines = text.splitlines()
    assert lines[0] == "# roofkit architecture card: deepseek-v3: 671B parameters in 61 layers" and "# config = pasted config.json, 100 characters" in lines
    assert "component,total [parameters],active [parameters]" in text and "routed_experts,653908770816,20434649088" in text
    assert csv_text(v3.layers, "a\nb", {}).startswith("# roofkit architecture card: a b\n")


# ---- the card -------------------------------------------------------------------------------------------------------


def test_a_card_stands_alone_and_updates_in_place(v3):
    card = ArchitectureCard()
    card.update(v3)
    line = card.cache.lines["a"]
    assert "671B" in card.tiles.widget.value and "5.6 %" in card.says.value and line.visible
    card.update(architecture_view(LLAMA))
    assert card.cache.lines["a"] is line and "671B" not in card.tiles.widget.value and "GQA 32/8" in card.layers.html.value


def test_everything_from_data_is_escaped(v3):
    layers, groups = v3.layers.assign(sentence=EVIL), v3.groups.assign(mixer=EVIL, ffn=EVIL, layers=EVIL, mixer_kind=EVIL, ffn_kind=EVIL)
    tiles = tuple(replace(t, label=EVIL, value=EVIL, note=EVIL) for t in v3.tiles)
    view = replace(v3, title=EVIL, tiles=tiles, statements=tuple(replace(s, text=EVIL) for s in v3.statements), layers=layers, groups=groups, notes=(EVIL,),
                   components=v3.components.assign(label=EVIL), badges=((EVIL, EVIL),), alt=dict.fromkeys(v3.alt, EVIL), selection={"model": EVIL})
    app = explorer("", lambda _selection: view, lambda *_: pd.DataFrame([(EVIL, EVIL, EVIL, EVIL)], columns=["figure", "a", "b", "ratio"]))
    app.toggle_compare()
    card = app.a.card
    html = [card.tiles.widget.value, card.badges.widget.value, card.says.value, card.layers.html.value, card.parts.table.value, app.facts.value,
            app.cache.table.value, app.cache.legend.value, app.links.value]
    assert app.error is None and app.a.error is None and app.b.error is None
    for text in html:
        assert "<img" not in text and not re.search(r"='[^']*'\"", text.replace("&#x27;", ""))


def test_downloads_hold_the_tables(v3):
    card = ArchitectureCard()
    card.update(v3)
    link = re.search(r"download='([^']+)' href='data:text/csv;charset=utf-8;base64,([^']+)'", card.layers.html.value)
    assert link[1] == "roofkit-layers-deepseek-v3.csv" and base64.b64decode(link[2]).decode().count("\n") == 61 + 1 + 2


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_opens_with_one_model():
    app = explorer()
    assert app.a.view.problem is None and app.b.view is None and not app.comparing
    assert app.b.widget.layout.display == "none" and app.a.card.widget.layout.display is None
    assert app.link == "?a=llama-3.1-8b" and app.swap_button.layout.display == "none"
    assert "B / A" not in app.facts.value and "8,030,261,248" in app.facts.value


def test_comparing_shows_a_second_card_in_the_same_scale_and_the_differences():
    app = explorer()
    app.compare_button.click()
    assert app.comparing and app.b.view.selection["model"] == "deepseek-v3" and app.link == "?a=llama-3.1-8b&b=deepseek-v3"
    assert app.a.card.parts.count.max == app.b.card.parts.count.max >= 671
    assert "B / A" in app.facts.value and "83.6×" in app.facts.value and app.cache.lines["b"].visible
    app.scale_button.click()
    assert app.a.card.parts.count.max == 100 and app.scale_button.description == "Bars in parameters"
    app.compare_button.click()
    assert not app.comparing and app.b.widget.layout.display == "none" and not app.cache.lines["b"].visible and app.link == "?a=llama-3.1-8b"


def test_a_share_link_opens_both_models_and_swapping_exchanges_them():
    app = explorer("?a=mixtral-8x7b&b=qwen3-8b".lstrip("?"))
    assert (app.a.model, app.b.model) == ("mixtral-8x7b", "qwen3-8b") and app.comparing and not app.alert.note_box.value
    app.swap_button.click()
    assert app.link == "?a=qwen3-8b&b=mixtral-8x7b" and app.a.view.title.startswith("qwen3-8b") and app.b.card.view.title.startswith("mixtral")
    assert explorer("model=qwen3-8b").a.model == "qwen3-8b"  # a link from the step explorer


def test_what_a_link_cannot_mean_is_said_and_ignored():
    app = explorer("a=nope&b=qwen3-8b&zoom=3")
    assert app.a.model == "llama-3.1-8b" and "nope" in app.a.alert.note_box.value and "zoom" in app.alert.note_box.value
    assert app.a.problem is None and not app.b.alert.note_box.value


def test_choosing_in_the_list_redraws():
    app = explorer()
    app.a.controls.inputs["model"].value = "deepseek-v3"
    assert app.a.view.selection["model"] == "deepseek-v3" and "61 layers" in app.a.card.layers.html.value and "671,026,404,352" in app.facts.value


def test_a_pasted_config_is_a_model_and_going_back_returns_to_the_preset():
    app = explorer("a=qwen3-8b")
    app.a.config._take(json.dumps(TINY), "tiny.json")
    assert app.a.view.title == "llama: 244k parameters in 3 layers" or "in 3 layers" in app.a.view.title
    assert app.a.model == "custom" and app.link == "?" and "tiny.json" in app.a.config.state.value
    app.a.config.drop.click()
    assert app.a.model == "qwen3-8b" and app.a.view.title.startswith("qwen3-8b") and not app.a.config.state.value


def test_a_refused_config_says_why_and_keeps_the_last_card():
    app = explorer("a=qwen3-8b")
    before = app.a.card.layers.html.value
    _, b = app.set(a_config='{"model_type": "bart", "is_encoder_decoder": true}')
    assert b is None and "encoder-decoder" in app.a.alert.box.value and "role='alert'" in app.a.alert.box.value and "last selection that works" in app.a.alert.box.value
    assert app.a.card.layers.html.value == before and app.a.view.title.startswith("qwen3-8b")
    assert "rk-a-stale" in app.a.card.widget._dom_classes and "rk-stale" in app.cache.widget._dom_classes
    app.a.config._take("{", "broken")
    assert "not JSON" in app.a.alert.box.value
    app.set(a="llama-3.1-8b")
    assert not app.a.alert.box.value and "rk-a-stale" not in app.a.card.widget._dom_classes and "rk-stale" not in app.cache.widget._dom_classes


def test_one_refused_side_leaves_the_other_alone():
    app = explorer("a=qwen3-8b&b=mixtral-8x7b")
    a, b = app.set(b_config="{}")
    assert a is not None and b is None and app.b.alert.box.value and not app.a.alert.box.value
    assert "rk-stale" not in app.cache.widget._dom_classes and "mixtral" in app.facts.value
    app.swap()
    assert app.a.problem is not None and app.b.problem is None and app.a.view.title.startswith("mixtral") and app.b.view.title.startswith("qwen3")


def test_a_view_that_fails_shows_only_its_kind():
    def failing(selection):
        if selection["model"] == "mixtral-8x7b":
            raise ZeroDivisionError("/home/someone/secret.py <script>")
        return architecture_view(selection)

    app = explorer("", failing)
    app.set(a="mixtral-8x7b")
    assert "ZeroDivisionError" in app.a.alert.box.value and "secret" not in app.a.alert.box.value and app.a.view.title.startswith("llama")
    assert "secret" not in str(explorer("a=mixtral-8x7b", failing).a.alert.box.value)
    app.set(a="qwen3-8b")
    assert not app.a.alert.box.value and app.a.error is None


def test_set_refuses_a_name_that_is_no_preset():
    app = explorer()
    with pytest.raises(RoofkitError, match="nope"):
        app.set(a="nope")
    assert app.set(b="qwen3-8b")[1].title.startswith("qwen3-8b") and app.set(b="")[1] is None


def test_the_page_works_without_a_table_of_figures():
    app = explorer(facts=None)
    assert app.error is None and app.facts_card.layout.display == "none" and app.facts.value == ""


def test_choosing_again_what_is_shown_sends_no_html_twice(v3):
    app, changes = explorer("a=deepseek-v3"), []
    app.a.card.layers.html.observe(changes.append, "value")
    app.a.card.parts.table.observe(changes.append, "value")
    app.set(a="deepseek-v3")
    app.toggle_scale()
    assert not changes
