"""The residual: wins where there is something to learn, stays off where there is not, and never acts outside its domain."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofkit.errors import MeasurementError
from roofkit.evidence import residual, residual_refit
from roofkit.evidence import residual_levels as levels
from roofkit.evidence.cases import cases
from roofkit.evidence.measurements import read_measurements
from roofkit.evidence.residual import CLIP, KEYS, TABLE, Part, fit_residual, judge, summarise
from roofkit.evidence.residual_operators import case_part, residual_points, residual_table, thinned
from roofkit.evidence.residual_regimes import SENSITIVITY, Thresholds, boundary, choose, moved, sensitivity, sensitivity_table, weights, with_regimes
from roofkit.evidence.splits import families
from roofkit.hardware.presets import load_device


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


# ---- judged on parts --------------------------------------------------------------------------------------------------


def part(seed=0, size=400, known=True, unit=None, names=("size a", "size b", "regime c")):
    """A form that is wrong by a smooth factor (known) or by noise alone."""
    x, y, family = rows(seed, size)
    y = y if known else 0.05 * np.random.default_rng(seed).standard_normal(size)
    return Part(x, names, np.ones(size), np.exp(y), family if unit is None else unit)


def test_a_known_error_of_the_form_is_recovered_on_rows_left_out_and_noise_is_left_alone():
    for known in (True, False):
        points = judge(part(0, known=known), part(1, known=known), trees=False)
        error = points.groupby("model")["error"].mean()
        assert (error["ridge"] < 0.4 * error["form"]) == known and (known or abs(error["chosen"] - error["form"]) < 0.004)
        assert set(points["model"]) == {"form", "ridge", "chosen"} and not points.loc[points["model"] == "form", "applied"].any()


def test_it_is_switched_off_outside_its_training_domain_and_for_another_gpu_but_the_table_says_what_it_would_have_done():
    train, test = part(0), part(1)
    far = Part(test.features + 100, test.names, test.predicted, test.measured, test.unit)
    points = judge(train, far, trees=False)
    assert not points["applied"].any() and (points["error"] == points["form"]).all()
    points = judge(train, test, trees=False, carried=True)
    error = points.groupby("model")["error"].mean()
    assert set(error.index) == {"form", "ridge carried", "chosen carried", "chosen"} and error["chosen"] == error["form"] > error["ridge carried"]
    assert not points.loc[points["model"] == "chosen", "applied"].any() and points.loc[points["model"] == "ridge carried", "applied"].mean() > 0.9


def test_two_units_leave_it_off_instead_of_raising():
    train = part(0, unit=np.arange(400) % 2)
    points = judge(train, part(1), trees=False)
    assert not points["applied"].any() and (points["error"] == points["form"]).all()


def test_leaving_out_the_feature_that_matters_costs_and_leaving_out_another_does_not():
    points = judge(part(0, names=("a", "b", "c")), part(1, names=("a", "b", "c")), trees=False, ablate=True)  # b carries the error of the form
    error = points.groupby("model")["error"].mean()
    assert error["ridge without b"] > 2 * error["ridge"] and error["ridge without a"] < 1.2 * error["ridge"]


def test_judging_twice_gives_the_same_points():
    pytest.importorskip("sklearn")
    for _ in range(2):
        again = judge(part(0), part(1), seed=3, ablate=True)
        first = judge(part(0), part(1), seed=3, ablate=True)
    pd.testing.assert_frame_equal(first, again)


def test_the_summary_counts_rows_of_one_seed_and_its_gain_is_the_error_saved():
    head = dict.fromkeys(KEYS, "x")
    points = pd.concat([judge(part(0), part(1), seed=s, trees=False) for s in range(5)]).assign(**head)
    table = summarise(points)
    assert list(table.columns) == list(TABLE) and (table["seeds"] == 5).all() and (table["n"] == 400).all() and (table["units"] == points["unit"].nunique()).all()
    by = table.set_index("model")
    assert by.loc["ridge", "gain"] == pytest.approx(by.loc["form", "mape"] - by.loc["ridge", "mape"]) and by.loc["form", "gain"] == 0
    assert 0 < by.loc["ridge", "gain_low"] < by.loc["ridge", "gain"] < by.loc["ridge", "gain_high"] and by.loc["ridge", "low"] < by.loc["ridge", "mape"] < by.loc["ridge", "high"]


# ---- soft regimes -----------------------------------------------------------------------------------------------------


def regimes(seed=0, at=Thresholds(0.5, 6.0), size=1500, noise=0.005):
    """Rows whose form is wrong by 30 % on the memory side of a soft threshold and by 30 % near the launch."""
    rng = np.random.default_rng(seed)
    compute, memory = np.exp(rng.uniform(-1, 5, size)), np.exp(rng.uniform(-1, 5, size))
    shares = weights(compute, memory, at)
    y = 0.3 * shares["regime memory"] - 0.3 * shares["regime launch"] + noise * rng.standard_normal(size)
    bare = Part(np.column_stack([np.log(compute), np.log(memory)]), ("compute", "memory"), np.ones(size), np.exp(y), np.floor(5 * np.log(memory)).astype(int) % 40)
    return bare, (compute, memory)


def test_a_weight_is_one_half_at_its_threshold():
    found = weights(np.array([0.5, 3.0]), np.array([1.0, 2.0]), Thresholds(0.5, 3.0))
    assert found["regime memory"][0] == pytest.approx(0.5) and found["regime launch"][1] == pytest.approx(0.5)


@pytest.mark.parametrize("true", [Thresholds(0.5, 6.0), Thresholds(2.0, 3.0), Thresholds(0.25, 12.0)])
def test_thresholds_are_found_on_the_training_part_alone(true):
    bare, ideal = regimes(at=true)
    assert choose(bare, *ideal) == true
    few = replace(bare, unit=np.arange(len(bare.unit)) % 2)
    assert choose(few, *ideal) == Thresholds()


def test_moved_thresholds_are_worse_where_they_matter_and_the_boundary_set_lies_at_the_threshold():
    (train, ideal), (test, other) = regimes(0, noise=1e-4), regimes(1, noise=1e-4)
    at = choose(train, *ideal)
    points = sensitivity(train, test, ideal, other, at).assign(**dict.fromkeys(KEYS, "x"))
    table = sensitivity_table(points)
    assert list(table.columns) == list(SENSITIVITY) and set(table["moved"]) == {"chosen", "ridge -20 %", "ridge +20 %", "launch -20 %", "launch +20 %"}
    error = table[(table["model"] == "ridge") & (table["rows"] == "all")].set_index("moved")["mape"]
    assert error["chosen"] == error.min() < 0.8 * error.max() and error.max() < 0.02 < table.loc[(table["model"] == "form") & (table["rows"] == "all"), "mape"].min()
    near = boundary(*other, at)
    ratio = other[0] / other[1] / at.ridge
    assert near["all"].all() and (np.abs(ratio[near["near ridge"]] - 1) <= 0.1).all() and 20 < near["near ridge"].sum() < 200
    assert table[table["rows"] == "near ridge"]["n"].iloc[0] == near["near ridge"].sum()
    assert [t.ridge for n, t in moved(at).items() if n.startswith("ridge")] == [pytest.approx(0.8 * at.ridge), pytest.approx(1.2 * at.ridge)]


def test_regime_features_replace_those_that_were_there():
    bare, ideal = regimes()
    once = with_regimes(bare, *ideal, Thresholds())
    twice = with_regimes(once, *ideal, Thresholds(2.0))
    assert once.names == twice.names == ("compute", "memory", "regime memory", "regime launch") and twice.groups == ("compute", "memory", "regime")


# ---- tables -----------------------------------------------------------------------------------------------------------


def products(error, device="h100-sxm-80gb", seed=0):
    """A case of products whose measured times are the form's with constants at their first guess, times exp(error(m, n, k))."""
    rng = np.random.default_rng(seed)
    n, k = (2 ** rng.integers(9, 14, 30) for _ in range(2))
    frame = pd.DataFrame([{"gpu": "H100-SXM", "dtype": "bf16", "m": m, "n": a, "k": b, "time_us": 1.0, "source": "aic:trtllm-1.3.0rc20"}
                          for a, b in zip(n, k, strict=True) for m in (1, 16, 64, 256, 1024, 4096)])
    frame = frame.drop_duplicates(["m", "n", "k"])
    case = next(cases(read_measurements(frame), load_device(device)))
    true = case.bound_form(case.rows).seconds({p.name: p.start for p in case.parameters}) * 1e6
    noise = 0.01 * np.random.default_rng(1).standard_normal(len(true))
    return replace(case, rows=case.rows.assign(time_us=true * np.exp(error(*(case.rows[c].to_numpy(float) for c in "mnk")) + noise)))


