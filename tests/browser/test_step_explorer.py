"""The served page in a real browser: it paints, moves, selects, explains, recovers."""
import pytest

STDERR = ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']"
BATCH = ".rk-key-batch .noUi-handle"


def overflow(page) -> list:
    """What sticks out of the window to the right, and scroll boxes around the page that could scroll sideways."""
    return page.evaluate("""() => {
        const out = [...document.querySelectorAll('.rk-app *')].filter(e => !e.closest('.rk-scroll, svg, canvas, .rk-hidden') && e.getBoundingClientRect().right > innerWidth);
        for (let e = document.querySelector('.rk-app'); e; e = e.parentElement) if (e.scrollWidth > e.clientWidth + 1) out.push(e);
        return out.map(e => e.outerHTML.slice(0, 120)); }""")


def chosen(page, key) -> str:
    return page.locator(f".rk-key-{key} select").evaluate("s => s.selectedOptions[0].text.replace('\\u00a0', ' ')")


def tiles(page) -> str:
    return page.locator(".rk-tiles").inner_text()


def step(page, times=1, selector=BATCH):
    """Press the right arrow on a slider and wait until the tiles have followed."""
    before = tiles(page)
    for _ in range(times):
        page.locator(selector).press("ArrowRight")
    page.wait_for_function("before => document.querySelector('.rk-tiles').innerText !== before", arg=before, timeout=20_000)
    page.wait_for_timeout(600)


def largest_dot(page):
    dots = page.locator(".rk-card-roofline .dot_grp .dot, .rk-card-roofline .dot")
    return max((dots.nth(i).bounding_box() for i in range(dots.count())), key=lambda box: box["width"])


def test_the_shipped_page_paints_moves_and_fits_both_widths(open_page):
    page = open_page("01_step_explorer")
    assert page.title() == "roofkit step explorer" and page.locator("h1").inner_text() == "Step explorer" and page.locator(STDERR).count() == 0
    roofline, bar = page.locator(".rk-card-roofline .bqplot"), page.locator(".rk-card-breakdown .bqplot")
    before = roofline.screenshot(), bar.screenshot()
    step(page, 2)
    assert roofline.screenshot() != before[0] and bar.screenshot() != before[1]
    assert page.locator("[role=alert]").count() == 0
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        assert overflow(page) == []
        for figure in (roofline, bar):
            assert figure.bounding_box()["width"] > 250 and figure.get_attribute("role") == "img" and figure.get_attribute("aria-label")
    small = page.evaluate("""() => [...document.querySelectorAll('.rk-app *')].filter(e => e.childNodes.length && [...e.childNodes]
        .some(n => n.nodeType === 3 && n.textContent.trim()) && e.offsetParent && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML.slice(0, 80))""")
    assert small == [] and page.errors == []


@pytest.fixture(scope="module")
def toy_page(open_page):
    return open_page("toy")


@pytest.fixture
def toy(toy_page):
    """The toy page at its defaults: one load serves several tests."""
    toy_page.get_by_role("button", name="Reset").click()
    toy_page.wait_for_function("() => document.querySelector('.rk-title').innerText === 'toy-8b on the fast GPU, decode batch 16'")
    toy_page.wait_for_timeout(300)
    return toy_page


def test_a_click_after_a_change_selects_the_operator_under_the_mouse(toy):
    page = toy
    step(page, 3)  # attention overtakes gate_up_proj: the marks are re-sorted
    box = largest_dot(page)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("tr.rk-selected")
    first = page.locator(".rk-ops tbody tr").first
    assert first.get_attribute("data-op") == "attention" and "rk-selected" in first.get_attribute("class")
    assert "attention takes" in page.locator(".rk-card-explain .rk-lead").inner_text()
    page.locator("tr[data-op='qkv_proj']").click()  # a row selects too
    page.wait_for_selector("tr.rk-selected[data-op='qkv_proj']")
    page.locator(".rk-picker select").select_option(label="lm_head")  # and so does the keyboard's way
    page.wait_for_selector("tr.rk-selected[data-op='lm_head']")
    assert "lm_head takes" in page.locator(".rk-card-explain .rk-lead").inner_text()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("() => [...document.querySelectorAll('.rk-tip')].some(e => e.innerText.includes('FLOP/byte') && e.innerText.includes('attention'))")


