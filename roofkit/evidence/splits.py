"""Splits: which measured rows a fit may see and which it is judged on. Room: evidence.

Deterministic: the same rows, seed and rule give the same split. The unit that is left out is a whole shape family, head
width, model or GPU, never a random row: rows of one shape differ only in size, so a random split tests interpolation.
Families: rows of one shape err together, so they are left out together.
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofkit.errors import MeasurementError

FAMILY = {  # kind -> columns whose combination is one shape family
    "gemm": ("n", "k"), "gemm_power": ("n", "k"), "attention": ("heads", "kv_heads", "head_dim", "window"), "mla": ("heads",),
    "mixed_attention": ("model", "tp"), "moe": ("hidden", "inter", "experts", "topk"), "moe_all2all": ("hidden", "topk", "experts"),
    "collective": ("bytes",), "elementwise": ("cols",), "layer": ("model", "tp"), "serving": ("model", "tp"), "step": ("model", "tp"),
}
RULES = ("family", "head_dim", "model", "gpu", "sizes", "every_fourth", "random")


@dataclass(frozen=True, slots=True)
class Split:
    """One division: `train` and `test` are boolean arrays over the rows; `held_out` says what the test part is."""

    rule: str
    held_out: str
    train: np.ndarray
    test: np.ndarray


def families(frame: pd.DataFrame) -> pd.Series:
    """Shape family of every row as text, e.g. `4096x14336` for a GEMM's (n, k). MoE shapes sampled on fewer than four
    expert shapes also count (tp, ep), since nothing else could be left out."""
    kind = frame["kind"].iloc[0]
    columns = list(FAMILY[kind])
    if kind == "moe" and frame[columns].drop_duplicates().shape[0] < 4:
        columns += ["tp", "ep"]
    text = frame[columns[0]].astype(str).fillna("-")
    for column in columns[1:]:
        text = text + "x" + frame[column].astype(str).fillna("-")
    return text


def splits(frame: pd.DataFrame, rule: str = "family", *, folds: int = 5, seed: int = 0) -> Iterator[Split]:
    """The divisions of a table of one kind under a rule.

    rule   "family": `folds` folds of shape families; "head_dim" | "model" | "gpu": leave one out; "sizes": alternate sizes,
           both ways (collectives); "every_fourth": rows 3, 7, 11, ... of every family in order of size; "random": `folds` folds of rows
    Every row is tested exactly once over the divisions of a rule, but for "every_fourth". Raises MeasurementError for an
    unknown rule, or where there is nothing to leave out.
    """
    if rule not in RULES:
        raise MeasurementError(f"split {rule!r} is not known; use one of {', '.join(RULES)}")
    if rule in ("family", "random"):
        unit = families(frame).to_numpy() if rule == "family" else np.arange(len(frame))
        yield from _folds(rule, unit, folds, seed)
    elif rule in ("head_dim", "model", "gpu"):
        if rule not in frame:
            raise MeasurementError(f"split by {rule!r} needs that column; a table of kind {frame['kind'].iloc[0]!r} has none")
        values = sorted(frame[rule].unique(), key=str)
        if len(values) < 2:
            raise MeasurementError(f"split by {rule!r} needs at least two different values; all rows have {values[0]!r}")
        for value in values:
            test = (frame[rule] == value).to_numpy()
            yield Split(rule, f"{rule}={value}", ~test, test)
    elif rule == "sizes":
        odd = _rank_in_group(frame) % 2 == 1
        yield Split(rule, "odd sizes", ~odd, odd)
        yield Split(rule, "even sizes", odd, ~odd)
    else:
        test = every_fourth(frame)
        yield Split(rule, "every fourth point", ~test, test)


def every_fourth(frame: pd.DataFrame) -> np.ndarray:
    """Boolean array: rows 3, 7, 11, ... in order of shape; the hold-out rule of `roofkit measure`."""
    order = frame.drop(columns=[c for c in ("time_us", "time_ms", "source") if c in frame]).astype(str).agg("|".join, axis=1)
    rank = order.rank(method="first").to_numpy().astype(int) - 1
    return rank % 4 == 3


def _rank_in_group(frame: pd.DataFrame) -> np.ndarray:
    """Position of each row among the sizes of its own curve (everything but size and time equal)."""
    size = next((c for c in ("bytes", "rows", "tokens", "m") if c in frame), None)
    if size is None:
        raise MeasurementError("split by 'sizes' needs a column bytes, rows, tokens or m")
    curve = [c for c in ("gpu", "op", "algo", "ranks", "nodes", "dtype", "cols", "mode", "hidden", "topk", "experts", "sms", "source") if c in frame and c != size]
    return frame.groupby(curve, dropna=False)[size].rank(method="first").to_numpy().astype(int)


def _folds(rule: str, unit: np.ndarray, folds: int, seed: int) -> Iterator[Split]:
    names, index = np.unique(unit, return_inverse=True)
    folds = min(folds, len(names))
    if folds < 2:
        raise MeasurementError(f"split by {rule!r} needs at least two families; all rows belong to {names[0]!r}")
    fold = np.empty(len(names), int)
    fold[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names)) % folds
    for number in range(folds):
        test = fold[index] == number
        yield Split(rule, f"fold {number + 1} of {folds}, seed {seed}", ~test, test)
