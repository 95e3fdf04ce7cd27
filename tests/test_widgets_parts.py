"""Single widgets without a browser: marks, escaping, CSV, ticks."""
import csv
import io
import math

import numpy as np
import pandas as pd
import pytest
import widgets_fake as fake

from roofkit.tables import BREAKDOWN, CATEGORIES
from roofkit.views.values import Roof, Statement, Tile
from roofkit_widgets import theme
from roofkit_widgets.explain_panel import ExplainPanel
from roofkit_widgets.kpi_tiles import KpiTiles
from roofkit_widgets.memory_bar import MemoryBar
from roofkit_widgets.op_table import OpTable, csv_link, csv_text
from roofkit_widgets.provenance import Badges, ProvenanceTable
from roofkit_widgets.roofline_plot import FULL_AREA, LARGEST_PAD, RooflinePlot, tooltip
from roofkit_widgets.statements import Statements
from roofkit_widgets.time_breakdown_bar import TimeBreakdownBar

EVIL = "<script>alert('x')</script>"
DEFAULTS = {c.key: c.default for c in fake.step_controls({})}


@pytest.fixture
def page():
    return fake.step_view({**DEFAULTS, "tp": 2})


def test_roofline_draws_what_has_flops_largest_first_and_says_the_rest(page):
    plot = RooflinePlot()
    plot.update(page.ops, page.roofs, page.alt["roofline"])
    shown = page.ops[page.ops["name"].isin(plot.shown)]
    assert set(page.ops["name"]) - set(plot.shown) == {"embedding", "attn_all_reduce", "ffn_all_reduce"}
    assert all(n in plot.note.value for n in ("embedding", "attn_all_reduce", "ffn_all_reduce"))
    assert list(plot.dots.size) == sorted(plot.dots.size, reverse=True)
    assert np.isfinite(plot.dots.x).all() and (plot.dots.x > 0).all() and (plot.dots.y > 0).all()
    assert plot.dots.colors == [theme.COLORS[c] for c in shown.sort_values("time_s", ascending=False, kind="stable")["category"]]
    assert plot.dots.default_size / LARGEST_PAD == FULL_AREA  # area is proportional to the share


@pytest.mark.parametrize("bad", [0.0, math.inf, math.nan])
def test_roofline_leaves_out_values_that_would_ruin_a_log_axis(page, bad):
    ops = page.ops.copy()
    ops.loc[0, "flops_per_s"] = bad
    plot = RooflinePlot()
    plot.update(ops, page.roofs)
    assert ops["name"][0] not in plot.shown and 0 < plot.y.min < plot.y.max < math.inf


def test_roofs_span_the_axis_and_the_ridge_is_named(page):
    plot = RooflinePlot()
    plot.update(page.ops, page.roofs)
    for mark, roof in ((plot.peak, page.roofs[0]), (plot.achievable, page.roofs[1])):
        x, y = np.array(mark.x).ravel(), np.array(mark.y).ravel()
        assert x[0] <= plot.x.min and x[-1] >= plot.x.max and x[1] == roof.ridge and y.max() == roof.flops_per_s
        assert y == pytest.approx(np.minimum(roof.flops_per_s, x * roof.bytes_per_s))
    assert any("ridge 262 FLOP/byte" in t for t in plot.roof_names.text) and plot.y.max > page.roofs[0].flops_per_s


def test_roofline_survives_no_operators_and_no_roofs(page):
    plot = RooflinePlot()
    plot.update(page.ops.iloc[:0], ())
    plot.update(page.ops, page.roofs + (Roof("peak fp8", "peak", 2e15, 3.35e12),))
    assert len(plot.peak.x) == 2 and plot.y.max > 2e15


def test_tooltip_has_the_facts_and_a_hover_with_an_old_index_is_ignored(page):
    text = tooltip(page.ops.iloc[2])
    for part in ("gate_up_proj", "×32 calls", "M, N, K = 16 × 14,336 × 4,096", "FLOP/byte", "of the step", "-bound"):
        assert part in text
    plot = RooflinePlot()
    plot.update(page.ops, page.roofs)
    plot._hover(plot.dots, {"data": {"index": 0}})
    assert plot.shown[0] in plot.tip.value
    before = plot.tip.value
    plot._hover(plot.dots, {"data": {"index": 99}})
    plot._hover(plot.dots, {"point": None})
    assert plot.tip.value == before


def test_breakdown_keeps_the_sum_and_the_colours_of_the_roofline(page):
    bar = TimeBreakdownBar()
    bar.update(page.breakdown, page.alt["breakdown"])
    assert bar.bars.y.sum() * 1e-3 == pytest.approx(page.breakdown.sum(), rel=1e-12)  # the axis is in ms
    assert bar.bars.colors == [theme.COLORS[k] for k in BREAKDOWN] and bar.time.max >= bar.bars.y.sum()
    assert "Collectives" in bar.legend.value and "Host" not in bar.legend.value
    bar.update(page.breakdown / 1e4)
    assert bar.figure.axes[1].label == "time per step (µs)"
    bar._hover(bar.bars, {"data": {"sub_index": 3, "x": "now"}})
    assert "Feed-forward" in bar.tip.value


