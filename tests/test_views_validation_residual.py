"""The learned residual on the validation page: figures equal a recomputation, what loses stays off, nothing shipped is no error."""
import numpy as np
import pandas as pd
import pytest

from roofkit.evidence.residual import TABLE
from roofkit.evidence.residual_regimes import SENSITIVITY
from roofkit.views import validation_data
from roofkit.views.validation_residual import learned
from roofkit.views.validation_values import Learned
from roofkit_widgets.validation_learned import learned as drawn

H100, L40S = "h100-sxm-80gb", "l40s"
EVIL = "<img src=x onerror=alert(1)>'\""


def row(level, quantity, op, cls, device, rule, model, mape, gain=0.0, half=0.005, applied=0.0, n=100, units=30):
    low, high = (np.nan, np.nan) if half is None else (gain - half, gain + half)
    return dict(zip(TABLE, (level, quantity, op, cls, device, "bf16", rule, model, mape, mape * 0.9, mape * 1.1, gain, low, high, applied, n, units, 5, 0.001), strict=True))


def tables():
    """Products of two GPUs that gain, an expert block that loses on unseen models, energy that gains on random rows only."""
    t = []
    for device, n, form, after in ((H100, 300, 0.06, 0.04), (L40S, 100, 0.14, 0.12)):
        t += [row("operator", "time", "gemm", "", device, rule, m, e, form - e, applied=0.9, n=n) for rule in ("family", "random") for m, e in (("form", form), ("ridge", form - 0.005), ("chosen", after))]
        t += [row("operator", "time", "gemm", "", device, "family", f"ridge without {g}", form - 0.005 + d, n=n) for g, d in (("size", 0.01), ("regime", 0.02))]
        t += [row("operator", "time", "gemm", "", device, "gpu", m, e, n=n) for m, e in (("form", 2 * form), ("chosen", 2 * form), ("chosen carried", 3 * form))]
    t += [row("block", "time", "moe", "", "all", "model", m, e, 0.15 - e) for m, e in (("form", 0.15), ("ridge", 0.15), ("chosen", 0.16))]
    t += [row("block", "time", "moe", "4096x1536", "all", "model", m, 0.5, half=None) for m in ("form", "chosen")]
    t += [row("step", "energy", "energy_token", "", "all", rule, m, e, 0.22 - e) for rule, after in (("model", 0.218), ("random", 0.15)) for m, e in (("form", 0.22), ("ridge", after), ("chosen", after))]
    moved = [{**dict(zip(SENSITIVITY, ("operator", "time", "gemm", "", device, "bf16", "family", name, rows, model, e, 0, 0, n, 9, 5, 0, 0.5 * f, 3.0), strict=True))}
             for device, n in ((H100, 300), (L40S, 100)) for rows in ("all", "near ridge")
             for name, d, f in (("chosen", 0, 1), ("ridge -20 %", 0.001, 0.8), ("ridge +20 %", -0.001, 1.2), ("launch -20 %", 0.003, 1), ("launch +20 %", 0.0, 1))
             for model, e in (("form", 0.08), ("ridge", 0.05 + d + (0.02 if rows != "all" else 0)))]
    return pd.DataFrame(t), pd.DataFrame(moved)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(validation_data, "evidence_folder", lambda: tmp_path)
    learned.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    learned.cache_clear()


@pytest.fixture
def view(folder):
    for name, table in zip(("residual.csv", "residual_thresholds.csv"), tables(), strict=True):
        table.to_csv(folder / name, index=False)
    return learned()


def test_classes_of_an_operator_are_pooled_by_rows_and_levels_come_in_order(view):
    found = view.levels.set_index("what")
    assert found.index.tolist() == ["matrix product", "expert block", "energy per output token"] and found["held_out"].tolist() == ["shape families", "expert shapes", "one model"]
    products = found.loc["matrix product"]
    assert products["form"] == pytest.approx((300 * 0.06 + 100 * 0.14) / 400) and products["chosen"] == pytest.approx((300 * 0.04 + 100 * 0.12) / 400) and products["n"] == 400 and products["classes"] == 2
    assert products["gain"] == pytest.approx(0.02) and products["gain_low"] == pytest.approx(0.02 - 0.005 * np.sqrt(0.75**2 + 0.25**2))
    assert products["gpu_form"] == pytest.approx(2 * products["form"]) and products["gpu_carried"] == pytest.approx(3 * products["form"])


