"""Pass cases: norms, rope, activations, look-ups, additions and sampling, from tables of passes and of layers. Room: evidence.

A pass is priced by the bytes it moves (roofkit.cost.elementwise.pass_us), so its family is its width, the elements that a row
reads and writes. Tables of kind `elementwise` state rows and columns; how often a column is read and written follows from the
operator (PASSES, as predict.py prices them). Tables of kind `layer` state a model's layer and its tokens; the width is that of the op that the
inventory gives the layer, times of layers that are no passes (products) are left to the other tables.

One fit per kernel class: qk_norm | final_norm | norm | rope | act | embedding | add | sampling | "" (all others together). 16-bit tables count
as bf16. Where no row leaves the L2 (the layer profile of a 128 MB cache), the share of memory bandwidth and the share
of the cache cannot be seen: em and c2 are then set to ASSUMED (in `kernel`), t0 and e2 are fitted. Where every row moves more, the
L2 cannot be seen: t0 and em alone.
Profiles repeat layers that tensor parallelism does not split, time by time, under every tp: the copies beyond the first are dropped.
Sources: shared data `vidur` (github microsoft/vidur @ 7d475133, MIT), `neusight-*` (github sitar-lab/NeuSight @ 6945927d, MIT),
`llmservingsim:*` (github casys-kaist/LLMServingSim @ 5daddb21, MIT).
"""
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.cost import elementwise
from roofkit.evidence.cases import Case, stack_of
from roofkit.evidence.fit import Parameter
from roofkit.evidence.names import resolve_model
from roofkit.evidence.splits import Split, splits
from roofkit.hardware.device import Device
from roofkit.ops.inventory import inventory
from roofkit.ops.kinds import Elementwise
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Prefill

PASSES = {  # operator of a table -> (name of the op, elements read and written per element of a row); others read one and write one
    "add": ("add", 3), "mul": ("mul", 3), "div": ("div", 3), "mlp_act": ("activation", 3), "emb": ("embedding", 2), "attn_rope": ("rope", 2),
    "input_layernorm": ("norm", 4), "post_attention_layernorm": ("norm", 4), "ln": ("norm", 2),
}
LAYERS = {  # passes of a layer profile -> ops of the inventory
    "layernorm": "add_norm", "final_layernorm": "final_norm", "qk_norm": "qk_norm", "rotary_emb": "rope_kv_write", "act_fn": "activation",
    "embedding": "embedding", "sampler": "sampling",
}
BYTES = {"fp32": 4.0}  # per element; other tables hold 16-bit tensors
LEAST_SHARE = 0.02  # of rows within half the cache: fewer say nothing of it
BEYOND = 0.55  # of the L2: rows that move less than this never leave it
ASSUMED = {"em": 0.92, "c2": 0.75}  # additions on A100 and H100 reach 0.9 of the bandwidth (Vidur); three quarters of a cache stay
T0, EM = Parameter("t0", 0.3, 60, 3, unit="us"), Parameter("em", 0.05, 1, 0.7)
E2, C2 = Parameter("e2", 0.05, 8, 1.5), Parameter("c2", 0.05, 1, 0.5)


def pass_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    """Every case of a table of kind elementwise or layer and one device."""
    rows = _of_layers(frame) if frame["kind"].iloc[0] == "layer" else _of_passes(frame)
    for (fmt, source, cls), part in rows.groupby(["format", "source", "class"], sort=True):
        parameters, assumed = _parameters(part, device)
        yield Case("elementwise", fmt, stack_of(source), elementwise.FORM, device, part, parameters, _prepare, cls, assumed, divide)


def _parameters(rows: pd.DataFrame, device: Device) -> tuple[tuple[Parameter, ...], dict[str, float]]:
    """(constants to fit, constants that these rows cannot show and that are assumed)."""
    if (rows["moved"] < device.l2_bytes / 2).mean() < LEAST_SHARE:
        return (T0, EM), {}
    if rows["moved"].max() > BEYOND * device.l2_bytes:
        return (T0, EM, E2, C2), {}
    return (T0, E2), dict(ASSUMED)


def rule_of(case: Case) -> str:
    """How a case is held out: by width; fewer than three widths, of which one would train alone, by alternate numbers of rows."""
    return "family" if case.rows["cols"].nunique() > 2 else "sizes"


def divide(case: Case, folds: int, seed: int) -> Iterator[Split]:
    """Splits under the case's own rule."""
    yield from splits(case.rows, rule_of(case), folds=folds, seed=seed)


def _prepare(rows: pd.DataFrame, case: Case):
    moved = rows["moved"].to_numpy(float)

    def seconds(constants: Mapping[str, float]) -> np.ndarray:
        return sum(elementwise.pass_us(moved, {**case.kernel, **constants}, case.fits(constants))) * 1e-6

    return seconds


def _of_passes(frame: pd.DataFrame) -> pd.DataFrame:
    names, touched = zip(*(PASSES.get(op, (op, 2)) for op in frame["op"]), strict=True)
    size = frame["dtype"].map(BYTES).fillna(2.0)
    return frame.assign(**{"format": np.where(frame["dtype"] == "fp32", "fp32", "bf16"), "class": [elementwise.classes_of(n)[0] for n in names],
                           "moved": frame["rows"] * frame["cols"] * np.array(touched) * size}, source=frame["source"] if "source" in frame else "")


def _of_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of passes as a table of kind elementwise: `cols` is the width of the layer's op, `op` its name."""
    known, parts = list_architectures()["name"].tolist(), []
    for (model, tp, dtype), rows in frame.groupby(["model", "tp", "dtype"]):
        preset = resolve_model(model, known)
        if preset is None:
            continue
        plan = Plan(tp=int(tp), weights=dtype, activations=dtype)
        ops = {op.name: op for op in inventory(load_architecture(preset), plan, Prefill(1, 1)) if isinstance(op, Elementwise)}
        names = rows["layer"].map(lambda layer: LAYERS.get(layer, layer))
        rows, names = rows[names.isin(ops)], names[names.isin(ops)]
        width = names.map({name: op.elements_read + op.elements_written for name, op in ops.items()}).astype(float)
        size = names.map({name: op.bytes_per_el for name, op in ops.items()})
        parts.append(rows.assign(kind="elementwise", op=names, rows=rows["tokens"], cols=width, moved=rows["tokens"] * width * size, format="bf16",
                                 source=rows["source"] if "source" in rows else "", **{"class": [elementwise.classes_of(n)[0] for n in names]}))
    if not parts:
        return frame.iloc[:0].assign(format="", moved=0.0, **{"class": ""})
    out = pd.concat(parts).sort_values(["model", "tp"], kind="stable")
    return out[~out.duplicated(["model", "dtype", "layer", "tokens", "time_us", "source"])].reset_index(drop=True)
