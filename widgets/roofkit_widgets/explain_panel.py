"""Explain panel: pick an operator, see how its time is built. Room: widgets (imports theme)."""
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as ipw

from roofkit_widgets.theme import card, esc

NONE = "choose an operator"


class ExplainPanel:
    """The keyboard's way to an operator (a drop-down, by name) and its time term by term."""

    def __init__(self, on_select: Callable[[str | None], None]) -> None:
        self._on_select, self._quiet = on_select, False
        self._explain: Mapping[str, Sequence[tuple[str, str]]] = {}
        self.picker = ipw.Dropdown(options=[(NONE, "")], value="", description="Operator", layout=ipw.Layout(width="auto"),
                                   style={"description_width": "initial"}, tooltip="Select an operator, as a click on its dot does")
        self.picker.add_class("rk-control").add_class("rk-picker")
        self.picker.observe(self._picked, "value")
        self.html = ipw.HTML()
        self.widget = card("explain", "Why it takes that long", self.picker, self.html)

    def update(self, names: Sequence[str], explain: Mapping[str, Sequence[tuple[str, str]]], selected: str | None) -> None:
        """names: operators; explain: name -> (term, text) lines, the first is the sentence."""
        self._explain = explain
        options = [(NONE, ""), *((n, n) for n in sorted(set(names)))]  # by name: the order stands still while times change
        self._quiet = True
        try:
            if list(self.picker.options) != options:
                with self.picker.hold_sync():
                    self.picker.options = options
                    self.picker.value = selected or ""
        finally:
            self._quiet = False
        self.select(selected)

    def select(self, name: str | None) -> None:
        self._quiet = True
        try:
            if self.picker.value != (name or ""):
                self.picker.value = name or ""
        finally:
            self._quiet = False
        self._draw(name)

    def _draw(self, name: str | None) -> None:
        lines = list(self._explain.get(name, ())) if name else []
        if not lines:
            self.html.value = "<p class='rk-note'>Click a dot or a table row, or choose an operator here, to see the terms of its time with their numbers.</p>"
            return
        terms = "".join(f"<dt>{esc(term)}</dt><dd>{esc(text)}</dd>" for term, text in lines[1:])
        self.html.value = f"<div role='status'><p class='rk-lead'>{esc(lines[0][1])}</p><dl class='rk-terms'>{terms}</dl></div>"

    def _picked(self, change: dict) -> None:
        if not self._quiet:
            self._on_select(change["new"] or None)
