"""The validation view: figures equal a recomputation from the shipped files, and no combination of filters raises."""
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofkit.errors import RoofkitError
from roofkit.evidence.refit import SHIPPED
from roofkit.views import validation, validation_data, validation_points
from roofkit.views.validation import measure_here, validation_controls, validation_view
from roofkit.views.validation_targets import TARGETS, chosen, targets
from roofkit.views.validation_values import ValidationView

H100, L40S = "h100-sxm-80gb", "l40s"
EVIL = "<img src=x onerror=alert(1)>'\""


def errors_table() -> pd.DataFrame:
    rows = []
    for device, op, cls, fmt, split, n, mape in (
            (H100, "gemm", "", "bf16", "family", 300, 0.06), (H100, "gemm", "", "bf16", "gpu", 100, 0.12), (L40S, "gemm", "", "bf16", "family", 300, 0.15),
            (H100, "attention_decode", "unpacked", "fp8", "family", 50, 0.08), (H100, "attention_decode", "group8+", "fp8", "family", 150, 0.10),
            (H100, "attention_decode", "group8+", "fp8", "head_dim", 150, 0.30), (L40S, "moe", "torch", "fp8", "family", 80, 0.13)):
        for regime, part in (("all", 1.0), ("memory", 0.5)):
            rows.append((device, op, cls, fmt, "stack-1.0", split, regime, int(n * part), 10, mape, mape * 0.9, mape * 1.2, mape * 0.7, -0.01, mape * 2, np.nan, "2026-11"))
    return pd.DataFrame(rows, columns=SHIPPED)


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """A package with a small error table and the shipped CPU measurement; no folder of measured tables."""
    shipped = validation_data.evidence_folder()
    errors_table().to_csv(tmp_path / "validation.csv", index=False)
    for name in ("measured_cpu.csv", "measured_cpu.toml"):
        (tmp_path / name).write_text((shipped / name).read_text("utf-8"), "utf-8")
    yield from _patched(tmp_path, monkeypatch)


def _patched(folder, monkeypatch):
    monkeypatch.setattr(validation_data, "evidence_folder", lambda: folder)
    for name in ("ROOFKIT_MEASURED", "ROOFKIT_ALLOW_MEASURE"):
        monkeypatch.delenv(name, raising=False)
    validation.clear_caches()
    yield folder
    monkeypatch.undo()
    validation.clear_caches()


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    yield from _patched(tmp_path, monkeypatch)


def options(selection=None) -> dict[str, list]:
    return {c.key: [v for _, v in c.options] for c in validation_controls(selection or {})}


def tile(view, key):
    return next(t for t in view.tiles if t.key == key)


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_headline_is_the_worst_split_pooled_over_rows(evidence):
    view = validation_view({"device": H100})
    rows = errors_table().query("device == @H100 and regime == 'all'")
    by_split = {split: np.average(part["mape"], weights=part["n"]) for split, part in rows.groupby("split")}
    assert tile(view, "worst").number == pytest.approx(max(by_split.values())) == pytest.approx(0.30) and "unseen head width" in tile(view, "worst").label
    said = view.statements[0].text
    assert said.startswith("The worst split is unseen head width: 30.0 %") and "unseen shape family: 10.0 %" in said  # the same class, not all of them


def test_selection_pools_the_worst_split_of_each_class(evidence):
    view = validation_view({"device": H100})
    assert tile(view, "mape").number == pytest.approx((100 * 0.12 + 50 * 0.08 + 150 * 0.30) / 300) and tile(view, "rows").number == 300
    assert view.cases["mape"].tolist() == [0.30, 0.12, 0.08]
    one = validation_view({"device": H100, "op": "gemm", "split": "family"})
    assert tile(one, "mape").number == pytest.approx(0.06) and "5.4 % to 7.2 %" in tile(one, "mape").note  # one class keeps its interval


