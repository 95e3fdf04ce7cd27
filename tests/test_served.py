"""Served steps: what naming an engine changes, and that it never beats the bound."""
import copy

import numpy as np
import pytest

import roofkit as rk
from roofkit.cost import served as constants

FP8 = rk.Plan(tp=4, weights="fp8", activations="fp8")


def step(device, plan, workload, engine=None):
    return rk.estimate(rk.load_architecture("llama-3.1-70b"), rk.load_device(device), plan, workload, engine=engine)


@pytest.mark.parametrize("device, plan", [("h100-sxm-80gb", FP8), ("b200-sxm-180gb", FP8), ("b200-sxm-180gb", rk.Plan(tp=4, weights="nvfp4", activations="nvfp4")),
                                          ("h100-sxm-80gb", rk.Plan(tp=4)), ("mi300x", rk.Plan(tp=4))])
@pytest.mark.parametrize("engine", ["vllm", "trtllm", "sglang"])
def test_served_steps_keep_the_laws(device, plan, engine):
    batches = np.arange(1, 300)
    for workload in (rk.Decode(batches, 1024), rk.Prefill(1, np.arange(1, 5000, 37))):
        served = step(device, plan, workload, engine)
        assert all(served.checks.values()), served.checks
        drop = (served.time_s[:-1] - served.time_s[1:]) / served.time_s[:-1]
        assert drop.max() <= 1e-9


def test_a_graph_of_kernels_overlaps_launches_on_b200_only():
    for device, overlaps in (("b200-sxm-180gb", True), ("gb200-186gb", True), ("h100-sxm-80gb", False)):
        alone, served = (step(device, rk.Plan(tp=4), rk.Decode(1, 1024), e).ops.set_index("name") for e in (None, "trtllm"))
        assert (served.loc["qkv_proj", "launch_s"] < 0.7 * alone.loc["qkv_proj", "launch_s"]) == overlaps


def test_quantised_products_start_faster_in_an_engine_than_in_the_tables():
    """A 16-bit launch and a short quantisation kernel, both scaled as a replayed graph leaves them, instead of the collector's slow ones."""
    alone, served = (step("h100-sxm-80gb", FP8, rk.Decode(1, 1024), e).ops.set_index("name") for e in (None, "trtllm"))
    wide = step("h100-sxm-80gb", rk.Plan(tp=4), rk.Decode(1, 1024)).ops.set_index("name")
    rules = constants.served("h100-sxm-80gb")
    start = {name: table.loc["qkv_proj", "launch_s"] / table.loc["qkv_proj", "count"] for name, table in (("alone", alone), ("served", served), ("wide", wide))}
    assert start["served"] == pytest.approx(rules.launch * (start["wide"] + rules.quantise_us["fp8"] * 1e-6), rel=1e-9)
    assert start["served"] < 0.75 * start["alone"] and start["alone"] > 11e-6


def test_constants_in_a_trial_price_and_leave_no_trace():
    before = step("b200-sxm-180gb", rk.Plan(tp=4), rk.Decode(8, 1024), "vllm").time_s
    doc = copy.deepcopy(constants.shipped())
    doc["launch_scale"]["b200-sxm-180gb"] *= 2
    doc["engine"]["vllm"]["host_us"] += 1000
    with constants.using(doc):
        tried = step("b200-sxm-180gb", rk.Plan(tp=4), rk.Decode(8, 1024), "vllm")
    after = step("b200-sxm-180gb", rk.Plan(tp=4), rk.Decode(8, 1024), "vllm")
    assert tried.host_s - after.host_s == pytest.approx(1e-3) and tried.device_s > after.device_s and after.time_s == before
