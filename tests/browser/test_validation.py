"""The validation page in a real browser: painted on a desk and on a phone; a filter changes the picture; nothing scrolls sideways."""
import pytest

PAGE = "03_validation"
OVERFLOW = """() => [...document.querySelectorAll('.rk-app *')].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1 && !e.closest('.bqplot') && !e.closest('.rk-hidden') && !e.closest('.rk-scroll');
}).map((e) => e.className).slice(0, 5)"""
SHAPES = "new Set([...document.querySelectorAll('.rk-card-scatter .bqplot .dot')].map((e) => getComputedStyle(e).fill)).size"


@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_is_painted_and_a_filter_changes_it_without_sideways_scrolling(open_page, width):
    page = open_page(PAGE, "device=cpu", width=width, height=3600, wait=".rk-card-scatter .bqplot .dot")
    page.wait_for_function("document.querySelectorAll('.rk-card-residuals .bqplot .bar').length > 20")
    assert page.locator(".rk-card-scatter .bqplot .dot").count() == 109 and page.evaluate(SHAPES) == 2
    assert page.evaluate(OVERFLOW) == [] and page.evaluate("document.querySelector('.rk-app').scrollWidth <= document.documentElement.clientWidth")
    assert page.locator(".rk-card-scatter [role=img][aria-label*='within 20 %']").count() == 1
    levels = page.locator(".rk-card-learned .rk-l-level")
    assert [levels.nth(i).inner_text().strip() for i in range(levels.count())] == ["Operators in time", "Operators in energy", "Blocks in time", "Whole steps in time", "Whole steps in energy"]
    verdict = page.locator(".rk-card-learned td.rk-l-use").first
    assert verdict.inner_text().strip() in ("✓ pays", "– stays off") and verdict.bounding_box()["x"] + verdict.bounding_box()["width"] <= width  # seen without scrolling
    picture = page.locator(".rk-card-scatter .bqplot")
    before = picture.screenshot()
    page.locator(".rk-key-op select").select_option(label="matrix product")
    page.wait_for_function("document.querySelectorAll('.rk-card-scatter .bqplot .dot').length === 40")
    page.locator(".rk-title", has_text="matrix product").wait_for()
    assert picture.screenshot() != before
    assert "op=gemm" in page.locator("input[data-query]").input_value() and page.evaluate(OVERFLOW) == []
    assert page.locator("[role=alert]").count() == 0 and not [e for e in page.errors if "negative value" not in e]
