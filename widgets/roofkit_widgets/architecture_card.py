"""Architecture card: the layers, parameters and cache of one model, or of two side by side. Room: widgets (imports values and its neighbours).

ArchitectureCard draws one ArchitectureView. ArchitectureExplorer is the page: the notebook gives it functions of
roofkit.views.architecture, and everything here draws what they return.
"""
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as ipw
import pandas as pd

from roofkit.errors import RoofkitError
from roofkit.views.values import ArchitectureView, Control, Problem, Statement
from roofkit_widgets import share
from roofkit_widgets.alert import STALE, Alert, guarded
from roofkit_widgets.architecture_cache import CachePlot
from roofkit_widgets.architecture_csv import csv_link
from roofkit_widgets.architecture_layers import LayerMap
from roofkit_widgets.architecture_look import styles
from roofkit_widgets.architecture_parts import ComponentBars
from roofkit_widgets.config_box import ConfigBox
from roofkit_widgets.controls import Controls, Selection
from roofkit_widgets.kpi_tiles import KpiTiles
from roofkit_widgets.provenance import Badges
from roofkit_widgets.theme import asset, card, esc

CHARTS = {"layers": "layer map", "components": "bars", "kv": "cache"}
HEAD = ("<h1>Architecture card</h1><p>What a language model is made of: its layers, where its parameters are, which of them a token uses, "
        "and what a sequence keeps in memory.</p>")


class ArchitectureCard:
    """The card of one model: tiles, badges, statements and assumptions, layer map, components, cache.

    side    "a" | "b": which of two cards on a page, for headings and links
    alone   shown by itself: brings the style sheet and its own cache figure
    """

    def __init__(self, side: str = "a", alone: bool = True) -> None:
        self.side, self.view = side, ArchitectureView({}, "")
        self.tiles, self.badges, self.says = KpiTiles(), Badges(), ipw.HTML()
        self.layers, self.parts, self.cache = LayerMap(side), ComponentBars(side), CachePlot() if alone else None
        top = ipw.VBox([self.tiles.widget, self.badges.widget])
        top.add_class("rk-a-top")
        boxes = [top, card(f"says-{side}", "What the model says", self.says), self.layers.widget, self.parts.widget]
        self.widget = ipw.VBox([ipw.HTML(styles()), *boxes, self.cache.widget] if self.cache else boxes)
        self.widget.add_class("rk-a-card").add_class(f"rk-a-{side}").add_class("rk-app" if alone else "rk-a-half")

    def update(self, view: ArchitectureView, end: float | None = None, shares: bool = False) -> None:
        """Draw a view that has layers. `end`, `shares`: scale of the component bars, see ComponentBars.update."""
        self.view, alt = view, view.alt
        self.tiles.update(view.title, view.tiles)
        self.badges.update(view.badges)
        says = _says(view.statements, view.notes, self.side)
        if self.says.value != says:
            self.says.value = says
        self.layers.update(view.layers, view.groups, alt.get("layers", ""), csv_link(view.layers, "layers", view.title, view.selection))
        self.scale(end, shares)
        if self.cache:
            self.cache.update([(view.title.partition(":")[0], view.kv, alt.get("kv", ""))])

    def scale(self, end: float | None, shares: bool) -> None:
        """Draw the component bars in another scale."""
        view = self.view
        self.parts.update(view.components, view.alt.get("components", ""), end, shares, csv_link(view.components, "components", view.title, view.selection))

    def stale(self, stale: bool) -> None:
        """Grey a card that belongs to an earlier selection."""
        (self.widget.add_class if stale else self.widget.remove_class)("rk-a-stale")


