"""Measurements: the uniform tables of measured times, read and checked. Room: evidence.

One table holds rows of one kind; the kind follows from the columns (SCHEMAS). Times are `time_us` [us] for kernels and
`time_ms` [ms] for whole steps, sizes are elements, `bytes` are bytes. The package holds no third-party table: it reads
where the user points. Sources and licences of the public tables: README beside them.
"""
import re
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.errors import MeasurementError

SCHEMAS: dict[str, tuple[str, ...]] = {  # kind -> columns it needs; tried in this order, the first full match wins
    "gemm_power": ("gpu", "dtype", "m", "n", "k", "time_us", "power_w", "power_limit_w"),
    "gemm": ("gpu", "dtype", "m", "n", "k", "time_us"),
    "attention": ("gpu", "phase", "batch", "heads", "kv_heads", "head_dim", "window", "q_len", "kv_len", "dtype", "kv_dtype", "time_us"),
    "mla": ("gpu", "phase", "batch", "heads", "q_len", "kv_len", "dtype", "kv_dtype", "time_us"),
    "mixed_attention": ("gpu", "model", "tp", "dtype", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    "moe": ("gpu", "dtype", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution", "kernel", "time_us"),
    "moe_all2all": ("gpu", "mode", "nodes", "tokens", "hidden", "topk", "experts", "sms", "dispatch_us", "combine_us"),
    "collective": ("gpu", "op", "algo", "ranks", "nodes", "bytes", "time_us"),
    "elementwise": ("gpu", "op", "dtype", "rows", "cols", "time_us"),
    "layer": ("gpu", "model", "tp", "dtype", "layer", "tokens", "time_us"),
    "serving": ("gpu", "model", "engine", "precision", "tp", "n_gpu", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms"),
    "step": ("gpu", "model", "engine", "tp", "phase", "batch", "in_len", "ctx_len", "out_len", "dtype", "time_ms"),
}
TARGET = {"moe_all2all": "dispatch_us", "serving": "tpot_ms", "step": "time_ms"}  # measured column; time_us elsewhere
KERNEL_KINDS = ("gemm", "attention", "mla", "mixed_attention", "moe", "moe_all2all", "collective", "elementwise")

DEVICES = {  # name in the tables -> preset; other names are matched to the presets by their start
    "H100-SXM": "h100-sxm-80gb", "A100-SXM-80GB": "a100-sxm-80gb", "A100-SXM-40GB": "a100-sxm-40gb", "A100-PCIe-40GB": "a100-pcie-40gb",
    "A100-PCIe-80GB": "a100-pcie-80gb", "B200-SXM": "b200-sxm-180gb", "L40S": "l40s", "RTX-PRO-6000": "rtx-pro-6000-server",
    "RTX-PRO-6000-WS": "rtx-pro-6000-workstation", "A40": "a40", "T4": "t4", "P4": "p4", "L4": "l4", "MI210": "mi210", "MI100": "mi100",
    "H800": "h800-sxm-80gb", "Arc-B60": "arc-pro-b60",
}
FORMATS = {  # dtype in the tables -> name of the GEMM format in roofkit.formats
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8", "fp8_e4m3": "fp8", "e4m3": "fp8",
    "fp8_static": "fp8", "fp4": "nvfp4", "int8": "w8a8_int8", "w4a16": "int4_wo", "w8a16": "int8_wo",
}
KNOWN_FORMATS = ("fp32", "bf16", "fp16", "fp8", "fp8_block", "nvfp4", "w8a8_int8", "int8_wo", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")
_TEXT = {"gpu", "dtype", "kv_dtype", "phase", "model", "op", "algo", "source", "distribution", "kernel", "mode", "layer", "engine", "precision",
         "engine_version", "task", "kind", "device"}


def kind_of(columns) -> str:
    """Kind of a table from its column names. Raises MeasurementError that names the nearest schema and what it lacks."""
    have = set(columns)
    for kind, needed in SCHEMAS.items():
        if have >= set(needed):
            return kind
    kind = max(SCHEMAS, key=lambda k: len(have & set(SCHEMAS[k])) / len(SCHEMAS[k]))
    lacks = [c for c in SCHEMAS[kind] if c not in have]
    hints = [f"{c!r} is there: divide or multiply into {lack!r}" for lack in lacks for c in sorted(have)
             if re.sub(r"_(ns|us|ms|s)$", "", lack) == re.sub(r"_(ns|us|ms|s)$", "", c)]
    hint = f"; {'; '.join(hints)}" if hints else ""
    raise MeasurementError(f"measurement table: columns fit no known kind; nearest is {kind!r}, which lacks {', '.join(lacks)}{hint}. "
                           f"Kinds: {', '.join(SCHEMAS)}")


def read_measurements(source) -> pd.DataFrame:
    """A measurement table, checked, with `kind` and `device` (preset name) added and exact repeats dropped.

    source  path of a .csv or .parquet file, or a DataFrame, in one of SCHEMAS; times in us (ms for whole steps and serving)
    Repeats: rows equal in every column, or equal but for `source` (one measurement carried from dump to dump); the number
    dropped is `.attrs["repeats_dropped"]`. Raises MeasurementError naming column, row and what to change.
    """
    frame, where = _load(source)
    kind = kind_of(frame.columns)
    frame = frame.assign(kind=kind)
    for column in frame.columns:
        if column not in _TEXT and (column in SCHEMAS[kind] or column in ("nodes", "sms")):
            frame[column] = _numbers(frame[column], column, where)
    _check_values(frame, kind, where)
    if "dtype" in frame:
        frame["dtype"] = frame["dtype"].replace(FORMATS)
        unknown = sorted(set(frame["dtype"].dropna()) - set(KNOWN_FORMATS))
        if unknown:
            raise MeasurementError(f"{where}: dtype {', '.join(map(repr, unknown))} is not known; use one of {', '.join(KNOWN_FORMATS)}")
    frame["device"] = frame["gpu"].map({gpu: device_name(gpu) for gpu in frame["gpu"].unique()})
    before = len(frame)
    frame = drop_repeats(frame)
    frame.attrs["repeats_dropped"] = before - len(frame)
    return frame


def drop_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows without exact repeats, `source` aside; the first of each stays, the index restarts."""
    columns = [c for c in frame.columns if c != "source"]
    return frame.loc[~frame.duplicated(columns)].reset_index(drop=True)


def target_of(frame: pd.DataFrame) -> str:
    """Name of the measured column of a table of one kind: time_us, time_ms, tpot_ms or dispatch_us."""
    return TARGET.get(frame["kind"].iloc[0], "time_us")


def device_name(gpu: str) -> str:
    """Preset name of a GPU as the tables spell it: `H100-SXM` -> `h100-sxm-80gb`; an unlisted name in lower-case kebab."""
    return DEVICES.get(gpu) or re.sub(r"[^a-z0-9.]+", "-", str(gpu).lower()).strip("-")


def resolve_device(name: str, known) -> str | None:
    """The preset among `known` that `name` means: itself, or the shortest that starts with it; else None."""
    known = sorted(known, key=lambda k: (len(k), k))
    if name in known:
        return name
    return next((k for k in known if k.startswith(name + "-") or name.startswith(k + "-")), None)


def _load(source) -> tuple[pd.DataFrame, str]:
    if isinstance(source, pd.DataFrame):
        if source.empty:
            raise MeasurementError("measurement table: no rows")
        return source.copy(), "measurement table"
    path = Path(source)
    if not path.is_file():
        raise MeasurementError(f"{path}: no such file; give a .csv or .parquet in the uniform schema, or a DataFrame")
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ImportError, pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as reason:
        raise MeasurementError(f"{path.name}: cannot be read as {path.suffix or 'CSV'}: {reason}") from None
    if frame.empty:
        raise MeasurementError(f"{path.name}: no rows")
    return frame, path.name


def _numbers(column: pd.Series, name: str, where: str) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    bad = numbers.isna() & column.notna()
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        raise MeasurementError(f"{where}: row {row}, column {name!r}: {column.iloc[row]!r} is not a number; the unit belongs into the column's name")
    return numbers


def _check_values(frame: pd.DataFrame, kind: str, where: str) -> None:
    target = TARGET.get(kind, "time_us")
    for column in SCHEMAS[kind]:
        if column in _TEXT:
            continue
        values = frame[column].to_numpy(float)
        least = 0.0 if column not in (target, "power_w", "combine_us", "ttft_ms") else np.nextafter(0, 1)
        optional = kind in ("serving", "step", "moe_all2all") and column not in (target, "gpu")
        bad = ~(values >= least) & ~(optional & np.isnan(values)) | np.isinf(values)
        if bad.any():
            row = int(np.argmax(bad))
            raise MeasurementError(f"{where}: row {row}, column {column!r}: {values[row]!r} must be a finite number "
                                   f"{'above' if least else 'of at least'} 0; drop the row or correct it")
    median = float(np.median(frame[target]))
    if kind in KERNEL_KINDS and not 0.3 <= median <= 3e7:
        raise MeasurementError(f"{where}: the median of {target!r} is {median:.3g}, which cannot be microseconds; convert to us "
                               f"(1 ms = 1000 us, 1 ns = 0.001 us)")
