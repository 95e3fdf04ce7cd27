"""Passes, mixed launches and the expert exchange: known constants come back, the fit prices as the product does, shipped files are the refit's own."""
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofkit.cost import elementwise, expert_exchange, mixed
from roofkit.cost.calibration import DeviceFits, Fit, bind, device_fits, read_fits
from roofkit.errors import MeasurementError
from roofkit.evidence import refit_parts
from roofkit.evidence.calibrate import calibrate
from roofkit.evidence.cases import _Single
from roofkit.evidence.exchange_cases import LEAST_SMS, exchange_cases, mode_of, priced
from roofkit.evidence.fitted_cases import fitted_cases
from roofkit.evidence.measurements import read_measurements
from roofkit.evidence.pass_cases import ASSUMED, pass_cases
from roofkit.evidence.predict import predict
from roofkit.hardware.presets import load_cluster, load_device
from roofkit.ops.kinds import Attention

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "measured"
SHIPPED = files("roofkit_data") / "calibration"
FILES = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "l40s", "rtx-pro-6000-server")
H100, CARD = load_device("h100-sxm-80gb"), load_device("rtx-pro-6000-workstation")
TRUE = {"t0": 2.4, "em": 0.72, "e2": 1.4, "c2": 0.6}
here = pytest.mark.skipif(not SHARED.is_dir(), reason="the measured tables are not here")


def passes(device, constants, frame, noise=0.02, seed=0):
    """`frame` (one device) with the times of these constants, through the case's own rows."""
    rng, out = np.random.default_rng(seed), []
    for case in pass_cases(read_measurements(frame.assign(time_us=1.0)), device):
        us = sum(elementwise.pass_us(case.rows["moved"].to_numpy(), constants, device_fits(device)))
        out.append(case.rows.drop(columns=["kind", "device"]).assign(time_us=us * np.exp(noise * rng.standard_normal(len(us)))))
    return pd.concat(out)


def table(size=600, **columns):
    rng = np.random.default_rng(1)
    frame = {"gpu": "H100-SXM", "op": rng.choice(["add", "mlp_act", "attn_rope", "input_layernorm"], size), "dtype": "fp16",
             "rows": rng.choice(np.geomspace(1, 20000, 200).astype(int), size), "cols": rng.choice([2048, 4096, 8192, 14336], size), "source": "x:made-1"}
    return pd.DataFrame({**frame, **columns}).drop_duplicates()


@pytest.mark.parametrize("cls", ["add", "act", "rope", "norm"])
def test_calibration_recovers_known_constants_of_a_pass(cls):
    found = calibrate(passes(H100, TRUE, table()), "h100-sxm-80gb", starts=2)
    rows = found.constants[found.constants["class"] == cls].set_index("constant")
    for name, true in TRUE.items():
        assert rows.at[name, "value"] == pytest.approx(true, rel=0.1), name
    errors = found.errors.set_index("class").loc[cls]
    assert errors["mape"] < 0.03 and errors["n_held_out"] > 10 and (errors["op"], errors["format"]) == ("elementwise", "bf16")


def test_all_other_passes_share_a_class_and_fp32_is_a_format_of_its_own():
    frame = table(op=np.random.default_rng(2).choice(["mul", "gelu", "softmax"], 600), dtype="fp32")
    fit, = calibrate(passes(H100, TRUE, frame), "h100-sxm-80gb", starts=2).fits
    assert (fit.cls, fit.format) == ("", "fp32") and fit.constants["em"] == pytest.approx(0.72, rel=0.05)
    assert elementwise.FORMATS == ("bf16", "fp32")  # the product finds it where no 16-bit kernel was fitted


def layers(model="meta-llama/Llama-3.1-8B", **columns):
    parts = [pd.DataFrame({"gpu": "RTX-PRO-6000-WS", "model": model, "tp": tp, "dtype": "bf16", "layer": layer, "tokens": np.arange(1, 2048, 40), "time_us": 5.0 + tp,
                           "source": "x:vllm-0.19"}) for tp in (1, 2) for layer in ("rotary_emb", "layernorm", "qkv_proj")]
    return pd.concat(parts).assign(**columns)


def test_layers_that_never_leave_l2_show_a_start_and_a_rate_and_the_rest_is_assumed():
    case = next(c for c in fitted_cases(read_measurements(layers()), CARD) if c.cls == "rope")
    assert [p.name for p in case.parameters] == ["t0", "e2"] and case.kernel == ASSUMED and len(case.rows) == 2 * 52
    us = sum(elementwise.pass_us(case.rows["moved"].to_numpy(), {**ASSUMED, "t0": 2.2, "e2": 2.5}, device_fits(CARD)))
    measured = layers()
    measured = measured[measured["layer"] == "rotary_emb"].assign(time_us=us)
    fit, = calibrate(measured, starts=2).fits
    assert fit.constants == pytest.approx({"t0": 2.2, "e2": 2.5}, rel=0.01) and fit.kernel == ASSUMED and fit.mape < 0.01