class ModelSide:
    """One model of the page: its choice, its problem, its card. `on_change` hears of every new selection."""

    def __init__(self, side: str, controls: Callable[[Mapping], Sequence[Control]], view: Callable[[Mapping], ArchitectureView],
                 on_change: Callable[[], None]) -> None:
        self.side, self._view_of, self._on_change = side, view, on_change
        self.view: ArchitectureView | None = None  # the last selection that works
        self.problem: Problem | None = None
        self.error: Exception | None = None
        self.selection: Selection = {}
        self._preset: str | int = ""
        self.alert = Alert(lambda problem: self.choose(**problem.fix))
        self.controls = Controls(controls, lambda key, value: self.choose(**{key: value}))
        self.config = ConfigBox(lambda text: self.choose(config=text), self._config_failed)
        self.card = ArchitectureCard(side, alone=False)
        self.card.widget.layout.display = "none"
        pick = ipw.VBox([ipw.HTML(f"<h2 class='rk-a-letter'>Model {side.upper()}</h2>"), self.controls.widget, self.config.widget, self.alert.widget])
        pick.add_class("rk-a-pick").add_class(f"rk-a-{side}")
        self.widget = ipw.VBox([pick, self.card.widget])
        self.widget.add_class("rk-a-side")

    @property
    def name(self) -> str:
        return self.view.title.partition(":")[0] if self.view else ""

    @property
    def model(self) -> str | int:
        return self.selection.get("model", "")

    def choose(self, **changes: str | int) -> None:
        """Take another model or config, compute, draw, and tell the page."""
        self._choose(changes)
        self._on_change()

    @guarded
    def _choose(self, changes: Mapping[str, str | int]) -> None:
        wanted = {**self.selection, **changes}
        if changes.get("config"):  # one's own config is a model of its own
            wanted.pop("model", None)
            self.controls.forget("model")
        else:  # a preset lets go of one's own config
            wanted.pop("config", None)
            if "model" not in changes and self._preset:
                wanted["model"] = self._preset
        self.selection, specs, bad = self.controls.resolve(wanted, changes)
        if not self.selection.get("config"):
            self._preset = self.selection.get("model", "")
        self.controls.show(self.selection, specs)
        self.config.show(str(self.selection.get("config", "")))
        self._compute()
        ignored = ", ".join(f"{str(v)[:60]!r}" for k, v in bad.items() if k in changes)
        self.alert.note(f"There is no preset {ignored}; model {self.side.upper()} is {self.selection.get('model')}." if ignored else "")

    def _compute(self) -> None:
        self.error, self.problem = None, None
        try:
            view = self._view_of(dict(self.selection))
        except Exception:
            self.card.stale(True)
            raise
        self.problem = view.problem if len(view.layers) else view.problem or Problem("there is nothing to show for it")
        if self.problem is None:
            self.view = view
            self.alert.clear()
        else:
            self.alert.show(self.problem, STALE if self.view is not None else "")
        self.card.stale(self.problem is not None)

    @guarded
    def _config_failed(self, error: Exception) -> None:
        raise error

    @guarded
    def draw(self, end: float | None, shares: bool) -> None:
        """Draw the last view that works; a hidden card has none."""
        self.card.widget.layout.display = None if self.view is not None else "none"
        if self.view is None:
            return
        if self.card.view is self.view:
            self.card.scale(end, shares)
        else:
            self.card.update(self.view, end, shares)


