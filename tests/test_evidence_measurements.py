"""Measured tables: read, checked, split; serving rows that contradict their labels."""
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import roofkit as rk
from roofkit.errors import MeasurementError
from roofkit.evidence.domains import inside, ranges
from roofkit.evidence.measurements import DEVICES, device_name, kind_of, read_measurements, resolve_device
from roofkit.evidence.rows import check_rows
from roofkit.evidence.splits import RULES, families, splits
from roofkit.hardware.presets import list_devices

SHARED = Path(__file__).parents[2] / "shared" / "data" / "measured"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no measurement files in {SHARED}")


def gemm(**columns):
    base = {"gpu": "H100-SXM", "dtype": "bf16", "m": [1, 2, 4], "n": 128, "k": 256, "time_us": [3.0, 3.1, 3.2]}
    return pd.DataFrame({**base, **columns})


@pytest.mark.parametrize("frame, words", [
    (gemm().drop(columns="time_us").assign(time_ms=1.0), "lacks time_us.*'time_ms' is there"),
    (gemm(time_us=[3.0, -1.0, 3.0]), "row 1, column 'time_us'"), (gemm(time_us=[3.0, np.nan, 3.0]), "row 1, column 'time_us'"),
    (gemm(time_us=[3.0, np.inf, 1.0]), "must be a finite number"), (gemm(m=[1, "two", 3]), "row 1, column 'm': 'two' is not a number"),
    (gemm(dtype="fp7"), "dtype 'fp7' is not known"), (gemm(time_us=[3e-6, 4e-6, 5e-6]), "cannot be microseconds"), (gemm().iloc[:0], "no rows"),
])
def test_a_bad_table_is_refused_with_what_to_change(frame, words):
    with pytest.raises(MeasurementError, match=words):
        read_measurements(frame)


def test_repeats_are_dropped_and_counted_and_the_source_is_no_difference():
    frame = pd.concat([gemm(source="dump-1"), gemm(source="dump-2")])
    out = read_measurements(frame)
    assert len(out) == 3 and out.attrs["repeats_dropped"] == 3 and set(out["kind"]) == {"gemm"} and set(out["device"]) == {"h100-sxm-80gb"}
    assert "kind" not in frame  # the caller's table stays as it was


