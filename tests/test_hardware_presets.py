"""Every device and machine preset loads, each figure has its origin, and the figures are the published ones.

SHARED is the reference collection that the presets were made from; users do not have it, so what it proves is also in tables here.
"""
import csv
import math
import re
import statistics
from pathlib import Path

import pytest

from roofkit.errors import CostModelError, DataError, RoofkitError, UnitError
from roofkit.hardware import device as device_module
from roofkit.hardware import presets
from roofkit.hardware.device import CONFIDENCES, KINDS, figure_table
from roofkit.hardware.presets import (
    check_figure,
    default_cluster,
    device_from_toml,
    list_clusters,
    list_devices,
    load_cluster,
    load_device,
)
from roofkit.units import to_base

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "reference"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the reference collection ../shared is not here; the tables of this file still hold")
DEVICES = list(list_devices()["name"])
MACHINES = list(list_clusters()["name"])


def rows(name: str) -> list[dict]:
    with open(SHARED / name, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def test_there_are_as_many_presets_as_in_the_reference():
    assert (len(DEVICES), len(MACHINES)) == (67, 55)


@pytest.mark.parametrize("name", DEVICES)
def test_device_preset_loads_and_every_figure_has_its_origin(name):
    device = load_device(name)
    assert device.name == name and device.label and device.maker
    assert device.hbm_bytes_per_s > 0 and device.memory_bytes > 0 and any(device.has_math(m) for m in ("bf16", "fp16", "fp8"))
    for key, f in {**device.figures, **device.facts}.items():
        assert f.kind in KINDS and f.confidence in CONFIDENCES and len(f.source) > 5, key
    for key, f in device.figures.items():
        assert f.unit and math.isfinite(f.value) and f.value == to_base(f.printed, f.unit), key
    assert set(device.unverified) == {k for k, f in device.figures.items() if f.confidence == "C"}
    assert default_cluster(device).device is device


@pytest.mark.parametrize("name", MACHINES)
def test_machine_preset_loads_and_every_figure_has_its_origin(name):
    cluster = load_cluster(name)
    assert cluster.name == name and cluster.label and cluster.topology and cluster.n_devices == cluster.devices_per_node * cluster.nodes
    assert cluster.scaleup_bytes_per_s > 0 or cluster.n_devices == 1
    assert 0 <= cluster.p2p_bytes_per_s <= cluster.scaleup_bytes_per_s
    for key, f in {**cluster.figures, **cluster.facts}.items():
        assert f.kind in KINDS and f.confidence in CONFIDENCES and f.source, key
    for key, f in cluster.figures.items():
        assert key not in cluster.unverified or f.confidence == "C"


@needs_shared
def test_the_reference_equals_the_presets_figure_by_figure():
    for r in rows("hardware.csv"):
        device = load_device(r["device"])
        where = f"{r['device']} {r['figure']}"
        if r["unit"] in ("text", "date"):
            kept = device.facts[r["figure"]]
            assert kept.value == r["value"], where
        else:
            kept = device.figures[r["figure"]]
            assert (kept.printed, kept.unit) == (float(r["value"]), r["unit"]), where
        assert (kept.kind, kept.confidence) == (r["kind"], r["confidence"]), where
    known = {(r["device"], r["figure"]) for r in rows("hardware.csv")}
    added = [(d, k, f) for d in DEVICES for k, f in load_device(d).figures.items() if (d, k) not in known]
    assert all(f.kind in ("assumed", "estimated") for _, _, f in added), added
    assert {k for _, k, _ in added} <= {"tdp", "peak_fp8_dense_at_shipped_clock"}


@needs_shared
def test_the_machine_reference_equals_the_presets():
    for r in rows("machines.csv"):
        c = load_cluster(r["machine"])
        assert (c.device.name, c.devices_per_node, c.nodes, c.n_devices, c.scaleup_domain) == (
            r["device"], int(r["devices_per_node"]), int(r["nodes"]), int(r["devices_total"]), int(r["scaleup_domain"])), r["machine"]
        for column, got in (("scaleup_bandwidth_per_direction_per_device_GBs", c.scaleup_bytes_per_s), ("p2p_bandwidth_per_direction_GBs", c.p2p_bytes_per_s),
                            ("scaleout_bandwidth_per_direction_per_node_GBs", c.scaleout_bytes_per_s * c.devices_per_node)):
            if r[column]:
                assert got == pytest.approx(float(r[column]) * 1e9), (r["machine"], column)
        assert c.in_switch_reduction == ("in-switch reduction" in r["scaleup_topology"]), r["machine"]
        assert c.facts["scaleup_topology"].value == r["scaleup_topology"]


# --- values that circulate and are wrong ---------------------------------------------------------------------------------
MARKS_WRONG = re.compile(r"wrong|not credible|do not use|^sparse|sparse;|sparse \(factor|sparse or|superseded|headline|not a die|counts eight-fold|"
                         r"rule of thumb|fp16-accumulate|installed;|both directions|press|full eight-stack|divides by")


@needs_shared
def test_no_preset_contains_a_value_that_the_reference_marks_wrong():
    marked = [r for r in rows("hardware_disagreements.csv") if MARKS_WRONG.search(r["verdict"]) and not r["verdict"].startswith("right")]
    assert len(marked) >= 60
    compared = 0
    for r in marked:
        claimed = number(r["claimed_value"])
        if r["device"] in DEVICES and math.isfinite(claimed):
            figure = load_device(r["device"]).figures.get(r["figure"])
            compared += figure is not None
            assert figure is None or figure.value != pytest.approx(to_base(claimed, r["unit"]), rel=1e-3), r
    assert compared >= 55


WRONG = [  # device, figure, value that circulates, unit, what is wrong with it
    ("h100-sxm-80gb", "peak_bf16_dense", 1979, "TFLOP/s", "2:4 sparsity"), ("h100-sxm-80gb", "hbm_bandwidth", 3430, "GB/s", "3350"),
    ("h100-sxm-80gb", "hbm_bandwidth", 3072, "GB/s", "3350"), ("h100-sxm-80gb", "peak_int4_dense", 3958, "TOP/s", "no int4 on Hopper"),
    ("h200-sxm-141gb", "peak_bf16_dense", 1979, "TFLOP/s", "2:4 sparsity"), ("h200-sxm-141gb", "scaleup_bandwidth_per_direction", 1800, "GB/s", "450"),
    ("gh200-96gb", "peak_bf16_dense", 1979, "TFLOP/s", "2:4 sparsity"), ("a100-sxm-80gb", "peak_fp8_dense", 624, "TFLOP/s", "no fp8; int8's rate"),
    ("a100-pcie-80gb", "hbm_bandwidth", 2039, "GB/s", "1935"), ("a100-pcie-80gb", "l2_capacity", 80, "MB", "40"),
    ("l40s", "peak_fp8_dense", 1466, "TFLOP/s", "2:4 sparsity"), ("l40s", "tdp", 300, "W", "350; 300 is the L40"), ("l40s", "l2_capacity", 48, "MB", "96"),
    ("l4", "sm_count", 60, "count", "58"), ("a10", "memory_capacity", 28, "GB", "24"), ("a10g", "peak_bf16_dense", 125, "TFLOP/s", "that is the A10"),
    ("a10g", "sm_count", 72, "count", "80"), ("v100-sxm2-32gb", "tdp", 250, "W", "300"), ("b200-sxm-180gb", "hbm_bandwidth", 9000, "GB/s", "7700"),
    ("b200-sxm-180gb", "hbm_bandwidth", 8000, "GB/s", "full bus; the part has 15/16"), ("b200-sxm-180gb", "hbm_bandwidth", 4100, "GB/s", "one die"),
    ("b200-sxm-180gb", "peak_fp8_dense", 9000, "TFLOP/s", "sparse"), ("b200-sxm-180gb", "sm_count", 192, "count", "148"),
    ("b200-sxm-180gb", "memory_capacity", 90, "GB", "one die"), ("b300-sxm-270gb", "peak_int8_dense", 5000, "TOP/s", "cut to about 150"),
    ("b300-sxm-270gb", "sm_count", 158, "count", "148"), ("gb200-186gb", "hbm_bandwidth", 13400, "GB/s", "8000"),
    ("rubin", "peak_fp4_dense", 50000, "TFLOP/s", "headline with compression"), ("rtx-3090", "peak_bf16_dense", 16.3, "TFLOP/s", "71"),
    ("rtx-4090", "peak_bf16_dense", 330, "TFLOP/s", "fp16 accumulation"), ("rtx-5090", "peak_fp4_dense", 3352, "TFLOP/s", "sparse"),
    ("rtx-pro-6000-server", "peak_bf16_dense", 1000, "TFLOP/s", "sparse"), ("dgx-spark-gb10", "peak_fp4_dense", 1000, "TFLOP/s", "sparse"),
    ("mi210", "peak_int8_dense", 362, "TOP/s", "two dies"), ("mi210", "l2_capacity", 16, "MB", "8"), ("mi300x", "hbm_bandwidth", 10300, "GB/s", "5300"),
    ("mi300x", "peak_fp16_dense", 2615, "TFLOP/s", "fp8's rate"), ("mi300x", "scaleup_p2p_bandwidth_per_direction", 448, "GB/s", "seven links"),
    ("mi325x", "hbm_bandwidth", 10300, "GB/s", "6000"), ("mi325x", "memory_capacity", 288, "GB", "256"), ("mi355x", "peak_fp8_dense", 10100, "TFLOP/s", "sparse"),
    ("mi355x", "achieved_bf16_fraction", 0.68, "ratio", "another peak"), ("arc-pro-b60", "l2_capacity", 4, "MB", "18"),
    ("tpu-v5p", "hbm_bandwidth", 2575, "GB/s", "GiB/s read as GB/s"), ("tpu-v6e", "peak_fp8_dense", 1836, "TFLOP/s", "int8's rate"),
    ("trainium1", "hbm_bandwidth", 820, "GB/s", "GiB/s read as GB/s"), ("trainium2", "peak_bf16_dense", 2563, "TFLOP/s", "sparse, factor 4"),
    ("trainium3", "peak_bf16_dense", 2517, "TFLOP/s", "sparse, factor 4"), ("groq-lpu-v1", "peak_int8_dense", 1000, "TOP/s", "at a clock the cards do not run"),
    ("cerebras-wse-3", "peak_fp16_dense", 125000, "TFLOP/s", "eight-fold sparsity"), ("gaudi3", "PEAK bf16", 1835, "TFLOP/s", "a clock it does not run"),
]


@pytest.mark.parametrize("name, key, value, unit, why", WRONG, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in WRONG])
def test_no_preset_contains_a_wrong_value_that_circulates(name, key, value, unit, why):
    device = load_device(name)
    have = device.peak_flops_per_s(key.split()[1]) if key.startswith("PEAK") else device.value(key, 0.0)
    assert have != pytest.approx(to_base(value, unit), rel=1e-3), why