class ArchitectureExplorer(share.SharedPage):
    """The page. `widget` shows it; `set(a="deepseek-v3", b="llama-3.1-8b")` drives it as a person would.

    controls  selection -> Control specs, among them "model";  view  selection -> ArchitectureView
    facts     (selection, other selection or None) -> table of figures: columns figure, a, b, ratio; None = no such table
    against   the model that "compare" starts with;  query  text of a share link; None reads the served page's own
    """

    def __init__(self, controls: Callable[[Mapping], Sequence[Control]], view: Callable[[Mapping], ArchitectureView],
                 facts: Callable[[Mapping, Mapping | None], pd.DataFrame] | None = None, against: str = "", query: str | None = None) -> None:
        self._facts_of, self._against, self.comparing, self.shares = facts, against, False, False
        self.view, self.error = None, None  # of the page as a whole, for its alert
        self.alert = Alert(lambda _problem: None)
        self.a, self.b = (ModelSide(side, controls, view, self._redraw) for side in "ab")
        self.cache, self.facts = CachePlot(), ipw.HTML()
        self._build()
        self._open(share.query_string() if query is None else query)

    # --- building -----------------------------------------------------------------------------------------------
    def _build(self) -> None:
        def button(text: str, icon: str, action: Callable[[], None]) -> ipw.Button:
            made = ipw.Button(description=text, icon=icon, layout=ipw.Layout(width="auto"))
            made.on_click(lambda _: action())
            return made

        self.compare_button = button("Compare with another model", "columns", self.toggle_compare)
        self.swap_button = button("Swap A and B", "exchange", self.swap)
        self.scale_button = button("Bars as shares", "percent", self.toggle_scale)
        self.links = ipw.HTML()
        self.links.add_class("rk-links")
        actions = ipw.HBox([self.compare_button, self.swap_button, self.scale_button, self.links])
        actions.add_class("rk-actions")
        self.facts_card = card("facts", "Figures and differences", self.facts)
        self.grid = ipw.Box([self.a.widget, self.b.widget, self.cache.widget, self.facts_card])
        self.grid.add_class("rk-a-grid")
        head = ipw.HTML(HEAD)
        head.add_class("rk-head")
        script = ipw.Output(outputs=({"output_type": "display_data", "data": {"application/javascript": asset("enhance.js")}, "metadata": {}},))
        script.add_class("rk-script")
        self.widget = ipw.VBox([ipw.HTML(styles()), head, self.alert.widget, actions, self.grid, script])
        self.widget.add_class("rk-app").add_class("rk-a-app")

    @guarded
    def _open(self, query: str) -> None:
        wanted, remark = share.read_query(query)
        models = {"a": wanted.get("a", wanted.get("model", "")), "b": wanted.get("b", "")}
        unknown = [k[:40] for k in wanted if k not in ("a", "b", "model")]
        self.comparing = bool(models["b"])
        for side in (self.a, self.b) if self.comparing else (self.a,):
            side._choose({"model": models[side.side]} if models[side.side] else {})
        self._redraw()
        self.alert.note(remark or (f"Ignored from the link, unknown: {', '.join(unknown)}." if unknown else ""))

    # --- what a person does -------------------------------------------------------------------------------------
    def set(self, a: str | None = None, b: str | None = None, a_config: str = "", b_config: str = "") -> tuple[ArchitectureView | None, ArchitectureView | None]:
        """Choose models by name or config text; b="" stops comparing. Returns both views, None where there is none that works.

        Raises RoofkitError for a name that is no preset of the list.
        """
        for side, name, config in ((self.a, a, a_config), (self.b, b, b_config)):
            if side is self.b and (name or config):
                self.comparing = True
            if name and name not in (options := _models(side)):
                raise RoofkitError(f"no preset {name!r}; there are {', '.join(options)}")
            if name or config:
                side.choose(**({"config": config} if config else {"model": name}))
        if b == "" and not b_config:
            self.comparing = False
            self._redraw()
        return tuple(s.view if s.problem is None and s.error is None and (s is self.a or self.comparing) else None for s in (self.a, self.b))

    @guarded
    def toggle_compare(self) -> None:
        """Show a second model, or only the first."""
        self.comparing = not self.comparing
        if self.comparing and not self.b.selection:
            names = _models(self.a)
            first = next((n for n in (self._against, *names) if n in names and n != self.a.model), "")
            self.b._choose({"model": first} if first else {})
        self._redraw()

    @guarded
    def swap(self) -> None:
        """Exchange the two models."""
        a, b = dict(self.a.selection), dict(self.b.selection)
        self.a.view, self.b.view = self.b.view, self.a.view  # a refused config keeps the card it stood beside
        for side, other, name in ((self.a, b, self.b.config.name), (self.b, a, self.a.config.name)):
            side.config.name = name
            side._choose({"config": other["config"]} if other.get("config") else {"model": other["model"]})
        self._redraw()

    @guarded
    def toggle_scale(self) -> None:
        """Bars in parameters, both models in one scale, or each bar as shares of itself."""
        self.shares = not self.shares
        self.scale_button.description = "Bars in parameters" if self.shares else "Bars as shares"
        self._redraw()

    # --- drawing ------------------------------------------------------------------------------------------------
    @guarded
    def _redraw(self) -> None:
        sides = [s for s in (self.a, self.b) if s is self.a or self.comparing]
        shown = [s for s in sides if s.view is not None]
        end = max((float(s.view.components["total"].sum()) for s in shown), default=None)
        for side in sides:
            side.draw(end, self.shares)
        self.b.widget.layout.display = None if self.comparing else "none"
        (self.grid.add_class if self.comparing else self.grid.remove_class)("rk-a-two")
        self.compare_button.description = "Only model A" if self.comparing else "Compare with another model"
        self.compare_button.icon = "times" if self.comparing else "columns"
        self.swap_button.layout.display = None if self.comparing else "none"
        self.cache.widget.layout.display = None if shown else "none"
        if shown:
            self.cache.update([(s.name, s.view.kv, s.view.alt.get("kv", "")) for s in shown])
        self._draw_facts(shown)
        old = bool(shown) and all(s.problem is not None or s.error is not None for s in shown)
        for box in (self.cache.widget, self.facts_card):
            (box.add_class if old else box.remove_class)("rk-stale")
        jump = "<a class='rk-button' href='#rk-facts'>Differences</a>" if len(shown) > 1 and self._facts_of else ""
        self.links.value = jump + self.share_box()

    def _draw_facts(self, shown: Sequence[ModelSide]) -> None:
        self.facts_card.layout.display = None if shown and self._facts_of else "none"
        if not shown or self._facts_of is None:
            return
        table = self._facts_of(*(dict(s.view.selection) for s in shown))
        value = _facts(table, [s.name for s in shown])
        if self.facts.value != value:
            self.facts.value = value

    def _query(self) -> str:
        sides = [("a", self.a)] + ([("b", self.b)] if self.comparing else [])
        return share.write_query({key: s.model for key, s in sides if s.selection and not s.selection.get("config")})


