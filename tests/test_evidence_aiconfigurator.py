"""AIConfigurator's tables: a made-up package of the same layout, read into the uniform schema. The real package is never needed.

Layout and column names: aiconfigurator-core 0.12.0. All times here are invented.
"""
import sys
from pathlib import Path

import pandas as pd
import pytest

from roofkit.errors import MeasurementError
from roofkit.evidence import aiconfigurator
from roofkit.evidence.measurements import SCHEMAS, read_measurements
from roofkit.evidence.sources import read_source, thinned

HEAD = {"framework": "TRTLLM", "version": "1.3.0rc20", "device": "NVIDIA H200", "kernel_source": "torch_flow"}
GEMM = [{"op_name": "gemm", "gemm_dtype": d, "m": 2 ** i, "n": 4096, "k": 1024, "latency": 0.004 + 0.001 * i} for d in ("bfloat16", "fp8", "odd8") for i in range(3)]
ATTENTION = {"batch_size": 2, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "beam_width": 1, "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8"}
MLA = {"batch_size": 2, "num_heads": 16, "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "tp_size": 8}
MOE = {"moe_dtype": "fp8_block", "num_tokens": 64, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 4,
       "distribution": "power_law_1.01", "kernel_source": "deepgemm"}
FILES = {
    "h200_sxm/gemm/trtllm/1.3.0rc20/gemm_perf": GEMM,
    "h200_sxm/gemm/trtllm/1.3.0/gemm_perf": [{**GEMM[0], "version": "1.3.0"}],
    "h200_sxm/gemm/vllm/0.24.0/gemm_perf": [{**GEMM[0], "framework": "VLLM", "version": "0.24.0"}],
    "h200_sxm/attention/trtllm/1.3.0/context_attention_perf": [{**ATTENTION, "isl": 512, "step": 0, "latency": 0.2}],  # no window_size: full
    "h200_sxm/attention/trtllm/1.3.0/generation_attention_perf": [
        {**ATTENTION, "isl": 1, "step": 1023, "window_size": 128, "kernel_source": kernel, "latency": t}
        for kernel, t in (("slow", 0.030), ("fast", 0.010), ("fast", 0.012), ("fast", 0.014))],
    "h200_sxm/mla/trtllm/1.3.0/context_mla_perf": [{**MLA, "isl": 256, "step": 0, "latency": 0.1}],
    "h200_sxm/mla/trtllm/1.3.0/generation_mla_perf": [{**MLA, "isl": 1, "step": 255, "latency": 0.02}],
    "h200_sxm/moe/trtllm/1.3.0rc23/moe_perf": [{**MOE, "latency": 0.3}],
    "h200_sxm/comm/trtllm/1.3.0/custom_allreduce_perf": [
        {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 8, "message_size": 128, "kernel_source": kernel, "framework": framework, "latency": 0.003}
        for kernel, framework in (("TRTLLM", "TRTLLM"), ("TRTLLM_MNNVL_oneshot", "TRTLLM"), ("vLLM_custom_graph", "VLLM"))],
    "h200_sxm/comm/nccl/2.29.2/nccl_perf": [{"op_name": "alltoall", "nccl_dtype": d, "num_gpus": 4, "message_size": n, "kernel_source": "NCCL", "latency": 0.02}
                                            for d, n in (("half", 512), ("int8", 1024))],
    "h200_sxm/comm/nccl/2.23/nccl_perf": [{"op_name": "alltoall", "nccl_dtype": "half", "num_gpus": 4, "message_size": 4, "kernel_source": "NCCL", "latency": 1.0}],
    "b60/gemm/vllm/0.26.0/gemm_perf": [{**GEMM[0], "framework": "VLLM"}],
}


def package(folder: Path, files: dict = FILES) -> Path:
    """A folder laid out like the package. Its tables are CSV text under parquet's name: `csv_for_parquet` reads them."""
    for name, rows in files.items():
        path = folder / "aiconfigurator_core" / "systems" / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame([{**HEAD, **row} for row in rows]).to_csv(path, index=False)
    (folder / "aiconfigurator_core" / "__init__.py").write_text("raise RuntimeError('the package is data here: its code must not run')")
    return folder / "aiconfigurator_core"


@pytest.fixture
def csv_for_parquet(monkeypatch):
    monkeypatch.setattr(pd, "read_parquet", pd.read_csv)


@pytest.fixture
def installed(tmp_path, monkeypatch, csv_for_parquet) -> Path:
    root = package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "aiconfigurator_core", raising=False)
    return root


