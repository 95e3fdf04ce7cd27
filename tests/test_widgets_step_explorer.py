"""The step explorer without a browser: what a person does changes the marks, and only them."""
import json
from datetime import UTC, datetime

import comm
import pytest
import widgets_fake as fake
from comm.base_comm import BaseComm

from roofkit.views.values import Problem, StepView
from roofkit_widgets import StepExplorer, share


@pytest.fixture
def app():
    made = StepExplorer(fake.step_controls, fake.step_view, query="")
    assert made.error is None
    return made


@pytest.fixture
def messages(monkeypatch):
    """Every message from Python to the browser, as (type, data)."""
    sent = []

    class Recorder(BaseComm):
        def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
            sent.append((msg_type, data))

    monkeypatch.setattr(comm, "create_comm", lambda *a, **k: Recorder(*a, **k))
    return sent


def test_a_moved_slider_changes_the_marks_and_rebuilds_none(app):
    marks, before = list(app.roofline.figure.marks), app.roofline.dots.y.copy()
    bar, tiles = app.breakdown.bars.y.copy(), app.tiles.widget.value
    app.controls.inputs["batch"].value = 128
    assert app.selection["batch"] == 128
    assert list(app.roofline.figure.marks) == marks
    assert (app.roofline.dots.y != before).any() and (app.breakdown.bars.y != bar).any() and app.tiles.widget.value != tiles


def test_a_slider_step_is_at_most_15_messages(messages):
    app = StepExplorer(fake.step_controls, fake.step_view, query="")
    app.select("attention")
    app.toggle_pin()
    counts = []
    for batch in (32, 64, 128):
        messages.clear()
        app.controls.inputs["batch"].value = batch
        counts.append(sum(kind == "comm_msg" for kind, _ in messages))
    assert all(0 < n <= 15 for n in counts), counts


def test_phase_swaps_the_length_control_and_keeps_the_other_inputs(app):
    kept, context = app.controls.inputs["batch"], app.controls.inputs["context_tokens"]
    app.set(context_tokens=8192)
    app.controls.inputs["phase"].value = "prefill"
    shown = app.controls.widget.children[0].children
    assert "prompt_tokens" in app.selection and "context_tokens" not in app.selection
    assert kept in shown and context not in shown
    app.controls.inputs["phase"].value = "decode"
    assert app.selection["context_tokens"] == 8192 and app.controls.inputs["context_tokens"].value == 8192


def test_a_control_at_its_default_follows_when_the_default_moves():
    def controls(selection):
        first, *rest = fake.step_controls(selection)
        size = 1 if selection.get("phase") == "prefill" else 16
        return (first, *(c if c.key != "batch" else type(c)(c.key, c.label, c.kind, c.options, size) for c in rest))

    app = StepExplorer(controls, fake.step_view, query="")
    app.set(phase="prefill")
    assert app.selection["batch"] == 1
    app.set(batch=4)
    app.set(phase="decode")
    assert app.selection["batch"] == 4


def test_a_click_after_resorting_picks_the_operator_under_the_mouse(app):
    first = list(app.roofline.shown)
    app.set(batch=128, context_tokens=4096, weights="fp8", tp=2)
    assert app.roofline.shown != first and app.roofline.dots.names is None  # names would send clicks to the wrong operator
    app.roofline.dots.selected = [0]
    slowest = app.view.ops.sort_values("time_s", ascending=False)["name"].iloc[0]
    assert app.selected == app.roofline.shown[0] == slowest == app.explain.picker.value
    assert f"data-op='{slowest}' aria-selected='true'" in app.table.html.value
    assert slowest in app.explain.html.value


def test_the_selection_follows_its_operator_and_a_stale_click_is_ignored(app):
    app.explain.picker.value = "qkv_proj"
    app.set(batch=64)
    assert app.roofline.shown[int(app.roofline.dots.selected[0])] == "qkv_proj"
    app.roofline.dots.selected = [99]
    assert app.selected is None and app.error is None


