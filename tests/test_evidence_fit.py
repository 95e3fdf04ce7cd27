"""The fit: known constants come back from synthetic times, through the product's own forms; files and bands are read back."""
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofkit.cost import moe
from roofkit.cost.calibration import read_fits
from roofkit.errors import MeasurementError
from roofkit.evidence import bands
from roofkit.evidence.calibrate import calibrate
from roofkit.evidence.cases import GEMM_FORMATS, attention_rows, cases
from roofkit.evidence.fit import Form, Parameter, fit
from roofkit.evidence.measurements import read_measurements
from roofkit.evidence.predict import predict
from roofkit.evidence.validate import error_table, validate
from roofkit.hardware.presets import load_device

H100 = load_device("h100-sxm-80gb")
TRUE = {"t0": 3.0, "ec": 0.8, "em": 0.75, "p": 2.0, "ct": 8.0, "k0": 150.0, "tau": 1.4, "ts": 3.0}


def shapes(rng, size=900):
    return pd.DataFrame({"gpu": "H100-SXM", "dtype": "bf16", "m": rng.choice([1, 8, 17, 64, 200, 512, 2048, 8192], size),
                         "n": rng.choice([64, 256, 1024, 3072, 4096, 8192, 12288], size), "k": rng.choice([128, 512, 2048, 4096, 8192, 16384], size), "source": "x:trtllm-9"})


def synthetic(noise=0.03, seed=0, size=900):
    rng = np.random.default_rng(seed)
    frame = shapes(rng, size).drop_duplicates(["m", "n", "k"]).assign(time_us=1.0)
    case = next(cases(read_measurements(frame), H100))
    exact = case.bound_form(case.rows).seconds(TRUE) * 1e6
    return case.rows.drop(columns=["kind", "device"]).assign(time_us=exact * np.exp(noise * rng.standard_normal(len(exact))))


def test_calibration_recovers_known_constants_of_the_shipped_gemm_form():
    table = synthetic()
    table.loc[table.index[:: 40], "time_us"] *= 3  # a few rows are simply wrong
    found = calibrate(table, "h100-sxm-80gb")
    rows = found.constants.set_index("constant")
    for name in ("t0", "ec", "em", "tau", "ts"):
        assert rows.at[name, "value"] == pytest.approx(TRUE[name], rel=0.08), name
        assert abs(rows.at[name, "value"] - TRUE[name]) <= 5 * rows.at[name, "error"] + 1e-9, name
    assert found.errors["mape"].iloc[0] < 0.10 and found.errors["median"].iloc[0] < 0.035 and found.errors["n_held_out"].iloc[0] > 50


@settings(max_examples=12, deadline=None)
@given(start=st.floats(1e-7, 1e-4), rate=st.floats(1e9, 1e15), seed=st.integers(0, 99))
def test_a_two_constant_form_comes_back_whatever_its_size(start, rate, seed):
    work = np.random.default_rng(seed).uniform(-2, 3, 80)
    work = start * rate * 10**work
    form = Form("line", (Parameter("start", 1e-9, 1e-2, 1e-5), Parameter("rate", 1e7, 1e17, 1e12)), lambda c: c["start"] + work / c["rate"])
    found = fit(form, start + work / rate)
    assert found.constants["start"] == pytest.approx(start, rel=1e-3) and found.constants["rate"] == pytest.approx(rate, rel=1e-3)


def test_standard_errors_shrink_with_rows_and_bounds_have_none():
    def spread(n):
        rng = np.random.default_rng(1)
        x = rng.uniform(1, 100, n)
        form = Form("line", (Parameter("a", 0.1, 10, 1), Parameter("b", 1, 2, 1.5)), lambda c: c["a"] * x + 0 * c["b"] + c["b"])
        return fit(form, (2 * x + 0.5) * np.exp(0.05 * rng.standard_normal(n)))
    few, many = spread(40), spread(4000)
    assert many.errors["a"] < few.errors["a"] / 3
    assert "b" in many.at_bound and np.isnan(many.errors["b"])  # its best value lies below the bound


def test_too_few_rows_and_wrong_devices_are_errors():
    with pytest.raises(MeasurementError, match="measure more points"):
        fit(Form("f", (Parameter("a", 0.1, 1, 0.5),), lambda c: np.full(1, c["a"])), np.ones(1))
    with pytest.raises(MeasurementError, match="too few"):
        calibrate(synthetic(size=12), "h100-sxm-80gb")
    two = pd.concat([synthetic(size=60), synthetic(size=60).assign(gpu="L40S")])
    with pytest.raises(MeasurementError, match="say which with device="):
        calibrate(two)
    with pytest.raises(MeasurementError, match="low <= start <= high"):
        Parameter("a", 2, 1, 1.5)


def test_a_written_calibration_reads_back_as_the_product_reads_it(tmp_path):
    found = calibrate(synthetic(size=500), "h100-sxm-80gb", starts=1)
    back = read_fits(found.write(tmp_path / "h100-sxm-80gb.toml"))
    assert len(back) == 1 and back[0].op == "gemm" and back[0].format == "bf16" and back[0].mape == found.fits[0].mape
    assert back[0].constants == pytest.approx(found.fits[0].constants, rel=1e-5)
    assert "fit to rows tagged x:trtllm-9" in (tmp_path / "h100-sxm-80gb.toml").read_text()