def only(frame: pd.DataFrame, **values) -> dict:
    rows = frame[(frame[list(values)] == pd.Series(values)).all(axis=1)]
    assert len(rows) == 1, rows
    return rows.iloc[0].to_dict()


def test_every_table_comes_in_the_uniform_schema(installed):
    tables = aiconfigurator.read_tables("h200-sxm-141gb")
    assert list(tables.frames) == list(aiconfigurator.KINDS)
    for kind, frame in tables.frames.items():
        assert set(frame) == {*SCHEMAS[kind], "source"}
        checked = read_measurements(frame)
        assert set(checked["kind"]) == {kind} and set(checked["device"]) == {"h200-sxm"}
    assert "Apache-2.0" in tables.source and "aiconfigurator-core" in tables.source
    assert "aiconfigurator_core" not in sys.modules


def test_milliseconds_become_microseconds_and_formats_ours(installed):
    gemm = aiconfigurator.read_tables("h200-sxm-141gb", version="1.3.0rc20", kinds=["gemm"], backends=["trtllm"]).frames["gemm"]
    assert only(gemm, dtype="bf16", m=4)["time_us"] == pytest.approx(6.0)
    assert sorted(gemm["dtype"].unique()) == ["bf16", "fp8"] and set(gemm["source"]) == {"aic:trtllm-1.3.0rc20"}


def test_cached_tokens_count_into_the_keys_and_no_window_is_full_attention(installed):
    attention = aiconfigurator.read_tables("h200-sxm-141gb").frames["attention"]
    prefill, decode = only(attention, phase="prefill"), only(attention, phase="decode")
    assert (prefill["q_len"], prefill["kv_len"], prefill["window"], prefill["kv_dtype"]) == (512, 512, 0, "fp8")
    assert (decode["q_len"], decode["kv_len"], decode["window"]) == (1, 1024, 128)


def test_repeats_become_their_median_and_the_faster_kernel_counts(installed):
    assert only(aiconfigurator.read_tables("h200-sxm-141gb").frames["attention"], phase="decode")["time_us"] == pytest.approx(12.0)


def test_mla_heads_are_per_rank_and_moe_keeps_its_kernel(installed):
    frames = aiconfigurator.read_tables("h200-sxm-141gb").frames
    assert only(frames["mla"], phase="decode")["heads"] == 16
    assert only(frames["moe"], kernel="deepgemm") | {"experts": 128, "ep": 4, "tokens": 64, "dtype": "fp8_block"} == only(frames["moe"], kernel="deepgemm")


def test_collective_sizes_are_elements_of_two_bytes(installed):
    frame = aiconfigurator.read_tables("h200-sxm-141gb").frames["collective"]
    assert only(frame, algo="trtllm-custom") | {"bytes": 256, "ranks": 8, "nodes": 1} == only(frame, algo="trtllm-custom")
    assert only(frame, algo="nccl-2.29.2")["bytes"] == 1024  # `half` rows of the newest NCCL only
    assert sorted(frame["algo"]) == ["nccl-2.29.2", "trtllm-custom", "trtllm-mnnvl-oneshot"]


def test_what_is_left_out_is_said(installed):
    notes = " ".join(aiconfigurator.read_tables("h200-sxm-141gb", version="1.3.0rc20").notes)
    assert "3 rows of odd8 left out" in notes
    assert "copied from another backend" in " ".join(aiconfigurator.read_tables("h200-sxm-141gb").notes)


