"""Energy: laws of the power model on every device, known constants from synthetic power, the shipped fit."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofkit.cost import energy
from roofkit.cost.pricing import cost_ops
from roofkit.errors import CostModelError
from roofkit.formats import gemm_format
from roofkit.hardware.presets import default_cluster, list_devices, load_device
from roofkit.ops.kinds import Attention, Collective, Elementwise, Gemm

POWERED = [n for n in list_devices()["name"] if load_device(n).tdp_w and load_device(n).has_math("bf16")]
size = st.integers(1, 1 << 14)


def costed(op, name):
    cluster = default_cluster(load_device(name))
    return cost_ops([op], cluster)[0]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(POWERED), m=st.lists(size, min_size=1, max_size=5), n=size, k=size, count=st.integers(1, 80))
def test_energy_is_never_negative_and_average_power_stays_within_the_limit(name, m, n, k, count):
    device = load_device(name)
    found = energy.op_energy(costed(Gemm("g", "ffn", np.array(m, float), k, n, gemm_format("bf16", "bf16"), count), name), device)
    assert (found.total_j > 0).all() and (found.average_w <= device.tdp_w * (1 + 1e-9)).all()
    for part in (found.static_j, found.compute_j, found.hbm_j, found.l2_j, found.busy_j, found.link_j):
        assert (np.asarray(part) >= 0).all()
    assert found.total_j == pytest.approx(found.static_j + found.dynamic_j)


@settings(max_examples=30, deadline=None)
@given(demand=st.lists(st.floats(0, 1e5), min_size=2, max_size=20), name=st.sampled_from(POWERED))
def test_power_grows_with_demand_from_the_floor_to_the_limit(demand, name):
    model = energy.power_model(load_device(name))
    power = model.power_w(np.sort(demand))
    assert (np.diff(power) >= -1e-9).all() and (power >= model.floor_w - 1e-9).all() and (power <= model.limit_w + 1e-9).all()
    assert model.power_w(0.0) == pytest.approx(model.floor_w)


def test_a_cap_stretches_time_and_keeps_the_dynamic_energy():
    device, op = load_device("b200-sxm-180gb"), Gemm("g", "ffn", 8192.0, 8192, 8192, gemm_format("bf16", "bf16"))
    free, capped = (energy.op_energy(costed(op, device.name), device, cap_w=cap) for cap in (None, 700.0))
    assert capped.average_w == pytest.approx(700.0) and capped.time_s > free.time_s and capped.dynamic_j == pytest.approx(free.dynamic_j)
    loose = energy.op_energy(costed(op, device.name), device, cap_w=device.tdp_w)
    assert loose.time_s == pytest.approx(free.time_s)
    with pytest.raises(CostModelError, match="set the cap higher"):
        energy.op_energy(costed(op, device.name), device, cap_w=100.0)


def test_a_step_adds_its_ops_and_waits_between_floor_and_the_mean_of_its_ops():
    device = load_device("h100-sxm-80gb")
    cluster = default_cluster(device)
    ops = [Gemm("g", "ffn", 64.0, 4096, 4096, gemm_format("bf16", "bf16"), 8), Attention("a", "attention", "decode", 64.0, 1.0, 2048.0, 32, 8, 128, 128, 256),
           Elementwise("norm", "norm_elementwise", 64.0, 4096, 4096, 4096), Collective("c", "collectives", "all_reduce", 1e6, 8)]
    parts = cost_ops(ops, cluster)
    own = float(sum(c.time_s for c in parts))
    tight, slack = energy.step_energy(parts, device, own), energy.step_energy(parts, device, own + 1e-3)
    assert tight.total_j == pytest.approx(sum(energy.op_energy(c, device).total_j for c in parts))
    model = energy.power_model(device)
    waiting = model.floor_w + model.rest * (tight.average_w - model.floor_w)
    assert slack.total_j - tight.total_j == pytest.approx(1e-3 * waiting) and 0 < model.rest < 1
    assert slack.total_j == pytest.approx(slack.static_j + slack.dynamic_j) and slack.static_j - tight.static_j == pytest.approx(1e-3 * model.floor_w)
    assert tight.link_j > 0 and model.calibration == "generic"
    bubble = energy.step_energy([], device, 1e-3)
    assert bubble.total_j == pytest.approx(1e-3 * model.floor_w)  # nothing ran: floor power alone


def test_ranks_that_exchange_data_spin_on_their_sms_even_while_the_message_starts():
    device = load_device("h100-sxm-80gb")
    model, exchange = energy.power_model(device), costed(Collective("c", "collectives", "all_reduce", 1e3, 8), device.name)
    found = energy.op_energy(exchange, device)
    assert exchange.launch_s > 0.5 * exchange.time_s and found.busy_j > 0.5 * model.busy_w * exchange.time_s
    assert found.average_w > 1.5 * model.floor_w


def test_path_level_and_device_level_energy_per_byte_are_kept_apart():
    model = energy.power_model(load_device("b200-sxm-180gb"))
    assert model.calibration == "fitted" and model.device_hbm_j == pytest.approx(3.9 * 8e-12)
    assert model.hbm_j > model.device_hbm_j  # everything a byte passes costs more than the DRAM die alone
    assert model.joules_per_flop("fp8") <= model.joules_per_flop("bf16")


def test_a_device_without_a_power_figure_is_an_error_that_says_what_to_add():
    device = load_device("t4")
    bare = replace(device, name="bare", figures={k: f for k, f in device.figures.items() if "power" not in k and k != "tdp"})
    with pytest.raises(CostModelError, match=r"add \[tdp\]"):
        energy.power_model(bare)


POWER = Path(__file__).parents[2] / "shared" / "data" / "measured" / "gemm_power.csv"


@pytest.mark.skipif(not POWER.is_file(), reason=f"no {POWER}")
def test_the_power_form_recovers_known_constants_from_synthetic_power():
    from roofkit.evidence.fit import fit
    from roofkit.evidence.measurements import read_measurements
    from roofkit.evidence.power import power_form
    rows = read_measurements(POWER)
    rows = rows[(rows["dtype"] == "bf16") & rows["source"].str.contains("trtllm")].iloc[::2].reset_index(drop=True)
    form = power_form(rows, load_device("b200-sxm-180gb"))
    true = {p.name: p.start for p in form.parameters} | {"floor": 240.0, "busy": 200.0, "hbm_path": 40.0, "flop_bf16": 0.35, "duty": 0.7}
    measured = form.seconds(true) * np.exp(0.01 * np.random.default_rng(0).standard_normal(len(rows)))
    found = fit(form, measured, starts=1)
    for name, tolerance in (("floor", 0.02), ("busy", 0.1), ("hbm_path", 0.25), ("flop_bf16", 0.25), ("duty", 0.03)):
        assert found.constants[name] == pytest.approx(true[name], rel=tolerance), name


def test_the_top_down_split_has_a_source_for_every_share_and_fitted_ones_say_so():
    import tomllib
    from importlib.resources import files
    doc = tomllib.loads((files("roofkit_data") / "energy" / "generic.toml").read_text(encoding="utf-8"))
    assert set(energy.SHARES) <= set(doc) and all(doc[k]["source"] for k in energy.SHARES)
    assert {k for k in energy.SHARES if doc[k]["kind"] == "fitted"} == {"busy", "rest"}
    assert energy.power_model(load_device("h100-sxm-80gb")) == energy.top_down(load_device("h100-sxm-80gb")) != energy.power_model(load_device("h200-sxm-141gb"))
    assert energy.top_down(load_device("b200-sxm-180gb")).calibration == "generic" and energy.power_model(load_device("b200-sxm-180gb")).calibration == "fitted"