def test_validation_holds_out_whole_families_and_marks_every_row():
    found = validate(synthetic(size=700), seeds=(0, 1))
    assert found.points.groupby("seed").size().nunique() == 1 and found.points["held_out"].all()
    row = found.worst
    assert row["regime"] == "all" and row["mape"] < 0.06 and row["low"] <= row["mape"] <= row["high"] and row["seed_sd"] < 0.01
    assert set(found.table["regime"]) <= {"all", "launch", "memory", "balanced", "compute"}


def test_error_table_is_the_plain_arithmetic_of_its_points():
    points = pd.DataFrame({"device": "d", "op": "gemm", "class": "", "format": "bf16", "stack": "s", "split": "family", "seed": 0, "held_out": [True, True, True, False],
                           "family": list("aabb"), "regime": "memory", "measured_us": [10.0, 10.0, 10.0, 10.0], "predicted_us": [11.0, 9.0, 12.0, 99.0]})
    row = error_table(points).iloc[0]
    assert row["n"] == 3 and row["mape"] == pytest.approx((0.1 + 0.1 + 0.2) / 3) and row["median"] == pytest.approx(0.1) and row["bias"] == pytest.approx(0.1)


def attention(phase, size=120, seed=0, **columns):
    rng = np.random.default_rng(seed)
    q = rng.choice([64, 512, 2048], size) if phase == "prefill" else 1
    heads = rng.choice([8, 32, 64], size)
    frame = {"gpu": "H100-SXM", "phase": phase, "batch": rng.choice([1, 4, 32], size), "heads": heads, "kv_heads": rng.choice([1, 8], size), "head_dim": 128,
             "window": rng.choice([0, 1024], size), "q_len": q, "kv_len": rng.choice([512, 4096, 16384], size) if phase == "decode" else q, "dtype": "bf16", "kv_dtype": "bf16",
             "time_us": 10.0, "source": "x:vllm-0.24.0"}
    return read_measurements(pd.DataFrame({**frame, **columns}).drop_duplicates())


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_stacked_rows_give_the_times_of_the_ops_themselves(phase):
    """The vectorised path of a fit equals roofkit.cost called op by op (full attention, where no two classes meet)."""
    frame = attention(phase, window=0, kv_heads=8)
    frame = frame[frame["heads"] > 8].reset_index(drop=True)
    priced = predict(frame)["predicted_us"].to_numpy()
    shipped = {(f.op, f.cls, f.format): f for f in read_fits_of("h100-sxm-80gb") if f.stack.startswith("vllm")}
    for case in cases(frame, H100):
        constants = shipped[(case.op, case.cls, case.format)].constants
        stacked = case.bound_form(case.rows).seconds({p.name: constants.get(p.name, 0.0) for p in case.parameters} | dict(constants)) * 1e6
        assert stacked == pytest.approx(priced[case.rows.index], rel=1e-6)


def read_fits_of(name):
    from importlib.resources import files
    return read_fits(str(files("roofkit_data") / "calibration" / f"{name}.toml"))


def test_routing_worked_out_once_equals_the_products_routing():
    rng = np.random.default_rng(3)
    frame = read_measurements(pd.DataFrame({"gpu": "H100-SXM", "dtype": "bf16", "tokens": rng.integers(1, 9000, 200), "hidden": 4096, "inter": 1536, "topk": 8,
                                            "experts": 128, "tp": 1, "ep": rng.choice([1, 4, 16], 200), "distribution": rng.choice(["balanced", "power_law_1.2"], 200),
                                            "kernel": "moe_torch_flow_cutlass", "time_us": 100.0, "source": "x:trtllm-1.3.0rc20"}).drop_duplicates())
    case = next(cases(frame, H100))
    constants = {p.name: p.start for p in case.parameters}
    stacked = case.bound_form(case.rows).seconds(constants)
    fits = case.fits(constants)
    for i, row in enumerate(case.rows.itertuples()):
        n, distinct = moe.routing(float(row.tokens), row.topk, row.experts, row.ep, None if row.distribution == "balanced" else 1.2, constants["gam"])
        op = pd.Series({"inter": 1536, "hidden": 4096, "matrices": 3, "experts": row.experts // row.ep, "tokens": float(row.tokens)})
        op.format = GEMM_FORMATS["bf16"]
        assert stacked[i] * 1e6 == pytest.approx(float(moe.block_us(op, fits.all("moe")[0], fits, n, distinct, warm=True)[0]), rel=1e-9)


def test_columns_branch_only_where_their_rows_agree():
    op = attention_rows(attention("decode"))
    assert bool(op.n_heads > 0) and not bool(op.n_heads > 1e9)


@pytest.mark.parametrize("device, op, fmt", [("h100-sxm-80gb", "gemm", "bf16"), ("h100-sxm-80gb", "attention_decode", "bf16"), ("b200-sxm-180gb", "grouped_gemm", "fp8")])
def test_shipped_bands_are_plausible_and_unknown_parts_carry_the_badge(device, op, fmt):
    if bands.validation_table().empty:
        pytest.skip("no shipped validation table")
    found = bands.band(device, op, fmt)
    assert 0.02 < found.mape < 0.35 and found.n > 100 and found.device == device and "±" in found.text
    assert bands.band("groq-lpu-v1", op, fmt) is None and bands.badge(None) == "not validated on this device"
    assert bands.weakest(device, [(op, fmt), ("scan", None)]) is None  # one part without evidence spoils the whole
    assert bands.weakest(device, [(op, fmt), ("gemm", "bf16")]).mape >= found.mape
