"""roofkit measure, validate, calibrate, predict: what they print and write, and how they refuse."""
import io
import json
import re
import sys

import numpy as np
import pandas as pd
import pytest

import roofkit as rk
from roofkit import cli
from roofkit.cost.calibration import read_fits
from roofkit.evidence import measure, sources

SHAPES = [(n, k) for n in (512, 1024, 2048, 4096, 8192) for k in (1024, 2048, 4096)]


def says(capsys, *argv) -> str:
    assert cli.main([str(a) for a in argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """GEMM rows as the shipped constants of H100 give them, with 3 % of noise."""
    rows = pd.DataFrame([{"gpu": "H100-SXM", "dtype": "bf16", "m": m, "n": n, "k": k, "time_us": 10.0, "source": "made:trtllm-1.3.0rc20"}
                         for n, k in SHAPES for m in (1, 16, 64, 256, 1024, 4096, 16384)])
    noise = np.exp(0.03 * np.random.default_rng(0).standard_normal(len(rows)))
    rows["time_us"] = rk.predict(rows)["predicted_us"] * noise
    path = tmp_path_factory.mktemp("measured") / "gemm_made.csv"
    rows.to_csv(path, index=False, float_format="%.6g")
    return path


def test_predict_prints_errors_and_writes_the_rows(capsys, table, tmp_path):
    printed = says(capsys, "predict", table, "--out", tmp_path / "rows.csv")
    assert re.search(r"h100-sxm-80gb +gemm +bf16 +made:trtllm-1.3.0rc20 +fitted +105", printed) and "no held-out error" in printed
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert (rows["predicted_us"] / rows["time_us"] - 1).abs().mean() < 0.04
    assert len(pd.read_csv(io.StringIO(says(capsys, "predict", table, "--out", "-")))) == len(rows)


def test_predict_says_what_it_cannot_price(capsys, tmp_path):
    pd.DataFrame([{"gpu": "Abacus 9", "dtype": "bf16", "m": 1, "n": 64, "k": 64, "time_us": 5.0}]).to_csv(tmp_path / "odd.csv", index=False)
    assert "1 rows not priced: no device preset for abacus-9" in says(capsys, "predict", tmp_path / "odd.csv")


def test_validate_prints_the_table_and_the_worst_split(capsys, table):
    printed = says(capsys, "validate", table, "--seeds", 2)
    assert re.search(r"worst: [0-7]\.\d % mean error \(105 rows of 15 families, 95 % of bootstraps", printed)
    assert "gemm bf16 trtllm-1.3.0rc20 on h100-sxm-80gb, split family" in printed and "seed_sd" in printed
    csv = pd.read_csv(io.StringIO(says(capsys, "validate", table, "--split", "shipped", "--csv")))
    assert set(csv["split"]) == {"shipped"} and "all" in set(csv["regime"])


def test_validate_a_folder_names_the_tables_it_cannot_judge(capsys, table, tmp_path):
    (tmp_path / "gemm.csv").write_text(table.read_text())
    step = {"gpu": "H100-SXM", "model": "llama2-70b", "engine": "vllm", "tp": 2, "phase": "decode", "in_len": 64, "ctx_len": 64, "out_len": 1, "dtype": "fp16"}
    pd.DataFrame([step | {"batch": b, "time_ms": 40.0 + b} for b in (1, 2)]).to_csv(tmp_path / "steps.csv", index=False)
    printed = says(capsys, "validate", tmp_path)
    assert "worst:" in printed and "left out: step: tables of kind 'step' have no fitted form" in printed


def test_calibrate_writes_a_preset_that_the_package_reads(capsys, table, tmp_path):
    printed = says(capsys, "calibrate", "--from", table, "--device", "h100-sxm-80gb", "--out", tmp_path / "h100.toml")
    assert re.search(r"worst error on families the fit never saw: \d\.\d %", printed) and "written:" in printed
    fit, = read_fits(tmp_path / "h100.toml")
    assert (fit.op, fit.format, fit.stack) == ("gemm", "bf16", "trtllm-1.3.0rc20") and 0 < fit.mape < 0.1
    assert "made:trtllm" in (tmp_path / "h100.toml").read_text()


def test_calibrate_without_out_says_so_and_device_aliases_work(capsys, table):
    assert "not written; give --out" in says(capsys, "calibrate", "--from", table.parent, "--device", "h100", "--kinds", "gemm")


@pytest.fixture
def machine(monkeypatch):
    """A made-up report in place of timing this machine; tests/test_evidence_measure.py times it."""
    points = pd.DataFrame([{"kind": kind, "phase": "decode", "m": 1.0, "n": 8.0, "k": 8.0, "batch": 1.0, "q_len": 1.0, "kv_len": 8.0, "measured_us": 5.0,
                            "predicted_us": 5.5, "held_out": bool(i % 2), "spread": 0.01} for kind in ("gemm", "decode", "step") for i in range(4)])
    report = measure.MachineReport(points, measure._errors(points), {}, {"processor": "Abacus", "cores": 2, "backend": "numpy", "blas": "none", "dtype": "fp32"}, 4.0)
    asked = {}
    monkeypatch.setattr(measure, "measure_this_machine", lambda **options: asked.update(options) or report)
    return asked


def test_measure_prints_held_out_errors_and_writes_both_forms(capsys, machine, tmp_path):
    printed = says(capsys, "measure", "--budget", 5, "--backend", "numpy", "--out", tmp_path / "points.csv")
    assert machine["budget_s"] == 5 and machine["backend_name"] == "numpy"
    assert re.search(r"gemm +held out +2 +10.0 %", printed) and "worst kind on points the fit never saw: 10.0 % mean error" in printed
    assert len(pd.read_csv(tmp_path / "points.csv")) == 12 and json.loads((tmp_path / "points.json").read_text())["processor"] == "Abacus"
    says(capsys, "measure", "--out", tmp_path / "folder")
    assert {p.name for p in (tmp_path / "folder").iterdir()} == {"gemm_this_machine.csv", "attention_this_machine.csv", "step_this_machine.csv", "environment.json"}


def wrong(capsys, *argv) -> str:
    assert cli.main([str(a) for a in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("roofkit: ") and err.count("\n") == 1 and len(err) < 500
    return err


def test_wrong_input_is_one_line_and_exit_code_2(capsys, table, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.csv").write_text("gpu,dtype,m\n1,2,3\n1,2,3,4,5\n")
    (tmp_path / "slow.csv").write_text("gpu,dtype,m,n,k,time_ms\nH100-SXM,bf16,1,2,3,4\n")
    for command in (["predict"], ["validate"], ["calibrate", "--device", "h100", "--from"]):
        assert "no such file" in wrong(capsys, *command, tmp_path / "absent.csv")
        assert "cannot be read as .csv" in wrong(capsys, *command, tmp_path / "torn.csv")
        assert "lacks time_us; 'time_ms' is there" in wrong(capsys, *command, tmp_path / "slow.csv")
        assert "no .csv or .parquet file" in wrong(capsys, *command, tmp_path / "empty")
    assert "use one of family" in wrong(capsys, "validate", table, "--split", "moon")
    assert "at least 1" in wrong(capsys, "validate", table, "--seeds", 0)
    assert "nothing to judge" in wrong(capsys, "validate", table, "--split", "head_dim")
    assert "no rows of l40s" in wrong(capsys, "validate", table, "--device", "l40s")
    assert "h100-sxm-80gb" in wrong(capsys, "calibrate", "--from", table, "--device", "h100-sxm-80g")
    assert "at least 3 seconds" in wrong(capsys, "measure", "--budget", 1)


def test_places_that_cannot_be_written_are_refused_before_the_work(capsys, table, machine, tmp_path):
    (tmp_path / "taken.csv").mkdir()
    (tmp_path / "file").touch()
    for out in (tmp_path / "taken.csv", tmp_path / "file" / "deeper.csv"):
        assert "cannot write" in wrong(capsys, "measure", "--out", out)
    assert machine == {}
    assert "cannot write" in wrong(capsys, "predict", table, "--out", tmp_path)


def test_missing_extras_are_named(capsys, monkeypatch, table, tmp_path):
    (tmp_path / "rows.parquet").touch()
    monkeypatch.setattr(sources.util, "find_spec", lambda name: None)
    assert "pip install pyarrow" in wrong(capsys, "predict", tmp_path / "rows.parquet")
    assert "pip install aiconfigurator-core" in wrong(capsys, "calibrate", "--from", "aiconfigurator-core", "--device", "h200")
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert cli.main(["calibrate", "--from", str(table), "--device", "h100"]) == 2
    assert "pip install 'roofkit[calibrate]'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["calibrate"], ["calibrate", "--from", "x.csv"], ["validate"], ["predict"], ["measure", "--backend", "abacus"]], ids=" ".join)
def test_wrong_usage_prints_the_usage(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2 and capsys.readouterr().err.startswith("usage: roofkit")
