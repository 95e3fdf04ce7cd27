"""The validation page without a browser: build it, drive it, read the marks and the HTML back."""
import base64
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from roofkit.errors import RoofkitError
from roofkit.views.validation import validation_controls, validation_view
from roofkit.views.values import Problem
from roofkit_widgets import validation_table as tables
from roofkit_widgets.validation_page import ValidationExplorer
from roofkit_widgets.validation_scatter import FITTED, HELD, ResidualBars, ValidationScatter
from roofkit_widgets.validation_table import CasesTable

EVIL = "<img src=x onerror=alert(1)>'\""


@pytest.fixture(scope="module")
def cpu():
    return validation_view({"device": "cpu"})


def page(query="device=cpu", view=validation_view, measure=None):
    return ValidationExplorer(validation_controls, view, measure, query=query)


# ---- the parts --------------------------------------------------------------------------------------------------------


def test_scatter_draws_fitted_and_held_out_points_in_shape_and_colour(cpu):
    drawn = ValidationScatter()
    drawn.update(cpu.points, cpu.points_said, "words")
    fitted, held = drawn.dots[False], drawn.dots[True]
    assert len(fitted.x) + len(held.x) == len(cpu.points) == 109 and len(held.x) == 27
    assert (fitted.marker, fitted.colors) != (held.marker, held.colors) and fitted.marker != held.marker and [FITTED, HELD] == [fitted.colors[0], held.colors[0]]
    assert (drawn.x.min, drawn.x.max) == (drawn.y.min, drawn.y.max) and drawn.x.min > 0 and drawn.figure.axes[0].tick_values is not None
    rows = cpu.points[cpu.points["held_out"]]
    assert held.x == pytest.approx(rows["measured_us"].to_numpy() * 1e-6) and held.y == pytest.approx(rows["predicted_us"].to_numpy() * 1e-6)
    assert (drawn.x.min, drawn.x.max) == (drawn.equal.x[0], drawn.equal.x[-1]) and drawn.band.y.tolist() == [[v * 0.8 for v in drawn.equal.x], [v * 1.2 for v in drawn.equal.x]]
    assert drawn.figure.axes[0].label == "measured time (s)" and drawn.figure.axes[1].label == "predicted time (s)"
    assert "held out: 27" in drawn.note.value and "words" in drawn.note.value


def test_scatter_drops_what_a_log_axis_cannot_show_and_keeps_its_marks(cpu):
    drawn = ValidationScatter()
    mark = drawn.dots[True]
    broken = cpu.points.head(5).assign(measured_us=[1.0, 0.0, np.nan, np.inf, -3.0], predicted_us=1.0, held_out=True)
    drawn.update(broken)
    assert drawn.dots[True] is mark and mark.x.tolist() == [1e-6] and not len(drawn.dots[False].x) and drawn.x.min > 0
    drawn.update(cpu.points.head(0))
    assert not len(mark.x) and "no points" in drawn.note.value and drawn.x.min > 0


def test_a_late_hover_is_no_error_and_names_the_right_point(cpu):
    drawn = ValidationScatter()
    drawn.update(cpu.points)
    for content in ({}, {"data": {"index": 9999}}):
        drawn._hover(True, content)
    assert drawn.tips[True].value == ""
    drawn._hover(True, {"data": {"index": 2}})
    row = cpu.points[cpu.points["held_out"]].iloc[2]
    assert row["what"] in drawn.tips[True].value and f"{100 * (row['predicted_us'] / row['measured_us'] - 1):+.1f} %" in drawn.tips[True].value
    drawn.update(cpu.points.assign(what=EVIL, device=EVIL, op=EVIL))
    drawn._hover(True, {"data": {"index": 0}})
    assert "<img" not in drawn.tips[True].value


