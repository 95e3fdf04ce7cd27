"""The residual: wins where there is something to learn, stays off where there is not, and never acts outside its domain."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofkit.errors import MeasurementError
from roofkit.evidence.residual import CLIP, fit_residual


def rows(seed=0, size=400, strength=0.3, noise=0.02):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 5, (size, 3))
    family = np.floor(x[:, 0] * 4).astype(int)
    return x, strength * np.sin(x[:, 1]) + 0.05 * x[:, 2] * strength + noise * rng.standard_normal(size), family


def test_it_learns_a_smooth_error_of_the_form_and_says_which_kind_won():
    x, y, family = rows()
    learned = fit_residual(x, y, family, trees=False)
    factor, applied = learned.factor(x)
    assert learned.kind == "ridge" and applied.all() and np.abs(y - np.log(factor)).mean() < 0.5 * np.abs(y).mean()
    assert learned.inner["off"] > min(v for k, v in learned.inner.items() if k != "off")


def test_trees_win_only_where_the_error_has_steps():
    pytest.importorskip("sklearn")
    x, y, family = rows()
    steps = np.where(np.floor(x[:, 1]) % 2 == 0, 0.3, -0.3) + 0.01 * y
    assert fit_residual(x, steps, family).kind == "trees"


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_pure_noise_switches_it_off(seed):
    x, _, family = rows(seed)
    y = 0.05 * np.random.default_rng(seed).standard_normal(len(x))
    learned = fit_residual(x, y, family, trees=False)
    assert learned.kind == "off" or learned.inner["off"] - min(learned.inner.values()) < 0.006


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(0.01, 1e3), column=st.integers(0, 2))
def test_outside_the_training_box_the_factor_is_one_and_the_flag_says_so(shift, column):
    x, y, family = rows()
    learned = fit_residual(x, y, family, trees=False)
    moved = x.copy()
    moved[:, column] = x[:, column].max() + shift
    factor, applied = learned.factor(moved)
    assert (factor == 1).all() and not applied.any()


def test_a_correction_never_exceeds_a_factor_of_two():
    x, _, family = rows()
    learned = fit_residual(x, np.where(x[:, 1] > 2.5, 3.0, -3.0), family, trees=False)
    factor, _ = learned.factor(x)
    assert factor.max() <= np.exp(CLIP) + 1e-12 and factor.min() >= np.exp(-CLIP) - 1e-12


def test_two_families_cannot_judge_it():
    x, y, _ = rows()
    with pytest.raises(MeasurementError, match="at least three"):
        fit_residual(x, y, np.arange(len(x)) % 2)
