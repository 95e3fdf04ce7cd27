"""What the model says: sentences about the current numbers. Room: widgets (imports values, theme)."""
from collections.abc import Sequence

import ipywidgets as ipw

from roofkit.views.values import Statement
from roofkit_widgets.theme import card, esc

CHARTS = {"roofline": "roofline", "breakdown": "time bar", "ops": "table", "memory": "memory"}


class Statements:
    """Each sentence links to the chart it speaks of."""

    def __init__(self) -> None:
        self.html = ipw.HTML()
        self.widget = card("says", "What the model says", self.html)

    def update(self, statements: Sequence[Statement], notes: Sequence[str] = ()) -> None:
        lines = "".join(f"<li>{esc(s.text)} {_link(s.target)}</li>" for s in statements)
        small = "".join(f"<p class='rk-note'>{esc(n)}</p>" for n in notes)
        self.html.value = f"<ul class='rk-says'>{lines}</ul>{small}"


def _link(target: str) -> str:
    return f"<a href='#rk-{target}' aria-label='see the {CHARTS[target]}'>{CHARTS[target]}</a>" if target in CHARTS else ""
