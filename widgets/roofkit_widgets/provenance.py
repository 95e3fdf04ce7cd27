"""Provenance: badges of what is unverified, and every figure with its source. Room: widgets (imports theme)."""
from collections.abc import Sequence

import ipywidgets as ipw
import pandas as pd

from roofkit_widgets.theme import card, esc, records

COLUMNS = ("figure", "value", "unit", "kind", "confidence", "source")
DOUBTFUL_KINDS, DOUBTFUL_CONFIDENCE = ("assumed", "estimated"), ("C", "D")


class Badges:
    """Short labels; each opens to its meaning, so that touch and keyboard reach it too."""

    def __init__(self) -> None:
        self.widget = ipw.HTML()
        self.widget.add_class("rk-badges")

    def update(self, badges: Sequence[tuple[str, str]]) -> None:
        value = "".join(f"<details class='rk-badge'><summary>{esc(label)}</summary><p>{esc(meaning)}</p></details>" for label, meaning in badges)
        if self.widget.value != value:  # an unchanged badge stays open
            self.widget.value = value


class ProvenanceTable:
    """The figures behind the page: value, unit, kind, confidence, source; doubtful rows say so."""

    def __init__(self) -> None:
        self.html = ipw.HTML()
        self.widget = card("provenance", "Where the figures come from", self.html)

    def update(self, provenance: pd.DataFrame) -> None:
        columns = [c for c in COLUMNS if c in provenance.columns]
        rows, doubtful = [], 0
        for row in records(provenance, columns):
            weak = row.get("kind") in DOUBTFUL_KINDS or row.get("confidence") in DOUBTFUL_CONFIDENCE
            doubtful += weak
            cells = "".join(f"<td class='rk-p-{c}'>{_text(row[c], c, weak)}</td>" for c in columns)
            rows.append(f"<tr class='{'rk-weak' if weak else ''}'>{cells}</tr>")
        head = "".join(f"<th scope='col' class='rk-p-{c}'>{c}</th>" for c in columns)
        count = f"{len(rows)} figures, {doubtful} of them unverified" if doubtful else f"{len(rows)} figures"
        value = (f"<details class='rk-details'><summary>{count}</summary><div class='rk-scroll' tabindex='0'><table class='rk-table rk-provenance'>"
                 f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>") if rows else "<p class='rk-note'>No figures named.</p>"
        if self.html.value != value:
            self.html.value = value


def _text(value: object, column: str, weak: bool) -> str:
    if column == "value" and isinstance(value, float):
        return f"{value:.6g}"
    text = "" if value is None or value != value else esc(value)
    return f"{text} <b>unverified</b>" if weak and column == "kind" else text
