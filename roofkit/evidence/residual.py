"""Residual: a small learned correction on top of an analytic value, used inside its training domain and nowhere else. Room: evidence.

  log y = log y_form + w . phi(features),  y: a time, a power or an energy;  features: logs of sizes, of datasheet times and of the prediction, soft regimes
Ridge on a quadratic basis first; boosted trees (scikit-learn) only where they win on families that neither saw. The strength of
the ridge and the choice ridge / trees / off are made by folds of families inside the training part alone, never on the rows judged.
Off by default: outside the box of its training features, for another GPU, or where the inner folds show no gain, the factor is 1
and the flag says so. What is judged where: residual_operators.py, residual_regimes.py, residual_levels.py.
Follows HYMELL (arXiv 2608.06723) with the analytic value in place of polynomials.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofkit.errors import MeasurementError
from roofkit.evidence.validate import _interval

CLIP = np.log(2.0)  # a correction never exceeds a factor of two
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
LEAST_GAIN = 0.002  # mean error that a correction must save on inner held-out families to be used [0..1]
KEYS = ("level", "quantity", "op", "class", "device", "format", "rule")
TABLE = (*KEYS, "model", "mape", "low", "high", "gain", "gain_low", "gain_high", "applied", "n", "units", "seeds", "seed_sd")


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A fitted correction. kind: "ridge" | "trees" | "off"; low, high: the box of its training features; inner: error of every
    candidate on inner held-out families [0..1]; names: features in order."""

    kind: str
    correct: Callable[[np.ndarray], np.ndarray]
    low: np.ndarray
    high: np.ndarray
    inner: dict[str, float]
    names: tuple[str, ...]

    def inside(self, features: np.ndarray) -> np.ndarray:
        """Whether each row lies in the box of the training features."""
        return ((features >= self.low - 1e-9) & (features <= self.high + 1e-9)).all(axis=1)

    def factor(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(factor on the predicted value, whether it was applied): 1 and False outside the training domain or when off."""
        applied = self.inside(features) & (self.kind != "off")
        out = np.ones(len(features))
        if applied.any():
            out[applied] = np.exp(np.clip(self.correct(features[applied]), -CLIP, CLIP))
        return out, applied


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows to learn from or to judge on: features [rows, features] with their names (`group detail`), predicted and measured value,
    and the unit that no inner fold may split: a shape family, a model."""

    features: np.ndarray
    names: tuple[str, ...]
    predicted: np.ndarray
    measured: np.ndarray
    unit: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> "Part":
        return Part(self.features[rows], self.names, self.predicted[rows], self.measured[rows], self.unit[rows])

    def without(self, group: str) -> "Part":
        """The same rows with one group of features left out."""
        keep = [n.split()[0] != group for n in self.names]
        return Part(self.features[:, keep], tuple(n for n, k in zip(self.names, keep, strict=True) if k), self.predicted, self.measured, self.unit)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of features in order."""
        return tuple(dict.fromkeys(n.split()[0] for n in self.names))


def fit_residual(features: np.ndarray, log_ratio: np.ndarray, family: np.ndarray, *, names: Sequence[str] = (), trees: bool = True, folds: int = 4,
                 seed: int = 0) -> Residual:
    """Learn log(measured / predicted) from features; choose its kind on inner folds of families.

    features   [rows, features], finite;  log_ratio   target;  family   what may not be split between inner folds
    trees      try boosted trees too, where scikit-learn is installed. Raises MeasurementError for fewer than three families.
    """
    features, log_ratio = np.asarray(features, float), np.asarray(log_ratio, float)
    units, index = np.unique(family, return_inverse=True)
    if len(units) < 3:
        raise MeasurementError(f"a residual needs at least three shape families to be judged on; there are {len(units)}")
    learners: dict[str, Callable] = {f"ridge {s:g}": lambda x, y, s=s: ridge(x, y, s) for s in STRENGTHS}
    if trees and _trees_available():
        learners["trees"] = lambda x, y: _trees(x, y, seed)
    fold = np.random.default_rng(seed).permutation(len(units)) % min(folds, len(units))
    inner = {"off": float(np.abs(np.expm1(-log_ratio)).mean())}
    for name, learn in learners.items():
        inner[name] = inner_error(features, log_ratio, fold[index], learn)
    best = min(inner, key=inner.get)
    kind = "off" if inner["off"] - inner[best] < LEAST_GAIN else best
    correct = (lambda x: np.zeros(len(x))) if kind == "off" else learners[kind](features, log_ratio)
    return Residual(kind.split()[0], correct, features.min(axis=0), features.max(axis=0), inner, tuple(names))


def inner_error(features: np.ndarray, log_ratio: np.ndarray, fold: np.ndarray, learn: Callable) -> float:
    """Mean error left after a correction learnt on the other folds [0..1]."""
    left = log_ratio.copy()
    for number in np.unique(fold):
        test = fold == number
        left[test] -= np.clip(learn(features[~test], log_ratio[~test])(features[test]), -CLIP, CLIP)
    return float(np.abs(np.expm1(-left)).mean())


def judge(train: Part, test: Part, *, seed: int = 0, trees: bool = True, ablate: bool = False, carried: bool = False, folds: int = 4) -> pd.DataFrame:
    """Points of every variant on the test part: model ("form" | "ridge" | "chosen" | "ridge without <group>"), unit, error, form, applied.

    carried   the test part is another GPU's: "chosen" stays off as the product does, "... carried" shows what it would do there
    A training part of fewer than three units cannot judge a residual: all variants stay off.
    """
    ratio = np.log(train.measured / train.predicted)
    left = np.log(test.predicted / test.measured)
    form = np.abs(np.expm1(left))
    off = np.zeros(len(left), bool)
    found = [("form", form, off)]
    variants = [("ridge", False, None), ("chosen", trees, None)] + ([(f"ridge without {g}", False, g) for g in train.groups] if ablate else [])
    for name, with_trees, group in variants:
        a, b = (train, test) if group is None else (train.without(group), test.without(group))
        try:
            factor, applied = fit_residual(a.features, ratio, a.unit, names=a.names, trees=with_trees, seed=seed, folds=folds).factor(b.features)
        except MeasurementError:
            factor, applied = np.ones(len(left)), off
        error = np.abs(np.expm1(left + np.log(factor)))
        found += [(f"{name} carried", error, applied), *([("chosen", form, off)] if name == "chosen" else [])] if carried else [(name, error, applied)]
    return pd.concat([pd.DataFrame({"model": n, "unit": test.unit, "error": e, "form": form, "applied": a, "seed": seed}) for n, e, a in found], ignore_index=True)


def summarise(points: pd.DataFrame, keys: Sequence[str] = KEYS, draws: int = 400) -> pd.DataFrame:
    """Points of `judge` with columns `keys` -> one row per key and variant, columns TABLE.

    low, high   95 % of bootstraps of the mean error over whole units;  gain   error saved against the form alone, with its own interval
    n           rows of one seed;  seed_sd   of the mean error between seeds
    """
    rows = []
    for key, part in points.groupby([*keys, "model"], sort=True):
        unit, error = part["unit"].to_numpy(), part["error"].to_numpy()
        saved = part["form"].to_numpy() - error
        low, high = _interval(error, unit, draws)
        worst, best = _interval(saved, unit, draws)
        seeds = part.groupby("seed")["error"].mean()
        rows.append({**dict(zip((*keys, "model"), key, strict=True)), "mape": error.mean(), "low": low, "high": high, "gain": saved.mean(), "gain_low": worst,
                     "gain_high": best, "applied": part["applied"].mean(), "n": round(len(part) / len(seeds)), "units": part["unit"].nunique(), "seeds": len(seeds),
                     "seed_sd": seeds.std(ddof=0) if len(seeds) > 1 else np.nan})
    return pd.DataFrame(rows, columns=[*keys, *TABLE[len(KEYS):]])


def ridge(x: np.ndarray, y: np.ndarray, strength: float) -> Callable[[np.ndarray], np.ndarray]:
    """Ridge regression on a standardised quadratic basis; the constant is not shrunk."""
    centre, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    upper = np.triu_indices(x.shape[1])

    def basis(z: np.ndarray) -> np.ndarray:
        z = (z - centre) / scale
        return np.hstack([z, (z[:, :, None] * z[:, None, :])[:, upper[0], upper[1]]])

    b = basis(x)
    middle = b.mean(axis=0)
    w = np.linalg.solve((b - middle).T @ (b - middle) + strength * np.eye(b.shape[1]), (b - middle).T @ (y - y.mean()))
    return lambda z: (basis(z) - middle) @ w + y.mean()


def _trees(x: np.ndarray, y: np.ndarray, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits
    model = HistGradientBoostingRegressor(max_iter=40, max_leaf_nodes=15, learning_rate=0.2, max_bins=63, min_samples_leaf=10, early_stopping=False, random_state=seed)
    with threadpool_limits(1):  # threads that wait for each other on a busy machine take a hundred times as long
        model.fit(x, y)

    def predict(z: np.ndarray) -> np.ndarray:
        with threadpool_limits(1):
            return model.predict(z)

    return predict


def _trees_available() -> bool:
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        return False
    return True
