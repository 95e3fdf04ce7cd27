"""Sources: what a user points at (a file, a folder, an installed package) -> measurement tables, one a kind. Room: evidence."""
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import pandas as pd

from roofkit.errors import MeasurementError
from roofkit.evidence import aiconfigurator
from roofkit.evidence.measurements import kind_of, read_measurements, resolve_device
from roofkit.hardware.presets import load_device


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """frames: one checked table per kind;  notes: what was left out, in words;  said: where the rows come from, or None."""

    frames: dict[str, pd.DataFrame]
    notes: tuple[str, ...] = ()
    said: str | None = None


def read_source(source: str | Path, *, device: str | None = None, kinds: Iterable[str] | None = None, backends: Iterable[str] | None = None,
                version: str | None = None) -> Source:
    """Measurement tables from a file, a folder of files, a copy of aiconfigurator-core, or "aiconfigurator-core" itself.

    device             only rows of this preset; needed for aiconfigurator-core
    kinds              only tables of these kinds; None = all
    backends, version  of aiconfigurator-core only: trtllm, vllm, sglang; default all of them, newest version
    Files of a folder that are no measurement tables are passed over with a note; a measurement table with a wrong value is an error.
    Raises MeasurementError.
    """
    path, device = Path(source), load_device(device).name if device else None
    packaged = str(source) == aiconfigurator.PACKAGE
    if packaged or path.is_dir() and aiconfigurator.is_tree(path):
        if device is None:
            raise MeasurementError(f"say which device of {aiconfigurator.PACKAGE}: {', '.join(aiconfigurator.systems(None if packaged else path).values())}")
        chosen = [k for k in kinds or aiconfigurator.KINDS if k in aiconfigurator.KINDS]
        tables = aiconfigurator.read_tables(device, root=None if packaged else path, kinds=chosen or kinds, backends=backends or aiconfigurator.BACKENDS,
                                            version=version)
        frames = [read_measurements(frame) for frame in tables.frames.values()]
        return Source({frame["kind"].iloc[0]: frame for frame in frames}, tables.notes, tables.source)
    if backends or version:
        raise MeasurementError(f"a backend or version can be chosen from {aiconfigurator.PACKAGE} only; other tables name it in their column 'source'")
    files = sorted(p for p in path.iterdir() if p.suffix in (".csv", ".parquet")) if path.is_dir() else [path]
    if not files:
        raise MeasurementError(f"{path}: no .csv or .parquet file in this folder")
    parts, notes = {}, []
    for file in files:
        frame, note = _read(file, kinds, alone=len(files) == 1)
        notes += [note] if note else []
        if frame is not None and device:
            frame = frame[frame["device"].map({name: resolve_device(name, [device]) is not None for name in frame["device"].unique()})]
        if frame is not None and len(frame):
            parts.setdefault(frame["kind"].iloc[0], []).append(frame)
    if not parts:
        raise MeasurementError(f"{path.name}: no rows" + (f" of {device}" if device else "") + (f" of kind {', '.join(kinds)}" if kinds else "")
                               + (f"; {notes[0]}" if notes else ""))
    return Source({kind: _joined(frames) for kind, frames in parts.items()}, tuple(notes))


def thinned(frame: pd.DataFrame, most: int = 4000) -> tuple[pd.DataFrame, str]:
    """At most `most` rows of every kernel of a table (stack, format, phase, library), drawn with a fixed seed; and a note, or ""."""
    kernel = [c for c in ("device", "source", "phase", "dtype", "kv_dtype", "kernel", "op", "algo") if c in frame]
    if frame.groupby(kernel, dropna=False).size().max() <= most:
        return frame, ""
    kept = frame.sample(frac=1.0, random_state=0).groupby(kernel, dropna=False).head(most).sort_index()
    return kept.reset_index(drop=True), f"{len(frame) - len(kept):,} of {len(frame):,} {frame['kind'].iloc[0]} rows: at most {most:,} of each kernel are fitted and judged"


def _read(file: Path, kinds: Iterable[str] | None, alone: bool) -> tuple[pd.DataFrame | None, str]:
    """A checked table with a column `source`; None and the reason where it is no measurement table or of another kind."""
    if file.suffix == ".parquet" and not any(util.find_spec(engine) for engine in ("pyarrow", "fastparquet")):
        raise MeasurementError(f"{file.name}: reading parquet needs pyarrow; pip install pyarrow, or convert the table to CSV")
    if not alone and file.suffix == ".csv":
        try:
            kind_of(pd.read_csv(file, nrows=0).columns)
        except ValueError:  # ours, and what pandas raises for text that is no table
            return None, f"{file.name}: not a measurement table"
    frame = read_measurements(file)
    kind = frame["kind"].iloc[0]
    if kinds is not None and kind not in kinds:
        return None, f"{file.name}: rows of kind {kind}, not asked for"
    return frame if "source" in frame else frame.assign(source=file.stem), ""


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    return frames[0] if len(frames) == 1 else read_measurements(pd.concat(frames, ignore_index=True))
