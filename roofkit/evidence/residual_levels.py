"""Residual of blocks and whole steps, in time and in energy: does a correction learnt on some models hold on another? Room: evidence.

A bench is one table with its prediction by the shipped constants (nothing refitted but what its own rows would teach: power of
products, and the two shares of energy_rows.py, are fitted on the training part). Rules: "random" folds of rows; "model": whole
models, expert shapes or shape families left out, one by one or in folds where there are more than MANY; "gpu": whole GPUs,
where the product keeps the residual off and "... carried" shows what it would have done.
Blocks: layers of layer_profile summed per model, ranks and tokens; expert blocks; mixed attention. Steps: e2e_steps, steady serving
points (time per output token), ML.ENERGY (joules per output token). Operators in energy: board power of products.
"""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.errors import MeasurementError
from roofkit.evidence import energy_rows
from roofkit.evidence.cases import GEMM_FORMATS, stack_of
from roofkit.evidence.fit import fit
from roofkit.evidence.measurements import device_name, read_measurements
from roofkit.evidence.names import resolve_model
from roofkit.evidence.power import power_form
from roofkit.evidence.predict import predict
from roofkit.evidence.residual import Part, judge
from roofkit.evidence.rows import check_rows
from roofkit.evidence.splits import families
from roofkit.evidence.serving import bound_ms
from roofkit.hardware.device import Device
from roofkit.hardware.presets import load_device

RULES = ("random", "model", "gpu")
MANY = 12  # units above which they are left out in folds instead of one by one
FOLDS = 3  # of rules that draw them
LEAST_TEST = 3  # rows of a unit left out below which nothing is said of it


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """One table at one level. part(training rows) -> all rows as a Part; device: preset of every row; model: what is left out, in words."""

    level: str
    quantity: str
    op: str
    format: str
    part: Callable[[np.ndarray], Part]
    device: np.ndarray
    model: np.ndarray


def benches(measured_dir, *, most: int = 1500, served: pd.DataFrame | None = None) -> Iterator[Bench]:
    """Every bench whose table lies in the folder; tables above `most` rows are thinned by a fixed draw.

    served   points of validate.validate over the checked serving rows, where they were priced already: that takes minutes
    """
    folder = Path(measured_dir)
    for name, build in {"layer_profile": _layers, "moe": _experts, "attention_mixed_batch": _mixed, "e2e_steps": _steps, "serving_points": _serving, "gemm_power": _power,
                        "energy_mlenergy": _energy}.items():
        path = folder / f"{name}.csv"
        if path.is_file():
            yield from (build(path, most) if build is not _serving or served is None else build(path, most, served))