def test_residual_bars_show_both_parts_and_round_ticks(cpu):
    drawn = ResidualBars()
    mark = drawn.bars
    drawn.update(cpu.residuals, "words")
    assert drawn.bars is mark and mark.y.shape == (2, 18) and mark.y.sum(axis=1) == pytest.approx([100, 100]) and drawn.y.max >= mark.y.max()
    labels = drawn.figure.axes[0].tick_labels
    assert list(labels.values()) == ["-50", "-25", "-10", "0", "+10", "+25", "+50"] and drawn.figure.axes[0].label == "predicted / measured - 1 (%)"
    drawn.update(cpu.residuals.assign(fitted=0.0, held_out=0.0))
    assert drawn.y.max > 0


def test_the_table_shows_the_weakest_first_and_all_on_demand(cpu):
    cases = pd.concat([cpu.cases] * 5, ignore_index=True)
    drawn = CasesTable()
    drawn.update(cases, "words")
    assert drawn.html.value.count("<tr role='row'><th role='rowheader'") == 12 and "Show all 20" in drawn.more.description
    drawn.more.value = True
    assert drawn.html.value.count("<tr role='row'><th role='rowheader'") == 20
    drawn.update(cases.head(0))
    assert "No kernel class fits" in drawn.html.value and drawn.more.layout.display == "none"
    drawn.update(cases.assign(low=np.nan, high=np.nan))
    assert "one family" in drawn.html.value and "nan" not in drawn.html.value


def test_overview_and_targets_say_in_words_what_a_shade_says():
    table = pd.DataFrame({"op": ["matrix product"], "format": ["bf16"], "H100": [0.06], "L40S": [np.nan]})
    assert "rk-v-s2'>6.0 %" in tables.overview(table) and "not validated" in tables.overview(table) and "nan" not in tables.overview(table)
    html = tables.targets(pd.DataFrame({"what": ["a", "b"], "target": [0.1, 0.1], "reached": [0.2, np.nan], "met": ["missed", "open"], "said": ["Missed by 10.0 points.", "x"]}))
    assert "✗ missed" in html and "no rows yet" in html and "nan" not in html
    assert "no held-out errors" in tables.overview(table.head(0))


def test_csv_has_the_selection_and_units(cpu):
    text = tables.csv_text(cpu.points, "a\nb", {"device": "cpu"})
    lines = text.splitlines()
    assert lines[0] == "# roofkit validation: a b" and lines[1] == "# device = cpu" and "measured_us [us]" in lines[2] and len(lines) == 109 + 3
    assert tables.csv_link(cpu.points.head(0), "points", "t", {}) == ""


# ---- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_opens_and_a_filter_changes_the_picture():
    app = page()
    assert app.error is None and app.problem is None and len(app.scatter.dots[True].x) == 27 and app.link.startswith("?device=cpu&op=all")
    mark, before = app.scatter.dots[True], app.cases.html.value
    app.controls.inputs["op"].value = "gemm"
    assert app.view.selection["op"] == "gemm" and app.scatter.dots[True] is mark and len(mark.x) == 10 and app.cases.html.value != before
    app.reset_button.click()
    assert app.view.selection["op"] == "all" and "op=all" in app.link


def test_downloads_hold_the_points():
    app = page()
    link = re.search(r"download='([^']+)' href='data:text/csv;charset=utf-8;base64,([^']+)'", app.scatter.note.value)
    assert link[1] == "roofkit-validation-points.csv" and base64.b64decode(link[2]).decode().count("\n") == 109 + 7


def test_a_share_link_opens_its_filters_and_what_it_cannot_mean_is_said():
    assert page("device=cpu&op=step").view.selection["op"] == "step"
    app = page("device=cpu&op=nope&zoom=3")
    assert app.view.selection["op"] == "all" and "nope" in app.alert.note_box.value and "zoom" in app.alert.note_box.value and app.problem is None
    assert "<img" not in page(f"op={EVIL}").alert.note_box.value