def test_versions_the_newest_gemm_table_leads(installed):
    """1.3.0 is newer than 1.3.0rc20; MoE has only 1.3.0rc23 and is taken from there."""
    tables = aiconfigurator.read_tables("h200-sxm-141gb", backends=["trtllm"]).frames
    assert set(tables["gemm"]["source"]) == {"aic:trtllm-1.3.0"} and set(tables["moe"]["source"]) == {"aic:trtllm-1.3.0rc23"}
    assert [aiconfigurator._newest(v) for v in (["0.5.6", "0.5.6.post2"], ["0.9.0", "0.14.0"], ["1.3.0rc9", "1.3.0rc20"], [])] == [
        "0.5.6.post2", "0.14.0", "1.3.0rc20", None]


def test_systems_with_tables(installed):
    assert aiconfigurator.systems() == {"h200_sxm": "h200-sxm-141gb", "b60": "arc-pro-b60"}


@pytest.mark.parametrize("arguments, said", [
    ({"device": "l40s"}, "no tables of 'l40s'.*h200-sxm-141gb, arc-pro-b60"), ({"device": "h200-sxm-141gb", "version": "9.9", "kinds": ["gemm"]}, "version '9.9'.*trtllm 1.3.0"),
    ({"device": "h200-sxm-141gb", "backends": ["mlx"]}, "'mlx' is not known; use trtllm"), ({"device": "h200-sxm-141gb", "kinds": ["conv"]}, "'conv' is not known"),
])
def test_what_the_package_does_not_hold(installed, arguments, said):
    with pytest.raises(MeasurementError, match=said):
        aiconfigurator.read_tables(**arguments)


def test_package_absent_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(aiconfigurator.util, "find_spec", lambda name: None)
    with pytest.raises(MeasurementError, match="pip install aiconfigurator-core"):
        aiconfigurator.read_tables("h200-sxm-141gb")


def test_lfs_pointers_other_layouts_and_missing_pyarrow_are_named(tmp_path, monkeypatch, csv_for_parquet):
    root = package(tmp_path, {"h200_sxm/gemm/trtllm/1.0.0/gemm_perf": [{"m": 1, "latency": 1.0}]})
    with pytest.raises(MeasurementError, match="lacks the columns gemm_dtype, n, k"):
        aiconfigurator.read_tables("h200-sxm-141gb", root=root)

    def no_engine(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", no_engine)
    with pytest.raises(MeasurementError, match="needs pyarrow; pip install pyarrow"):
        aiconfigurator.read_tables("h200-sxm-141gb", root=root)
    next(root.rglob("*.parquet")).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(MeasurementError, match="Git LFS pointer.*git lfs pull"):
        aiconfigurator.read_tables("h200-sxm-141gb", root=root)


def test_a_source_is_the_package_its_folder_or_our_tables(installed, tmp_path):
    by_name, by_folder = (read_source(s, device="h200-sxm-141gb") for s in ("aiconfigurator-core", installed))
    assert list(by_name.frames) == list(by_folder.frames) == list(aiconfigurator.KINDS)
    with pytest.raises(MeasurementError, match="which device.*arc-pro-b60"):
        read_source("aiconfigurator-core")
    ours = tmp_path / "ours"
    ours.mkdir()
    by_name.frames["gemm"].drop(columns=["source", "kind", "device"]).to_csv(ours / "mine.csv", index=False)
    (ours / "notes.csv").write_text("a,b\n1,2\n")
    found = read_source(ours)
    assert list(found.frames) == ["gemm"] and set(found.frames["gemm"]["source"]) == {"mine"} and "notes.csv" in found.notes[0]
    with pytest.raises(MeasurementError, match="no rows of l40s"):
        read_source(ours, device="l40s")
    with pytest.raises(MeasurementError, match="can be chosen from aiconfigurator-core only"):
        read_source(ours, backends=["vllm"])


def test_thinning_keeps_every_kernel():
    frame = read_measurements(pd.DataFrame([{"gpu": "H100-SXM", "dtype": d, "m": m, "n": 64, "k": 64, "time_us": 5.0, "source": "x"}
                                            for d, most in (("bf16", 50), ("fp8", 5)) for m in range(1, most)]))
    kept, note = thinned(frame, 10)
    assert kept["dtype"].value_counts().to_dict() == {"bf16": 10, "fp8": 4} and "at most 10" in note
    assert thinned(frame)[1] == ""