def _models(side: ModelSide) -> list[str | int]:
    return [v for spec in side.controls.specs or side.controls.resolve({})[1] if spec.key == "model" for _, v in spec.options]


def _says(statements: Sequence[Statement], notes: Sequence[str], side: str) -> str:
    lines = "".join(f"<li>{esc(s.text)} {_jump(s.target, side)}</li>" for s in statements)
    small = "".join(f"<li>{esc(n)}</li>" for n in notes)
    return f"<ul class='rk-says'>{lines}</ul>" + (f"<h3 class='rk-a-small'>Assumptions</h3><ul class='rk-says rk-note'>{small}</ul>" if small else "")


def _jump(target: str, side: str) -> str:
    where = "kv" if target == "kv" else f"{target}-{side}"
    return f"<a href='#rk-{where}' aria-label='see the {CHARTS[target]}'>{CHARTS[target]}</a>" if target in CHARTS else ""


def _facts(table: pd.DataFrame, names: Sequence[str]) -> str:
    """The figures of one model, or of two with the ratio B / A."""
    columns = [("a", names[0])] if len(names) == 1 else [("a", f"A: {names[0]}"), ("b", f"B: {names[1]}"), ("ratio", "B / A")]
    head = "".join(f"<th role='columnheader' scope='col' class='rk-c-{c}'>{esc(text)}</th>" for c, text in columns)
    rows = []
    for row in table.itertuples(index=False):
        differs = " class='rk-a-differs'" if len(names) > 1 and row.a != row.b else ""
        cells = "".join(f"<td role='cell' class='rk-c-{c}' data-head='{esc(text)}'>{esc(getattr(row, c))}</td>" for c, text in columns)
        rows.append(f"<tr role='row'{differs}><th role='rowheader' scope='row'>{esc(row.figure)}</th>{cells}</tr>")
    return (f"<table class='rk-table rk-a-cards rk-a-facts' role='table'><thead role='rowgroup'><tr role='row'><th role='columnheader' scope='col'>figure</th>{head}"
            f"</tr></thead><tbody role='rowgroup'>{''.join(rows)}</tbody></table>")
