"""Residual of operators: what a learned correction saves on kernels that no fit saw. Room: evidence.

The form is fitted on the training part, the residual and the soft thresholds on the same part; shape families, head widths or
whole GPUs are left out. "gpu": constants of the nearest other device (validate._donor); the residual stays off there, and the
rows "... carried" show what it would have done. Power: the same over the form of power.py.
"""
from collections.abc import Sequence

import numpy as np
import pandas as pd

from roofkit.errors import MeasurementError
from roofkit.evidence.calibrate import COLLECTIVES
from roofkit.evidence.cases import Case
from roofkit.evidence.residual import Part, judge, summarise
from roofkit.evidence.residual_regimes import Thresholds, choose, sensitivity, with_regimes
from roofkit.evidence.splits import families, splits
from roofkit.evidence.validate import _donor, _ideal_us

SIZES = {"gemm": ("m", "n", "k"), "moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"), "attention_decode": ("batch", "heads", "kv_heads", "head_dim", "kv_len"),
         "attention_prefill": ("batch", "heads", "kv_heads", "head_dim", "q_len"), "mla_decode": ("batch", "heads", "kv_len"), "mla_prefill": ("batch", "heads", "q_len")}
RULES = ("random", "family", "head_dim", "gpu")
SEEDED = ("random", "family")  # rules whose folds are drawn
FOLDS = 3  # of those, and of the training part


def case_part(rows: pd.DataFrame, case: Case, constants, at: Thresholds = Thresholds()) -> tuple[Part, tuple[np.ndarray, np.ndarray]]:
    """Rows of a case as a Part, with the form's prediction [s], and their ideal (compute, memory) times [us].

    Features: `size ...` logs of sizes, `compute` and `memory` datasheet times, `prediction`, soft `regime ...`.
    """
    predicted = np.asarray(case.bound_form(rows).seconds(constants), float)
    compute, memory = _ideal_us(rows, case)
    columns = {f"size {c}": np.log(np.maximum(rows[c].to_numpy(float), 1.0)) for c in SIZES[case.op]}
    columns |= {"compute": np.log(compute), "memory": np.log(memory), "prediction": np.log(predicted)}
    part = Part(np.column_stack(list(columns.values())), tuple(columns), predicted, rows["time_us"].to_numpy(float) * 1e-6, families(rows).to_numpy())
    return with_regimes(part, compute, memory, at), (compute, memory)


def residual_points(case: Case, cases: Sequence[Case], *, rules: Sequence[str] = RULES, seeds: Sequence[int] = (0,), starts: int = 1, trees: bool = True,
                    ablate: bool = False, most: int | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(points of `judge`, points of `sensitivity` by family) of one case; `cases` holds the donors for "gpu". Empty frames: nothing to leave out.

    ablate   also with each group of features left out, on the first seed;  most   whole families drawn until about so many rows
    """
    head = {"level": "operator", "quantity": "time", "op": case.op, "class": case.cls, "device": case.device.name, "format": case.format}
    judged, sensed = [], []
    for rule in rules:
        for seed in seeds if rule in SEEDED else seeds[:1]:
            for train, test, model, target in _divisions(case, cases, rule, seed, most):
                constants = model.fit(train, starts=starts, seed=seed).constants
                (learn, ideal), (see, other) = case_part(train, model, constants), case_part(test, target, constants)
                at = choose(learn, *ideal, seed=seed, folds=FOLDS)
                points = judge(with_regimes(learn, *ideal, at), with_regimes(see, *other, at), seed=seed, trees=trees, ablate=ablate and seed == seeds[0] and rule == "family",
                               carried=rule == "gpu", folds=FOLDS)
                judged.append(points.assign(**head, rule=rule))
                if rule == "family":
                    sensed.append(sensitivity(learn, see, ideal, other, at, seed=seed, folds=FOLDS).assign(**head, rule=rule))
    empty = pd.DataFrame()
    return pd.concat(judged, ignore_index=True) if judged else empty, pd.concat(sensed, ignore_index=True) if sensed else empty


def residual_table(cases: Sequence[Case], **settings) -> pd.DataFrame:
    """Error of form, form + ridge and form + chosen on each kind of split, columns residual.TABLE; settings as `residual_points` takes them."""
    found = [p for p in (residual_points(case, cases, **settings)[0] for case in cases if case.op not in COLLECTIVES) if len(p)]
    if not found:
        raise MeasurementError("no case can be divided by these rules")
    return summarise(pd.concat(found, ignore_index=True))


def thinned(rows: pd.DataFrame, most: int | None) -> pd.DataFrame:
    """Whole shape families in a fixed drawn order until about `most` rows are kept, so that families stay as dense as measured."""
    if most is None or len(rows) <= most:
        return rows
    family = families(rows)
    names = np.random.default_rng(0).permutation(np.unique(family))
    sizes = family.value_counts()
    keep = names[:max(int(np.searchsorted(np.cumsum(sizes[names].to_numpy()), most)), 5)]
    return rows[family.isin(keep)]


def _divisions(case: Case, cases: Sequence[Case], rule: str, seed: int, most: int | None):
    """(training rows, test rows, case that prices the first, case that prices the second)."""
    rows = thinned(case.rows, most)
    if rule == "gpu":
        donor = _donor(case, list(cases))
        if donor is not None and [p.name for p in donor.parameters] == [p.name for p in case.parameters]:
            yield thinned(donor.rows, most), rows, donor, case
        return
    try:
        for part in splits(rows, rule, folds=FOLDS, seed=seed):
            yield rows[part.train], rows[part.test], case, case
    except MeasurementError:
        return  # nothing to leave out in this class
