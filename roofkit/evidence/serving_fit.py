"""Serving fit: constants of served steps from measured load points. Room: evidence.

    python -m roofkit.evidence.serving_fit MEASURED_DIR OUT_DIR

What kernel tables cannot show: host time of an engine, floors of eager steps, how far launches overlap in a replayed graph, rates
under sustained load. Every load point is simulated (evidence.serving); the constants minimise
  sum |log TPOT ratio| + 1/2 |log TTFT ratio|  (soft)  +  1/2 sum ((log c - log c0) / s)^2
over the constants c in log, c0 a neutral start with nothing fitted (factors of 1, host times of the engines' own reports), s its
width: a constant that no row constrains stays at c0. Gauss-Newton with differences by simulation.
Held out: every (device, engine, model, format) group predicted by the fit of the other groups, linearised at the last iteration; and
every device predicted by a fit without its rows ("gpu": tables of its kernels, no served step of it seen).
"""
import argparse
import copy
import datetime
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.cost import served
from roofkit.errors import MeasurementError, RoofkitError
from roofkit.evidence.calibrate import summary
from roofkit.evidence.measurements import device_name, resolve_device
from roofkit.evidence.names import resolve_model
from roofkit.evidence.rows import check_rows
from roofkit.evidence.serving import bound_ms, emulate_row, not_modelled, plan_of, preset_of
from roofkit.evidence.validate import error_table
from roofkit.hardware.presets import list_devices, load_device
from roofkit.serving.benchmark import load_protocol, settings_of

SOURCE = ("fit to serving points of dense models (Llama-3.1 8B and 70B, Qwen3-32B on H100 and B200; vLLM, TensorRT-LLM, SGLang), AIConfigurator silicon samples, "
          "github ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0)")
SOFT = 0.05  # half-width of the quadratic part of the loss
DIFFERENCE = 0.1  # step of the numerical derivative, in log


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant: path in the file, neutral start, width in log, and which rows it touches."""

    path: tuple[str, ...]
    start: float
    width: float
    touches: Callable[[pd.Series], bool] = field(compare=False)

    @property
    def name(self) -> str:
        return ".".join(self.path)


def _is(**wanted) -> Callable:
    return lambda row: all(getattr(row, k) in (v if isinstance(v, tuple) else (v,)) for k, v in wanted.items())


H100, B200 = "h100-sxm-80gb", "b200-sxm-180gb"
CONSTANTS = (
    *(Constant(("engine", name, "host_us"), 500.0, 1.0, _is(profile=name)) for name in ("vllm", "vllm-0.12", "vllm-decode-graphs", "trtllm")),
    *(Constant(("engine", name, "host_per_request_us"), 20.0, 1.0, _is(profile=name)) for name in ("vllm", "vllm-0.12", "vllm-decode-graphs", "trtllm", "sglang")),
    Constant(("engine", "vllm-decode-graphs", "eager_layer_us"), 500.0, 0.7, _is(profile="vllm-decode-graphs")),
    Constant(("engine", "trtllm", "eager_layer_us"), 500.0, 0.7, _is(profile="trtllm")),
    Constant(("engine", "trtllm", "frontend_per_token_us"), 50.0, 1.0, _is(profile="trtllm")),
    Constant(("launch_scale", H100), 1.0, 0.2, _is(preset=H100)), Constant(("launch_scale", B200), 1.0, 0.4, _is(preset=B200)),
    Constant(("bandwidth_scale", H100), 1.0, 0.1, _is(preset=H100)), Constant(("bandwidth_scale", B200), 1.0, 0.1, _is(preset=B200)),
    *(Constant(("compute_scale", preset, fmt), 1.0, 0.15, _is(preset=preset, weights=fmt)) for preset, fmt in ((H100, "bf16"), (H100, "fp8"), (B200, "fp8"))),
    Constant(("quantise_us", "fp8"), 5.0, 0.5, _is(weights="fp8")), Constant(("quantise_us", "nvfp4"), 10.0, 0.5, _is(weights="nvfp4")),
    Constant(("smooth_compute", "nvfp4"), 0.5, 0.3, _is(weights="nvfp4")),
)


def neutral() -> dict:
    """The file's tables with every fitted constant at its start: nothing learned from a served step."""
    doc = copy.deepcopy(served.shipped())
    for constant in CONSTANTS:
        _put(doc, constant.path, constant.start)
    return doc


def _put(doc: dict, path: tuple[str, ...], value: float) -> None:
    for key in path[:-1]:
        doc = doc.setdefault(key, {})
    doc[path[-1]] = float(value)


def with_values(log_values: np.ndarray) -> dict:
    """The file's tables with constants exp(log_values); formats that share a kernel with another take its value."""
    doc = neutral()
    for constant, value in zip(CONSTANTS, np.exp(log_values), strict=True):
        _put(doc, constant.path, value)
    for other in ("fp8_block", "w8a8_int8"):
        doc["quantise_us"][other] = doc["quantise_us"]["fp8"]
    return doc


