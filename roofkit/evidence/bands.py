"""Bands: the error that an estimate carries, from the shipped validation table. Room: evidence.

data/roofkit_data/evidence/validation.csv holds our own held-out errors only (no measured rows), made by refit.py; siblings.csv those
of GPUs that take another's constants, where public tables of them exist (siblings.py). A band is the worst split of an operator on
a device: unseen shape families, and an unseen head width where there was one to leave out.
"""
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from io import StringIO

import pandas as pd

NOT_VALIDATED = "not validated on this device"
SPLIT_WORDS = {"family": "unseen shapes", "head_dim": "unseen head widths", "sizes": "unseen message sizes", "gpu": "constants of another GPU",
               "sibling": "constants of its sibling"}
OWN_SPLITS = ("family", "head_dim", "sizes", "sibling")
OPS = {  # operator kinds of the library -> rows of the table
    "gemm": ("gemm",), "grouped_gemm": ("moe",), "moe": ("moe",), "attention": ("attention_prefill", "attention_decode"), "attention_prefill": ("attention_prefill",),
    "attention_decode": ("attention_decode",), "mla_prefill": ("mla_prefill",), "mla_decode": ("mla_decode",), "all_reduce": ("all_reduce",),
    "all_gather": ("all_gather",), "all_to_all": ("all_to_all",), "collective": ("all_reduce", "all_gather", "all_to_all"), "energy": ("energy",),
}
SAME_FORMAT = {"fp16": "bf16"}


@dataclass(frozen=True, slots=True)
class Band:
    """Held-out error of one operator on one device.

    mape, low, high   mean absolute error and its 95 % interval [0..1];  p90   nine of ten points lie within [0..1]
    split, n          what was held out; points judged;  op, format   the table's names;  date   of the table
    """

    device: str
    op: str
    format: str
    mape: float
    low: float
    high: float
    p90: float
    split: str
    n: int
    date: str

    @property
    def text(self) -> str:
        """For people: `h100-sxm-80gb attention decode bf16: ±9 % on unseen head widths`."""
        return f"{self.device} {self.op.replace('_', ' ')} {self.format}: ±{100 * self.mape:.0f} % on {SPLIT_WORDS.get(self.split, self.split)}"


FILES = ("validation.csv", "siblings.csv")


@lru_cache(maxsize=1)
def _table() -> pd.DataFrame:
    return read_errors(files("roofkit_data") / "evidence")


def read_errors(folder) -> pd.DataFrame:
    """The error tables of a folder (a Traversable) in one; empty where there are none."""
    paths = [p for name in FILES for p in [folder / name] if p.is_file()]
    tables = [pd.read_csv(StringIO(p.read_text(encoding="utf-8")), keep_default_na=False, na_values=[""], dtype={"class": str, "stack": str, "format": str}) for p in paths]
    return pd.concat(tables, ignore_index=True).fillna({"class": "", "stack": "", "format": ""}) if tables else pd.DataFrame()


def validation_table() -> pd.DataFrame:
    """The shipped tables in one: device, op, class, format, stack, split, regime, n, families, mape, low, high, median, bias, p90, seed_sd, date."""
    return _table().copy()


@lru_cache(maxsize=4096)
def band(device_name: str, op_kind: str, format: str | None = None, engine: str | None = None) -> Band | None:
    """The error of an operator kind on a device, over kernel classes by their number of points; None: not validated there.

    op_kind   a key of OPS;  format   of products, "math/kv" of prefill, of the cache in decode; None = the worst of all
    engine    "vllm" | "sglang" | "trtllm": that stack's rows where there are some
    """
    table = _table()
    if table.empty or op_kind not in OPS:
        return None
    rows = table[(table["device"] == device_name) & table["op"].isin(OPS[op_kind]) & (table["regime"] == "all") & table["split"].isin(OWN_SPLITS)]
    rows = rows[~rows["class"].str.startswith("window")]  # sliding windows: their own classes, not the operator's typical error
    if format is not None:
        rows = rows[rows["format"] == SAME_FORMAT.get(format, format)]
    if engine and rows["stack"].str.startswith(engine).any():
        rows = rows[rows["stack"].str.startswith(engine)]
    if rows.empty:
        return None
    found = [_pooled(device_name, key, part) for key, part in rows.groupby(["op", "format", "stack", "split"])]
    return max(found, key=lambda b: b.mape)


def weakest(device_name: str, parts: Iterable[tuple[str, str | None]], engine: str | None = None) -> Band | None:
    """The largest band among the operators of an estimate, given as (op_kind, format); None when any of them is not validated."""
    found = [band(device_name, kind, fmt, engine) for kind, fmt in dict.fromkeys(parts)]
    return None if not found or None in found else max(found, key=lambda b: b.mape)


def badge(found: Band | None) -> str:
    """The text every estimate shows: the band, or `not validated on this device`."""
    return NOT_VALIDATED if found is None else found.text


def _pooled(device: str, key: tuple, part: pd.DataFrame) -> Band:
    op, fmt, _, split = key
    weight = part["n"] / part["n"].sum()
    mean = {c: float((part[c].fillna(part["mape"]) * weight).sum()) for c in ("mape", "low", "high", "p90")}
    return Band(device, op, fmt, **mean, split=split, n=int(part["n"].sum()), date=str(part["date"].iloc[0]))
