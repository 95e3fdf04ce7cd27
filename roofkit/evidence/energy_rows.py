"""Energy rows: joules per token and board power of served models against the energy model, and the two shares fitted there. Room: evidence.

Rows are ML.ENERGY v3 runs: steady decoding with chunked prefill in vLLM. A step holds c sequences of mean context isl + osl/2 and
c isl / osl prompt tokens of those that take the place of finished ones; J/token = energy of that step over all boards / c.
Input lengths are not in the table: INPUT_TOKENS is assumed. Tasks with images or of unknown input length are left out.
Two shares are fitted: `busy` of the top-down split and `rest` (power while a step waits for its host), to board power at the
measured step time, since power x time is energy and the time is not the energy model's. Where a measured step is longer than
predicted the boards wait at floor power; where it is shorter every part shrinks. Constants may ship, rows may not (no licence).
"""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.cost import energy
from roofkit.errors import MeasurementError, RoofkitError
from roofkit.evidence.fit import Form, Parameter, fit
from roofkit.evidence.measurements import device_name, resolve_device
from roofkit.evidence.names import resolve_model, usual_cluster
from roofkit.evidence.validate import error_table
from roofkit.hardware.presets import list_devices, load_device
from roofkit.inference.step import Step, estimate
from roofkit.ops.plan import Plan
from roofkit.ops.workload import MixedBatch

NEEDED = ("gpu", "model", "task", "precision", "n_gpu", "ep", "dp", "avg_batch_size", "avg_output_len", "output_throughput_tokens_per_sec", "avg_power_watts",
          "energy_per_token_joules")
INPUT_TOKENS = {"lm-arena-chat": 300, "gpqa": 300}  # assumed: mean prompt of the text tasks [tokens]
SAME_SHAPE = {"Llama-3.3-70B": "Llama-3.1-70B"}  # other weights, the same architecture
FORMATS = {"bfloat16": "bf16", "fp8": "fp8"}
BLOCK_SCALED = ("qwen3",)  # families whose published fp8 checkpoints carry 128 x 128 block scales
FITTED = (Parameter("busy", 0.05, 0.95, 0.4, log=False), Parameter("rest", 0.01, 0.99, 0.5, log=False))
ENGINE = "vllm-0.12"  # the rows ran vLLM 0.11.1 (ml.energy, LLM inference energy: a longitudinal analysis): the nearest profile
SOURCE = "fit to board power of served models (steady decoding, vLLM) on H100 and B200, ML.ENERGY v3, github ml-energy/leaderboard @ 0cd52dab; constants only"
POWER, TOKEN = "energy_power", "energy_token"  # names in the validation table


