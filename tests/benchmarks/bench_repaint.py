"""Slider to repaint and first paint of the served step explorer, in a real browser. Run by `make bench`."""
import statistics

import pytest

from tests.browser.conftest import browser, open_page, served  # noqa: F401 - fixtures

WATCH = """() => {
  const root = document.querySelector('.rk-app');
  window.changed = [];
  const visible = change => change.type !== 'attributes' || !change.attributeName.startsWith('aria');
  new MutationObserver(changes => { if (changes.some(visible)) window.changed.push(performance.now()); })
    .observe(root, {subtree: true, childList: true, attributes: true, characterData: true});
}"""


@pytest.fixture(scope="module")
def page(open_page):  # noqa: F811
    return open_page("01_step_explorer")


def test_first_paint(page, promise):
    """From the request to the first mark, kernel start and imports included; a warm server."""
    painted = page.evaluate("performance.getEntriesByType('paint').map(e => e.startTime)[0]")
    promise("request to first contentful paint", painted / 1e3, 3, "s")


def test_slider_to_repaint(page, promise):
    """Key press on the batch slider to the last visible change of the page before it rests, median of ten; names for screen readers follow."""
    page.evaluate(WATCH)
    handle = page.locator(".noUi-handle").first
    handle.focus()
    waits = []
    for step in range(10):
        page.evaluate("window.changed.length = 0; window.pressed = performance.now()")
        page.keyboard.press("ArrowRight" if step % 2 == 0 else "ArrowLeft")
        page.wait_for_timeout(900)
        last = page.evaluate("window.changed.length ? window.changed[window.changed.length - 1] - window.pressed : -1")
        waits.append(last)
    assert min(waits) > 0, "the page did not change"
    promise("slider to repaint, key press to last change", statistics.median(waits), 100, "ms")
