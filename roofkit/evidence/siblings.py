"""Siblings: errors on a GPU whose constants are another's, measured where public tables of that GPU are at hand. Room: evidence.

    python -m roofkit.evidence.siblings TABLES OUT.csv        TABLES: a copy of aiconfigurator-core, or its name where it is installed

No row of such a GPU is ever fitted: its times come from the constants of its parent (data/calibration/siblings.toml) and its own
datasheet. Judged are the operators, formats and stacks that the parent was fitted on; what was never fitted is no sibling's error.
"""
import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from roofkit.cost import calibration as book
from roofkit.errors import MeasurementError
from roofkit.evidence import aiconfigurator
from roofkit.evidence.calibrate import COLLECTIVES
from roofkit.evidence.refit import SHIPPED
from roofkit.evidence.sources import read_source, thinned
from roofkit.evidence.validate import error_table, validate

MOST = 3000  # rows of a kernel


def sibling_errors(tables: str | Path, *, date: str, progress: Callable[[str], None] = print) -> pd.DataFrame:
    """Error rows (split "sibling") of every sibling that the tables hold, columns of the validation table."""
    root = None if str(tables) == aiconfigurator.PACKAGE else Path(tables)
    held, out = set(aiconfigurator.systems(root).values()), []
    for device, parent in sorted(book._siblings().items()):
        if device not in held:
            continue
        known = {(fit.op, fit.format, fit.stack) for fit in book.read_fits(str(book._root() / f"{parent}.toml"))}
        for kind in aiconfigurator.KINDS:
            try:
                frames = read_source(tables, device=device, kinds=(kind,)).frames
            except MeasurementError as error:
                progress(f"{device}: {error}")
                continue
            frame = thinned(frames[kind], MOST)[0]
            points = _as_fitted(validate(frame, split="shipped").points)
            direct = [key in known for key in zip(points["op"], points["format"], points["stack"], strict=True)]
            points = points[direct].assign(split="sibling")
            if len(points):
                out.append(error_table(points.assign(**{"class": ""})))
                progress(f"{device} {kind}: {', '.join(f'{r.op} {r.format} {r.stack} {100 * r.mape:.1f} %' for r in out[-1][out[-1]['regime'] == 'all'].itertuples())}")
    if not out:
        raise MeasurementError(f"{tables} holds no table of a sibling; its devices: {', '.join(sorted(held))}")
    return pd.concat(out, ignore_index=True).assign(date=date).reindex(columns=SHIPPED)


def _as_fitted(points: pd.DataFrame) -> pd.DataFrame:
    """Formats as the fits are keyed: decode attention by its cache, collectives by what they move."""
    decode, moved = points["op"].str.endswith("decode"), points["op"].isin(COLLECTIVES)
    return points.assign(format=points["format"].where(~decode, points["format"].str.split("/").str[-1]).where(~moved, "bf16"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roofkit.evidence.siblings", description=__doc__.splitlines()[0])
    parser.add_argument("tables")
    parser.add_argument("out")
    parser.add_argument("--date", default="2026-11")
    args = parser.parse_args(argv)
    try:
        table = sibling_errors(args.tables, date=args.date)
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    table.to_csv(args.out, index=False, float_format="%.4g")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