def test_pin_undo_downloads_and_keyboard(toy):
    page = toy
    page.get_by_role("button", name="Pin as A").click()
    page.wait_for_selector(".rk-against")
    step(page, 2)
    assert "× A, better" in tiles(page) and "× A, worse" in tiles(page) and page.locator(".rk-parts thead").inner_text().split()[-2:] == ["vs", "A"]
    with page.expect_download() as csv:
        page.get_by_role("link", name="Operators as CSV").click()
    assert csv.value.suggested_filename == "roofkit-operators.csv" and "# batch = 64" in csv.value.path().read_text()
    with page.expect_download() as png:
        page.get_by_role("button", name="Roofline as PNG").click()
    assert png.value.path().read_bytes()[:4] == b"\x89PNG"
    undo = page.get_by_role("button", name="Undo")
    undo.focus()
    page.keyboard.press("Enter")  # one drag is one step back
    page.wait_for_function("() => document.querySelector('.rk-key-batch .widget-readout').innerText === '16'")
    undo.click()
    page.wait_for_selector(".rk-against", state="detached")
    slider = page.locator(BATCH)
    assert slider.get_attribute("aria-label") == "Batch" and slider.get_attribute("aria-valuetext") == "16"


def test_a_config_can_be_pasted_or_uploaded(toy):
    toy.get_by_role("button", name="Use your own config.json").click()
    use, text = toy.get_by_role("button", name="Use this text"), toy.locator(".rk-config textarea")
    text.fill('{"a": ')
    use.click()
    toy.wait_for_selector("[role=alert] >> text=This is not JSON")
    text.fill('{"model_type": "x", "name": "<img src=x onerror=alert(1)>"}')
    use.click()
    toy.wait_for_selector("text=In use: pasted text")
    toy.wait_for_selector("[role=alert]", state="detached")
    assert toy.locator(".rk-app img").count() == 0
    with toy.expect_file_chooser() as chooser:
        toy.get_by_role("button", name="Upload a file").click()
    chooser.value.set_files({"name": "mine.json", "mimeType": "application/json", "buffer": b'{"model_type": "llama"}'})
    toy.wait_for_selector("text=In use: mine.json")
    toy.get_by_role("button", name="Back to the presets").click()
    toy.wait_for_selector("text=In use", state="detached")
    assert toy.errors == []


def test_a_share_link_restores_every_control_and_what_is_invalid_is_said(open_page):
    page = open_page("toy", "model=toy-70b&device=slow&phase=prefill&batch=2&prompt_tokens=256&tp=8&weights=fp8&cost_model=ideal&dp=9")
    assert chosen(page, "model") == "toy-70b"
    assert chosen(page, "device") == "Slow GPU"
    assert chosen(page, "tp") == "8"
    assert page.locator(".rk-key-batch .widget-readout").inner_text() == "2" and page.locator(".rk-key-prompt_tokens .widget-readout").inner_text() == "256"
    assert page.locator(".rk-key-phase .mod-active").inner_text() == "Prefill" and page.locator(".rk-key-cost_model .mod-active").inner_text() == "Ideal"
    assert "dp=9" in page.locator(".rk-remark").inner_text()
    link = page.locator(".rk-share-link input").input_value()
    assert link.startswith(page.url.partition("?")[0] + "?model=toy-70b&device=slow&phase=prefill&batch=2&prompt_tokens=256&tp=8")


def test_a_problem_tells_its_reason_and_its_fix_works_at_phone_width(open_page):
    page = open_page("toy", "context_tokens=131072&batch=32", width=390, height=844, wait=".rk-alert")
    assert "toy-8b needs" in page.locator("[role=alert]").inner_text() and not page.locator(".rk-grid").is_visible()
    assert overflow(page) == []
    page.get_by_role("button", name="Fix it: Use tensor parallelism 8").click()
    page.wait_for_selector(".rk-app .bqplot .dot", state="attached")
    page.wait_for_timeout(500)
    assert page.locator("[role=alert]").count() == 0 and page.locator(".rk-card-roofline .bqplot").bounding_box()["width"] > 250
    assert overflow(page) == []


def test_a_forced_exception_shows_the_alert_and_no_trace(open_page):
    page = open_page("failing", "batch=32")
    page.locator(BATCH).press("ArrowRight")
    page.wait_for_selector("[role=alert]")
    text = page.locator("[role=alert]").inner_text()
    assert "Something went wrong" in text and "ZeroDivisionError" in text and "last selection that works" in text
    content = page.content()
    assert "someone/secret" not in content and "boom" not in content and "Traceback" not in content and page.locator(STDERR).count() == 0
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector("[role=alert]", state="detached")
    assert page.errors == []
