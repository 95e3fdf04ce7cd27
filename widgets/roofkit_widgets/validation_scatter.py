"""Predicted against measured time, and the spread of the errors. Room: widgets (imports units, theme).

Fitted and held-out points are two marks: they differ in shape and in colour. Never set `names` on a Scatter whose data is
filtered: bqplot then mixes up its dots. Lists parallel to a mark's arrays tell which row was hovered.
"""
from collections.abc import Mapping

import bqplot as bq
import ipywidgets as ipw
import numpy as np
import pandas as pd

from roofkit.units import si
from roofkit_widgets.theme import INK, MUTED, axis, caption, card, decades, esc, figure, log_ticks, nice_axis, positive, records

BAND = 0.2
FITTED, HELD = "#56B4E9", "#D55E00"
PARTS = {False: ("fitted", FITTED, "circle", 26), True: ("held_out", HELD, "diamond", 44)}
LABELS = {"fitted": "seen by the fit", "held_out": "held out"}
DECADE_TEXTS = 9  # more decades than this get every second tick


class ValidationScatter:
    """Log-log, the line of equality and a band of 20 % around it. Build the marks once; `update` changes data."""

    def __init__(self) -> None:
        self.x, self.y = bq.LogScale(min=1.0, max=1e4), bq.LogScale(min=1.0, max=1e4)
        scales, ends = {"x": self.x, "y": self.y}, np.array([1.0, 1e4])
        self.band = bq.Lines(x=ends, y=np.array([ends * (1 - BAND), ends * (1 + BAND)]), scales=scales, colors=[MUTED, MUTED], stroke_width=1,
                             line_style="dashed", fill="between", fill_colors=[MUTED, MUTED], fill_opacities=[0.12, 0.12])
        self.equal = bq.Lines(x=ends, y=ends, scales=scales, colors=[INK], stroke_width=1.5)
        self.tips = {held: ipw.HTML() for held in PARTS}
        self.dots = {held: bq.Scatter(x=np.array([]), y=np.array([]), scales=scales, colors=[paint], marker=marker, default_size=size, stroke="#ffffff", stroke_width=0.6,
                                      default_opacities=[0.75], display_names=False, tooltip=self.tips[held], interactions={"hover": "tooltip"})
                     for held, (_, paint, marker, size) in PARTS.items()}
        for held, mark in self.dots.items():
            mark.on_hover(lambda _mark, content, held=held: self._hover(held, content))
        self._rows: dict[bool, list[dict]] = {False: [], True: []}
        axes = [axis(self.x, "measured time (s)", "bottom", "36px", "~s"), axis(self.y, "predicted time (s)", "left", "50px", "~s")]
        self.figure = figure([self.band, self.equal, *self.dots.values()], axes, 430, {"top": 14, "bottom": 50, "left": 66, "right": 26})
        self.note = ipw.HTML()
        self.widget = card("scatter", "Predicted against measured", self.figure, self.note,
                           note="On the line a prediction is exact; the band is 20 % around the measured time. Above it: predicted too slow. Below: too fast.")

    def update(self, points: pd.DataFrame, said: str = "", alt: str = "", download: str = "") -> None:
        """points: columns of validation_values.ValidationView.points; said: which they are; download: a link, HTML already."""
        rows = [r for r in records(points) if len(positive((r["measured_us"], r["predicted_us"]))) == 2]
        self._rows = {held: [r for r in rows if bool(r["held_out"]) == held] for held in PARTS}
        self._limits(rows)
        for held, mark in self.dots.items():
            with mark.hold_sync():
                mark.x, mark.y = (np.array([r[k] * 1e-6 for r in self._rows[held]], dtype=float) for k in ("measured_us", "predicted_us"))
        keys = "".join(f"<span class='rk-key'><i class='rk-v-{PARTS[h][0]}'></i>{LABELS[PARTS[h][0]]}: {len(self._rows[h]):,}</span>" for h in PARTS)
        keys += "<span class='rk-key'><i class='rk-line'></i>predicted = measured</span><span class='rk-key'><i class='rk-v-band'></i>within 20 %</span>"
        empty = "" if rows else "<p class='rk-note'>There are no points to draw.</p>"
        value = f"<div class='rk-legend'>{keys}</div>{empty}<p class='rk-v-said'>{esc(said)}</p>{caption(alt)}<p class='rk-v-links'>{download}</p>"
        if self.note.value != value:
            self.note.value = value

    def _limits(self, rows: list[dict]) -> None:
        """The same whole decades on both axes; explicit, since one zero would ruin a log axis."""
        times = positive(r[k] * 1e-6 for r in rows for k in ("measured_us", "predicted_us")) or [1e-6, 1e-3]
        low, high = decades(min(times) * 0.999, max(times) * 1.001)
        if (self.x.min, self.x.max) == (low, high) and self.figure.axes[0].tick_values is not None:
            return
        ticks = log_ticks(low, high)
        for scale, ax in zip((self.x, self.y), self.figure.axes, strict=True):
            with scale.hold_sync():
                scale.min, scale.max = low, high
            ax.tick_values = ticks if len(ticks) <= DECADE_TEXTS else ticks[::2]
        ends = np.array([low, high])
        for mark, y in ((self.equal, ends), (self.band, np.array([ends * (1 - BAND), ends * (1 + BAND)]))):
            with mark.hold_sync():
                mark.x, mark.y = ends, y

    def _hover(self, held: bool, content: dict) -> None:
        index = (content.get("data") or content.get("point") or {}).get("index", -1)  # a message may be older than the data
        if 0 <= index < len(self._rows[held]):
            self.tips[held].value = tooltip(self._rows[held][index])