def test_an_empty_selection_says_which_rows_exist_and_the_button_goes_there(cpu):
    def view(selection):
        if selection["op"] == "gemm":
            return replace(cpu, cases=cpu.cases.head(0), problem=Problem("Rows do exist with another op.", {"op": "all"}, "any op"), selection=selection)
        return validation_view(selection)

    app = page(view=view)
    app.set(op="gemm")
    assert app.problem is not None and "Rows do exist" in app.alert.box.value and len(app.scatter.dots[True].x) and "No kernel class" in app.cases.html.value
    app.alert.fix.click()
    assert app.problem is None and app.view.selection["op"] == "all" and not app.alert.box.value


def test_a_view_that_fails_shows_only_its_kind():
    def failing(selection):
        if selection["op"] == "gemm":
            raise ZeroDivisionError("/somewhere/secret.py <script>")
        return validation_view(selection)

    app = page(view=failing)
    app.set(op="gemm")
    assert "ZeroDivisionError" in app.alert.box.value and "secret" not in app.alert.box.value and "rk-stale" in app.figures._dom_classes
    app.set(op="all")
    assert not app.alert.box.value and "rk-stale" not in app.figures._dom_classes
    assert page("device=cpu&op=gemm", view=failing).view is None


def test_everything_from_data_is_escaped(cpu):
    tiles = tuple(replace(t, label=EVIL, value=EVIL, note=EVIL) for t in cpu.tiles)
    words = dict.fromkeys(("op", "class", "device", "stack", "format", "split", "what"), EVIL)
    view = replace(cpu, title=EVIL, tiles=tiles, statements=tuple(replace(s, text=EVIL) for s in cpu.statements), notes=(EVIL,), badges=((EVIL, EVIL),), points_said=EVIL,
                   cases=cpu.cases.assign(**{k: v for k, v in words.items() if k in cpu.cases}), points=cpu.points.assign(**{k: v for k, v in words.items() if k in cpu.points}),
                   cpu=cpu.cpu.assign(op=EVIL, part=EVIL), cpu_said=EVIL, measure_said=EVIL, missing=((EVIL, EVIL), (EVIL, EVIL * 20)), by_op=cpu.by_op.assign(op=EVIL),
                   targets=cpu.targets.assign(what=EVIL, said=EVIL, met=EVIL), overview=pd.DataFrame({"op": [EVIL], "format": [EVIL], EVIL: [0.1]}),
                   alt=dict.fromkeys((*cpu.alt, "cases"), EVIL), selection={"device": EVIL})
    app = page(view=lambda _selection: replace(view, learned=replace(view.learned, said=EVIL, levels=view.learned.levels.assign(what=EVIL) if len(view.learned.levels) else view.learned.levels)))
    assert app.error is None
    boxes = (app.tiles.widget, app.badges.widget, app.says, app.scatter.note, app.residuals.note, app.cases.html, app.cases.foot, app.by_op, app.overview, app.targets, app.cpu, app.missing, app.links, app.learned, app.learned_foot)
    for box in boxes:
        assert "<img" not in box.value and "onerror=alert(1)>" not in box.value


def test_measuring_is_offered_only_where_allowed(cpu):
    def measure(progress):
        progress(0.5, EVIL)
        return cpu.cpu.head(2), "toy machine"

    app = page(measure=measure)
    assert app.measure_button.layout.display == "none"
    app.measure()
    assert "does not measure itself" in app.alert.box.value and not app.measured.value
    app = page(view=lambda _selection: replace(cpu, may_measure=True), measure=measure)
    assert app.measure_button.layout.display is None
    app.measure_button.click()
    assert "toy machine" in app.measured.value and app.measure_button.description == "Measure again" and not app.measure_button.disabled


def test_set_refuses_what_is_no_option():
    app = page()
    with pytest.raises(RoofkitError, match="nope"):
        app.set(op="nope")
    with pytest.raises(RoofkitError, match="zoom"):
        app.set(zoom=3)
