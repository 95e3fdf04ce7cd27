"""Headline tiles of a page. Room: widgets (imports values, theme)."""
from collections.abc import Sequence

import ipywidgets as ipw

from roofkit.views.values import Tile
from roofkit_widgets.theme import esc


class KpiTiles:
    """Tiles in a role=status strip; against a pinned page each says its ratio and whether that is better."""

    def __init__(self) -> None:
        self.widget = ipw.HTML()

    def update(self, title: str, tiles: Sequence[Tile], pinned: Sequence[Tile] = (), pinned_title: str = "") -> None:
        before = {t.key: t for t in pinned}
        cells = "".join(_cell(t, before.get(t.key)) for t in tiles)
        against = f" <span class='rk-against'>compared with A: {esc(pinned_title)}</span>" if pinned else ""
        self.widget.value = f"<p class='rk-title'>{esc(title)}{against}</p><div class='rk-tiles' role='status'>{cells}</div>"


def _cell(tile: Tile, before: Tile | None) -> str:
    ratio = ""
    if before is not None and tile.better and tile.number is not None and before.number:
        times = tile.number / before.number
        same = abs(times - 1) < 0.005
        good = (times < 1) == (tile.better == "lower")
        word, kind = ("same", "same") if same else ("better", "good") if good else ("worse", "bad")
        ratio = f"<em class='rk-{kind}'>{times:.2f}× A, {word}</em>"
    return (f"<div class='rk-tile{' rk-problem' if tile.bad else ''}'><span>{esc(tile.label)}</span><b>{esc(tile.value)}</b>"
            f"<small>{esc(tile.note)}</small>{ratio}</div>")