def test_table_is_sorted_shows_few_and_the_selected_one(page):
    table = OpTable()
    table.update(page.ops, "slowest first", selected="embedding")
    rows = [part.split("'")[0] for part in table.html.value.split("data-op='")[1:]]
    assert rows[:10] == page.ops.sort_values("time_s", ascending=False, kind="stable")["name"].tolist()[:10] and rows[10:] == ["embedding"]
    table.more.value = True
    assert table.html.value.count("data-op=") == len(page.ops)


def test_csv_has_units_and_the_full_configuration(page):
    text = csv_text(page.ops, {**page.selection, "config": "{}\n# x"})
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert all(f"# {k} = " in text for k in page.selection) and len(comments) == len(page.selection) + 2
    rows = list(csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if not line.startswith("#")))))
    assert len(rows) == len(page.ops) and "time_s [s]" in rows[0] and "hbm_bytes [bytes]" in rows[0]
    assert sum(float(r["time_s [s]"]) for r in rows) == pytest.approx(page.ops["time_s"].sum(), rel=1e-12)
    assert "href='data:text/csv;charset=utf-8;base64," in csv_link(page.ops, page.selection)


def test_every_text_from_data_is_escaped(page):
    ops = page.ops.copy()
    ops.loc[:, "name"] = [f"{EVIL}{i}" for i in range(len(ops))]
    ops["hint"] = ops["bound"] = EVIL
    table, plot, tiles, says, badges, source = OpTable(), RooflinePlot(), KpiTiles(), Statements(), Badges(), ProvenanceTable()
    panel = ExplainPanel(lambda name: None)
    table.update(ops, EVIL, ops, ops["name"][0])
    plot.pin(ops)
    plot.update(ops, [Roof(EVIL, "peak", 1e15, 3e12)], EVIL)
    plot._hover(plot.dots, {"data": {"index": 0}})
    plot._hover_ghost(plot.ghosts, {"data": {"index": 0}})
    tile = Tile(EVIL, EVIL, EVIL, EVIL, number=1.0, better="lower")
    tiles.update(EVIL, [tile], [tile], EVIL)
    says.update([Statement(EVIL, "ops"), Statement(EVIL, EVIL)], [EVIL])
    badges.update([(EVIL, EVIL)])
    source.update(pd.DataFrame({c: [EVIL] for c in ("figure", "value", "unit", "kind", "confidence", "source")}))
    panel.update(list(ops["name"]), {ops["name"][0]: (("", EVIL), (EVIL, EVIL))}, ops["name"][0])
    shown = [table.html, plot.note, plot.tip, plot.ghost_tip, tiles.widget, says.html, badges.widget, source.html, panel.html]
    for widget in shown:
        assert widget.value and "<script" not in widget.value, widget.value[:200]
    assert "&lt;script&gt;" in table.html.value


def test_memory_says_fits_or_not(page):
    bar = MemoryBar()
    bar.update(page.memory)
    assert "Fits:" in bar.html.value
    bar.update(page.memory * pd.Series({k: 9.0 if k != "capacity" else 1.0 for k in page.memory.index}))
    assert "Does not fit:" in bar.html.value and "<u style=" in bar.html.value


def test_provenance_marks_what_is_unverified(page):
    table = ProvenanceTable()
    table.update(page.provenance)
    assert "3 figures, 1 of them unverified" in table.html.value and "assumed <b>unverified</b>" in table.html.value


def test_statements_link_to_their_chart():
    says = Statements()
    says.update([Statement("a", "ops"), Statement("b", "nowhere")])
    assert "href='#rk-ops'" in says.html.value and "nowhere" not in says.html.value


@pytest.mark.parametrize("top, ticks", [(8.12, [0, 2, 4, 6, 8, 10]), (0.0, [0.0, 1.0]), (31, [0, 10, 20, 30, 40]), (250, [0, 50, 100, 150, 200, 250])])
def test_linear_ticks_are_round_and_cover(top, ticks):
    end, found = theme.nice_axis(top)
    assert end >= top and found == pytest.approx(ticks)


def test_log_ticks_are_decades_inside_the_limits():
    assert theme.log_ticks(0.1, 1e3) == pytest.approx([0.1, 1, 10, 100, 1000]) and theme.log_ticks(1e10, 1.8e15)[-1] == 1e15
    assert theme.decades(0.5, 300) == pytest.approx((0.1, 1000)) and theme.decades(0.1, 1000) == pytest.approx((0.1, 1000))


def test_every_category_and_overhead_has_its_own_colour():
    assert set(theme.COLORS) == set(BREAKDOWN) and len(set(theme.COLORS.values())) == len(BREAKDOWN) and len(CATEGORIES) == 7