def test_nvlink_and_idle_power_follow_no_rule_of_thumb():
    both_directions = {"NVLink 3": 600e9, "NVLink 4": 900e9, "NVLink 5": 1800e9, "NVLink 6": 3600e9}
    for device in map(load_device, DEVICES):
        link = device.facts["scaleup_link"].value if "scaleup_link" in device.facts else ""
        speed = device.value("scaleup_bandwidth_per_direction")
        assert speed != both_directions.get(link[:8], 0) and speed not in (478e9, 956e9), device.name
        idle = device.figures.get("idle_power")
        if idle and idle.value == pytest.approx(0.15 * device.value("tdp", math.nan)):
            assert idle.kind == "assumed", f"{device.name}: 0.15 x TDP is a rule of thumb, not a measurement"


# --- the traps of the reference, one row a fact --------------------------------------------------------------------------
TRAPS = [  # trap, device, figure or property, value in base units, why
    (1, "h100-sxm-80gb", "peak_bf16_dense", 989.4e12, "data sheet prints 1979 with sparsity"), (1, "h200-sxm-141gb", "peak_fp8_dense", 1978.9e12, "3958 sparse"),
    (1, "l4", "peak_bf16_dense", 121e12, "242 sparse"), (1, "l40s", "peak_fp8_dense", 733e12, "1466 sparse"), (1, "b200-sxm-180gb", "peak_fp4_dense", 9000e12, "18 000 sparse"),
    (1, "mi355x", "peak_fp8_dense", 5033.2e12, "10.1 PF is sparse"), (1, "mi355x", "peak_fp4_dense", 10066e12, "10.1 PF is dense"),
    (1, "trainium2", "peak_bf16_dense", 667e12, "2563 at factor 4"), (1, "cerebras-wse-3", "peak_fp16_dense", 15600e12, "125 PF counts sparsity"),
    (1, "rubin", "peak_fp4_dense", 35000e12, "50 PF is no matrix rate"),
    (2, "h100-sxm-80gb", "scaleup_bandwidth_per_direction", 450e9, "900 is both directions"), (2, "a100-sxm-80gb", "scaleup_bandwidth_per_direction", 300e9, "600"),
    (2, "b200-sxm-180gb", "scaleup_bandwidth_per_direction", 900e9, "1800"), (2, "mi300x", "scaleup_p2p_bandwidth_per_direction", 64e9, "448 is seven links"),
    (3, "b200-sxm-180gb", "hbm_bandwidth", 7700e9, "15/16 of the bus: 7672, printed 7.7"), (3, "b200-sxm-180gb", "hbm_bandwidth_device", 7672.3e9, "device-reported"),
    (3, "gb200-186gb", "hbm_bandwidth_device", 7928.1e9, "31/32"), (3, "b200-sxm-180gb", "memory_capacity", 180e9, "192 x 15/16"),
    (4, "h100-sxm-80gb", "memory_bytes", 80 * 2**30, "80 GB of HBM is 80 GiB"), (4, "a100-sxm-80gb", "memory_bytes", 80 * 2**30, "the same"),
    (4, "tpu-v5p", "hbm_bandwidth", 2765e9, "2575 GiB/s"), (4, "tpu-v5e", "hbm_bandwidth", 819e9, "800 in another page's column"),
    (4, "trainium1", "hbm_bandwidth", 880e9, "820 GiB/s"), (4, "l40s", "memory_bytes", 46068 * 2**20, "what the driver shows"),
    (5, "h100-sxm-80gb", "tensor_peak_clock", 1830e6, "989.4 holds there"), (5, "h100-sxm-80gb", "boost_clock", 1980e6, "the maximum"),
    (5, "h100-sxm-80gb", "clock_hz", 1830e6, "the tensor clock goes first"), (5, "b200-sxm-180gb", "boost_clock", 1965e6, "2250 holds at 1835"),
    (6, "rtx-4090", "peak_bf16_dense", 165.2e12, "330 accumulates in fp16"), (6, "rtx-5090", "peak_bf16_dense", 209.5e12, "419, 838"),
    (6, "rtx-pro-6000-server", "peak_bf16_dense", 467.8e12, "not halved"),
    (7, "t4", "peak_bf16_dense", 0, "no bf16 before Ampere"), (7, "v100-sxm2-32gb", "peak_bf16_dense", 0, "the same"), (7, "a100-sxm-80gb", "peak_fp8_dense", 0, "none"),
    (7, "mi250x", "peak_fp8_dense", 0, "none"), (7, "h100-sxm-80gb", "peak_int4_dense", 0, "dropped"), (7, "b300-sxm-270gb", "peak_int8_dense", 153.5e12, "cut"),
    (7, "tpu-v6e", "peak_fp8_dense", 918e12, "the bf16 rate"), (7, "trainium3", "peak_fp4_dense", 2517e12, "no faster than mxfp8"),
    (8, "a10g", "peak_bf16_dense", 70e12, "the A10 has 125"), (8, "l40", "peak_bf16_dense", 181.05e12, "half of an L40S"), (8, "h200-nvl-141gb", "peak_bf16_dense", 835.5e12, "not SXM's"),
    (9, "mi250x", "peak_bf16_dense", 383e12, "the package; one kernel sees half"),
    (10, "h100-sxm-80gb", "l2_bandwidth", 5500e9, "measured on the PCIe card, note says so"),
    (11, "mi300x", "achieved_bf16_fraction", 0.511, "power-limited"), (11, "t4", "achieved_hbm_fraction", 0.747, "75 % of the print"),
    (12, "h100-sxm-80gb", "idle_power", 70, "no share of the TDP"), (13, "gaudi3", "peak_bf16_dense_at_shipped_clock", 1677e12, "prints 1835"),
    (14, "mi300x", "hbm_bandwidth", 5300e9, "a packaged data base has 10 300"), (14, "mi300x", "l2_capacity", 32 * 10**6, "16 elsewhere"),
]


