"""Cache plot: KV cache and state of one sequence as it grows, of one model or of two. Room: widgets."""
from collections.abc import Sequence

import bqplot as bq
import ipywidgets as ipw
import numpy as np
import pandas as pd

from roofkit.units import si
from roofkit_widgets.architecture_look import SIDES
from roofkit_widgets.theme import axis, caption, card, decades, esc, figure, log_ticks, positive

FIRST = 1024  # tokens from which on the table names lengths; shorter ones are in the figure
MARKERS = {"a": "circle", "b": "diamond"}


class CachePlot:
    """Log-log lines: cache and state together, state alone dotted where there is some; the same as a table."""

    def __init__(self) -> None:
        self.x, self.y = bq.LogScale(min=100.0, max=1e6), bq.LogScale(min=1e6, max=1e11)
        scales, nothing = {"x": self.x, "y": self.y}, np.array([])
        self.tips = {s: ipw.HTML() for s in SIDES}
        self.lines = {s: bq.Lines(x=[128.0, 1e6], y=[1e6, 1e9], scales=scales, colors=[c], stroke_width=2, visible=False) for s, c in SIDES.items()}
        self.states = {s: bq.Lines(x=[128.0, 1e6], y=[1e6, 1e9], scales=scales, colors=[c], stroke_width=1.5, line_style="dotted", visible=False)
                       for s, c in SIDES.items()}
        self.dots = {s: bq.Scatter(x=nothing, y=nothing, scales=scales, colors=[c], marker=MARKERS[s], default_size=44, stroke="#ffffff", tooltip=self.tips[s],
                                   interactions={"hover": "tooltip"}) for s, c in SIDES.items()}
        for side, mark in self.dots.items():
            mark.on_hover(lambda _mark, content, side=side: self._hover(side, content))
        axes = [axis(self.x, "tokens of the sequence", "bottom", "36px", "~s"), axis(self.y, "one sequence (bytes)", "left", "44px", "~s")]
        self.figure = figure([*self.states.values(), *self.lines.values(), *self.dots.values()], axes, 330, {"top": 12, "bottom": 50, "left": 60, "right": 20})
        self.legend, self.table = ipw.HTML(), ipw.HTML()
        left = ipw.VBox([self.figure, self.legend])
        left.add_class("rk-a-figure")
        both = ipw.Box([left, self.table])
        both.add_class("rk-a-split")
        self.widget = card("kv", "Cache and state of one sequence", both, note="At 16 bit per cached element. What a batch needs: this, times its sequences.")
        self._shown: dict[str, tuple[str, pd.DataFrame]] = {}

    def update(self, models: Sequence[tuple[str, pd.DataFrame, str]]) -> None:
        """models: (name, kv, picture in words) of model A, and of model B if there is one; kv: columns of views.architecture."""
        self._shown = {side: (name, _plottable(kv)) for side, (name, kv, _) in zip(SIDES, models, strict=False)}
        self._limits()
        for side in SIDES:
            self._draw(side)
        self._draw_legend([alt for _, _, alt in models])
        value = _table([(name, _listed(kv)) for name, kv, _ in models])
        if self.table.value != value:
            self.table.value = value

    def _limits(self) -> None:
        """Explicit positive limits: one zero on a log axis ruins the figure."""
        frames = [kv for _, kv in self._shown.values() if len(kv)]
        if not frames:
            return
        x = [v for kv in frames for v in kv["context_tokens"]]
        y = positive(v for kv in frames for column in ("total_bytes", "state_bytes") for v in kv[column])
        for scale, ax, (low, high) in ((self.x, self.figure.axes[0], (min(100.0, min(x) / 1.3), max(x) * 1.3)), (self.y, self.figure.axes[1], decades(min(y) / 1.5, max(y) * 1.2))):
            if (scale.min, scale.max) != (low, high) or ax.tick_values is None:
                with scale.hold_sync():
                    scale.min, scale.max = low, high
                ax.tick_values = log_ticks(low, high)

    def _draw(self, side: str) -> None:
        kv = self._shown.get(side, ("", pd.DataFrame()))[1]
        line, dots, state = self.lines[side], self.dots[side], self.states[side]
        constant = kv[kv["state_bytes"] > 0] if len(kv) else kv
        for mark, rows, column in ((line, kv, "total_bytes"), (state, constant, "state_bytes")):
            with mark.hold_sync():
                mark.visible = len(rows) > 0
                if len(rows):
                    mark.x, mark.y = rows["context_tokens"].to_numpy(float), rows[column].to_numpy(float)
        with dots.hold_sync():
            dots.x = kv["context_tokens"].to_numpy(float) if len(kv) else np.array([])
            dots.y = kv["total_bytes"].to_numpy(float) if len(kv) else np.array([])

    def _draw_legend(self, alts: Sequence[str]) -> None:
        keys = [f"<span class='rk-key'><i class='rk-line' style='color:{SIDES[s]}'></i>{esc(name)}</span>" for s, (name, _) in self._shown.items()]
        keys += [f"<span class='rk-key'><i class='rk-line' style='color:{SIDES[s]};border-top-style:dotted'></i>its state alone</span>"
                 for s in self._shown if self.states[s].visible]
        words = " ".join(f"{name}: {alt}" if len(self._shown) > 1 else alt for (name, _), alt in zip(self._shown.values(), alts, strict=True))
        value = f"<div class='rk-legend'>{''.join(keys)}</div><div class='rk-hidden'>{caption(words)}</div>"
        if self.legend.value != value:
            self.legend.value = value

    def _hover(self, side: str, content: dict) -> None:
        name, kv = self._shown.get(side, ("", pd.DataFrame()))
        index = (content.get("data") or content.get("point") or {}).get("index", -1)
        if 0 <= index < len(kv):
            row = kv.iloc[index]
            parts = f"<br>cache {si(row['kv_bytes'], 'B')}, state {si(row['state_bytes'], 'B')}" if row["state_bytes"] > 0 else ""
            self.tips[side].value = (f"<div class='rk-tip'><b>{esc(name)}</b><br>{int(row['context_tokens']):,} tokens: "
                                     f"<b>{si(row['total_bytes'], 'B')}</b>{parts}</div>")