def bench_points(bench: Bench, *, rules: Sequence[str] = RULES, seeds: Sequence[int] = (0,), trees: bool = True, ablate: bool = True) -> pd.DataFrame:
    """Points of `residual.judge` with KEYS. class: "" for all rows of the rule, and once more by the model or GPU that was
    left out one by one.

    ablate   also with each group of features left out, under "model"
    """
    head = {"level": bench.level, "quantity": bench.quantity, "op": bench.op, "format": bench.format}
    out = []
    for rule in rules:
        for seed, test in _divisions(bench, rule, seeds):
            part = bench.part(~test)
            points = judge(part[~test], part[test], seed=seed, trees=trees, ablate=ablate and rule == "model", carried=rule == "gpu", folds=3)
            points = points.assign(**head, rule=rule, device="all")
            points["class"] = ""
            out.append(points)
            if rule == "gpu" or (rule == "model" and len(np.unique(bench.model)) <= MANY):
                plain = points[points["model"].isin(("form", "ridge", "chosen", "ridge carried", "chosen carried"))].copy()
                plain["class"] = bench.device[test][0] if rule == "gpu" else np.tile(bench.model[test], len(plain) // test.sum())
                out.append(plain)
    return pd.concat(out, ignore_index=True) if out else pd.DataFrame()


def _divisions(bench: Bench, rule: str, seeds: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """(seed, rows that are judged); rules without a draw use the first seed alone."""
    if rule == "gpu":
        units = [bench.device == d for d in np.unique(bench.device)]
        yield from ((seeds[0], test) for test in units if len(units) > 1 and test.sum() >= LEAST_TEST)
        return
    unit = np.arange(len(bench.model)) if rule == "random" else bench.model
    names, index = np.unique(unit, return_inverse=True)
    if len(names) <= MANY:
        yield from ((seeds[0], index == i) for i in range(len(names)) if len(names) > 1 and (index == i).sum() >= LEAST_TEST)
        return
    for seed in seeds:
        fold = (np.random.default_rng(seed).permutation(len(names)) % FOLDS)[index]
        yield from ((seed, fold == i) for i in range(FOLDS))


def _bench(level: str, quantity: str, op: str, fmt: str, rows: pd.DataFrame, columns: dict[str, np.ndarray], predicted, measured, model) -> Bench:
    """A bench whose prediction does not depend on what is left out. columns: features beside the prediction."""
    predicted, measured = np.asarray(predicted, float), np.asarray(measured, float)
    good = np.isfinite(predicted) & (predicted > 0)
    model = np.asarray(model, str)[good]
    features = {**{k: np.asarray(v, float)[good] for k, v in columns.items()}, "prediction": np.log(predicted[good])}
    part = Part(np.column_stack(list(features.values())), tuple(features), predicted[good], measured[good], model)
    return Bench(level, quantity, op, fmt, lambda _: part, rows["device"].to_numpy()[good].astype(str), model)


def _logs(rows: pd.DataFrame, *names: str) -> dict[str, np.ndarray]:
    return {f"size {n}": np.log(np.maximum(rows[n].to_numpy(float), 1.0)) for n in names}


def _thin(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    keep = np.sort(np.random.default_rng(0).permutation(len(rows))[:most])
    return rows.iloc[keep].reset_index(drop=True)


def _layers(path: Path, most: int) -> Iterator[Bench]:
    """Layers that see every token, summed: what a block costs without its attention. Unit: model and ranks."""
    priced = predict(path)
    priced = priced[~priced["layer"].isin(["lm_head", "sampler", "embedding", "final_layernorm"]) & priced["predicted_us"].notna()]
    rows = priced.groupby(["device", "model", "tp", "tokens"], as_index=False).agg(predicted=("predicted_us", "sum"), measured=("time_us", "sum"), layers=("layer", "nunique"))
    rows = rows[rows["layers"] == rows.groupby(["model", "tp"])["layers"].transform("max")].reset_index(drop=True)
    yield _bench("block", "time", "layer", "bf16", rows, _logs(rows, "tokens", "tp"), rows["predicted"], rows["measured"], rows["model"] + " TP" + rows["tp"].astype(str))


def _experts(path: Path, most: int) -> Iterator[Bench]:
    """Expert blocks in bf16. Unit: shape of the experts."""
    frame = read_measurements(path)
    rows = predict(_thin(frame[(frame["dtype"] == "bf16") & ~frame["kernel"].str.contains("nongated")].drop(columns=["kind", "device"]), most))
    shape = rows["hidden"].astype(str) + "x" + rows["inter"].astype(str) + " top " + rows["topk"].astype(str) + " of " + rows["experts"].astype(str)
    devices = {d: load_device(d) for d in rows["device"].unique()}
    peak, wide = (rows["device"].map({n: get(d) for n, d in devices.items()}).to_numpy(float) for get in (lambda d: d.peak_flops_per_s("bf16"), lambda d: d.hbm_bytes_per_s))
    pairs, width = rows["tokens"] * rows["topk"] / rows["ep"], 3 * rows["hidden"] * rows["inter"] / rows["tp"]
    compute, memory = 2 * pairs * width / peak, np.minimum(rows["experts"] / rows["ep"], pairs) * width * 2 / wide
    columns = _logs(rows, "tokens", "hidden", "inter", "topk", "experts", "tp", "ep") | {"compute": np.log(compute), "memory": np.log(memory), "regime memory": 1 / (1 + (compute / memory) ** 2)}
    yield _bench("block", "time", "moe", "bf16", rows, columns, rows["predicted_us"], rows["time_us"], shape)


def _mixed(path: Path, most: int) -> Iterator[Bench]:
    """Attention of a step that holds a prompt chunk beside decodes. Unit: model and ranks."""
    rows = predict(_thin(read_measurements(path).drop(columns=["kind", "device"]), most))
    columns = _logs(rows, "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "tp") | {"regime decode": (rows["n_decode"] > 0).astype(float), "regime prefill": (rows["prefill_chunk"] > 0).astype(float)}
    yield _bench("block", "time", "mixed_attention", "bf16", rows, columns, rows["predicted_us"], rows["time_us"], rows["model"] + " TP" + rows["tp"].astype(str))


def _steps(path: Path, most: int) -> Iterator[Bench]:
    """Prefill and decode steps of an engine, apart. One model only: unit is GPU and ranks."""
    rows = predict(path)
    rows = rows[rows["predicted_ms"].notna()]
    for phase, some in rows.groupby("phase"):
        columns = _logs(some, "batch", "in_len", "ctx_len", "tp")
        yield _bench("step", "time", f"step_{phase}", some["dtype"].iloc[0], some, columns, some["predicted_ms"], some["time_ms"], some["model"] + " " + some["device"] + " TP" + some["tp"].astype(str))


def _serving(path: Path, most: int, served: pd.DataFrame | None = None) -> Iterator[Bench]:
    """Time per output token of steady serving points. Unit: architecture (checkpoints of one shape are one model)."""
    raw = pd.read_csv(path)
    kept = check_rows(path, bound_ms=bound_ms(raw.assign(device=raw["gpu"].map(device_name))))[0]
    rows = predict(kept) if served is None else _with_points(read_measurements(kept), served)
    rows = rows[rows["predicted_ms"].notna()].reset_index(drop=True)
    bound = bound_ms(rows)
    rows = rows[np.isfinite(bound)].reset_index(drop=True)
    columns = _logs(rows, "concurrency", "isl", "osl", "tp", "n_gpu") | {"bound": np.log(bound[np.isfinite(bound)])}
    columns |= {f"engine {e}": (rows["engine"] == e).astype(float) for e in sorted(rows["engine"].unique())[1:]} | {"format bits": rows["precision"].map({"fp4": 4, "fp8": 8}).fillna(16)}
    yield _bench("step", "time", "serving", "any", rows, columns, rows["predicted_ms"], rows["tpot_ms"], shape_names(rows["model"]))


def _with_points(rows: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Serving rows with the prediction that points of validate.validate hold for them; milliseconds stand there x 1000.

    Raises MeasurementError where the points are those of other rows.
    """
    found = points[points["op"] == "serving"].set_index("row")  # those of the first token stand beside them
    if not np.allclose(found["measured_us"] * 1e-3, rows["tpot_ms"].reindex(found.index)):
        raise MeasurementError("points of the serving rows do not belong to this table; judge them again")
    return rows.assign(predicted_ms=found["predicted_us"].reindex(rows.index) * 1e-3, device=found["device"].reindex(rows.index).fillna(rows["device"]))


def shape_names(models: pd.Series) -> pd.Series:
    """One name for every architecture: checkpoints that share layers and width are the same model under two labels."""
    known, seen, out = list_architectures()["name"].tolist(), {}, {}
    for model in models.unique():
        preset = resolve_model(model, known)
        arch = load_architecture(preset) if preset else None
        out[model] = seen.setdefault((arch.n_layers, arch.hidden, arch.vocab) if arch else model, preset or model)
    return models.map(out)


def _power(path: Path, most: int) -> Iterator[Bench]:
    """Board power of products on B200; its form is fitted on the training part. Unit: shape family."""
    frame = read_measurements(path)
    rows = _thin(frame[frame["source"].map(stack_of).str.startswith("trtllm")], most)
    device = load_device(rows["device"].iloc[0])
    form, family = power_form(rows, device), families(rows).to_numpy()
    compute, memory = _product_times(rows, device)
    columns = _logs(rows, "m", "n", "k") | {"time": np.log(rows["time_us"]), "compute": np.log(compute), "memory": np.log(memory), "regime memory": 1 / (1 + (compute / memory) ** 2),
                                            "format bytes": rows["dtype"].map({n: f.weight_bytes_per_el for n, f in GEMM_FORMATS.items()})}
    base = np.column_stack(list(columns.values()))

    def part(train: np.ndarray) -> Part:
        some = rows[train].iloc[::2]
        watts = form.seconds(fit(power_form(some, device), some["power_w"].to_numpy(), starts=1).constants)
        return Part(np.column_stack([base, np.log(watts)]), (*columns, "prediction"), watts, rows["power_w"].to_numpy(float), family)

    yield Bench("operator", "energy", "gemm", "any", part, rows["device"].to_numpy(str), family)


def _product_times(rows: pd.DataFrame, device: Device) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = (rows[c].to_numpy(float) for c in ("m", "n", "k"))
    formats = [GEMM_FORMATS[name] for name in rows["dtype"]]
    peak = np.array([device.peak_flops_per_s(f.math) for f in formats])
    moved = n * k * np.array([f.weight_bytes_per_el for f in formats]) + m * (k * np.array([f.act_bytes_per_el for f in formats]) + 2 * n)
    return 2 * m * n * k / peak, moved / device.hbm_bytes_per_s


def _energy(path: Path, most: int) -> Iterator[Bench]:
    """Joules per output token of served models; `busy` and `rest` are fitted on the training part. Unit: architecture."""
    parts = energy_rows.served(path)
    rows = pd.concat([p.rows for p in parts], ignore_index=True)
    step_s, waits, traffic = (np.concatenate([np.broadcast_to(np.asarray(get(p.step), float), len(p.rows)) for p in parts])
                              for get in (lambda s: s.time_s, lambda s: 1 - s.device_s / s.time_s, lambda s: s.mbu))
    columns = _logs(rows, "batch", "context", "osl", "n_gpu") | {"time": np.log(step_s), "regime waiting": waits, "regime traffic": traffic, "format bits": rows["format"].eq("bf16").astype(float)}
    base, names = np.column_stack(list(columns.values())), (*columns, "prediction")

    def part(train: np.ndarray) -> Part:
        unseen = rows.loc[train, "device"].nunique() < rows["device"].nunique()  # another GPU would inherit the top-down split
        shares = energy_rows.fit_shares(parts, split=unseen, keep=train)
        joules = np.concatenate([p.token_j(shares) for p in parts])
        return Part(np.column_stack([base, np.log(joules)]), names, joules, rows["j_per_token"].to_numpy(float), rows["arch"].to_numpy(str))

    yield Bench("step", "energy", "energy_token", "any", part, rows["device"].to_numpy(str), rows["arch"].to_numpy(str))
