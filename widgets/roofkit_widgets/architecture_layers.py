"""Layer map: one cell per layer, its mixer above its feed-forward, and the kinds of layers as a table. Room: widgets."""
from collections.abc import Sequence

import ipywidgets as ipw
import pandas as pd

from roofkit.units import params, si
from roofkit_widgets.architecture_look import ffn_color, mixer_color
from roofkit_widgets.theme import card, esc, legend_item

WIDEST, NARROWEST = 16, 8  # cells in a row
HEADS = (("layers", "layers"), ("mixer", "mixer"), ("ffn", "feed-forward"), ("params", "params"), ("active", "active"), ("kv", "cache/token"),
         ("state", "state"))


class LayerMap:
    """HTML only: a role=img grid with the picture in words, and the same facts as a table in reading order."""

    def __init__(self, side: str = "a") -> None:
        self.html = ipw.HTML()
        self.widget = card(f"layers-{side}", "Layer map", self.html,
                           note="One cell per layer, read like text: what mixes tokens above, what acts on each token below.")
        self.widget.add_class("rk-a-layers")

    def update(self, layers: pd.DataFrame, groups: pd.DataFrame, alt: str = "", download: str = "") -> None:
        """layers, groups: columns of values.ArchitectureView and views.architecture; download: a link, HTML already."""
        value = (f"{_grid(layers, alt)}<div class='rk-legend'>{_legend(groups)}</div>"
                 f"<div class='rk-scroll rk-a-tall' tabindex='0'>{_table(groups)}</div><p class='rk-a-links'>{download}</p>")
        if self.html.value != value:
            self.html.value = value


def row_length(groups: Sequence[int]) -> int:
    """Cells in a row: the length at which most columns hold one kind of layer, so that a pattern shows as columns."""
    n = len(groups)
    if n <= WIDEST:
        return max(n, NARROWEST)
    return min(range(WIDEST, NARROWEST - 1, -1), key=lambda w: sum(a != b for a, b in zip(groups, groups[w:], strict=False)))


def _grid(layers: pd.DataFrame, alt: str) -> str:
    width, cells = row_length(layers["group"].tolist()), []
    for at, row in enumerate(layers.itertuples(index=False)):
        if at % width == 0:
            cells.append(f"<b>{int(row.layer)}</b>")
        cells.append(f"<i tabindex='-1' data-g='{int(row.group)}' data-say='{esc(row.sentence)}' "
                     f"style='--m:{mixer_color(row.mixer_kind)};--f:{ffn_color(row.ffn_kind)}'></i>")
    return f"<div class='rk-a-map' role='img' aria-label='{esc(alt)}' style='--n:{width}'>{''.join(cells)}</div>"


def _legend(groups: pd.DataFrame) -> str:
    mixers = [legend_item(mixer_color(k), esc(k)) for k in dict.fromkeys(groups["mixer_kind"])]
    ffns = [legend_item(ffn_color(k), esc(k)) for k in dict.fromkeys(groups["ffn_kind"])]
    return f"<span class='rk-a-which'>above</span>{''.join(mixers)}<span class='rk-a-which'>below</span>{''.join(ffns)}"


def _table(groups: pd.DataFrame) -> str:
    shown = [(key, head) for key, head in HEADS if key != "state" or (groups["state_bytes"] > 0).any()]
    head = "".join(f"<th role='columnheader' scope='col' class='rk-c-{key}'>{text}</th>" for key, text in shown)
    rows = []
    for g in groups.itertuples(index=False):
        swatch = f"<span class='rk-a-chip' style='--m:{mixer_color(g.mixer_kind)};--f:{ffn_color(g.ffn_kind)}'></span>"
        cells = {"layers": f"{swatch}<b>{g.count} ×</b> {esc(g.layers)}", "mixer": esc(g.mixer), "ffn": esc(g.ffn), "params": params(g.params),
                 "active": params(g.active_params), "kv": f"{g.kv_bytes_per_token:,.0f} B" if g.kv_bytes_per_token else "–",
                 "state": si(g.state_bytes, "B") if g.state_bytes else "–"}
        first, *rest = shown
        body = "".join(f"<td role='cell' class='rk-c-{key}' data-head='{esc(text)}'>{cells[key]}</td>" for key, text in rest)
        rows.append(f"<tr role='row' data-g='{g.group}'><th role='rowheader' scope='row' class='rk-c-{first[0]}'>{cells[first[0]]}</th>{body}</tr>")
    return (f"<table class='rk-table rk-a-cards rk-a-groups' role='table'><caption>Kinds of layers, counted from layer 0; figures of one layer</caption><thead role='rowgroup'>"
            f"<tr role='row'>{head}</tr></thead><tbody role='rowgroup'>{''.join(rows)}</tbody></table>")
