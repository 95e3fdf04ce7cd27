"""Regimes: soft thresholds between launch, memory and compute, chosen on the training part, and how much they matter. Room: evidence.

  memory weight = 1 / (1 + (a / ridge)^2),  a = arithmetic intensity over the datasheet ridge point = compute / memory time
  launch weight = 1 / (1 + (max(compute, memory) / launch_us)^2)
Logistic in the logarithm, so a threshold is where a weight is one half and no row is cut. Both thresholds are chosen by folds of
families inside the training part. Sensitivity (EQUATIONS.md R14): each is moved by -20 % and +20 %, the ridge is learnt anew, and the
held-out error is taken over all rows and over the boundary set: rows within 10 % of the chosen threshold. Boosted trees are
not asked: a monotone change of a feature changes nothing for them.
"""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from roofkit.evidence.residual import KEYS, Part, inner_error, judge, ridge, summarise

RIDGES = (0.25, 0.5, 1.0, 2.0)  # of the datasheet's ridge point
LAUNCHES_US = (1.5, 3.0, 6.0, 12.0)
MOVES = (0.8, 1.2)
BOUNDARY = 0.10  # a row is at the boundary within this share of a threshold
STRENGTH = 10.0  # of the ridge that compares thresholds
SENSITIVITY = (*KEYS, "moved", "rows", "model", "mape", "low", "high", "n", "units", "seeds", "seed_sd", "ridge", "launch_us")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """ridge: arithmetic intensity where memory and compute weigh the same, in datasheet ridge points; launch_us: ideal time where the launch weighs half [us]."""

    ridge: float = 1.0
    launch_us: float = 3.0


def weights(compute_us: np.ndarray, memory_us: np.ndarray, at: Thresholds) -> dict[str, np.ndarray]:
    """The soft regimes as features, 0..1."""
    return {"regime memory": 1 / (1 + (compute_us / memory_us / at.ridge) ** 2),
            "regime launch": 1 / (1 + (np.maximum(compute_us, memory_us) / at.launch_us) ** 2)}


def with_regimes(part: Part, compute_us: np.ndarray, memory_us: np.ndarray, at: Thresholds) -> Part:
    """The part with its regime features at these thresholds, in place of any it had."""
    bare, columns = part.without("regime"), weights(compute_us, memory_us, at)
    return Part(np.column_stack([bare.features, *columns.values()]), (*bare.names, *columns), part.predicted, part.measured, part.unit)


def choose(part: Part, compute_us: np.ndarray, memory_us: np.ndarray, *, seed: int = 0, folds: int = 4) -> Thresholds:
    """Thresholds with the least error on inner folds of units: first the ridge, then the launch. The default with fewer than three units."""
    units, index = np.unique(part.unit, return_inverse=True)
    best = Thresholds()
    if len(units) < 3:
        return best
    fold = (np.random.default_rng(seed).permutation(len(units)) % min(folds, len(units)))[index]
    ratio = np.log(part.measured / part.predicted)

    def error(at: Thresholds) -> float:
        return inner_error(with_regimes(part, compute_us, memory_us, at).features, ratio, fold, lambda x, y: ridge(x, y, STRENGTH))

    best = min((replace(best, ridge=r) for r in RIDGES), key=error)
    return min((replace(best, launch_us=u) for u in LAUNCHES_US), key=error)


def moved(at: Thresholds) -> Mapping[str, Thresholds]:
    """The chosen thresholds and each of them moved by MOVES, by name: "ridge -20 %"."""
    out = {"chosen": at}
    for name in ("ridge", "launch_us"):
        out |= {f"{name.removesuffix('_us')} {100 * (m - 1):+.0f} %": replace(at, **{name: getattr(at, name) * m}) for m in MOVES}
    return out


def boundary(compute_us: np.ndarray, memory_us: np.ndarray, at: Thresholds) -> dict[str, np.ndarray]:
    """Rows within BOUNDARY of either threshold, by name; "all" first."""
    near = {"near ridge": compute_us / memory_us / at.ridge, "near launch": np.maximum(compute_us, memory_us) / at.launch_us}
    return {"all": np.ones(len(compute_us), bool)} | {k: np.abs(v - 1) <= BOUNDARY for k, v in near.items()}


def sensitivity(train: Part, test: Part, ideal_train: Sequence[np.ndarray], ideal_test: Sequence[np.ndarray], at: Thresholds, *, seed: int = 0, folds: int = 4) -> pd.DataFrame:
    """Points of `judge` with `moved`, `rows`, `ridge` and `launch_us` added: the thresholds `at`, chosen on the training part, then moved."""
    sets, out = boundary(*ideal_test, at), []
    for name, there in moved(at).items():
        points = judge(with_regimes(train, *ideal_train, there), with_regimes(test, *ideal_test, there), seed=seed, trees=False, folds=folds)
        points = points[points["model"] != "chosen"]
        for rows, keep in sets.items():
            mask = np.tile(keep, len(points) // len(keep))
            out.append(points[mask].assign(moved=name, rows=rows, ridge=there.ridge, launch_us=there.launch_us))
    return pd.concat(out, ignore_index=True)


def sensitivity_table(points: pd.DataFrame) -> pd.DataFrame:
    """Points of `sensitivity` with KEYS -> columns SENSITIVITY; thresholds: their geometric mean over divisions and seeds."""
    keys = [*KEYS, "moved", "rows"]
    table = summarise(points, keys)
    mean = points.groupby([*keys, "model"])[["ridge", "launch_us"]].agg(lambda v: float(np.exp(np.log(v).mean()))).reset_index()
    return table.merge(mean, on=[*keys, "model"]).reindex(columns=list(SENSITIVITY))