def points(measurements) -> pd.DataFrame:
    """Load points of dense models that can be simulated, checked (evidence.rows), with preset, weights, profile and group.

    Raises MeasurementError when none is left.
    """
    raw = measurements if isinstance(measurements, pd.DataFrame) else pd.read_csv(measurements)
    raw = raw.assign(device=raw["gpu"].map(device_name))
    rows = check_rows(raw, bound_ms=bound_ms(raw))[0]
    devices, models = list_devices()["name"].tolist(), list_architectures()["name"].tolist()
    kept = []
    for row in rows.itertuples():
        preset, model = resolve_device(row.device, devices), resolve_model(row.model, models)
        if preset is None or model is None or not_modelled(row) or _routed(model):
            continue
        plan = plan_of(row, load_architecture(model))
        weights = plan.weights
        found = settings_of(load_protocol(preset_of(row)), row.engine, plan, preset, int(row.concurrency), int(row.isl), int(row.osl))
        kept.append({"index": row.Index, "preset": preset, "arch": model, "weights": weights, "profile": found.get("profile", row.engine),
                     "group": f"{preset} {row.engine} {model} {weights}"})
    if not kept:
        raise MeasurementError("no load point of a dense model with a preset of its device is in this table")
    info = pd.DataFrame(kept).set_index("index")
    return rows.loc[info.index].join(info).reset_index(drop=True)


def _routed(model: str) -> bool:
    arch = load_architecture(model)
    return arch.active_params < arch.total_params * 0.9


def predict_rows(rows: pd.DataFrame, doc: dict) -> np.ndarray:
    """log(predicted / measured) of TPOT and of TTFT, [rows, 2]; NaN where the run is refused."""
    out = np.full((len(rows), 2), np.nan)
    with served.using(doc):
        for i, row in enumerate(rows.itertuples()):
            try:
                found = emulate_row(row, load_device(row.preset), load_architecture(row.arch))
            except RoofkitError:
                continue
            out[i] = np.log([found.tpot_s * 1e3 / row.tpot_ms, found.ttft_s * 1e3 / row.ttft_ms])
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Residuals and derivatives at one set of constants: residuals [rows, 2], derivatives [rows, 2, constants]."""

    at: np.ndarray
    residuals: np.ndarray
    derivatives: np.ndarray

    def best(self, chosen: np.ndarray, most: float = 0.7) -> np.ndarray:
        """Constants [log] that minimise the linearised loss on the chosen rows, moved by at most `most`."""
        from scipy.optimize import least_squares
        weight = np.array([1.0, 0.5])
        r = (self.residuals * weight)[chosen].ravel()
        j = (self.derivatives * weight[:, None])[chosen].reshape(len(r), len(self.at))
        good = np.isfinite(r)
        r, j, start = r[good], np.nan_to_num(j[good]), np.log([c.start for c in CONSTANTS])
        width = np.array([c.width for c in CONSTANTS])

        def loss(move: np.ndarray) -> np.ndarray:
            z = (r + j @ move) / SOFT
            soft = np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z**2) - 1))  # its square is the soft absolute value
            return np.concatenate([soft, (self.at + move - start) / width])

        return self.at + least_squares(loss, np.zeros(len(start)), bounds=(-most, most)).x


def linearise(rows: pd.DataFrame, at: np.ndarray) -> Linear:
    """Simulate every row at `at`, and once more per constant that touches it."""
    base = predict_rows(rows, with_values(at))
    derivatives = np.zeros((len(rows), 2, len(CONSTANTS)))
    for j, constant in enumerate(CONSTANTS):
        touched = np.array([constant.touches(row) for row in rows.itertuples()])
        if touched.any():
            moved = at.copy()
            moved[j] += DIFFERENCE
            derivatives[touched, :, j] = (predict_rows(rows[touched], with_values(moved)) - base[touched]) / DIFFERENCE
    return Linear(at, base, derivatives)


def fit(rows: pd.DataFrame, iterations: int = 3, progress: Callable[[str], None] = print) -> Linear:
    """Gauss-Newton from the neutral start; the linearisation at the last constants."""
    at = np.log([c.start for c in CONSTANTS])
    everything = np.ones(len(rows), bool)
    for i in range(iterations):
        line = linearise(rows, at)
        progress(f"pass {i + 1}: {_says(line.residuals)}")
        at = line.best(everything)
    line = linearise(rows, at)
    progress(f"fitted: {_says(line.residuals)}")
    return line


def _says(residuals: np.ndarray) -> str:
    tpot, ttft = (summary(r[np.isfinite(r)]) for r in residuals.T)
    return f"TPOT {100 * tpot['mape']:.1f} % (median {100 * tpot['median']:.1f}), TTFT {100 * ttft['mape']:.1f} % (median {100 * ttft['median']:.1f})"


@dataclass(frozen=True, slots=True, eq=False)
class ServingFit:
    """constants   the file's tables

    points   log(predicted / measured) of tpot and ttft of every row under every split: "group", "gpu", "tables" (neutral start:
             kernel tables and the protocol, no served step seen) and "fitted" (no row held out)
    """

    constants: dict
    points: pd.DataFrame


def fit_serving(measurements, every: int = 3, iterations: int = 3, progress: Callable[[str], None] = print) -> ServingFit:
    """Fit on every `every`-th row of each group; judge on all rows of groups and devices left out, and as shipped."""
    rows = points(measurements)
    sample = rows.groupby("group", group_keys=False).nth(slice(None, None, every)).reset_index(drop=True)
    line = fit(sample, iterations, progress)
    final = line.best(np.ones(len(sample), bool))
    out = [_judged(rows, with_values(final), "fitted")]
    for group in rows["group"].unique():
        without = line.best((sample["group"] != group).to_numpy(), most=np.inf)
        out.append(_judged(rows[rows["group"] == group], with_values(without), "group"))
        progress(f"without {group}: {_says(out[-1][['tpot', 'ttft']].to_numpy())}")
    for preset in rows["preset"].unique():
        without = line.best((sample["preset"] != preset).to_numpy(), most=np.inf)
        out.append(_judged(rows[rows["preset"] == preset], with_values(without), "gpu"))
        progress(f"without {preset}: {_says(out[-1][['tpot', 'ttft']].to_numpy())}")
    out.append(_judged(rows, neutral(), "tables"))
    return ServingFit(with_values(final), pd.concat(out, ignore_index=True))


def _judged(rows: pd.DataFrame, doc: dict, split: str) -> pd.DataFrame:
    found = predict_rows(rows, doc)
    return rows[["group", "preset", "engine", "model", "weights", "tp", "isl", "osl", "concurrency", "tpot_ms", "ttft_ms"]].assign(split=split, tpot=found[:, 0], ttft=found[:, 1])


def error_table_of(points: pd.DataFrame) -> pd.DataFrame:
    """Rows of the validation table: op serving (TPOT) and serving_ttft per group and split; families are (model, tp)."""
    parts = []
    for op in ("serving", "serving_ttft"):
        log = points["tpot" if op == "serving" else "ttft"]
        parts.append(pd.DataFrame({
            "device": points["preset"], "op": op, "class": points["model"], "format": points["weights"], "stack": points["engine"], "split": points["split"], "seed": 0,
            "family": points["model"] + "x" + points["tp"].astype(str), "regime": "step", "measured_us": 1.0, "predicted_us": np.exp(log), "held_out": log.notna()}))
    return error_table(pd.concat(parts, ignore_index=True))


HEAD = """# What whole served steps show beyond kernel tables; applied only when an engine is named. See roofkit/cost/served.py.
# Written by roofkit.evidence.serving_fit; pass_launch_us stays as it was (layer profiles of vLLM 0.19 on RTX PRO 6000, github
# casys-kaist/LLMServingSim @ 5daddb21, MIT); eager floors of vllm and vllm-0.12 and the 3 ms per eager step of trtllm too, which come
# from an earlier fit to the same points: these rows do not constrain them.
# launch_scale: share of launch floors left in a replayed graph; bandwidth_scale, compute_scale: on the shares of the product tables;
# quantise_us: start of the kernel that quantises activations; smooth_compute: formats whose tile form does not carry over to
# engine kernels; engine: host time per step and running request, floors per layer and per step of a step with a prompt."""