@pytest.mark.parametrize("trap, name, key, value, why", TRAPS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in TRAPS])
def test_traps_of_published_figures(trap, name, key, value, why):
    device = load_device(name)
    have = device.value(key) if key in device.figures else getattr(device, key)
    assert have == pytest.approx(value, rel=2e-3 if key != "l2_capacity" else 0.06), why


NO_RATE = [("a100-sxm-80gb", "fp8"), ("t4", "bf16"), ("v100-pcie-32gb", "bf16"), ("h100-sxm-80gb", "int4"), ("h100-sxm-80gb", "fp4"), ("mi250x", "fp8"),
           ("h100-sxm-80gb", "bf16_sparse"), ("trainium2", "bf16_sparse"), ("cerebras-wse-3", "fp16_printed"), ("rubin", "fp4_headline")]


@pytest.mark.parametrize("name, math_", NO_RATE)
def test_absent_and_sparse_rates_are_refused_for_dense_work(name, math_):
    device = load_device(name)
    assert not device.has_math(math_)
    with pytest.raises(CostModelError, match="choose a number format"):
        device.peak_flops_per_s(math_)
    with pytest.raises(CostModelError):
        device.achievable_flops_fraction(math_)


def test_gaudi3_peaks_are_those_of_the_clock_it_runs():
    device = load_device("gaudi3")
    assert device.peak_flops_per_s("bf16") == device.peak_flops_per_s("fp16") == device.peak_flops_per_s("fp8") == 1677e12