def test_an_operator_with_an_error_that_its_form_cannot_hold_gains_on_unseen_shapes_and_one_without_does_not():
    wrong = products(lambda m, n, k: 0.25 * np.sin(1.3 * np.log2(m)))
    table = residual_table([wrong], rules=("family",), seeds=(0, 1), trees=False, ablate=True, starts=1).set_index("model")
    assert table.loc["chosen", "mape"] < 0.7 * table.loc["form", "mape"] and table.loc["chosen", "gain_low"] > 0 and table.loc["chosen", "seeds"] == 2
    assert {"ridge without size", "ridge without regime"} <= set(table.index)
    right = residual_table([products(lambda m, n, k: 0 * m)], rules=("family", "random"), trees=False)
    assert (right["gain"].abs() < 0.004).all()
    with pytest.raises(MeasurementError, match="no case"):
        residual_table([products(lambda m, n, k: 0 * m)], rules=("head_dim",))


def test_no_family_of_the_test_part_is_seen_by_the_fit_and_thinning_keeps_families_whole():
    case = products(lambda m, n, k: 0 * m)
    kept = thinned(case.rows, 60)
    whole = families(case.rows).value_counts()
    assert len(kept) < 110 and (families(kept).value_counts() == whole[families(kept).unique()]).all() and thinned(case.rows, None) is case.rows
    constants = {p.name: p.start for p in case.parameters}
    known, (compute, memory) = case_part(case.rows, case, constants)
    assert known.groups == ("size", "compute", "memory", "prediction", "regime") and np.isfinite(known.features).all() and (compute > 0).all() and (memory > 0).all()
    points, sensed = residual_points(case, [case], rules=("family",), seeds=(0,), trees=False)
    assert points.groupby("model").size().nunique() == 1 and (points.groupby("model")["unit"].nunique() == whole.size).all() and set(sensed["rows"]) >= {"all"}