@dataclass(frozen=True, eq=False)
class ServedRows:
    """Rows of one device and layout with the step that prices them. `rows`: device, arch, n_gpu, batch, measured_s, power_w (one board), j_per_token."""

    rows: pd.DataFrame
    step: Step

    @cached_property
    def own(self) -> tuple[energy.PowerModel, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The device's power model, and its parts."""
        return self._parts(energy.power_model(self.step.cluster.device))

    @cached_property
    def split(self) -> tuple[energy.PowerModel, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The top-down split of the same device, and its parts."""
        return self._parts(energy.top_down(self.step.cluster.device))

    def _parts(self, model: energy.PowerModel) -> tuple[energy.PowerModel, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(time, demand without occupied SMs [J], occupied SM seconds) of every op, each [ops, rows]."""
        device, shape, out = self.step.cluster.device, np.shape(self.rows["batch"]), []
        for costed in self.step.costed:
            work, occupied = energy.demand_parts(costed, device, model)
            out.append([np.broadcast_to(np.asarray(v, float), shape) for v in (costed.time_s, sum(work), occupied)])
        return model, tuple(np.stack(x) for x in zip(*out, strict=True))

    def power_w(self, shares: Mapping[str, float], time_s: np.ndarray | None = None, *, split: bool = False) -> np.ndarray:
        """Mean power of one board over the step [W] with these `busy` and `rest`; time_s: the step as measured, None: as predicted.

        `busy` moves devices priced by the top-down split alone; fitted devices keep their own. split: as if the device had no file.
        """
        model, (time, joules, occupied) = self.split if split else self.own
        busy = shares["busy"] * (model.limit_w - model.floor_w) if model.calibration == "generic" else model.busy_w
        predicted = np.broadcast_to(np.asarray(self.step.time_s, float), np.shape(self.rows["batch"]))
        whole = predicted if time_s is None else time_s
        shrink = np.minimum(whole / predicted, 1.0)
        dynamic = ((model.power_w(joules / np.maximum(time * shrink, 1e-30) + busy * occupied / np.maximum(time, 1e-30)) - model.floor_w) * time * shrink).sum(axis=0)
        own = time.sum(axis=0) * shrink
        waits = predicted * shrink - own
        return model.floor_w + dynamic * (1 + shares["rest"] * waits / own) / whole

    def token_j(self, shares: Mapping[str, float]) -> np.ndarray:
        """Energy per output token over all boards [J], in the predicted time."""
        return self.power_w(shares) * self.step.time_s * self.step.plan.n_devices / self.rows["batch"].to_numpy(float)


def shipped_shares() -> dict[str, float]:
    """`busy` and `rest` as the package has them."""
    return {k: energy.generic()[k] for k in ("busy", "rest")}


def served(measurements) -> list[ServedRows]:
    """Rows that can be priced, by device, model and layout.

    measurements   path or table with the columns NEEDED. Raises MeasurementError for missing columns or when no row can be priced.
    """
    raw = measurements if isinstance(measurements, pd.DataFrame) else pd.read_csv(measurements)
    if lacks := [c for c in NEEDED if c not in raw]:
        raise MeasurementError(f"a table of served energy needs {', '.join(NEEDED)}; it lacks {', '.join(lacks)}")
    found = list(_served(raw[raw["task"].isin(INPUT_TOKENS) & (raw["dp"] == 1)]))
    if not found:
        raise MeasurementError("no row of this table has a known device, model, format and task")
    return found


def _served(raw: pd.DataFrame) -> Iterator[ServedRows]:
    devices, models = list_devices()["name"].tolist(), list_architectures()["name"].tolist()
    for (gpu, model, task, precision, n, ep), rows in raw.groupby(["gpu", "model", "task", "precision", "n_gpu", "ep"]):
        for name, same in SAME_SHAPE.items():
            model = model.replace(name, same)
        device, arch, fmt = resolve_device(device_name(gpu), devices), resolve_model(model, models), FORMATS.get(precision)
        if device is None or arch is None or fmt is None:
            continue
        if fmt == "fp8" and arch.startswith(BLOCK_SCALED):
            fmt = "fp8_block"
        batch, osl, isl = np.round(rows["avg_batch_size"].to_numpy(float)), rows["avg_output_len"].to_numpy(float), INPUT_TOKENS[task]
        work = MixedBatch(batch, np.round(isl + osl / 2), np.maximum(np.round(batch * isl / osl), 1))
        try:  # ranks of one replica are tensor ranks, which the experts share
            step = estimate(load_architecture(arch), usual_cluster(load_device(device), int(n)), Plan(tp=int(n), ep=int(ep), weights=fmt, activations=fmt, kv="bf16"), work,
                            engine=ENGINE)
        except RoofkitError:
            continue
        yield ServedRows(pd.DataFrame({
            "device": device, "arch": arch, "format": fmt, "n_gpu": int(n), "task": task, "batch": batch, "osl": osl, "context": isl + osl / 2,
            "measured_s": rows["avg_batch_size"].to_numpy(float) / rows["output_throughput_tokens_per_sec"].to_numpy(float),
            "power_w": rows["avg_power_watts"].to_numpy(float) / n, "j_per_token": rows["energy_per_token_joules"].to_numpy(float)}), step)


def fit_shares(parts: list[ServedRows], *, split: bool = False, keep: np.ndarray | None = None) -> dict[str, float]:
    """`busy` and `rest` that bring board power at the measured step time closest, over all parts.

    split   fitted devices too by the top-down split;  keep   only these rows of all parts in order; None = all
    """
    keep = np.ones(sum(len(p.rows) for p in parts), bool) if keep is None else keep
    measured = np.concatenate([p.rows["power_w"].to_numpy() for p in parts])[keep]
    form = Form("served power", FITTED, lambda c: np.concatenate([p.power_w(c, p.rows["measured_s"].to_numpy(), split=split) for p in parts])[keep])
    return fit(form, measured, starts=2).constants


def held_out(parts: list[ServedRows], rule: str, seed: int = 0) -> Iterator[tuple[dict[str, float], list[ServedRows]]]:
    """(shares, parts they are judged on): "shipped" the package's on everything; "model" or "gpu" fitted without the one left out;
    "half": fitted on half of the models, judged on the other, both ways.

    For an unseen GPU the others are priced by the top-down split, since that is what it would inherit.
    """
    if rule == "shipped":
        yield shipped_shares(), parts
        return
    if rule == "half":
        models = np.random.default_rng(seed).permutation(sorted({p.rows["arch"].iloc[0] for p in parts}))
        for some in (set(models[: len(models) // 2]), set(models[len(models) // 2:])):
            yield fit_shares([p for p in parts if p.rows["arch"].iloc[0] in some]), [p for p in parts if p.rows["arch"].iloc[0] not in some]
        return
    key = {"model": "arch", "gpu": "device"}[rule]
    for value in sorted({p.rows[key].iloc[0] for p in parts}):
        rest = [p for p in parts if p.rows[key].iloc[0] != value]
        if rest:
            yield fit_shares(rest, split=rule == "gpu"), [p for p in parts if p.rows[key].iloc[0] == value]


def energy_points(parts: list[ServedRows], rules=("half", "model", "gpu"), seeds=range(5)) -> pd.DataFrame:
    """Points for validate.error_table: board power at the measured step time [W] and energy per output token [J], by device, model and format.

    The columns measured_us and predicted_us hold W and J here; the split is the rule. "shipped" is not among the defaults: its shares saw every row.
    """
    out = []
    for rule, seed in [(r, s) for r in rules for s in (seeds if r == "half" else seeds[:1])]:
        for shares, judged in held_out(parts, rule, seed):
            for part in judged:
                rows = part.rows
                for op, measured, predicted in ((POWER, rows["power_w"], part.power_w(shares, rows["measured_s"].to_numpy())), (TOKEN, rows["j_per_token"], part.token_j(shares))):
                    out.append(pd.DataFrame({"device": rows["device"], "op": op, "class": rows["arch"], "format": rows["format"], "stack": "vllm", "split": rule, "seed": seed,
                                             "family": rows["task"] + " " + rows["n_gpu"].astype(str), "regime": "step", "measured_us": measured, "predicted_us": predicted, "held_out": True}))
    return pd.concat(out, ignore_index=True)


def refit_energy(measurements, folder, *, date: str) -> pd.DataFrame:
    """Fit `busy` and `rest` to all rows, write FOLDER/generic.toml, return rows of the validation table (regime "all")."""
    parts = served(measurements)
    points = energy_points(parts)
    table = error_table(points)
    unseen = points[(points["op"] == POWER) & (points["split"] == "model")]
    error = (unseen["predicted_us"] / unseen["measured_us"] - 1).abs().groupby(unseen["device"]).mean()
    note = "mean error of board power on models left out: " + ", ".join(f"{name} {100 * e:.1f} %" for name, e in error.items())
    write_generic(Path(folder) / "generic.toml", fit_shares(parts), note, date=date)
    return table[table["regime"] == "all"].reset_index(drop=True)


def write_generic(path, shares: Mapping[str, float], note: str, *, date: str, source: str = SOURCE) -> Path:
    """Write data/roofkit_data/energy/generic.toml: the shipped shares with `busy` and `rest` replaced by fitted ones."""
    path, known = Path(path), {**energy.generic(), **{k: float(f"{v:.3g}") for k, v in shares.items()}}
    said = {"floor": "power of running without work, as a share of the board limit", "flop": "arithmetic at full rate", "hbm": "device memory at full rate",
            "l2": "L2 at three times the rate of device memory", "sharpness": "how abruptly power saturates at the limit"}
    lines = ["# Energy of a device without a file of its own: roofkit/cost/energy.py. Shares of the power between floor and limit that a device",
             "# draws when it computes, streams and keeps its SMs busy at full rate; the floor is a share of the limit.", "schema = 1", f'date = "{date}"']
    for key in energy.SHARES:
        fitted = key in shares
        lines += ["", f"[{key}]", f"value = {known[key]:g}", f'unit = "{"ratio" if key == "sharpness" else "share"}"', f'kind = "{"fitted" if fitted else "assumed"}"',
                  f'source = "{source if fitted else "assumed: " + said[key]}"', *([f'note = "{note}"'] if fitted else [])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
