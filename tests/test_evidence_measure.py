"""Measuring this machine: rows in the uniform schema, a held-out error, a record of what ran."""
import argparse
import json

import numpy as np
import pytest

from roofkit.errors import MeasurementError
from roofkit.evidence.machine import NumpyBackend, Rule, backend, environment, time_call
from roofkit.evidence.measure import LAYERS, _fit, _plan, main_measure, measure_this_machine
from roofkit.evidence.measurements import read_measurements


def test_timing_repeats_a_short_call_until_the_clock_can_see_it():
    calls = []
    seconds, spread, samples = time_call(lambda: calls.append(0), lambda: None, Rule(warm_s=0.001, sample_s=0.001, samples=3, point_s=0.05))
    assert 0 < seconds < 1e-4 and samples >= 3 and len(calls) > 1000 and spread >= 0


def test_attention_of_the_backend_is_softmax_attention():
    engine = NumpyBackend()
    q, k, v = (engine.array(1, 2, 5, 8) for _ in range(3))
    out = engine.attention(q, k, v, True)
    scores = np.exp(q @ k.swapaxes(-1, -2)) * np.tril(np.ones((5, 5)))
    assert out == pytest.approx((scores / scores.sum(-1, keepdims=True)) @ v, rel=1e-4)


def test_constants_of_a_made_up_machine_come_back_and_predict_its_held_out_points():
    import pandas as pd

    from roofkit.evidence.measure import _PARAMETERS, _seconds
    points = pd.DataFrame(_plan(NumpyBackend()))
    points["held_out"] = points.groupby("kind").cumcount() % 4 == 3
    fits, measured = {}, np.full(len(points), np.nan)
    from roofkit.evidence.fit import Fit
    for kind, parameters in _PARAMETERS.items():
        rows = points[points.kind == kind]
        true = {p.name: p.start for p in parameters}
        fits[kind] = Fit(kind, true, {}, (), 0, 0, 0, 0, 0)
        measured[rows.index] = _seconds(kind, true, rows, fits, 4.0) * 1e6
    measured *= np.exp(0.02 * np.random.default_rng(0).standard_normal(len(points)))
    found, _ = _fit(points.assign(measured_us=measured), 4.0)
    held = found[found.held_out]
    assert (held.predicted_us / held.measured_us - 1).abs().mean() < 0.05 and LAYERS == 2


def test_a_short_run_measures_fits_and_writes_the_uniform_schema(tmp_path, capsys):
    assert main_measure(argparse.Namespace(budget_s=4.0, backend="numpy", out=tmp_path)) == 0
    text = capsys.readouterr().out
    assert "held out" in text and "cores" in text
    for name, kind in (("gemm", "gemm"), ("attention", "attention"), ("step", "step")):
        rows = read_measurements(tmp_path / f"{name}_this_machine.csv")
        assert set(rows["kind"]) == {kind} and len(rows) >= 15
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["numpy"] and record["rule"]["samples"] >= 3 and record["cores"] >= 1 and "node" not in record


def test_requests_that_cannot_be_met_are_errors():
    with pytest.raises(MeasurementError, match="at least 3 seconds"):
        measure_this_machine(budget_s=1)
    with pytest.raises(MeasurementError, match="use 'auto', 'numpy' or 'torch'"):
        backend("jax")
    assert environment(NumpyBackend(), Rule())["blas"]