# --- achieved fractions ---------------------------------------------------------------------------------------------------
def measured(key: str) -> list[float]:
    return [d.value(key) for d in map(load_device, DEVICES) if key in d.figures]


def test_default_fractions_are_the_medians_of_the_measured_ones():
    for key, default in (("achieved_bf16_fraction", device_module.DEFAULT_FLOPS_FRACTION["bf16"]),
                         ("achieved_fp8_fraction", device_module.DEFAULT_FLOPS_FRACTION["fp8"]),
                         ("achieved_hbm_fraction", device_module.DEFAULT_BANDWIDTH_FRACTION)):
        found = measured(key)
        assert default.value == pytest.approx(statistics.median(found), abs=0.006), key
        assert f"the {len(found)} devices" in default.source and f"{min(found):g} and {max(found):g}" in default.note
        assert default.kind == "assumed" and default.confidence == "C"


def test_measured_fractions_go_first_and_none_beats_its_peak():
    h100, a30, cpu = load_device("h100-sxm-80gb"), load_device("a30"), load_device("epyc-9654")
    assert h100.achievable_flops_fraction("bf16").value == h100.achievable_flops_fraction("fp16").value == 0.803
    assert h100.achievable_flops_fraction("fp8").kind == "measured" and h100.achievable_bandwidth_fraction().value == 0.856
    assert a30.achievable_flops_fraction("bf16").kind == a30.achievable_bandwidth_fraction().kind == "assumed"
    assert cpu.achievable_bandwidth_fraction().value == 0.8
    for device in map(load_device, DEVICES):
        assert 0 < device.achievable_bandwidth_fraction().value <= 1
        assert all(0 < device.achievable_flops_fraction(m).value <= 1 for m in device_module.PEAK_KEYS if device.has_math(m))