def test_pooled_interval_is_narrower_than_that_of_one_class():
    rows = pd.DataFrame({"n": [100, 100], "mape": [0.1, 0.1], "low": [0.08, 0.08], "high": [0.13, 0.13], "median": 0.05, "bias": 0.0})
    both = validation_data.pooled(rows)
    assert both["high"] - 0.1 == pytest.approx(0.03 / np.sqrt(2)) and 0.1 - both["low"] == pytest.approx(0.02 / np.sqrt(2)) and both["n"] == 200
    assert np.isnan(validation_data.pooled(rows.head(0))["mape"]) and np.isnan(validation_data.pooled(rows.assign(low=np.nan))["low"])


def test_overview_is_the_pooled_error_of_each_cell(evidence):
    table = validation_view({"split": "family"}).overview.set_index(["op", "format"])
    assert table.loc[("matrix product", "bf16")].tolist() == pytest.approx([0.06, 0.15])
    assert table.loc[("decode attention", "fp8")].iloc[0] == pytest.approx((50 * 0.08 + 150 * 0.10) / 200) and np.isnan(table.loc[("decode attention", "fp8")].iloc[1])


def test_cpu_errors_equal_a_recomputation_from_the_csv():
    points = pd.read_csv(Path(str(validation_data.evidence_folder() / "measured_cpu.csv")))
    assert len(points) == 109 and points.groupby("kind")["held_out"].apply(lambda h: (np.flatnonzero(h) % 4 == 3).all()).all()  # every fourth point of a kind
    cpu = validation_data.cpu_errors().set_index(["op", "part"])
    for kind, op in validation_data.CPU_OPS.items():
        for held, part in ((False, "fitted"), (True, "held out")):
            rows = points[(points["kind"] == kind) & (points["held_out"] == held)]
            assert cpu.loc[(op, part), "mape"] == pytest.approx((rows["predicted_us"] / rows["measured_us"] - 1).abs().mean())
            assert cpu.loc[(op, part), "low"] < cpu.loc[(op, part), "mape"] < cpu.loc[(op, part), "high"] and cpu.loc[(op, part), "n"] == len(rows)


def test_the_cpu_fit_is_that_of_the_kit():
    """The predictions in the CSV are what the constants beside it give: nothing was tuned by hand."""
    from roofkit.evidence.measure import _gemm_s, _prefill_s

    points, fit = validation_data.cpu_points(), validation_data.cpu_environment()["fit"]
    gemm, prefill = (points[points["kind"] == k] for k in ("gemm", "prefill"))
    assert gemm["predicted_us"].to_numpy() == pytest.approx(_gemm_s(fit["gemm"], *(gemm[c].to_numpy(float) for c in "mnk"), 4.0) * 1e6, rel=1e-3)
    assert prefill["predicted_us"].to_numpy() == pytest.approx(_prefill_s(fit["prefill"], *(prefill[c].to_numpy(float) for c in ("batch", "q_len", "kv_len")), 4.0) * 1e6, rel=1e-3)


def test_residual_shares_sum_to_one_and_follow_the_points(evidence):
    view = validation_view({"device": "cpu"})
    held = view.points[view.points["held_out"]]
    assert view.residuals["held_out"].sum() == pytest.approx(1) and view.residuals["fitted"].sum() == pytest.approx(1)
    slow = view.residuals.loc[view.residuals["low"] >= 0, "held_out"].sum()
    assert slow == pytest.approx((held["predicted_us"] >= held["measured_us"]).mean())
    assert view.by_op["n"].sum() == len(held) == 27


# ---- targets and what is missing ---------------------------------------------------------------------------------------


def test_targets_say_misses_plainly_and_claim_nothing_without_rows(evidence):
    table = targets(validation_data.all_errors()).set_index("what")
    assert table.loc["Matrix products, bf16, L40S", "met"] == "missed" and table.loc["Matrix products, bf16, L40S", "said"].startswith("Missed by 1.0 points")
    assert table.loc["Matrix products, bf16", "reached"] == pytest.approx((0.06 + 0.15) / 2) and table.loc["Matrix products, bf16", "met"] == "missed"
    assert table.loc["Matrix products, bf16, H100", "met"] == "reached" and table.loc["Decode attention, each full-attention class", "reached"] == pytest.approx(0.10)
    for name in ("Energy of products", "Energy per output token, unseen model or GPU"):
        assert table.loc[name, "met"] == "open" and np.isnan(table.loc[name, "reached"])
    assert table["met"].tolist()[0] == "missed" and "2 of" not in validation_view({}).alt["targets"]


