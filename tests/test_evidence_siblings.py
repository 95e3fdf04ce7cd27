"""Errors of siblings: a made-up package whose times are known multiples of what roofkit says."""
import pandas as pd
import pytest
from test_evidence_aiconfigurator import ATTENTION, GEMM, csv_for_parquet, package  # noqa: F401

import roofkit as rk
from roofkit.errors import MeasurementError
from roofkit.evidence import bands
from roofkit.evidence.siblings import main, sibling_errors

WRONG = 1.25  # the package's times over roofkit's


def tables(folder, **more):
    shapes = [{**GEMM[0], "m": m, "n": n, "k": 4096} for m in (1, 64, 512) for n in (1024, 4096, 8192)]
    rows = pd.DataFrame([dict(gpu="H200-SXM", dtype="bf16", m=r["m"], n=r["n"], k=r["k"], time_us=10.0 + i, source="aic:trtllm-1.3.0rc20") for i, r in enumerate(shapes)])
    said = rk.predict(rows)["predicted_us"]
    exact = [{**r, "latency": t * WRONG / 1e3} for r, t in zip(shapes, said, strict=True)]
    return package(folder, {"h200_sxm/gemm/trtllm/1.3.0rc20/gemm_perf": exact, **more})


def test_errors_are_those_of_the_parents_constants(tmp_path, csv_for_parquet):  # noqa: F811
    table = sibling_errors(tables(tmp_path), date="2026-11", progress=lambda _: None)
    row = table[table["regime"] == "all"].iloc[0]
    assert (row.device, row.op, row.format, row.stack, row.split, row.n) == ("h200-sxm-141gb", "gemm", "bf16", "trtllm-1.3.0rc20", "sibling", 9)
    assert row.mape == pytest.approx(1 - 1 / WRONG, rel=1e-3) and row.bias == pytest.approx(1 / WRONG - 1, rel=1e-3)


def test_what_the_parent_was_never_fitted_on_is_not_judged(tmp_path, csv_for_parquet):  # noqa: F811
    other = {"h200_sxm/gemm/sglang/9.9/gemm_perf": [{**GEMM[0], "m": m, "n": 512, "framework": "SGLANG", "version": "9.9", "latency": 5.0} for m in (1, 2, 4)],
             "h200_sxm/attention/trtllm/1.3.0rc20/context_attention_perf": [{**ATTENTION, "kv_cache_dtype": "fp8", "isl": n, "step": 0, "latency": 0.2 * n / 512} for n in (512, 1024)]}
    table = sibling_errors(tables(tmp_path, **other), date="2026-11", progress=lambda _: None)
    assert set(table["stack"]) == {"trtllm-1.3.0rc20"} and set(table["op"]) == {"gemm", "attention_prefill"}


def test_a_tree_without_siblings_is_refused(tmp_path, csv_for_parquet, capsys):  # noqa: F811
    root = package(tmp_path, {"h100_sxm/gemm/trtllm/1.3.0rc20/gemm_perf": GEMM})
    with pytest.raises(MeasurementError, match="no table of a sibling"):
        sibling_errors(root, date="2026-11", progress=lambda _: None)
    assert main([str(root), str(tmp_path / "out.csv")]) == 2 and "sibling" in capsys.readouterr().err


def test_shipped_siblings_carry_a_band():
    found = bands.band("h200-sxm-141gb", "gemm", "bf16")
    assert found.split == "sibling" and 0.02 < found.mape < 0.10 and "sibling" in found.text
    assert bands.band("rtx-4090", "gemm", "bf16") is None