def _plottable(kv: pd.DataFrame) -> pd.DataFrame:
    """Rows a log-log chart can show."""
    ok = np.isfinite(kv["total_bytes"]) & (kv["total_bytes"] > 0) & np.isfinite(kv["context_tokens"]) & (kv["context_tokens"] > 0)
    return kv[ok].reset_index(drop=True)


def _listed(kv: pd.DataFrame) -> pd.DataFrame:
    return kv[kv["context_tokens"] >= min(FIRST, kv["context_tokens"].max())]


def _table(models: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """One model: cache, state and both; two: both of each."""
    if len(models) == 1:
        kv = models[0][1]
        columns = [("KV cache", "kv_bytes")] + ([("state", "state_bytes"), ("together", "total_bytes")] if (kv["state_bytes"] > 0).any() else [])
        heads, cells = [h for h, _ in columns], {t: [si(v, "B") for v in row] for t, *row in kv[["context_tokens", *(c for _, c in columns)]].itertuples(index=False)}
    else:
        heads = [f"{s.upper()}: {name}" for s, (name, _) in zip(SIDES, models, strict=False)]
        found = [dict(zip(kv["context_tokens"], kv["total_bytes"], strict=True)) for _, kv in models]
        cells = {t: [si(one[t], "B") if t in one else "–" for one in found] for t in sorted(set().union(*found))}
    head = "".join(f"<th scope='col'>{esc(h)}</th>" for h in heads)
    rows = "".join(f"<tr><th scope='row'>{int(t):,}</th>{''.join(f'<td>{v}</td>' for v in row)}</tr>" for t, row in cells.items())
    return f"<table class='rk-table rk-parts'><thead><tr><th scope='col'>tokens</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
