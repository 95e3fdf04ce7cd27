"""Values of an app page: what a widget draws, already worded and computed. Room: views.

A view function (views/step.py) turns a selection, `{control key: value}`, into one of these; roofkit_widgets draws it.
No model logic in a widget, no widget in roofkit: the notebook passes the view function to the widget.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class Control:
    """One input of a page.

    key      name in the selection and in the share link
    kind     "choice" (drop-down) | "toggle" (few options side by side) | "slider" (ordered options)
    options  (label, value) pairs; value is a str or an int
    default  one of the values;  help   one sentence for a tooltip and for screen readers
    """

    key: str
    label: str
    kind: str
    options: tuple[tuple[str, str | int], ...]
    default: str | int
    help: str = ""


@dataclass(frozen=True)
class Tile:
    """A headline figure: `value` with unit as text, `note` in small print, `bad` paints it as a problem.

    number, better   the raw figure for ratios against a pinned page; "lower" | "higher" is better; None = no ratio
    """

    key: str
    label: str
    value: str
    note: str = ""
    bad: bool = False
    number: float | None = None
    better: str | None = None


@dataclass(frozen=True)
class Statement:
    """One sentence about the current numbers; `target` is the chart it speaks of: roofline | breakdown | ops | memory."""

    text: str
    target: str


@dataclass(frozen=True)
class Roof:
    """A roofline: min(flops_per_s, intensity x bytes_per_s). kind "peak" (datasheet) | "achievable"."""

    label: str
    kind: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """Intensity where the slanted roof meets the flat one [FLOP/byte]."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True)
class Problem:
    """Why a selection cannot be computed, and the nearest one that can: `fix` are control changes, `fix_label` says them."""

    reason: str
    fix: Mapping[str, str | int] = field(default_factory=dict)
    fix_label: str = ""


@dataclass(frozen=True)
class StepView:
    """The step explorer's page for one selection.

    With a `problem` and empty `ops` nothing could be computed: the figures keep their last state. With a `problem` and
    `ops` (it does not fit into memory) the figures are drawn and the problem is shown beside them.

    ops         columns of roofkit.tables.OPS_COLUMNS;  breakdown   index tables.BREAKDOWN [s]
    memory      index tables.MEMORY_INDEX plus "capacity" [bytes on the fullest device]
    explain     op name -> lines of (term, text): how its time is built, with its numbers; first line is the sentence
    badges      short labels with their meaning: validation status, calibration, unverified figures
    provenance  columns figure, value, unit, kind, confidence, source
    notes       plain sentences: assumptions, what is estimated
    alt         what the charts show, in words, by target
    """

    selection: Mapping[str, str | int]
    title: str
    tiles: tuple[Tile, ...] = ()
    statements: tuple[Statement, ...] = ()
    ops: pd.DataFrame = field(default_factory=pd.DataFrame)
    breakdown: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    memory: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    roofs: tuple[Roof, ...] = ()
    explain: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    badges: tuple[tuple[str, str], ...] = ()
    provenance: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()
    alt: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None


@dataclass(frozen=True)
class ArchitectureView:
    """The architecture card of one model.

    layers      one row per layer: layer, group, mixer, ffn (labels), params, active_params, kv_bytes_per_token (before windows fill)
    components  columns component, total, active, share [parameters; share of total 0..1], largest first
    kv          columns context_tokens, kv_bytes, state_bytes: one sequence's cache as it grows
    groups      one row per kind of layer: group, count, first, mixer, ffn, params (one layer), in words
    """

    selection: Mapping[str, str | int]
    title: str
    tiles: tuple[Tile, ...] = ()
    statements: tuple[Statement, ...] = ()
    layers: pd.DataFrame = field(default_factory=pd.DataFrame)
    components: pd.DataFrame = field(default_factory=pd.DataFrame)
    groups: pd.DataFrame = field(default_factory=pd.DataFrame)
    kv: pd.DataFrame = field(default_factory=pd.DataFrame)
    badges: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    alt: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None
