"""Residual: a small learned correction on top of an analytic time, used inside its training domain and nowhere else. Room: evidence.

  log t = log t_form + w . phi(features),  features: logs of sizes, of both datasheet times and of the prediction, soft regimes
Ridge on a quadratic basis first; boosted trees (scikit-learn) only where they win on families that neither saw. Regimes are
logistic weights of log intensity, not hard cuts: compute share = 1 / (1 + (memory / compute)^2). The strength of the ridge and
the choice ridge / trees / off are made by folds of families inside the training part alone, never on the rows judged.
Off by default: outside the box of its training features, for another GPU, or where the inner folds show no gain, the factor is 1
and the flag says so. Latency, power and whole steps alike: anything with a prediction, a measurement and features.
Follows HYMELL (arXiv 2608.06723) with the analytic time in place of polynomials.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofkit.errors import MeasurementError
from roofkit.evidence.calibrate import COLLECTIVES, summary
from roofkit.evidence.cases import Case
from roofkit.evidence.splits import families, splits
from roofkit.evidence.validate import _donor, _ideal_us

CLIP = np.log(2.0)  # a correction never exceeds a factor of two
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
LEAST_GAIN = 0.002  # mean error that a correction must save on inner held-out families to be used [0..1]
SIZES = {"gemm": ("m", "n", "k"), "moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"), "attention_decode": ("batch", "heads", "kv_heads", "head_dim", "kv_len"),
         "attention_prefill": ("batch", "heads", "kv_heads", "head_dim", "q_len"), "mla_decode": ("batch", "heads", "kv_len"), "mla_prefill": ("batch", "heads", "q_len")}


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
    learners: dict[str, Callable] = {f"ridge {s:g}": lambda x, y, s=s: _ridge(x, y, s) for s in STRENGTHS}
    if trees and _trees_available():
        learners["trees"] = lambda x, y: _trees(x, y, seed)
    fold = np.random.default_rng(seed).permutation(len(units)) % min(folds, len(units))
    inner = {"off": float(np.abs(np.expm1(-log_ratio)).mean())}
    for name, learn in learners.items():
        left = log_ratio.copy()
        for number in range(fold.max() + 1):
            test = fold[index] == number
            left[test] -= np.clip(learn(features[~test], log_ratio[~test])(features[test]), -CLIP, CLIP)
        inner[name] = float(np.abs(np.expm1(-left)).mean())
    best = min(inner, key=inner.get)
    kind = "off" if inner["off"] - inner[best] < LEAST_GAIN else best
    correct = (lambda x: np.zeros(len(x))) if kind == "off" else learners[kind](features, log_ratio)
    return Residual(kind.split()[0], correct, features.min(axis=0), features.max(axis=0), inner, tuple(names))


def case_features(rows: pd.DataFrame, case: Case, predicted_s: np.ndarray, drop: Sequence[str] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """(features, names): logs of sizes, `compute` and `memory` datasheet times, `prediction`, soft `regime`; `drop` leaves groups out."""
    columns = {f"size {c}": np.log(np.maximum(rows[c].to_numpy(float), 1.0)) for c in SIZES[case.op]}
    compute, memory = _ideal_us(rows, case)
    columns |= {"compute": np.log(compute), "memory": np.log(memory), "prediction": np.log(predicted_s), "regime": 1 / (1 + (memory / compute) ** 2)}
    kept = {k: v for k, v in columns.items() if k.split()[0] not in drop}
    return np.column_stack(list(kept.values())), tuple(kept)


def residual_table(cases: Sequence[Case], *, rules: Sequence[str] = ("random", "family", "head_dim", "gpu"), seeds: Sequence[int] = (0,), starts: int = 1,
                   ablate: bool = False) -> pd.DataFrame:
    """Error of form, form + ridge, form + trees and form + chosen on each kind of split; rows: case, rule, n, applied share.

    "gpu": constants and residual of the nearest other device. ablate: also with each feature group left out of the ridge.
    """
    out = []
    for case in cases:
        if case.op in COLLECTIVES:
            continue
        for rule in rules:
            for seed in seeds if rule in ("random", "family") else seeds[:1]:
                for train, test, model, target in _divisions(case, cases, rule, seed):
                    found = model.fit(train, starts=starts, seed=seed)
                    out += _judge(model, target, train, test, found.constants, rule, seed, ablate)
    table = pd.DataFrame(out)
    if table.empty:
        raise MeasurementError("no case can be divided by these rules")
    weight = table["n"]
    keys = ["op", "class", "device", "format", "rule", "model"]
    mean = lambda c: (table[c] * weight).groupby([table[k] for k in keys]).sum() / weight.groupby([table[k] for k in keys]).sum()  # noqa: E731
    return pd.DataFrame({"mape": mean("mape"), "applied": mean("applied"), "n": weight.groupby([table[k] for k in keys]).sum()}).reset_index()


def _divisions(case: Case, cases: Sequence[Case], rule: str, seed: int):
    """(training rows, test rows, case that prices the first, case that prices the second)."""
    if rule == "gpu":
        donor = _donor(case, list(cases))
        if donor is not None and [p.name for p in donor.parameters] == [p.name for p in case.parameters]:
            yield donor.rows, case.rows, donor, case
        return
    try:
        for part in splits(case.rows, rule, seed=seed):
            yield case.rows[part.train], case.rows[part.test], case, case
    except MeasurementError:
        return  # nothing to leave out in this class


def _judge(model: Case, target: Case, train: pd.DataFrame, test: pd.DataFrame, constants, rule: str, seed: int, ablate: bool) -> list[dict]:
    base_train, base_test = model.bound_form(train).seconds(constants), target.bound_form(test).seconds(constants)
    ratio = np.log(train["time_us"].to_numpy() * 1e-6 / base_train)
    left = np.log(base_test / (test["time_us"].to_numpy() * 1e-6))
    head = {"op": target.op, "class": target.cls, "device": target.device.name, "format": target.format, "rule": rule, "n": len(test), "seed": seed}
    rows = [{**head, "model": "form", "mape": summary(left)["mape"], "applied": 0.0}]
    variants = [("ridge", False, ()), ("chosen", True, ())] + ([(f"ridge without {g}", False, (g,)) for g in ("size", "compute", "memory", "prediction", "regime")] if ablate else [])
    for name, trees, drop in variants:
        x, names = case_features(train, model, base_train, drop)
        learned = fit_residual(x, ratio, families(train).to_numpy(), names=names, trees=trees, seed=seed)
        factor, applied = learned.factor(case_features(test, target, base_test, drop)[0])
        if rule == "gpu":
            applied[:], factor = False, np.ones(len(test))  # never carried to another GPU: it is worth nothing there (data/roofkit_data/evidence/residual.csv)
        rows.append({**head, "model": name, "mape": summary(left + np.log(factor))["mape"], "applied": float(applied.mean())})
    return rows


def _ridge(x: np.ndarray, y: np.ndarray, strength: float) -> Callable[[np.ndarray], np.ndarray]:
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
    model = HistGradientBoostingRegressor(max_iter=100, max_leaf_nodes=15, learning_rate=0.1, min_samples_leaf=10, random_state=seed)
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