# --- what the loader refuses ----------------------------------------------------------------------------------------------
GOOD = {"value": 3350, "unit": "GB/s", "kind": "published", "confidence": "A", "source": "a data sheet"}
BAD = [  # change, error, words in its text
    ({"source": ""}, DataError, "no source"), ({"source": None}, DataError, "no source"), ({"unit": ""}, DataError, "no unit"), ({"unit": None}, DataError, "no unit"),
    ({"kind": "guess"}, DataError, "kind 'guess'"), ({"kind": None}, DataError, "kind None"), ({"confidence": None}, DataError, "confidence None"),
    ({"confidence": "D"}, DataError, "confidence 'D'"), ({"value": None}, DataError, "value None"), ({"value": "3350"}, DataError, "not a number"),
    ({"value": math.nan}, DataError, "not a number"), ({"value": -1}, DataError, "at least 0"), ({"value": True}, DataError, "not a number"),
    ({"unit": "TFLOP/s"}, UnitError, "not bytes/s"), ({"unit": "GBps"}, UnitError, "not known"),
]


@pytest.mark.parametrize("change, error, words", BAD, ids=[str(r[0]) for r in BAD])
def test_a_figure_without_its_origin_is_refused(change, error, words):
    assert check_figure("hbm_bandwidth", GOOD, "x.toml [hbm_bandwidth]").value == 3350e9
    with pytest.raises(error, match=words) as e:
        check_figure("hbm_bandwidth", {**GOOD, **change}, "x.toml [hbm_bandwidth]")
    assert "x.toml [hbm_bandwidth]" in str(e.value)


