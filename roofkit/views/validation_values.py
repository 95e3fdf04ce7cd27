"""Values of the validation page: what its widgets draw, already worded and computed. Room: views.

Shares and errors are 0..1; a signed error is predicted / measured - 1. Tables are worst first where they have an order.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from roofkit.views.values import Problem, Statement, Tile


@dataclass(frozen=True)
class Learned:
    """The learned residual; errors are means 0..1 on rows that neither form nor correction saw.

    levels      one row per bench: level ("operator" | "block" | "step"), quantity ("time" | "energy"), what, classes, n, held_out (what is left out, in words), random_form, random (random
                rows: form alone, with the correction), form, ridge, chosen (shapes or models left out), gain, gain_low, gain_high (error saved, 95 %), applied (share of the rows),
                gpu_form, gpu_carried (another GPU), use ("pays" | "off")
    thresholds  what, rows ("all" | "near ridge" | "near launch"), n, form, chosen, low, high (of the thresholds moved by 20 %), ridge (of the datasheet's ridge point), launch_us
    ablation    what, form, full (the ridge), then by group of features what leaving it out adds; NaN where a bench lacks the group
    said        the finding in words
    """

    levels: pd.DataFrame = field(default_factory=pd.DataFrame)
    thresholds: pd.DataFrame = field(default_factory=pd.DataFrame)
    ablation: pd.DataFrame = field(default_factory=pd.DataFrame)
    said: str = ""


@dataclass(frozen=True)
class ValidationView:
    """The validation page for one selection `{device, op, format, split, regime}`.

    cases      one row per kernel class and split that the selection picks: device, op, class, format, stack, split (labels), regime,
               n, families, mape, low, high (95 % interval), median, bias, p90; worst first
    overview   op, format (labels), then one column per device label: pooled mape, NaN where nothing was judged
    by_op      op (label), n, mape, low, high, median, bias, p90 over the drawn held-out points
    points     device, op, format, regime (labels), what (shape in words), measured_us, predicted_us, held_out
    points_said   which points these are, and how they were held out
    residuals  low, high (edges of a bin of the signed error; outer bins are open), fitted, held_out (share of the points 0..1)
    targets    what, target, reached (NaN: not measured), met ("reached" | "missed" | "open"), said
    missing    what, said: what could not be validated
    learned    the residual on top, whatever the filters
    cpu        op (label), part ("fitted" | "held out"), n, mape, low, high, median, bias
    cpu_said   the machine and how it was timed;  measure_said   how to measure another;  may_measure   may a visitor start it here?
    problem    no row fits the selection: which do, and the nearest selection that has some
    """

    selection: Mapping[str, str | int]
    title: str
    tiles: tuple[Tile, ...] = ()
    statements: tuple[Statement, ...] = ()
    cases: pd.DataFrame = field(default_factory=pd.DataFrame)
    overview: pd.DataFrame = field(default_factory=pd.DataFrame)
    by_op: pd.DataFrame = field(default_factory=pd.DataFrame)
    points: pd.DataFrame = field(default_factory=pd.DataFrame)
    points_said: str = ""
    residuals: pd.DataFrame = field(default_factory=pd.DataFrame)
    targets: pd.DataFrame = field(default_factory=pd.DataFrame)
    missing: tuple[tuple[str, str], ...] = ()
    learned: Learned = field(default_factory=Learned)
    cpu: pd.DataFrame = field(default_factory=pd.DataFrame)
    cpu_said: str = ""
    measure_said: str = ""
    may_measure: bool = False
    badges: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    alt: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None
