"""Validation page: how far predictions were from measured times that no fit had seen. Room: widgets (imports values and its neighbours).

The notebook gives it functions of roofkit.views.validation; everything here draws the ValidationView that they return.
"""
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as ipw
import pandas as pd

from roofkit.errors import RoofkitError
from roofkit.views.values import Control, Problem, Statement
from roofkit_widgets import share
from roofkit_widgets import validation_learned
from roofkit_widgets import validation_table as tables
from roofkit_widgets.alert import Alert, guarded
from roofkit_widgets.controls import Controls, Selection
from roofkit_widgets.kpi_tiles import KpiTiles
from roofkit_widgets.provenance import Badges
from roofkit_widgets.theme import asset, card, esc, stylesheet
from roofkit_widgets.validation_scatter import ResidualBars, ValidationScatter
from roofkit_widgets.validation_table import CasesTable

HEAD = ("<h1>Validation</h1><p>How far predictions were from measured times that no fit had seen: per operator, device, number format and way of holding out. "
        "The worst leads.</p>")
CHARTS = {"scatter": "picture", "cases": "table", "residuals": "errors", "targets": "targets", "missing": "list", "overview": "overview", "learned": "levels"}


class ValidationExplorer(share.SharedPage):
    """The page. `widget` shows it; `set(device="l40s", op="gemm")` drives it as a person would; `view`, `problem`, `error` tell its state.

    controls  selection -> Control specs;  view  selection -> ValidationView
    measure   progress -> (errors per kind and part, words): times this machine; used only where the view says `may_measure`
    query     text of a share link; None reads the served page's own
    """

    def __init__(self, controls: Callable[[Mapping], Sequence[Control]], view: Callable[[Mapping], object],
                 measure: Callable[..., tuple[pd.DataFrame, str]] | None = None, query: str | None = None) -> None:
        self._view_of, self._measure = view, measure
        self.view = None  # the last that could be drawn
        self.problem: Problem | None = None
        self.error: Exception | None = None
        self.selection: Selection = {}
        self.alert = Alert(lambda problem: self._go(problem.fix))
        self.controls = Controls(controls, lambda key, value: self._go({key: value}))
        self.tiles, self.badges, self.says = KpiTiles(), Badges(), ipw.HTML()
        self.scatter, self.residuals, self.cases = ValidationScatter(), ResidualBars(), CasesTable()
        self.by_op, self.overview, self.targets, self.missing, self.cpu, self.learned, self.learned_foot = (ipw.HTML() for _ in range(7))
        self._build()
        self._open(share.query_string() if query is None else query)

    # --- building -----------------------------------------------------------------------------------------------
    def _build(self) -> None:
        self.reset_button = ipw.Button(description="Reset", icon="refresh", tooltip="Back to the start", layout=ipw.Layout(width="auto"))
        self.reset_button.on_click(lambda _: self.reset())
        self.links = ipw.HTML()
        self.links.add_class("rk-links")
        actions = ipw.HBox([self.reset_button, self.links])
        actions.add_class("rk-actions")
        self.measure_button = ipw.Button(description="Measure this machine", icon="clock-o", layout=ipw.Layout(width="auto", display="none"))
        self.measure_button.on_click(lambda _: self.measure())
        self.measured = ipw.HTML()
        says = card("says", "What the evidence says", self.says)
        operators = card("operators", "Held-out points by operator", self.by_op, note="Of the points in the picture; intervals: 95 % of bootstraps over points.")
        left, right = ipw.VBox([self.scatter.widget, operators]), ipw.VBox([says, self.residuals.widget])
        for column in (left, right):
            column.add_class("rk-column")
        self.figures = ipw.Box([
            left, right, self.cases.widget,
            card("overview", "Overview", self.overview, note="Mean held-out error of every operator and format on every GPU, under the chosen way of holding out. A dash: not validated on this device."),
            card("targets", "Targets and what is reached", self.targets, note="Bars that roofkit set itself, on splits by shape family unless the row says otherwise; misses first."),
            card("learned", "A learned correction on top of the forms", self.learned, self.learned_foot),
            card("cpu", "A CPU we measured", self.cpu, self.measure_button, self.measured, note="Every fourth point is held out of a simple fit; both errors, with bootstrap intervals."),
            card("missing", "What could not be validated", self.missing)])
        self.figures.add_class("rk-grid").add_class("rk-v-grid")
        side = ipw.VBox([ipw.HTML("<h2 class='rk-v-filters'>Filters</h2>"), self.controls.widget])
        side.add_class("rk-side").add_class("rk-v-side")
        main = ipw.VBox([self.alert.widget, self.tiles.widget, self.badges.widget, actions, self.figures])
        main.add_class("rk-main")
        shell = ipw.Box([side, main])
        shell.add_class("rk-shell")
        head = ipw.HTML(HEAD)
        head.add_class("rk-head")
        script = ipw.Output(outputs=({"output_type": "display_data", "data": {"application/javascript": asset("enhance.js")}, "metadata": {}},))
        script.add_class("rk-script")
        self.widget = ipw.VBox([ipw.HTML(f"{stylesheet()}<style>{asset('validation.css')}</style>"), head, shell, script])
        self.widget.add_class("rk-app").add_class("rk-v-app")

    @guarded
    def _open(self, query: str) -> None:
        wanted, remark = share.read_query(query)
        self.selection, specs, bad = self.controls.resolve(wanted)
        self.controls.show(self.selection, specs)
        if bad:
            named = ", ".join(f"{k[:40]}={str(v)[:40]}" for k, v in bad.items())
            remark = f"Ignored from the link: {named}. The page shows its default there."
        self._refresh()
        self.alert.note(remark)

    # --- what a person does -------------------------------------------------------------------------------------
    def set(self, **values: str | int):
        """Change filters by key; returns the view, also of a selection without rows; None when the view failed.

        Raises RoofkitError when a key is no filter or a value none of its options.
        """
        _, specs, bad = self.controls.resolve({**self.selection, **values}, values)
        wrong = {k: v for k, v in bad.items() if k in values}
        if wrong:
            options = {c.key: [v for _, v in c.options] for c in specs}
            raise RoofkitError("; ".join(f"{k}={v!r} is not one of {options[k]}" if k in options else f"no filter {k!r}; there are {', '.join(options)}"
                                         for k, v in wrong.items()))
        self._go(values)
        return self.view if self.error is None else None

    @guarded
    def reset(self) -> None:
        """Every filter at its default."""
        self.controls.forget()
        self.selection, specs, _ = self.controls.resolve({})
        self.controls.show(self.selection, specs)
        self._refresh()
        self.alert.note("")

    @guarded
    def measure(self) -> None:
        """Time this machine, where its owner allows visitors to."""
        if self._measure is None or self.view is None or not self.view.may_measure:
            raise RoofkitError("this server does not measure itself for visitors")
        self.measure_button.disabled = True
        try:
            table, said = self._measure(progress=lambda share_done, what: self._progress(share_done, what))
            self.measured.value = f"<h3 class='rk-v-now'>This machine, now</h3>{tables.cpu(table, said)}"
        finally:
            self.measure_button.disabled, self.measure_button.description = False, "Measure again"

    def _progress(self, done: float, what: str) -> None:
        text = f"<p role='status'>Measuring: {100 * done:.0f} %, {esc(what)}</p>"
        if self.measured.value != text:
            self.measured.value = text

    # --- drawing ------------------------------------------------------------------------------------------------
    @guarded
    def _go(self, changes: Mapping[str, str | int]) -> None:
        self.selection, specs, _ = self.controls.resolve({**self.selection, **changes}, changes)
        self.controls.show(self.selection, specs)
        self._refresh()
        self.alert.note("")

    @guarded
    def _refresh(self) -> None:
        self.error, self.problem = None, None
        try:
            view = self._view_of(dict(self.selection))
        except Exception:
            self._stale(True)
            raise
        self.view, self.problem = view, view.problem
        self._draw(view)
        if view.problem is None:
            self.alert.clear()
        else:
            self.alert.show(view.problem)

    def _draw(self, view) -> None:
        alt = view.alt
        self.tiles.update(view.title, view.tiles)
        self.badges.update(view.badges)
        self.scatter.update(view.points, view.points_said, alt.get("scatter", ""), tables.csv_link(view.points, "points", view.title, view.selection))
        self.residuals.update(view.residuals, alt.get("residuals", ""))
        self.cases.update(view.cases, alt.get("cases", ""), tables.csv_link(view.cases, "errors", view.title, view.selection))
        for box, value in ((self.says, _says(view.statements, view.notes)), (self.by_op, tables.by_operator(view.by_op)), (self.overview, tables.overview(view.overview)), (self.targets, tables.targets(view.targets)),
                           (self.learned, validation_learned.learned(view.learned)), (self.learned_foot, tables.csv_link(view.learned.levels, "residual", "learned residual", {})),
                           (self.missing, tables.missing(view.missing)), (self.cpu, f"{tables.cpu(view.cpu, view.cpu_said)}<p class='rk-note'>{esc(view.measure_said)}</p>")):
            if box.value != value:
                box.value = value
        self.measure_button.layout.display = None if view.may_measure and self._measure is not None else "none"
        self.links.value = self.share_box()
        self._stale(False)

    def _stale(self, stale: bool) -> None:
        (self.figures.add_class if stale else self.figures.remove_class)("rk-stale")


def _says(statements: Sequence[Statement], notes: Sequence[str]) -> str:
    lines = "".join(f"<li>{esc(s.text)} {_jump(s.target)}</li>" for s in statements)
    small = "".join(f"<li>{esc(n)}</li>" for n in notes)
    more = f"<details class='rk-details rk-v-how'><summary>How the errors are counted</summary><ul class='rk-says rk-note'>{small}</ul></details>" if small else ""
    return f"<ul class='rk-says'>{lines}</ul>{more}"


def _jump(target: str) -> str:
    return f"<a href='#rk-{target}' aria-label='see the {CHARTS[target]}'>{CHARTS[target]}</a>" if target in CHARTS else ""
