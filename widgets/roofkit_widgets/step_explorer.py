"""Step explorer: one forward pass as a page. Room: widgets (imports values, errors and its neighbours).

The notebook gives it two functions of roofkit.views.step; everything here draws what they return.
"""
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ipywidgets as ipw
import pandas as pd

from roofkit.views.values import Control, Problem, StepView
from roofkit_widgets import share
from roofkit_widgets.alert import STALE, Alert, guarded
from roofkit_widgets.config_box import ConfigBox
from roofkit_widgets.controls import Controls, Selection
from roofkit_widgets.explain_panel import ExplainPanel
from roofkit_widgets.kpi_tiles import KpiTiles
from roofkit_widgets.memory_bar import MemoryBar
from roofkit_widgets.op_table import OpTable, csv_link
from roofkit_widgets.provenance import Badges, ProvenanceTable
from roofkit_widgets.roofline_plot import RooflinePlot
from roofkit_widgets.statements import Statements
from roofkit_widgets.theme import asset, stylesheet
from roofkit_widgets.time_breakdown_bar import TimeBreakdownBar

ONE_DRAG_S = 1.0  # changes of one control within this time are one step back
MOST_STEPS_BACK = 200


@dataclass(frozen=True)
class State:
    """All that undo brings back."""

    selection: Mapping[str, str | int]
    pinned: StepView | None