def test_every_target_speaks_of_operators_we_name():
    assert all(set(t.ops) <= {*validation_data.OPS, "gemm_power"} and 0 < t.bar < 0.5 for t in TARGETS)
    assert len(chosen(TARGETS[1], errors_table())) == 1


def test_what_is_not_validated_is_named(evidence):
    missing = dict(validation_view({}).missing)
    assert "not validated on this device" in missing["L40S"] and "decode attention" in missing["L40S"]
    first = next(iter(missing))
    assert "devices" in first and "B200" in missing[first] and "H100 SXM" not in missing[first]
    assert "energy of products" in missing["On no GPU"] and "energy per output token" in missing["On no GPU"]


# ---- every selection ---------------------------------------------------------------------------------------------------


def test_no_combination_of_filters_raises_and_an_empty_one_says_which_rows_exist(evidence):
    keys = options()
    empty = 0
    for values in itertools.islice(itertools.product(*keys.values()), 0, None, 11):  # every 11th of all: 11 divides no count of options
        view = validation_view(dict(zip(keys, values, strict=True)))
        assert isinstance(view, ValidationView) and len(view.points) and len(view.cpu) and len(view.targets) and view.alt["scatter"]
        if view.problem is not None:
            empty += 1
            assert view.cases.empty and view.problem.fix and "Rows do exist" in view.problem.reason, view.selection
            assert empty % 7 or len(validation_view({**view.selection, **view.problem.fix}).cases), view.selection
    assert empty > 5


def test_unknown_values_and_keys_fall_back(evidence):
    view = validation_view({"device": EVIL, "op": 7, "nonsense": "x", "split": None})
    assert view.selection == {"device": "all", "op": "all", "format": "all", "split": "worst", "regime": "all"} and view.problem is None


def test_without_any_shipped_file_the_page_still_says_what_is_missing(nothing):
    view = validation_view({})
    assert view.problem is not None and view.points.empty and not view.may_measure and len(view.targets) == len(TARGETS) and view.missing
    assert "No measurement of a CPU" in view.cpu_said


def test_the_shipped_files_make_a_page():
    validation.clear_caches()
    view = validation_view({})
    assert len(view.cases) and len(view.tiles) >= 5 and view.points_said and view.alt["scatter"] and view.problem is None
    table = validation_data.shipped_errors()
    if len(table):
        assert list(table.columns) == SHIPPED and table["mape"].between(0, 5).all() and (table["n"] > 0).all()


# ---- points --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(evidence, monkeypatch, tmp_path_factory):
    """A folder of tables in the uniform schema, made up from the shipped constants with 5 % noise."""
    from roofkit.evidence.predict import predict

    folder, rng = tmp_path_factory.mktemp("measured"), np.random.default_rng(1)
    m, n, k = (rng.choice(sizes, 240) for sizes in ((1, 16, 64, 256, 1024, 4096), (1024, 2048, 4096, 6144), (1024, 2048, 4096)))
    table = pd.DataFrame({"gpu": "H100-SXM", "dtype": "bf16", "m": m, "n": n, "k": k, "time_us": 10.0, "source": "aic:trtllm-1.3.0rc20"}).drop_duplicates(["m", "n", "k"])
    table = pd.concat([table, table.assign(gpu="L40S").head(20)], ignore_index=True)
    table["time_us"] = predict(table)["predicted_us"].to_numpy() * np.exp(0.05 * rng.standard_normal(len(table)))
    table.to_csv(folder / "gemm_h100-sxm.csv", index=False)
    (folder / "broken.csv").write_text("a,b\n1,2\n", "utf-8")
    monkeypatch.setenv("ROOFKIT_MEASURED", str(folder))
    validation.clear_caches()
    return folder