class ResidualBars:
    """Shares of the points in every bin of the signed error; fitted beside held out."""

    def __init__(self) -> None:
        self.x, self.y = bq.LinearScale(min=-0.5, max=17.5), bq.LinearScale(min=0.0, max=50.0)
        self.bars = bq.Bars(x=np.arange(18), y=np.zeros((2, 18)), scales={"x": self.x, "y": self.y}, type="grouped", colors=[FITTED, HELD], padding=0.2, stroke="#ffffff")
        self.zero = bq.Lines(x=np.array([8.5, 8.5]), y=np.array([0.0, 100.0]), scales={"x": self.x, "y": self.y}, colors=[INK], stroke_width=1, line_style="dashed")
        axes = [axis(self.x, "predicted / measured - 1 (%)", "bottom", "34px", ""), axis(self.y, "share of the points (%)", "left", "40px", "~g")]
        axes[0].grid_lines = "none"
        self.figure = figure([self.bars, self.zero], axes, 250, {"top": 10, "bottom": 48, "left": 54, "right": 12})
        self.note = ipw.HTML()
        self.widget = card("residuals", "Signed errors of the points", self.figure, self.note, note="Left of the dashed line predictions are too fast, right of it too slow; outer bars are open-ended.")

    def update(self, residuals: pd.DataFrame, alt: str = "") -> None:
        """residuals: table of validation_values.ValidationView."""
        shares = 100.0 * residuals[["fitted", "held_out"]].to_numpy(float).T
        top, ticks = nice_axis(float(max(shares.max(initial=0.0), 5.0)))
        self.y.max, self.figure.axes[1].tick_values = top, ticks
        edges = residuals["low"].to_numpy(float)
        marks = [i for i, e in enumerate(edges) if np.isfinite(e) and round(100 * e) in (-50, -25, -10, 0, 10, 25, 50)]
        with self.bars.hold_sync():
            self.bars.x, self.bars.y = np.arange(shares.shape[1]), shares
        self.x.max, self.figure.axes[0].tick_values = shares.shape[1] - 0.5, [i - 0.5 for i in marks]
        self.figure.axes[0].tick_labels = {f"{i - 0.5:.1f}": f"{100 * edges[i]:+.0f}" if edges[i] else "0" for i in marks}
        keys = "".join(f"<span class='rk-key'><i class='rk-v-{k}'></i>{LABELS[k]}</span>" for k in LABELS)
        value = f"<div class='rk-legend'>{keys}</div>{caption(alt)}"
        if self.note.value != value:
            self.note.value = value


def tooltip(row: Mapping) -> str:
    """A point's facts as HTML."""
    error = row["predicted_us"] / row["measured_us"] - 1
    name = " ".join(str(row[k]) for k in ("op", "class", "format") if row.get(k) and row[k] == row[k])
    place = ", ".join(str(row[k]) for k in ("device", "stack", "regime") if row.get(k) and row[k] == row[k])
    return (f"<div class='rk-tip rk-v-tip'><b>{esc(name)}</b><br>{esc(place)}<br>{esc(row.get('what') or '')}<br>measured {si(row['measured_us'] * 1e-6, 's')}, "
            f"predicted {si(row['predicted_us'] * 1e-6, 's')}: <b>{100 * error:+.1f} %</b>, {'held out' if row['held_out'] else 'seen by the fit'}</div>")