def write(path, constants: dict, date: str) -> Path:
    """The file of data/calibration, constants to four digits."""
    lines = [HEAD, "schema = 1", 'kind = "fitted"', f'source = "{SOURCE}"', f'date = "{date}"']
    for name in served.DEVICE_TABLES:
        table = constants[name]
        if name == "compute_scale":
            for device, formats in table.items():
                lines += ["", f"[compute_scale.{device}]", *(f"{k} = {v:.4g}" for k, v in formats.items())]
        else:
            lines += ["", f"[{name}]", *(f"{k} = {v:.4g}" for k, v in table.items())]
    for engine, values in constants["engine"].items():
        lines += ["", f'[engine."{engine}"]', *(f"{k} = {v:.4g}" for k, v in values.items())]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Path(path)


def refit_serving(path, out_dir, *, date: str, progress: Callable[[str], None] = print) -> pd.DataFrame:
    """Fit and judge once, keep OUT_DIR/calibration/served.toml and OUT_DIR/serving_points.csv, return rows of the validation table."""
    out_dir, kept = Path(out_dir), Path(out_dir) / "serving_points.csv"
    if not kept.is_file():
        found = fit_serving(path, progress=progress)
        (out_dir / "calibration").mkdir(parents=True, exist_ok=True)
        write(out_dir / "calibration" / "served.toml", found.constants, date)
        found.points.to_csv(kept, index=False, float_format="%.5g")
    points = pd.read_csv(kept)
    for split, part in points.groupby("split"):
        progress(f"load points, {split}: {_says(part[['tpot', 'ttft']].to_numpy())}")
    return error_table_of(points[points["split"] != "fitted"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roofkit.evidence.serving_fit", description=__doc__.splitlines()[0])
    parser.add_argument("measured_dir")
    parser.add_argument("out_dir")
    args = parser.parse_args(argv)
    try:
        refit_serving(Path(args.measured_dir) / "serving_points.csv", args.out_dir, date=datetime.date.today().strftime("%Y-%m"))
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