def test_a_fraction_above_one_is_refused():
    with pytest.raises(DataError, match="beats the peak"):
        check_figure("achieved_hbm_fraction", {**GOOD, "value": 1.01, "unit": "ratio"}, "x")


H100 = presets._text("hardware", "h100-sxm-80gb")
EDITS = [  # old text, new text, words of the refusal: a preset that repeats a well-known mistake does not load
    ("value = 989.4", "value = 1978.9", r"peak_bf16_dense.*sparsity"), ("[peak_fp8_dense]\nvalue = 1978.9", "[peak_fp8_dense]\nvalue = 3957.8", r"peak_fp8_dense.*sparsity"),
    ("[peak_int8_dense]\nvalue = 1978.9", "[peak_int8_dense]\nvalue = 3957.8", r"peak_int8_dense.*sparsity"),
    ("[hbm_bandwidth]", "[hbm_bandwidth_printed]", r"\[hbm_bandwidth\] is missing"), ("[memory_capacity]\nvalue = 80", "[memory_capacity]\nvalue = 0", "memory_capacity"),
    ("schema = 1", "schema = 2", "schema 2"), ("schema = 1", "schema = ", "not TOML"), ('label = "H100 SXM 80 GB"', "", "no label"), ("_dense]", "_sparse]", "no peak_<format>_dense"),
]


@pytest.mark.parametrize("old, new, words", EDITS, ids=[r[1].replace("\n", " ") or r[0] for r in EDITS])
def test_a_device_file_with_a_known_mistake_is_refused(old, new, words):
    assert device_from_toml(H100).peak_flops_per_s() == 989.4e12
    assert old in H100
    with pytest.raises(DataError, match=words):
        device_from_toml(H100.replace(old, new), "hardware/changed.toml")


def test_a_dense_peak_equal_to_a_sparse_print_beside_it_is_refused():
    text = presets._text("hardware", "trainium2")
    with pytest.raises(DataError, match="peak_bf16_sparse"):
        device_from_toml(text.replace("[peak_bf16_dense]\nvalue = 667", "[peak_bf16_dense]\nvalue = 2563"))


# --- names, tables, defaults ----------------------------------------------------------------------------------------------
ALIASES = [("h100", "h100-sxm-80gb"), ("H100", "h100-sxm-80gb"), ("h200", "h200-sxm-141gb"), ("b200", "b200-sxm-180gb"), ("a100", "a100-sxm-80gb"), ("l40s", "l40s"),
           ("mi300x", "mi300x"), ("rtx-pro-6000", "rtx-pro-6000-server"), ("groq-lpu-v1", "groq-lpu-v1"), ("rtx-4090", "rtx-4090"), ("RTX 4090", "rtx-4090"), ("tpu_v5e", "tpu-v5e")]