def test_products_of_a_layer_profile_are_no_passes_and_copies_under_another_tp_count_once():
    found = {c.cls: len(c.rows) for c in pass_cases(read_measurements(layers(time_us=5.0)), CARD)}
    assert found == {"rope": 52, "norm": 52}  # the same times under both tp: not measured twice
    assert not list(pass_cases(read_measurements(layers(model="nobody/unknown-1")), CARD))


def test_the_fit_prices_a_pass_as_the_product_does():
    frame = read_measurements(table(time_us=5.0, source="vidur"))
    product = predict(frame)["predicted_us"]
    shipped = {f.cls: f for f in read_fits(SHIPPED / "h100-sxm-80gb.toml") if f.op == "elementwise"}
    for case in pass_cases(frame, H100):
        ours = case.bound_form(case.rows).seconds({**shipped[case.cls].kernel, **shipped[case.cls].constants}) * 1e6
        assert ours == pytest.approx(product[case.rows.index].to_numpy(), rel=1e-9)


def test_a_slow_kernel_gets_no_more_from_memory_than_from_l2():
    fits = device_fits(H100)
    slow = elementwise.pass_us(1e9, {"t0": 2.0, "em": 0.9, "e2": 0.3, "c2": 0.7}, fits)
    assert slow == elementwise.pass_us(1e9, {"t0": 2.0, "em": 0.3}, fits)