def test_undo_covers_controls_pin_config_and_reset(app):
    app.set(batch=64)
    app.toggle_pin()
    app.set(tp=2)
    app._config_changed('{"model_type": "llama"}')
    app.reset()
    assert app.selection["batch"] == 16 and app.pinned is None and "config" not in app.selection
    app.undo()
    assert "config" in app.selection and app.pinned is not None and app.selection["tp"] == 2
    app.undo()
    assert "config" not in app.selection
    app.undo()
    assert app.selection["tp"] == 1 and app.pinned is not None
    app.undo()
    assert app.pinned is None and app.selection["batch"] == 64
    app.undo()
    assert app.selection["batch"] == 16 and app.undo_button.disabled
    app.undo()


def test_one_drag_is_one_step_back(app):
    for batch in (32, 64, 128):
        app.controls.inputs["batch"].value = batch
    app.undo()
    assert app.selection["batch"] == 16 and app.controls.inputs["batch"].value == 16


def test_pin_draws_ghosts_matched_to_operators_and_ratios(app):
    app.toggle_pin()
    before = app.view.ops.set_index("name")["time_s"]
    app.set(batch=128)
    names = [n for n in app.pinned.ops["name"] if n in app.roofline.shown]
    assert len(app.roofline.ghosts.x) == len(names) == len(app.roofline.moves.x)
    assert app.roofline.moves.visible and list(app.breakdown.bars.x) == ["A", "now"]
    ratio = app.view.ops.set_index("name")["time_s"]["attention"] / before["attention"]
    assert f"{ratio:.2f}×" in app.table.html.value
    assert "× A, worse" in app.tiles.widget.value and "× A, better" in app.tiles.widget.value
    app.toggle_pin()
    assert not len(app.roofline.ghosts.x) and not app.roofline.moves.visible and "× A" not in app.tiles.widget.value


def test_share_link_restores_every_control(app, monkeypatch):
    monkeypatch.setenv("VOILA_REQUEST_URL", "http://user:pw@host:8866/voila/render/x.ipynb?token=secret&batch=1")
    app.set(model="toy-70b", device="slow", phase="prefill", batch=2, prompt_tokens=256, tp=8, weights="fp8", cost_model="ideal")
    assert app.link.startswith("http://host:8866/voila/render/x.ipynb?model=toy-70b&") and "secret" not in app.link and "pw" not in app.link
    again = StepExplorer(fake.step_controls, fake.step_view, query=app.link.partition("?")[2])
    assert again.selection == app.selection and again.alert.note_box.value == ""


@pytest.mark.parametrize("query, said", [
    ("batch=3", "batch=3"), ("batch=<script>", "batch=&lt;script&gt;"), ("tp=4&nonsense=1", "unknown: nonsense"), ("x=1&" * 80, "too many"), ("a=" + "b" * 9000, "too long"),
])
def test_an_invalid_link_is_ignored_with_a_note(query, said):
    app = StepExplorer(fake.step_controls, fake.step_view, query=query)
    assert app.selection["batch"] == 16 and app.error is None and app.problem is None
    assert said in app.alert.note_box.value and "<script>" not in app.alert.note_box.value


def test_server_parameters_and_configs_in_a_link_are_silent():
    app = StepExplorer(fake.step_controls, fake.step_view, query="theme=dark&token=abc&config=%7B%7D&batch=32")
    assert app.selection["batch"] == 32 and app.alert.note_box.value == "" and "config" not in app.selection