class StepExplorer(share.SharedPage):
    """The page. `widget` shows it; `set(batch=64)` drives it as a person would; `view`, `problem`, `error` tell its state.

    controls  selection -> Control specs;  view  selection -> StepView (roofkit.views.step)
    query     text of a share link; None reads the served page's own
    """

    def __init__(self, controls: Callable[[Mapping], Sequence[Control]], view: Callable[[Mapping], StepView], query: str | None = None) -> None:
        self._view_of = view
        self.view: StepView | None = None  # the last selection that works
        self.problem: Problem | None = None
        self.error: Exception | None = None
        self.selection: Selection = {}
        self.pinned: StepView | None = None
        self.selected: str | None = None
        self._history: list[State] = []
        self._last_change: tuple[str, float] = ("", 0.0)
        self.alert = Alert(self._apply_fix)
        self.controls = Controls(controls, self._control_changed)
        self.config = ConfigBox(self._config_changed, self._config_failed)
        self.tiles, self.says, self.badges = KpiTiles(), Statements(), Badges()
        self.roofline, self.breakdown, self.table = RooflinePlot(self.select), TimeBreakdownBar(), OpTable()
        self.explain, self.memory, self.provenance = ExplainPanel(self.select), MemoryBar(), ProvenanceTable()
        self._build()
        self._open(share.query_string() if query is None else query)

    # --- building -----------------------------------------------------------------------------------------------
    def _build(self) -> None:
        def button(text: str, icon: str, tip: str, action: Callable[[], None]) -> ipw.Button:
            made = ipw.Button(description=text, icon=icon, tooltip=tip, layout=ipw.Layout(width="auto"))
            made.on_click(lambda _: action())
            return made

        self.undo_button = button("Undo", "undo", "Take back the last change", self.undo)
        self.reset_button = button("Reset", "refresh", "Back to the start", self.reset)
        self.pin_button = button("Pin as A", "thumb-tack", "Keep this page to compare with the next ones", self.toggle_pin)
        self.png_button = button("Roofline as PNG", "picture-o", "Download the roofline as a picture", self._save_png)
        self.links = ipw.HTML()
        self.links.add_class("rk-links")
        actions = ipw.HBox([self.undo_button, self.reset_button, self.pin_button, self.png_button, self.links])
        actions.add_class("rk-actions")
        head = ipw.HTML("<h1>Step explorer</h1><p>One forward pass of a language model, split into operators and placed on the hardware "
                        "roofline. Change anything: everything recomputes.</p>")
        head.add_class("rk-head")
        left = ipw.VBox([self.roofline.widget, self.explain.widget])
        right = ipw.VBox([self.says.widget, self.breakdown.widget, self.memory.widget])
        for column in (left, right):
            column.add_class("rk-column")
        self.figures = ipw.Box([left, right, self.table.widget, self.provenance.widget], layout=ipw.Layout(display="none"))
        self.figures.add_class("rk-grid")
        self.more = ipw.ToggleButton(value=False, description="More settings", icon="sliders", layout=ipw.Layout(width="auto"),
                                     tooltip="Parallel plan, number formats, cost model, own config.json")  # seen on a phone only
        self.more.add_class("rk-more")
        side = ipw.VBox([ipw.HTML("<h2 class='rk-hidden'>Controls</h2>"), self.controls.widget, self.config.widget, self.more])
        side.add_class("rk-side")
        self.more.observe(lambda c: (side.add_class if c["new"] else side.remove_class)("rk-all"), "value")
        main = ipw.VBox([self.alert.widget, self.tiles.widget, self.badges.widget, actions, self.figures])
        main.add_class("rk-main")
        shell = ipw.Box([side, main])
        shell.add_class("rk-shell")
        script = ipw.Output(outputs=({"output_type": "display_data", "data": {"application/javascript": asset("enhance.js")}, "metadata": {}},))
        script.add_class("rk-script")
        self.widget = ipw.VBox([ipw.HTML(stylesheet()), head, shell, script])
        self.widget.add_class("rk-app")

    @guarded
    def _open(self, query: str) -> None:
        wanted, remark = share.read_query(query)
        self.selection, specs, bad = self.controls.resolve(wanted)
        self.controls.show(self.selection, specs)
        if bad:
            known = [f"{k}={str(v)[:40]}" for k, v in bad.items() if k in self.controls.inputs]
            unknown = [k[:40] for k in bad if k not in self.controls.inputs]
            parts = (["not an option: " + ", ".join(known)] if known else []) + (["unknown: " + ", ".join(unknown)] if unknown else [])
            remark = f"Ignored from the link: {'; '.join(parts)}. The page shows its default there."
        self._refresh()
        self.alert.note(remark)

    # --- what a person does -------------------------------------------------------------------------------------
    def set(self, **values: str | int) -> StepView | None:
        """Change controls by key, as one step; returns the view, None when the selection does not work.

        Raises ValueError when a key is no control of the page or a value none of its options.
        """
        selection, specs, bad = self.controls.resolve({**self.selection, **values}, values)
        wrong = {k: v for k, v in bad.items() if k in values}
        if wrong:
            options = {c.key: [v for _, v in c.options] for c in specs}
            raise ValueError("; ".join(f"{k}={v!r} is not one of {options[k]}" if k in options else f"no control {k!r}; there are {', '.join(options)}"
                                       for k, v in wrong.items()))
        self._go(values)
        return self.view if self.problem is None and self.error is None else None

    @guarded
    def undo(self) -> None:
        """Take back the last change of a control, a config, a pin or a reset."""
        if self._history:
            state = self._history.pop()
            self._last_change = ("", 0.0)
            self._restore(state)

    @guarded
    def reset(self) -> None:
        """Defaults everywhere, nothing pinned, no own config; undo brings it all back."""
        before = self._state()
        self.controls.forget()
        selection, _, _ = self.controls.resolve({})
        if selection != self.selection or self.pinned is not None:
            self._remember(before, "")
        self.selected = None
        self.alert.note("")
        self._restore(State(selection, None))

    @guarded
    def toggle_pin(self) -> None:
        """Pin the page as A, or let go of it."""
        self._remember(self._state(), "")
        self.pinned = None if self.pinned is not None else self.view
        self._draw_pin()
        self._draw(self.view)

    @guarded
    def select(self, name: str | None) -> None:
        """Mark an operator in the roofline, the table and the panel that explains it; None marks none."""
        self.selected = name
        self.roofline.select(name)
        self.table.select(name)
        self.explain.select(name)

    # --- events -------------------------------------------------------------------------------------------------
    def _control_changed(self, key: str, value: str | int) -> None:
        self._go({key: value}, key)

    def _config_changed(self, text: str) -> None:
        self._go({"config": text})

    @guarded
    def _config_failed(self, error: Exception) -> None:
        raise error

    def _apply_fix(self, problem: Problem) -> None:
        self._go(problem.fix)

    @guarded
    def _save_png(self) -> None:
        self.roofline.figure.save_png("roofkit-roofline.png")

    # --- state --------------------------------------------------------------------------------------------------
    def _state(self) -> State:
        return State(dict(self.selection), self.pinned)

    def _remember(self, state: State, key: str) -> None:
        """Push a state for undo; one drag of a slider is one step."""
        now = time.monotonic()
        if not (key and key == self._last_change[0] and now - self._last_change[1] < ONE_DRAG_S and self._history):
            self._history = [*self._history[-MOST_STEPS_BACK:], state]
        self._last_change = (key, now)

    @guarded
    def _go(self, changes: Mapping[str, str | int], key: str = "") -> None:
        """To a changed selection, remembering this one. `key`: the control a person moves."""
        wanted = {**self.selection, **changes}
        if "config" in changes:  # one's own config is a model of its own: the page's default while it is there
            wanted.pop("model", None)
            self.controls.forget("model")
        elif "model" in changes:  # choosing a preset lets go of one's own config
            wanted.pop("config", None)
        selection, specs, bad = self.controls.resolve(wanted, changes)
        if selection != self.selection:
            self._remember(self._state(), key)
        self.selection = selection
        self.controls.show(selection, specs)
        self._refresh()
        gone = [f"{c.label} {wanted[c.key]} is not possible here: now {selection[c.key]}" for c in specs if c.key in bad]
        self.alert.note("; ".join(gone) + "." if gone else "")

    def _restore(self, state: State) -> None:
        selection, specs, _ = self.controls.resolve(state.selection)
        self.selection, self.pinned = selection, state.pinned
        self.controls.show(selection, specs)
        self._draw_pin()
        self._refresh()

    # --- drawing ------------------------------------------------------------------------------------------------
    @guarded
    def _refresh(self) -> None:
        """Recompute and redraw; on a problem the figures keep the last selection that works."""
        self.error, self.problem = None, None
        self.config.show(str(self.selection.get("config", "")))
        self._draw_actions()
        view = self._view_of(dict(self.selection))
        self.problem = view.problem
        if len(view.ops):
            self._draw(view)
            self.view = view
            self.alert.clear() if view.problem is None else self.alert.show(view.problem, "The figures show what it would take if there were room.")
            return
        self.alert.show(view.problem or Problem("there is nothing to show for it"), STALE if self.view is not None else "")
        if view.tiles:
            self.tiles.update(view.title, view.tiles)
        if len(view.memory):
            self.memory.update(view.memory, view.alt.get("memory", ""))
        self._stale(True)

    def _draw(self, view: StepView | None) -> None:
        if view is None:
            return
        if self.selected not in set(view.ops["name"]):
            self.selected = None
        pinned, alt = self.pinned, view.alt
        self.tiles.update(view.title, view.tiles, pinned.tiles if pinned else (), pinned.title if pinned else "")
        self.badges.update(view.badges)
        self.says.update(view.statements, view.notes)
        self.roofline.update(view.ops, view.roofs, alt.get("roofline", ""), self.selected)
        self.breakdown.update(view.breakdown, alt.get("breakdown", ""), pinned.breakdown if pinned else None)
        self.memory.update(view.memory, alt.get("memory", ""))
        self.table.update(view.ops, alt.get("ops", ""), pinned.ops if pinned else None, self.selected)
        self.explain.update(view.ops["name"].tolist(), view.explain, self.selected)
        self.provenance.update(view.provenance)
        self._draw_links(view.ops)
        self._stale(False)

    def _draw_actions(self) -> None:
        if self.undo_button.disabled == bool(self._history):
            self.undo_button.disabled = not self._history

    def _draw_pin(self) -> None:
        self.roofline.pin(self.pinned.ops if self.pinned else None)
        self.pin_button.description = "Unpin A" if self.pinned else "Pin as A"
        self.pin_button.button_style = "info" if self.pinned else ""
        self._draw_actions()

    def _draw_links(self, ops: pd.DataFrame) -> None:
        self.links.value = csv_link(ops, self.selection) + self.share_box()

    def _stale(self, stale: bool) -> None:
        """Grey figures that belong to an earlier selection; hide them while there is none at all."""
        (self.figures.add_class if stale else self.figures.remove_class)("rk-stale")
        display = "none" if stale and self.view is None else None
        if self.figures.layout.display != display:
            self.figures.layout.display = display