@pytest.mark.parametrize("kind, columns", [
    ("serving", ["gpu", "model", "engine", "precision", "tp", "n_gpu", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms"]),
    ("step", ["gpu", "model", "engine", "tp", "phase", "batch", "in_len", "ctx_len", "out_len", "dtype", "time_ms"]),
])
def test_a_kind_without_a_form_is_refused_by_name(kind, columns):
    text = {"gpu": "H100-SXM", "model": "llama-3.1-8b", "engine": "vllm", "precision": "bf16", "phase": "decode", "dtype": "bf16"}
    frame = pd.DataFrame([{c: text.get(c, 8.0 + i) for c in columns} for i in range(3)])
    with pytest.raises(MeasurementError, match=f"tables of kind '{kind}' have no fitted form"):
        calibrate(frame, "h100-sxm-80gb")


# ---- what is written ----

def shipped_passes(name):
    return {f.cls: f for f in read_fits(SHIPPED / f"{name}.toml") if f.op == "elementwise"}


@pytest.mark.parametrize("name, fitted_on", [("b200-sxm-180gb", "H100 SXM 80 GB"), ("l40s", "RTX PRO 6000 Workstation")])
def test_devices_without_rows_inherit_from_the_nearest_in_bandwidth(name, fitted_on):
    found = shipped_passes(name)
    assert {f.kind for f in found.values()} == {"inherited"} and fitted_on in found["norm"].source


def test_every_file_has_every_class_and_inherited_blocks_are_copies():
    found = {name: shipped_passes(name) for name in FILES}
    assert len({tuple(sorted(classes)) for classes in found.values()}) == 1
    for cls in found["l40s"]:
        fitted = [f for classes in found.values() if (f := classes[cls]).kind == "fitted"]
        for classes in found.values():
            assert any((classes[cls].constants, classes[cls].kernel, classes[cls].n, classes[cls].mape) == (f.constants, f.kernel, f.n, f.mape) for f in fitted), cls


def part(device, cls, t0):
    return refit_parts.Part(load_device(device), Fit("elementwise", "bf16", "made-1", elementwise.FORM, {"t0": t0, "em": 0.9}, cls, n=30, mape=0.1, median=0.05, source="made"),
                            pd.DataFrame())


def test_only_pass_blocks_of_a_file_change(tmp_path):
    for name in FILES:
        (tmp_path / f"{name}.toml").write_text((SHIPPED / f"{name}.toml").read_text())
    (tmp_path / "served.toml").write_text("schema = 1\n")  # no device: left alone
    refit_parts.write_parts([part("h100-sxm-80gb", "norm", 3.0), part("rtx-pro-6000-workstation", "norm", 2.0)], tmp_path, date="2026-11")
    for name in FILES:
        before, after = ((folder / f"{name}.toml").read_text() for folder in (SHIPPED, tmp_path))
        others = [[b.strip() for b in text.split("[[fit]]") if 'op = "elementwise"' not in b] for text in (before, after)]
        assert others[0] == others[1] and tomllib.loads(after)["ceilings"]
        fit, = (f for f in read_fits(tmp_path / f"{name}.toml") if f.op == "elementwise")
        own = {"h100-sxm-80gb": ("fitted", 3.0), "rtx-pro-6000-server": ("fitted", 2.0), "b200-sxm-180gb": ("inherited", 3.0)}
        assert name not in own or (fit.kind, fit.constants["t0"]) == own[name]
    assert (tmp_path / "served.toml").read_text() == "schema = 1\n" and not (tmp_path / "mixed.toml").exists()


@here
def test_shipped_pass_constants_are_those_of_the_shared_rows():
    """Times under shipped and refitted constants agree within 1 % on average; the constants of one form trade against each other."""
    for name in ("elementwise", "layer_profile"):
        for case in refit_parts._cases_of(SHARED / f"{name}.csv"):
            shipped = shipped_passes(refit_parts._home(case.device))[case.cls]
            assert shipped.kind == "fitted" and shipped.n == len(case.rows) and shipped.kernel == case.kernel
            form = case.bound_form(case.rows)
            ours, theirs = (form.seconds(c) for c in (case.fit(case.rows, starts=2).constants, shipped.constants))
            assert np.abs(ours / theirs - 1).mean() < 0.01, case.label()


@here
def test_refit_writes_the_shipped_files_of_mixed_launches_and_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr(refit_parts, "TABLES", ("attention_mixed_batch", "moe_all2all_deepep"))
    parts, errors = refit_parts.refit_parts(SHARED, tmp_path / "cases", progress=lambda line: None)
    for path in refit_parts.write_parts(parts, tmp_path, date="2026-11"):
        made, shipped = read_fits(path), read_fits(SHIPPED / path.name)
        assert [(f.op, f.cls, f.format, f.stack, f.n) for f in made] == [(f.op, f.cls, f.format, f.stack, f.n) for f in shipped]
        for ours, theirs in zip(made, shipped, strict=True):
            assert ours.constants == pytest.approx(theirs.constants, rel=0.02) and ours.mape == pytest.approx(theirs.mape, abs=0.003)
    whole = errors[errors["regime"] == "all"]
    assert {(r.op, r.split) for r in whole.itertuples()} == {("mixed_attention", "family"), *((op, split) for op in ("dispatch", "combine") for split in ("family", "sizes", "width"))}
    again = refit_parts.refit_parts(SHARED, tmp_path / "cases", progress=lambda line: None)[1]  # from the cache
    assert again["mape"].to_numpy() == pytest.approx(errors["mape"].to_numpy())


def exchanges():
    shape = dict(gpu="H100-SXM", nodes=1, hidden=4096, topk=8, experts=128, dispatch_us=50.0, combine_us=70.0, source="x:deepep-9")
    return pd.DataFrame([{**shape, "mode": mode, "tokens": t, "sms": s} for mode, s in (("low_latency", 0), ("normal", 12), ("normal", 20), ("normal", 24)) for t in (64, 256, 512)])


def test_exchange_rows_are_judged_as_pricing_uses_them():
    for case in exchange_cases(read_measurements(exchanges()), H100):
        rows = case.rows[priced(case)]
        assert (case.rows["sms"] >= (0 if mode_of(case) == "low_latency" else LEAST_SMS)).all()
        assert set(rows["tokens"]) == ({64, 256} if mode_of(case) == "low_latency" else {512}) and rows["sms"].nunique() == 1


def own_file(op, fmt, cls, constants, device) -> DeviceFits:
    return bind(device, _Single(Fit(op, fmt, "made-1", "f", constants, cls, n=9)), device.name)


def test_constants_of_a_devices_own_file_come_before_the_packages(monkeypatch):
    """What `rk.calibrate` writes for a device takes effect: mixed launches and exchange look there first."""
    prefill, decode = (Attention(phase, "attention", phase, b, q, 1024.0, 32, 8, 128, 128, 256) for phase, b, q in (("prefill", 1.0, 512.0), ("decode", 8.0, 1.0)))
    slow = {"t0": 900.0, "ec": 0.5, "c0": 3.0, "ce": 0.3, "em": 0.7, "c2": 1.0, "p": 3.0, "w": 0.7}
    monkeypatch.setattr(mixed, "shares_a_launch", lambda *ops: True)
    both = mixed.mixed_attention(prefill, decode, own_file(mixed.FIT_OP, "bf16", "", slow, H100))
    assert sum(t.time_s for t in both) > 900e-6 and both[0].calibration == "fitted"
    fit = Fit("dispatch", "fp8", "made-1", "f", {"t0": 1.0}, "h100-sxm-80gb/normal")
    assert expert_exchange._fit("dispatch", "normal", bind(H100, _Single(fit), H100.name)) is fit
    assert expert_exchange._fit("dispatch", "normal", device_fits(load_cluster("dgx-h100").device)).stack.startswith("deepep")
