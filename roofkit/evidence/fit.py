"""Fit: constants of a closed form from measured times, by robust least squares on log time. Room: evidence.

A form is a function of its constants that returns seconds for every row; the fit minimises the soft-L1 loss of
log(predicted / measured), then the same loss with a small scale (close to L1), from several starts inside the bounds.
Standard errors: sandwich estimate of an M-estimator, clustered by shape family where families are given
(White 1980, Econometrica 48(4); Huber 1967), because rows of one shape err together.
"""
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from roofkit.errors import MeasurementError

FAR = 20.0  # residual that stands for a time that is not finite
SOFT, SHARP = 0.1, 0.02  # scales of the two stages: errors below these count squared, above them by their size [log units]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant of a form: its bounds and first guess, in the unit the form takes. `log`: searched on a log scale."""

    name: str
    low: float
    high: float
    start: float
    log: bool = True
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.low <= self.start <= self.high or (self.log and self.low <= 0):
            raise MeasurementError(f"parameter {self.name!r}: need low <= start <= high (and low > 0 on a log scale), "
                                   f"got {self.low}, {self.start}, {self.high}")


@dataclass(frozen=True, slots=True)
class Form:
    """A closed form with its rows already bound in: `seconds(constants)` -> predicted time of every row [s]."""

    name: str
    parameters: tuple[Parameter, ...]
    seconds: Callable[[Mapping[str, float]], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Fitted constants. errors: standard errors in the constants' own units; NaN where a constant sits at its bound.

    mape, median, bias are those on the rows fitted [0..1]; held-out errors belong to a split, see validate.py.
    """

    form: str
    constants: dict[str, float]
    errors: dict[str, float]
    at_bound: tuple[str, ...]
    n: int
    loss: float
    mape: float
    median: float
    bias: float


def fit(form: Form, measured_s: np.ndarray, *, families: np.ndarray | None = None, starts: int = 4, seed: int = 0,
        first: Mapping[str, float] | None = None, coarse: Form | None = None, coarse_measured_s: np.ndarray | None = None) -> Fit:
    """Constants that bring `form` closest to `measured_s` [s] on a log scale.

    starts   starting points, of which the first is `first` or the declared one; the rest are the best of twice as many drawn
             inside the bounds.  coarse: the same form over fewer rows with their times, used to choose among starts
    Raises MeasurementError where scipy is missing, rows are fewer than constants + 1, or the form gives no finite time.
    """
    optimize = _scipy_optimize()
    measured_s = np.asarray(measured_s, float)
    names = [p.name for p in form.parameters]
    if measured_s.size <= len(names):
        raise MeasurementError(f"form {form.name!r} has {len(names)} constants but only {measured_s.size} rows were given; measure more points")
    box = _Box(form.parameters)
    residual = _residual(form, box, measured_s)
    rough = residual if coarse is None else _residual(coarse, box, np.asarray(coarse_measured_s, float))
    settings = {"bounds": (box.low, box.high), "loss": "soft_l1", "x_scale": box.scale}
    best = None
    for x0 in _starts(box, form.parameters, rough, starts, seed, first):
        found = optimize.least_squares(rough, x0, f_scale=SOFT, max_nfev=50, ftol=1e-4, xtol=1e-5, **settings)
        if best is None or found.cost < best.cost:
            best = found
    if coarse is not None:
        best = optimize.least_squares(rough, best.x, f_scale=SHARP, max_nfev=40, ftol=1e-4, xtol=1e-5, **settings)
    sharp = optimize.least_squares(residual, best.x, f_scale=SHARP, max_nfev=25 if coarse is not None else 80, ftol=1e-5, xtol=1e-5, **settings)
    r = residual(sharp.x)
    if (r >= FAR).all():
        raise MeasurementError(f"form {form.name!r}: no finite time on any row; check units and shapes")
    constants, bound = box.constants(sharp.x), box.at_bound(sharp.x)
    errors = _standard_errors(residual, sharp.x, r, box, families, constants)
    return Fit(form.name, constants, errors, tuple(n for n, b in zip(names, bound, strict=True) if b), measured_s.size, float(np.mean(np.abs(r))),
               float(np.mean(np.abs(np.expm1(r)))), float(np.median(np.abs(np.expm1(r)))), float(np.expm1(np.median(r))))


class _Box:
    """Maps constants to the search space: logs of those on a log scale, within bounds."""

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        self.names = [p.name for p in parameters]
        self.log = np.array([p.log for p in parameters])
        low, high = (np.array([getattr(p, end) for p in parameters], float) for end in ("low", "high"))
        with np.errstate(divide="ignore", invalid="ignore"):
            self.low, self.high = np.where(self.log, np.log(low), low), np.where(self.log, np.log(high), high)
        same = self.high <= self.low
        self.high = np.where(same, self.low + 1e-9, self.high)
        self.scale = np.where(self.log, 1.0, np.maximum(self.high - self.low, 1e-9))

    def constants(self, x: np.ndarray) -> dict[str, float]:
        return {n: float(np.exp(v)) if g else float(v) for n, v, g in zip(self.names, x, self.log, strict=True)}

    def inside(self, values: Mapping[str, float]) -> np.ndarray:
        x = np.array([values[n] for n in self.names], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(self.log, np.log(np.maximum(x, 1e-300)), x)
        margin = 1e-3 * (self.high - self.low)
        return np.clip(x, self.low + margin, self.high - margin)

    def at_bound(self, x: np.ndarray) -> np.ndarray:
        return (x - self.low < 5e-3 * (self.high - self.low)) | (self.high - x < 5e-3 * (self.high - self.low))


def _residual(form: Form, box: _Box, measured_s: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    target = np.log(measured_s)

    def residual(x: np.ndarray) -> np.ndarray:
        predicted = np.asarray(form.seconds(box.constants(x)), float)
        with np.errstate(divide="ignore", invalid="ignore"):
            r = np.log(predicted) - target
        return np.where(np.isfinite(r), r, FAR)

    return residual


def _starts(box: _Box, parameters, residual, starts: int, seed: int, first: Mapping[str, float] | None) -> list[np.ndarray]:
    """The first guess, and the best of some drawn around it: bounds are far apart on purpose, so not over the whole box."""
    centre = box.inside({**{p.name: p.start for p in parameters}, **(first or {})})
    rng = np.random.default_rng(seed)
    spread = np.where(box.log, np.minimum(1.2, (box.high - box.low) / 4), (box.high - box.low) / 4)
    drawn = [np.clip(centre + rng.normal(size=centre.size) * spread, box.low + 1e-6, box.high - 1e-6) for _ in range(4 * max(starts - 1, 0))]
    return [centre, *sorted(drawn, key=lambda x: float(np.mean(np.abs(residual(x)))))[:max(starts - 1, 0)]]


def _standard_errors(residual, x, r, box, families, constants) -> dict[str, float]:
    free = ~box.at_bound(x)
    step = np.where(box.log, 1e-4, 1e-4 * (box.high - box.low))
    jacobian = np.empty((r.size, x.size))
    for j in range(x.size):
        up = x.copy()
        up[j] = x[j] + (step[j] if x[j] + step[j] <= box.high[j] else -step[j])
        jacobian[:, j] = (residual(up) - r) / (up[j] - x[j])
    g = jacobian[:, free]
    z = (r / SHARP) ** 2
    slope = r / np.sqrt(1 + z)  # derivative of the soft-L1 loss; its own derivative is the curvature
    curvature = (1 + z) ** -1.5
    bread = np.linalg.pinv(g.T @ (curvature[:, None] * g))
    score = g * slope[:, None]
    if families is not None:
        _, index = np.unique(families, return_inverse=True)
        score = np.stack([np.bincount(index, score[:, j]) for j in range(score.shape[1])], axis=1) if score.size else score
    variance = np.full(x.size, np.nan)
    variance[free] = np.diag(bread @ (score.T @ score) @ bread)
    spread = np.sqrt(np.maximum(variance, 0.0))
    return {n: float(s * constants[n]) if g else float(s) for n, s, g in zip(box.names, spread, box.log, strict=True)}


def _scipy_optimize():
    try:
        from scipy import optimize
    except ImportError:
        raise MeasurementError("fitting constants needs scipy; install it with: pip install 'roofkit[calibrate]'") from None
    return optimize