def test_a_narrow_selection_is_refitted_and_its_held_out_rows_marked(measured):
    pytest.importorskip("scipy")
    view = validation_view({"device": H100, "op": "gemm", "format": "bf16"})
    held = view.points[view.points["held_out"]]
    assert 0.05 < len(held) / len(view.points) < 0.5 and "Fitted anew" in view.points_said and "unseen shape family" in view.points_said
    assert (held["predicted_us"] / held["measured_us"] - 1).abs().mean() < 0.15 and view.by_op["op"].tolist() == ["matrix product"]
    regime = view.points["regime"].iloc[0]
    assert regime in validation_data.REGIMES.values()
    assert (validation_view({"device": H100, "op": "gemm", "regime": "memory"}).points["regime"] == "memory-bound").all()


def test_a_wide_selection_judges_shipped_constants_and_marks_rows_a_fit_has_seen(measured):
    view = validation_view({})
    assert len(view.points) > 50 and not view.points["held_out"].any() and "Shipped constants" in view.points_said and view.by_op.empty
    (measured / "gemm_h100-sxm.csv").rename(measured / "elsewhere.csv")
    validation.clear_caches()
    assert validation_view({}).points["held_out"].all()  # a table of no fit of ours


def test_a_refit_brings_its_held_out_predictions(measured):
    pd.DataFrame({"device": H100, "op": "gemm", "class": "", "format": "bf16", "stack": "s", "split": "family", "seed": 0, "family": "1x1", "regime": "memory",
                  "measured_us": [10.0, 0.0, np.nan, np.inf], "predicted_us": [11.0, 1.0, 1.0, 1.0]}).to_csv(measured / "points.csv", index=False)
    validation.clear_caches()
    view = validation_view({"device": H100})
    assert view.points["held_out"].sum() == 1 and (~view.points["held_out"]).any() and "cross-validation" in view.points_said  # what a log axis cannot show stays out
    assert view.by_op["mape"].iloc[0] == pytest.approx(0.1)


def test_the_worst_split_of_each_class_is_the_one_drawn(measured):
    common = {"device": H100, "op": "gemm", "class": "", "format": "bf16", "stack": "s", "seed": 0, "family": "1x1", "regime": "memory"}
    pd.DataFrame([{**common, "split": split, "measured_us": 10.0, "predicted_us": p} for split, p in (("family", 10.5), ("head_dim", 15.0), ("head_dim", 14.0))]).to_csv(
        measured / "points.csv", index=False)
    validation.clear_caches()
    held = {split: validation_view({"device": H100, "split": split}).by_op["mape"].iloc[0] for split in ("worst", "family", "head_dim")}
    assert held == pytest.approx({"worst": 0.45, "family": 0.05, "head_dim": 0.45})


def test_a_table_without_sources_is_drawn_too(measured):
    table = pd.read_csv(measured / "gemm_h100-sxm.csv").drop(columns="source")
    table.to_csv(measured / "gemm_h100-sxm.csv", index=False)
    validation.clear_caches()
    assert len(validation_view({"device": H100, "op": "gemm"}).points) > 50 and len(validation_view({}).points) > 50


def test_points_are_capped_and_sampled_the_same_way_twice(measured, monkeypatch):
    monkeypatch.setattr(validation_points, "MOST", 40)
    validation.clear_caches()
    first = validation_view({}).points
    validation.clear_caches()
    assert len(first) <= 40 and first.equals(validation_view({}).points)


def test_without_measured_rows_the_cpu_stands_in_and_the_page_says_so(evidence):
    view = validation_view({"device": L40S})
    assert (view.points["device"] == validation_data.device_label("cpu")).all() and "Shown instead" in view.points_said and "licences" in view.points_said


def test_no_path_of_a_visitor_is_opened(evidence, tmp_path):
    view = validation_view({"device": str(tmp_path), "ROOFKIT_MEASURED": str(tmp_path)})
    assert view.selection["device"] == "all" and validation_points.tables() == {}


def test_measuring_needs_the_owners_leave(evidence, monkeypatch):
    assert not validation_view({}).may_measure and "roofkit measure" in validation_view({}).measure_said
    with pytest.raises(RoofkitError, match="ROOFKIT_ALLOW_MEASURE"):
        measure_here()
    monkeypatch.setenv("ROOFKIT_ALLOW_MEASURE", "1")
    assert validation_view({}).may_measure
