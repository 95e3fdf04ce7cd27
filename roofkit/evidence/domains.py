"""Domains: the ranges of shapes that constants were fitted on, so that a prediction can say when it extrapolates. Room: evidence.

A row is inside where every size lies between the least and the largest fitted one of its device, kind, format and stack:
the box around the training rows, in the sizes themselves. File: data/roofkit_data/evidence/domains.csv.
"""
from functools import lru_cache
from importlib.resources import files
from io import StringIO

import numpy as np
import pandas as pd

FEATURES = {  # kind -> sizes whose ranges count
    "gemm": ("m", "n", "k"), "gemm_power": ("m", "n", "k"), "attention": ("batch", "heads", "kv_heads", "head_dim", "window", "q_len", "kv_len"),
    "mla": ("batch", "heads", "q_len", "kv_len"), "mixed_attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"),
    "moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"), "collective": ("ranks", "bytes"), "elementwise": ("rows", "cols"),
}
LABELS = ("phase", "dtype", "kv_dtype", "kernel", "op", "algo")  # columns that tell kernels of one kind apart


def ranges(frame: pd.DataFrame) -> pd.DataFrame:
    """Long table of one measurement table's ranges: device, kind, label, feature, low, high."""
    kind = frame["kind"].iloc[0]
    rows = []
    for (device, label), part in frame.groupby(["device", labels(frame)]):
        rows += [{"device": device, "kind": kind, "label": label, "feature": f, "low": part[f].min(), "high": part[f].max()} for f in FEATURES[kind]]
    return pd.DataFrame(rows)


def labels(frame: pd.DataFrame) -> pd.Series:
    """What tells the kernels of a table apart, as text: `decode/bf16/fp8`."""
    parts = [frame[c].astype(str) for c in LABELS if c in frame]
    text = parts[0]
    for part in parts[1:]:
        text = text + "/" + part
    return text


def inside(frame: pd.DataFrame, table: pd.DataFrame | None = None) -> np.ndarray:
    """Whether each row's sizes lie within the fitted ranges; False where that device and kernel were never fitted.

    table   as `ranges` gives it; None = the shipped one
    """
    kind = frame["kind"].iloc[0]
    known = _shipped() if table is None else table
    if known is None or kind not in FEATURES:
        return np.zeros(len(frame), bool)
    known = known[known["kind"] == kind]
    keys = pd.MultiIndex.from_arrays([frame["device"], labels(frame)])
    out = np.ones(len(frame), bool)
    for feature in FEATURES[kind]:
        box = known[known["feature"] == feature].set_index(["device", "label"])
        values = frame[feature].to_numpy(float)
        low, high = (box[end].reindex(keys).to_numpy(float) for end in ("low", "high"))
        out &= (values >= low) & (values <= high)  # NaN where unknown: False
    return out


@lru_cache(maxsize=1)
def _shipped() -> pd.DataFrame | None:
    path = files("roofkit_data") / "evidence" / "domains.csv"
    return pd.read_csv(StringIO(path.read_text(encoding="utf-8"))) if path.is_file() else None