def test_it_pays_only_where_shapes_or_models_left_out_say_so_whatever_random_rows_say(view):
    found = view.levels.set_index("what")
    assert found["use"].to_dict() == {"matrix product": "pays", "expert block": "off", "energy per output token": "off"}
    assert found.loc["energy per output token", "random_form"] - found.loc["energy per output token", "random"] > 0.05
    assert found.loc["expert block", "form"] == 0.15  # rows of one model alone are not pooled in
    assert "1 of 3 benches" in view.said and "8.0 % to 6.0 %" in view.said and "harm 1 of the 1" in view.said


def test_thresholds_show_the_range_of_the_moved_ones_and_where_they_were_chosen(view):
    found = view.thresholds.set_index("rows")
    assert found.loc["all", "chosen"] == pytest.approx(0.05) and found.loc["all", ["low", "high"]].tolist() == pytest.approx([0.049, 0.053])
    assert found.loc["near ridge", "chosen"] == pytest.approx(0.07) and found.loc["all", "ridge"] == pytest.approx(0.5) and found.loc["all", "n"] == 400


def test_ablation_is_what_leaving_a_group_out_adds(view):
    assert view.ablation["what"].tolist() == ["matrix product"]
    found = view.ablation.iloc[0]
    assert found["full"] == pytest.approx(0.08 - 0.005) and found["sizes"] == pytest.approx(0.01) and found["soft regimes"] == pytest.approx(0.02) and "engine" not in found


def test_without_tables_or_with_those_of_an_older_version_the_card_says_so(folder):
    assert learned().levels.empty and "ships no table" in learned().said and "ships no table" in drawn(learned())
    pd.DataFrame({"op": ["gemm"], "mape": [0.1]}).to_csv(folder / "residual.csv", index=False)
    learned.cache_clear()
    assert learned().levels.empty


def test_the_card_shows_every_level_verdict_and_interval_and_escapes_what_it_is_given(view):
    html = drawn(view)
    assert html.count("<tr role='row' class='rk-l-level'>") == 3 and html.count("✓ pays") == 1 and html.count("– stays off") == 2 and "nan" not in html
    assert "8.0 % → 6.0 %" in html and "+2.0 <small>(+1.6 to +2.4)</small>" in html and "16.0 % → 24.0 %" in html and "(4.90 % to 5.30 %; 400)" in html and "within 10 % of the ridge" in html
    bad = Learned(view.levels.assign(what=EVIL, held_out=EVIL, level=EVIL, use=EVIL), view.thresholds.assign(what=EVIL, rows=EVIL), view.ablation.assign(what=EVIL).rename(columns={"sizes": EVIL}), EVIL)
    assert "<img" not in drawn(bad) and "<img" not in drawn(Learned(said=EVIL))


def test_the_shipped_tables_hold_every_level_and_quantity_with_five_seeds_where_folds_are_drawn():
    learned.cache_clear()
    found = learned().levels
    assert {("operator", "time"), ("operator", "energy"), ("block", "time"), ("step", "time"), ("step", "energy")} == set(zip(found["level"], found["quantity"], strict=True))
    with (validation_data.evidence_folder() / "residual.csv").open(encoding="utf-8") as lines:
        table = pd.read_csv(lines)
    assert (table.loc[table["rule"].eq("random"), "seeds"] >= 5).all() and (table.loc[table["rule"].eq("family") & ~table["model"].str.contains("without"), "seeds"] >= 5).all()
    off = table[table["rule"].eq("gpu") & table["model"].eq("chosen")]
    assert len(off) and not off["applied"].any() and (off["gain"] == 0).all()  # never carried to another GPU
    kept = found[found["use"] == "pays"]
    assert len(kept) and (kept["chosen"] < kept["form"]).all() and {"size", "prediction", "regime"} <= {m.split()[-1] for m in table["model"] if "without" in m}
    assert (kept["chosen"] <= 2 * kept["random"]).all()  # R19: an error that doubles from random rows to shapes or models left out fails the claim
    assert not learned().thresholds.empty and {"all", "near ridge", "near launch"} == set(learned().thresholds["rows"])
