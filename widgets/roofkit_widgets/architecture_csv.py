"""CSV of a table as a link: a data: address, so the server keeps no file. Room: widgets (imports theme)."""
import base64
import csv
import io
import re
from collections.abc import Mapping

import pandas as pd

from roofkit_widgets.theme import esc

UNITS = {"params": "parameters", "active_params": "parameters", "total": "parameters", "active": "parameters", "idle": "parameters", "share": "0..1",
         "active_share": "0..1", "kv_bytes_per_token": "bytes/token", "state_bytes": "bytes"}


def csv_text(table: pd.DataFrame, title: str, selection: Mapping[str, str | int]) -> str:
    """The table with units in its headers; the title and the selection as comment lines."""
    out = io.StringIO()
    out.write(f"# roofkit architecture card: {_line(title)}\n")
    for key, value in selection.items():
        out.write(f"# {_line(key)} = {f'pasted config.json, {len(str(value))} characters' if key == 'config' else _line(value)}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"{c} [{UNITS[c]}]" if c in UNITS else c for c in table.columns])
    for values in table.itertuples(index=False, name=None):
        writer.writerow(["" if pd.isna(v) else repr(float(v)) if isinstance(v, float) else v for v in values])
    return out.getvalue()


def csv_link(table: pd.DataFrame, what: str, title: str, selection: Mapping[str, str | int]) -> str:
    """A link that downloads the table; `what` ("layers") goes into its words and, with the model's name, into the file's name."""
    data = base64.b64encode(csv_text(table, title, selection).encode()).decode()
    name = re.sub(r"[^a-z0-9.]+", "-", str(selection.get("model", "")).lower()).strip("-.")[:60]
    return (f"<a class='rk-button' download='roofkit-{esc(what)}-{name or 'model'}.csv' href='data:text/csv;charset=utf-8;base64,{data}'>"
            f"{esc(what.capitalize())} as CSV</a>")


def _line(text: object) -> str:
    return " ".join(str(text).split())
