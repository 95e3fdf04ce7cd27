"""Presets: every shipped model gives the published integers; names, errors and the listing. No ../shared needed."""
import csv
import time
from pathlib import Path

import numpy as np
import pytest

from roofkit.architectures import counting, presets
from roofkit.architectures.architecture import Architecture, Attention, Dense, LayerGroup, MoE
from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.errors import ConfigError, DataError

ROWS = list(csv.DictReader((Path(__file__).parent / "architectures_expected.csv").read_text().splitlines()))
IDS = [r["name"] for r in ROWS]


def figures(arch) -> dict[str, float]:
    """The columns of the expected tables, computed."""
    active = counting.active_params_by_convention(arch)
    return {
        "text_params": arch.text_params, "total_params": arch.total_params, "active_params": arch.active_params,
        "active_params_excl_input_embedding": active["excl_input_embedding"],
        "active_params_excl_embedding_and_head": active["excl_embedding_and_head"],
        "kv_bytes_per_token_bf16": arch.kv_bytes_per_token(2.0),
        "kv_bytes_per_token_bf16_beyond_window": arch.kv_bytes_per_token(2.0, context_tokens=10**9),
        "recurrent_state_elements_per_sequence": arch.state_elements, "mtp_params": arch.mtp_params}


def mismatches(arch, row: dict) -> list[str]:
    return [f"{name}: {value} instead of {row[name]}" for name, value in figures(arch).items()
            if row.get(name) not in (None, "") and int(row[name]) != value]


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_preset_gives_the_published_integers(row):
    assert mismatches(load_architecture(row["name"]), row) == [], row["source"]


def test_a_planted_error_is_found():
    row = dict(ROWS[IDS.index("llama-3.1-8b")], text_params="8030261249")
    assert mismatches(load_architecture("llama-3.1-8b"), row) == ["text_params: 8030261248 instead of 8030261249"]


@pytest.mark.parametrize("name", IDS)
def test_parameter_table_adds_up(name):
    arch = load_architecture(name)
    table = arch.parameter_table()
    assert table["total"].sum() == arch.text_params
    assert table["active"].sum() == arch.active_params
    assert (table["total"] >= table["active"]).all() and (table["total"] > 0).all()


@pytest.mark.parametrize("name", IDS)
def test_layers_are_numbered_once_and_the_cache_is_monotone(name):
    arch = load_architecture(name)
    at = sorted(i for g in arch.groups for i in g.positions)
    assert at == list(range(arch.n_layers))
    context = np.array([0, 1, 127, 128, 129, 4096, 1 << 20])
    cache = arch.kv_bytes(context)
    assert cache.shape == context.shape and cache[0] == 0 and (np.diff(cache) >= 0).all()
    assert cache[1] == arch.kv_bytes_per_token() and arch.kv_bytes(4096) == cache[5]
    steps = arch.kv_bytes(1 << 20) - arch.kv_bytes((1 << 20) - 1)
    assert steps == arch.kv_bytes_per_token(2.0, (1 << 20) - 1)


def test_listing_has_sixty_models_with_family_and_release():
    table = list_architectures()
    assert list(table.columns) == ["name", "family", "released", "total_params", "active_params", "kv_bytes_per_token", "confidence"]
    assert len(table) >= 60 and set(IDS) == set(table["name"])
    assert (table["released"].str.len() >= 4).all() and (table["family"].str.len() > 0).all()


def test_every_preset_names_its_source():
    assert all(load_architecture(n).source for n in presets.preset_names())


@pytest.mark.parametrize("name, near", [("llama-3.1-8", "llama-3.1-8b"), ("lama-3.1-70b", "llama-3.1-70b"), ("deepseekv3", "deepseek-v3"),
                                        ("QWEN3-32B", "qwen3-32b")])
def test_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(DataError, match=f"did you mean '{near}'"):
        load_architecture(name)


@pytest.mark.parametrize("source", [None, 3, [], b"x", "", "missing/dir/config.json", "no/such/deep/path", "x" * 5000, "a\0b"])
def test_what_is_no_model_is_refused(source):
    with pytest.raises((ConfigError, DataError)):
        load_architecture(source)


def test_loading_a_preset_is_fast():
    presets._preset.cache_clear()
    load_architecture("llama-3.1-8b")
    best = 1.0
    for _ in range(5):
        presets._preset.cache_clear()
        start = time.process_time()
        load_architecture("nemotron-super-49b")
        best = min(best, time.process_time() - start)
    assert best < 0.1  # the target is 20 ms; the margin is for busy machines


@pytest.mark.parametrize("change, word", [({"schema": 2}, "schema"), ({"source": ""}, "source"), ({"hidden": None}, None),
                                          ({"groups": [{"layers": "x"}]}, "ValueError"), ({"groups": [{"layers": "0", "mixer": {"kind": "?"}}]}, "KeyError")])
def test_a_malformed_preset_is_a_data_error(change, word):
    facts = {"schema": 1, "source": "s", "family": "f", "model_type": "t", "hidden": 4, "vocab": 8, "tied": True, "embed_params": 32,
             "head_params": 0, "other_params": 4, "groups": [{"layers": "0", "n_norms": 2, "norm_params": 8}]}
    broken = {**facts, **change}
    broken = {k: v for k, v in broken.items() if v is not None}
    with pytest.raises(DataError, match=word):
        presets.from_facts(broken, "toy", "architectures/toy.toml")


def test_positions_are_spans_with_steps():
    assert presets._positions("0-2,5,8-20:4") == (0, 1, 2, 5, 8, 12, 16, 20)


def test_windows_bound_the_cache():
    full, window = Attention(8, 2, 64), Attention(8, 2, 64, window=100)
    arch = Architecture("toy", "toy", "toy", 512, 1000, (LayerGroup((0, 2), full, Dense(8), 2, 1024), LayerGroup((1,), window, None, 1, 512)),
                        True, 512000, 0, 512)
    per_layer = 2 * 2 * 64 * 2
    assert arch.kv_bytes_per_token() == 3 * per_layer
    assert arch.kv_bytes_per_token(2.0, 99) == 3 * per_layer and arch.kv_bytes_per_token(2.0, 100) == 2 * per_layer
    assert arch.kv_bytes(1000) == (2 * 1000 + 100) * per_layer


def test_active_parameters_leave_out_unused_experts():
    moe = MoE(8, 2, 32, shared_width=16, shared_gate=True, expert_bias=True, router_bias=True)
    arch = Architecture("toy", "toy", "toy", 64, 100, (LayerGroup((0,), None, moe, 1, 64),), False, 6400, 6400, 64)
    expert = 3 * 64 * 32 + 2 * 32 + 64
    assert arch.text_params == 2 * 6400 + 64 + 64 + 8 * expert + 8 * 64 + 8 + 3 * 64 * 16 + 64
    assert arch.text_params - arch.active_params == 6 * expert
    assert counting.active_params_by_convention(arch)["excl_embedding_and_head"] == arch.active_params - 12800