def test_a_missing_file_and_a_wrong_one_are_named(tmp_path):
    with pytest.raises(MeasurementError, match="no such file"):
        read_measurements(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(MeasurementError, match="cannot be read as"):
        read_measurements(tmp_path / "empty.csv")


def test_names_of_measured_gpus_are_presets():
    known = list_devices()["name"].tolist()
    assert not {gpu: name for gpu, name in DEVICES.items() if gpu not in ("P4", "MI100") and resolve_device(name, known) is None}
    for gpu, preset in (("H200-SXM", "h200-sxm-141gb"), ("GB200", "gb200-186gb"), ("B300-SXM", "b300-sxm-270gb")):
        assert resolve_device(device_name(gpu), known) == preset
    assert resolve_device("no-such-chip", known) is None


@needs_shared
@pytest.mark.parametrize("name, kind", [("gemm_l40s", "gemm"), ("gemm_power", "gemm_power"), ("attention_mla", "mla"), ("attention_mixed_batch", "mixed_attention"),
                                        ("collectives", "collective"), ("e2e_steps", "step"), ("layer_profile", "layer"), ("moe_all2all_deepep", "moe_all2all"),
                                        ("elementwise", "elementwise"), ("attention_infersim", "attention")])
def test_every_shared_kernel_table_is_read_as_its_kind(name, kind):
    frame = read_measurements(SHARED / f"{name}.csv")
    assert kind_of(frame.columns) == kind and len(frame) and frame["device"].notna().all()


@pytest.mark.parametrize("seed", range(5))
def test_folds_never_share_a_family_and_test_every_row_once(seed):
    rng = np.random.default_rng(seed)
    frame = read_measurements(gemm(m=np.arange(1, 301), n=rng.choice([64, 128, 256, 512, 1024], 300), k=rng.choice([64, 4096], 300), time_us=rng.uniform(1, 9, 300)))
    seen = np.zeros(len(frame), int)
    for part in splits(frame, "family", seed=seed):
        assert not set(families(frame)[part.train]) & set(families(frame)[part.test]) and not (part.train & part.test).any()
        seen += part.test
    assert (seen == 1).all()
    again = [p.test for p in splits(frame, "family", seed=seed)]
    assert all((a == p.test).all() for a, p in zip(again, splits(frame, "family", seed=seed)))


def test_rules_that_cannot_divide_a_table_say_so():
    frame = read_measurements(gemm())
    for rule, words in (("gpu", "at least two different values"), ("head_dim", "needs that column"), ("family", "at least two families"), ("luck", "use one of")):
        with pytest.raises(MeasurementError, match=words):
            list(splits(frame, rule))
    assert "every_fourth" in RULES and sum(p.test.sum() for p in splits(read_measurements(gemm(m=range(1, 41), time_us=2.0)), "every_fourth")) == 10


def test_a_domain_is_the_box_of_its_rows_and_nothing_outside_it():
    frame = read_measurements(gemm(m=[1, 64, 512]))
    box = ranges(frame)
    assert inside(frame, box).all()
    assert not inside(read_measurements(gemm(m=[1024] * 3, time_us=[2, 3, 4])), box).any()
    assert not inside(read_measurements(gemm(gpu="L40S")), box).any()


def serving(**columns):
    base = {"gpu": "H100-SXM", "model": "m", "engine": "vllm", "precision": "bf16", "mode": "agg", "tp": 1, "n_gpu": 1, "isl": 1000.0, "osl": 100.0, "concurrency": 8.0,
            "ttft_ms": 200.0, "tpot_ms": 12.0, "source": "a"}
    row = {**base, **columns}
    return row | {"tok_s_user": 1e3 / row["tpot_ms"], "tok_s_gpu_derived": row["concurrency"] * row["osl"] / (row["ttft_ms"] + (row["osl"] - 1) * row["tpot_ms"]) * 1e3}


def test_rows_that_contradict_their_labels_are_set_aside_with_the_reason():
    good = serving()
    rows = [good, good | {"source": "b"}, serving(concurrency=16.0, ttft_ms=210.0) | {"tok_s_gpu_derived": 1.0}, serving(concurrency=4.0, tpot_ms=5.0),
            serving(concurrency=32.0, tpot_ms=11.0), serving(concurrency=2.0) | {"tok_s_user": 500.0}]
    keep, aside = check_rows(pd.DataFrame(rows), decode_ms=np.full(6, 10.0), prefill_ms=np.full(6, 25.0))
    assert len(keep) == 1 and keep.iloc[0]["concurrency"] == 8.0  # share (12 - 10) / (8 x 25 / 100) = 1
    for words in ("exact repeat", "Little's law", "faster than a decode step", "different amount of prefill", "1000 / tpot_ms"):
        assert aside["reason"].str.contains(words, regex=False).sum() == 1, words


@needs_shared
def test_shared_serving_points_lose_their_repeats():
    keep, aside = check_rows(SHARED / "serving_points.csv")
    assert len(keep) + len(aside) == len(pd.read_csv(SHARED / "serving_points.csv"))
    assert aside["reason"].str.contains("repeat").sum() > 250 and not keep.duplicated([c for c in keep if c != "source"]).any()


def test_narrow_products_of_an_engine_without_its_own_fit_are_not_in_domain():
    """Another engine's fp8 kernels quantise otherwise: constants are inherited, and the row is outside what was validated."""
    row = dict(gpu="H100-SXM", m=64.0, n=4096.0, k=4096.0)
    cases = [(d, s) for d in ("fp8", "bf16") for s in ("vllm-0.24.0", "trtllm-1.3.0rc20")]
    said = rk.predict(pd.DataFrame([row | {"dtype": d, "source": f"aic:{s}", "time_us": 12.0 + i} for i, (d, s) in enumerate(cases)]))
    assert said["calibration"].tolist() == ["inherited", "fitted", "fitted", "fitted"] and said["in_domain"].tolist() == [False, True, True, True]
    assert said["predicted_us"][0] < said["predicted_us"][1], "a short quantisation kernel instead of the collector's slow ones"
