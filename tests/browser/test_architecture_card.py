"""The architecture card in a real browser: painted on a desk and on a phone, a second model beside the first, a refused config."""
import json

import pytest

PAGE, PAINTED = "02_architecture_card", ".rk-a-map > i"
OVERFLOW = """() => [...document.querySelectorAll('.rk-app *')].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1 && !e.closest('.bqplot') && !e.closest('.rk-hidden') && !e.closest('.rk-scroll');
}).map((e) => e.className).slice(0, 5)"""


@pytest.mark.parametrize("width", [1440, 390])
def test_two_models_are_painted_without_sideways_scrolling(open_page, width):
    page = open_page(PAGE, "a=deepseek-v3&b=mixtral-8x7b", width=width, height=2600, wait=PAINTED)
    page.wait_for_function("document.querySelectorAll('.rk-app .bqplot .bar').length > 20 && document.querySelectorAll('.rk-app .bqplot .dot').length > 10")
    assert page.locator(PAINTED).count() == 61 + 32
    assert page.evaluate(OVERFLOW) == [] and page.evaluate("document.querySelector('.rk-app').scrollWidth <= document.documentElement.clientWidth")
    assert page.locator(".rk-a-map[role=img][aria-label*='58 layers']").count() == 1
    if width == 1440:  # side by side, in rows
        a, b = (page.locator(f".rk-card-layers-{s}").bounding_box() for s in "ab")
        assert a["y"] == b["y"] and b["x"] > a["x"] + a["width"] - 1


def test_a_visitor_compares_reads_a_layer_and_is_refused_in_words(open_page):
    page = open_page(PAGE, wait=PAINTED)
    before = page.locator(".rk-card-components-a .bqplot").screenshot()
    page.get_by_text("Compare with another model").click()
    page.wait_for_selector(".rk-card-layers-b .rk-a-map > i")
    page.wait_for_function("document.querySelector('.rk-card-components-b .bqplot').getBoundingClientRect().width > 300")
    page.get_by_text("B / A").wait_for()
    assert page.locator("input[data-query]").input_value().endswith("?a=llama-3.1-8b&b=deepseek-v3")
    assert page.locator(".rk-card-components-a .bqplot").screenshot() != before  # the scale of both
    cell = page.locator(".rk-card-layers-b .rk-a-map > i").nth(5)
    cell.hover()
    assert "Layer 5: MLA" in cell.evaluate("e => getComputedStyle(e, '::after').content")
    box = page.locator(".rk-a-pick.rk-a-b")
    box.get_by_text("Use your own config.json").click()
    box.locator("textarea").fill(json.dumps({"model_type": "bart", "is_encoder_decoder": True, "note": "<img src=x onerror=alert(1)>"}))
    box.get_by_text("Use this text").click()
    alert = page.locator(".rk-a-b [role=alert]")
    alert.wait_for()
    assert "encoder-decoder" in alert.inner_text() and page.locator(".rk-card-layers-b .rk-a-map > i").count() == 61
    page.locator(".rk-a-pick.rk-a-a select").select_option(label=page.locator(".rk-a-pick.rk-a-a select option", has_text="qwen3-8b").first.inner_text())
    page.locator(".rk-a-a .rk-title", has_text="qwen3-8b").wait_for()