def bench(known, device=("one",), level="step"):
    """Six models, of which each is wrong in the same (known) or in its own way."""
    x, y, _ = rows(0, 600)
    model = np.repeat(np.array([f"model {i}" for i in range(6)]), 100)
    y = y if known else np.repeat(np.random.default_rng(2).uniform(-0.4, 0.4, 6), 100)
    whole = Part(x, ("size a", "size b", "bound c"), np.ones(600), np.exp(y), model)
    return levels.Bench(level, "time", "serving", "any", lambda _: whole, np.resize(np.array(device), 600), model)


def test_an_error_that_models_share_is_learnt_and_one_of_each_model_is_refused_even_where_random_rows_would_reward_it():
    def table(b):
        points = levels.bench_points(b, rules=("random", "model"), trees=False)
        found = summarise(points)
        return found[found["class"] == ""].set_index(["rule", "model"]), found
    shared, everything = table(bench(True))
    assert shared.loc[("model", "chosen"), "gain_low"] > 0 and set(everything.loc[everything["class"] != "", "class"]) == {f"model {i}" for i in range(6)}
    own = replace(bench(False), part=lambda _: replace_features(bench(False)))
    whole, test = own.part(None), np.random.default_rng(0).random(600) < 0.3
    learnt = fit_residual(whole.features[~test], np.log(whole.measured[~test]), np.arange((~test).sum()), trees=False)  # judged on random rows: looks fine
    assert learnt.kind == "ridge" and learnt.inner["off"] - min(learnt.inner.values()) > 0.03
    refused, _ = table(own)
    assert refused.loc[("model", "chosen"), "gain"] < 0.01 and not refused.loc[("random", "chosen"), "applied"]  # judged on models: off


def replace_features(b):
    """Features that tell the models apart, so that random rows can be learnt by heart."""
    whole = b.part(np.ones(600, bool))
    named = np.repeat(np.random.default_rng(3).uniform(0, 5, 6), 100) + 0.05 * whole.features[:, 0]
    return Part(np.column_stack([named, whole.features[:, 1:]]), whole.names, whole.predicted, whole.measured, whole.unit)


