"""Small configs of every family that transformers has a class for -> its exact parameter count.

Source of the integers: transformers 5.24.0, each config instantiated on the meta device, parameters summed once.
Adding a family adds a line to architectures_small.jsonl.
"""
import json
from pathlib import Path

import pytest

from roofkit.architectures.config import read_config

ROWS = [json.loads(line) for line in (Path(__file__).parent / "architectures_small.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{r['config']['model_type']}" for i, r in enumerate(ROWS)])
def test_family_counts_like_its_class(row):
    arch = read_config(row["config"])
    assert arch.text_params == row["params"]
    assert arch.confidence == "exact"
    assert arch.parameter_table()["total"].sum() == arch.text_params