@pytest.mark.parametrize("typed, name", ALIASES)
def test_names_that_people_type(typed, name):
    assert load_device(typed).name == name


def test_every_alias_leads_to_a_preset():
    for room, known in (("hardware", DEVICES), ("machines", MACHINES)):
        assert set(presets._aliases()[room].values()) <= set(known)
        assert not set(presets._aliases()[room]) & set(known)
    assert load_cluster("dgx-a100").name == "dgx-a100-80gb"


@pytest.mark.parametrize("load, typed, near", [(load_device, "h1000-sxm-80gb", "h100-sxm-80gb"), (load_device, "rtx-4091", "rtx-4090"), (load_cluster, "dgx-h10", "dgx-h100")])
def test_an_unknown_name_suggests_the_nearest(load, typed, near):
    with pytest.raises(DataError, match=f"did you mean '{near}'"):
        load(typed)


@pytest.mark.parametrize("typed", ["", "zzzz", "../architectures/x", None, 3])
def test_nonsense_is_a_roofkit_error(typed):
    for load in (load_device, load_cluster):
        with pytest.raises(RoofkitError):
            load(typed)


def test_the_lists_hold_what_the_presets_hold():
    table = list_devices().set_index("name")
    for name, row in table.iterrows():
        device = load_device(name)
        assert (row.hbm_bytes_per_s, row.memory_bytes, row.unverified) == (device.hbm_bytes_per_s, device.memory_bytes, len(device.unverified))
        assert (row.label, row.maker, row.usual_machine) == (device.label, device.maker, device.usual_machine)
        for fmt in ("bf16", "fp16", "fp8", "fp4"):
            listed = row[f"peak_{fmt}_flops_per_s"]
            assert (math.isnan(listed) and not device.has_math(fmt)) or listed == device.peak_flops_per_s(fmt), name
    assert math.isnan(table.loc["a100-sxm-80gb", "peak_fp8_flops_per_s"]) and table.loc["h100-sxm-80gb", "tdp_w"] == 700
    assert table.loc["a100-sxm-80gb", "confidence"] == "A" and table.loc["apple-m2-ultra", "confidence"] == "C"
    assert list_clusters().set_index("name").loc["dgx-h100", "scaleout_bytes_per_s"] == 50e9
    mine = list_devices()
    mine["name"] = "changed"
    assert list_devices()["name"].is_unique


USUAL = [("h100-sxm-80gb", "dgx-h100"), ("gb200-186gb", "gb200-nvl72"), ("a100-sxm-80gb", "dgx-a100-80gb"), ("mi300x", "mi300x-8"), ("l40s", "l40s-8-pcie"), ("tpu-v5e", "tpu-v5e-256"),
         ("groq-lpu-v1", "groq-node"), ("rtx-pro-6000-server", "rtx-pro-6000-8-pcie")]


@pytest.mark.parametrize("name, machine", USUAL)
def test_the_usual_machine_of_a_device(name, machine):
    assert default_cluster(name) is load_cluster(machine) and default_cluster(load_device(name)).name == machine


def test_a_device_in_no_machine_stands_alone_and_says_so():
    cluster = default_cluster("rtx-5090")
    assert cluster.n_devices == 1 and "one device alone" in cluster.assumptions[0]


def test_figure_table_shows_where_every_number_comes_from():
    table = figure_table(load_device("h100-sxm-80gb"))
    row = table.set_index("figure").loc["hbm_bandwidth"]
    assert (row.value, row.unit, row.confidence) == (3350, "GB/s", "A") and row.source
    assert {"figure", "value", "unit", "kind", "confidence", "source"} <= set(table.columns) and not table.source.isna().any()
    assert "scaleup_topology" in set(figure_table(load_cluster("dgx-h100")).figure)