def test_on_an_unseen_gpu_the_product_stays_off():
    table = summarise(levels.bench_points(bench(True, ("a", "b")), rules=("gpu",), trees=False))
    whole = table[table["class"] == ""].set_index("model")
    assert whole.loc["chosen", "applied"] == 0 and whole.loc["chosen", "mape"] == whole.loc["form", "mape"] > whole.loc["ridge carried", "mape"]
    assert set(table["class"]) == {"", "a", "b"} and levels.bench_points(bench(True), rules=("gpu",)).empty


def test_checkpoints_of_one_shape_are_one_model():
    found = levels.shape_names(pd.Series(["deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B", "nobody/knows-it"]))
    assert found.iloc[0] == found.iloc[1] != found.iloc[2] and found.iloc[3] == "nobody/knows-it"


def test_the_tables_are_written_with_their_columns_and_kept_operators_are_not_judged_again(tmp_path, monkeypatch):
    case = products(lambda m, n, k: 0.25 * np.sin(1.3 * np.log2(m)))
    monkeypatch.setattr(residual, "_trees_available", lambda: False)
    monkeypatch.setattr(residual_refit, "benches", lambda folder, served: iter([bench(True)]))
    said = []
    first = residual_refit.write_residuals(tmp_path, [case], tmp_path, seeds=1, progress=said.append)
    kept = pd.read_csv(tmp_path / "evidence" / "residual.csv", keep_default_na=False)
    moves = pd.read_csv(tmp_path / "evidence" / "residual_thresholds.csv")
    assert list(kept.columns) == [*TABLE, "date"] and list(moves.columns) == [*SENSITIVITY, "date"] and set(kept["level"]) == {"operator", "step"} and len(said) == 2
    monkeypatch.setattr(residual_refit, "residual_points", None)  # would fail if it were called
    pd.testing.assert_frame_equal(residual_refit.write_residuals(tmp_path, [case], tmp_path, seeds=1, progress=said.append), first, check_dtype=False)


MEASURED = Path(__file__).parents[2] / "shared" / "data" / "measured"


@pytest.mark.skipif(not MEASURED.is_dir(), reason=f"no {MEASURED}")
def test_benches_of_the_measured_tables_are_finite_and_hold_what_they_leave_out(tmp_path):
    for name in ("layer_profile", "attention_mixed_batch", "e2e_steps", "energy_mlenergy"):
        (tmp_path / f"{name}.csv").symlink_to(MEASURED / f"{name}.csv")
    found = {(b.level, b.quantity, b.op): b for b in levels.benches(tmp_path, most=300)}
    assert set(found) == {("block", "time", "layer"), ("block", "time", "mixed_attention"), ("step", "time", "step_decode"), ("step", "time", "step_prefill"), ("step", "energy", "energy_token")}
    for b in found.values():
        seen = b.part(np.ones(len(b.model), bool))
        assert np.isfinite(seen.features).all() and (seen.predicted > 0).all() and (seen.measured > 0).all() and len(np.unique(b.model)) >= 4
        assert "prediction" in seen.groups and len(seen.predicted) == len(b.device) == len(b.model)


@pytest.mark.skipif(not MEASURED.is_dir(), reason=f"no {MEASURED}")
def test_serving_points_that_were_priced_already_are_not_priced_again(tmp_path, monkeypatch):
    from roofkit.evidence.measurements import device_name
    from roofkit.evidence.rows import check_rows
    from roofkit.evidence.serving import bound_ms
    from roofkit.evidence.validate import validate
    raw = pd.read_csv(MEASURED / "serving_points.csv").query("model.isin(['Qwen/Qwen3-32B', 'meta-llama/Llama-3.1-70B'])").iloc[::40]
    raw.to_csv(tmp_path / "serving_points.csv", index=False)
    raw = pd.read_csv(tmp_path / "serving_points.csv")
    points = validate(check_rows(raw, bound_ms=bound_ms(raw.assign(device=raw["gpu"].map(device_name))))[0], split="shipped").points
    fresh = next(levels.benches(tmp_path)).part(None)
    monkeypatch.setattr(levels, "predict", None)
    again = next(levels.benches(tmp_path, served=points)).part(None)
    assert len(again.predicted) > 10 and again.predicted == pytest.approx(fresh.predicted) and again.features == pytest.approx(fresh.features)
    with pytest.raises(MeasurementError, match="do not belong"):
        next(levels.benches(tmp_path, served=points.assign(measured_us=points["measured_us"] * 1.1)))