def test_a_problem_shows_its_reason_and_the_fix_button_applies_it(app):
    dots = app.roofline.dots.y.copy()
    assert app.set(batch=512, context_tokens=131072) is None
    assert "toy-8b needs" in app.alert.box.value and "role='alert'" in app.alert.box.value and "does not fit" in app.tiles.widget.value
    assert (app.roofline.dots.y == dots).all() and "rk-stale" in app.figures._dom_classes
    assert app.alert.fix.layout.display is None and "Use tensor parallelism 8" in app.alert.fix.description
    app.alert.fix.click()
    assert app.selection["tp"] == 8
    app.alert.fix.click()
    assert app.selection["batch"] == 1 and app.problem is None and app.alert.box.value == "" and "rk-stale" not in app.figures._dom_classes


def test_a_problem_with_operators_is_drawn_and_said():
    def view(selection):
        page = fake.step_view(selection)
        return page if selection["batch"] < 64 else StepView(**{**page.__dict__, "problem": Problem("too large", {"batch": 1}, "batch 1")})

    app = StepExplorer(fake.step_controls, view, query="")
    before = app.roofline.dots.y.copy()
    assert app.set(batch=64) is None
    assert "too large" in app.alert.box.value and (app.roofline.dots.y != before).any() and "rk-stale" not in app.figures._dom_classes


def test_an_exception_becomes_an_alert_without_its_text_and_the_figures_stay():
    app = StepExplorer(fake.step_controls, fake.failing_view, query="")
    dots = app.roofline.dots.y.copy()
    app.controls.inputs["batch"].value = 64
    assert isinstance(app.error, ZeroDivisionError) and "role='alert'" in app.alert.box.value and "ZeroDivisionError" in app.alert.box.value
    assert "secret" not in app.alert.box.value and "script" not in app.alert.box.value and "Traceback" not in app.alert.box.value
    assert (app.roofline.dots.y == dots).all()
    app.controls.inputs["batch"].value = 32
    assert app.error is None and app.alert.box.value == ""


def test_a_roofkit_error_is_told_and_escaped():
    app = StepExplorer(fake.step_controls, fake.step_view, query="tp=8&pp=2")
    assert "needs 16 devices" in app.alert.box.value and app.view is None and app.figures.layout.display == "none"
    app.set(pp=1)
    assert app.error is None and app.figures.layout.display is None


def test_set_refuses_what_is_no_option(app):
    with pytest.raises(ValueError, match="batch=3 is not one of"):
        app.set(batch=3)
    with pytest.raises(ValueError, match="no control 'colour'"):
        app.set(colour="red")
    assert app.selection["batch"] == 16 and app.undo_button.disabled


# --- config.json --------------------------------------------------------------------------------------------------
def upload(app, name, content):
    app.config.upload.value = ({"name": name, "type": "application/json", "size": len(content), "content": memoryview(content), "last_modified": datetime.now(UTC)},)


@pytest.mark.parametrize("text, said", [
    ("", "no text"), ("{", "not JSON"), ("[1]", "list"), ("[" * 100000, "nested too deeply"), ('{"a": "' + "x" * 300_000 + '"}', "at most 262,144"),
    ("/etc/passwd", "not JSON"), ("1" * 5000, "number too long"),
])
def test_a_bad_config_is_refused_with_the_reason(app, text, said):
    app.config.text.value = text
    app.config.use.click()
    assert said in app.alert.box.value and "config" not in app.selection


def test_a_config_is_used_named_and_let_go(app):
    upload(app, "<script>alert(1)</script>.json", json.dumps({"model_type": "llama"}).encode())
    assert app.selection["config"] == '{"model_type": "llama"}'
    assert "&lt;script&gt;" in app.config.state.value and "<script>" not in app.config.state.value
    assert "config" not in share.write_query(app.selection)
    app.controls.inputs["model"].value = "toy-70b"
    assert "config" not in app.selection and app.config.state.value == "" and app.config.drop.layout.display == "none"


def test_an_upload_too_large_or_binary_is_refused(app):
    upload(app, "a.json", b"x" * 300_000)
    assert "at most 262,144" in app.alert.box.value
    upload(app, "b.json", b"\xff\xfe\x00")
    assert "not UTF-8" in app.alert.box.value and "config" not in app.selection
