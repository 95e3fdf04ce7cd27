"""Load points and traces: protocols found, constants of served steps recovered from made-up rows, errors on the shared rows."""
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import roofkit as rk
from roofkit.cost import served
from roofkit.evidence import serving_fit
from roofkit.evidence.serving import predict_points, trace_errors
from roofkit.evidence.validate import validate
from roofkit.hardware.presets import load_device

SHARED = Path(__file__).parents[2] / "shared" / "data" / "measured"
POINTS = SHARED / "serving_points.csv"
TRACES = SHARED / "serving_request_traces.csv"


def made(**columns) -> dict:
    row = {"gpu": "H100-SXM", "model": "Qwen/Qwen3-32B", "engine": "vllm", "engine_version": "0.12.0", "precision": np.nan, "mode": "agg", "tp": 2, "ep": 1, "attn_dp": 1,
           "n_gpu": 2, "isl": 512, "osl": 64, "concurrency": 4.0, "tok_s_gpu_derived": np.nan, "tok_s_user": np.nan, "ttft_ms": 100.0, "tpot_ms": 20.0, "source": "x:lab-run"}
    return row | columns


def test_a_point_runs_the_protocol_of_its_source():
    frame = pd.DataFrame([made(), made(source="x:dump-2026", tpot_ms=21.0), made(mode="disagg", tpot_ms=22.0), made(attn_dp=8, tpot_ms=23.0), made(precision="fp6", tpot_ms=24.0),
                          made(gpu="Nothing-9000", tpot_ms=25.0)])
    said = rk.predict(frame)
    assert said["predicted_ms"].notna().tolist() == [True, True, False, False, False, False] and said["predicted_ttft_ms"].notna().sum() == 2
    assert "aiperf" in said["note"][0] and "inferencemax" in said["note"][1] and "disaggregated" in said["note"][2] and "device" in said["note"][5]


def test_a_checkpoint_in_mxfp4_runs_as_it_is_stored():
    said = rk.predict(pd.DataFrame([made(model="openai/gpt-oss-120b", precision="fp4"), made(precision="fp4", tpot_ms=21.0)]))
    assert said["predicted_ms"].notna().tolist() == [True, False] and "fp4" in said["note"][1], "the H100 has no fp4 arithmetic for anything else"


def test_known_constants_are_recovered_from_made_up_points(monkeypatch):
    """Rows whose times are those of other host constants: the fit finds these, and a group left out is predicted by the others."""
    wanted = tuple(c for c in serving_fit.CONSTANTS if c.name.startswith("engine.vllm-0.12"))
    monkeypatch.setattr(serving_fit, "CONSTANTS", wanted)
    truth = serving_fit.neutral()
    truth["engine"]["vllm-0.12"].update(host_us=1500.0, host_per_request_us=60.0)
    rows = pd.DataFrame([made(concurrency=c, isl=i, osl=o, tp=tp, n_gpu=tp) for c in (2.0, 32.0, 96.0) for i, o in ((256, 64), (1024, 32)) for tp in (2, 4)])
    arch, device = rk.load_architecture("qwen3-32b"), load_device("h100-sxm-80gb")
    with served.using(truth):
        for index, tpot, ttft, *_ in predict_points(rows, device, arch):
            rows.loc[index, ["tpot_ms", "ttft_ms"]] = tpot * 1e3, ttft * 1e3
    table = serving_fit.points(rows)
    line = serving_fit.fit(table, iterations=4, progress=lambda _: None)
    found = dict(zip([c.path[-1] for c in wanted], np.exp(line.best(np.ones(len(table), bool))), strict=True))
    assert found == {"host_us": pytest.approx(1500, rel=0.1), "host_per_request_us": pytest.approx(60, rel=0.1)}
    nothing = line.best(np.zeros(len(table), bool), most=np.inf)
    np.testing.assert_allclose(np.exp(nothing), [c.start for c in wanted], rtol=1e-3, err_msg="without rows every constant stays at its neutral start")


def test_the_shipped_file_is_what_the_writer_writes(tmp_path):
    path = serving_fit.write(tmp_path / "served.toml", served.shipped(), served.shipped()["date"])
    again = tomllib.loads(path.read_text(encoding="utf-8"))
    assert again == served.shipped()


@pytest.mark.skipif(not POINTS.is_file(), reason=f"no {POINTS}")
def test_shared_load_points_stay_within_their_errors():
    """Every twelfth dense point with the shipped constants; groups left out are in validation.csv."""
    rows = serving_fit.points(POINTS)
    table = validate(rows[rows["group"] != "h100-sxm-80gb vllm qwen3-32b fp8"].iloc[::12].drop(columns=["preset", "arch", "weights", "profile", "group"]), split="shipped").points
    error = (table["predicted_us"] / table["measured_us"] - 1).abs()
    tpot, ttft = error[table["op"] == "serving"], error[table["op"] == "serving_ttft"]
    assert len(tpot) > 60 and tpot.mean() < 0.06 and tpot.median() < 0.045 and ttft.median() < 0.15


@pytest.mark.skipif(not TRACES.is_file(), reason=f"no {TRACES}")
def test_a_measured_trace_is_replayed():
    """300 requests through vLLM 0.19 on an RTX PRO 6000, nothing fitted to them. The 30B-A3B run is missed: no experts were measured on that card."""
    table = trace_errors(TRACES, SHARED / "serving_request_traces_config.csv")
    dense = table[(table["model"] == "Llama-3.1-8B") & (table["statistic"] == "mean")].set_index("quantity")["error"]
    assert abs(dense["tpot"]) < 0.05 and abs(dense["latency"]) < 0.05 and abs(dense["ttft"]) < 0.10
