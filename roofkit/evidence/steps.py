"""Steps: predictions of whole steps, of layers inside them, and of load points (evidence.serving). Room: evidence."""
from collections.abc import Iterator

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.evidence import eager
from roofkit.evidence.measurements import resolve_device
from roofkit.evidence.names import resolve_model, usual_cluster
from roofkit.evidence.serving import predict_points
from roofkit.hardware.device import Device
from roofkit.hardware.presets import list_devices, load_device
from roofkit.inference.step import estimate
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, Prefill

LAYERS = {"qkv_proj": "qkv_proj", "o_proj": "o_proj", "gate_up_proj": "gate_up_proj", "down_proj": "down_proj", "act_fn": "activation", "rotary_emb": "rope_kv_write",
          "layernorm": "add_norm", "final_layernorm": "final_norm", "embedding": "embedding", "lm_head": "logits", "sampler": "sampling", "qk_norm": "qk_norm"}


def predict_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of kind step, layer or serving with predicted_ms (predicted_us for layers), calibration, in_domain and note; load
    points have TPOT in predicted_ms and TTFT in predicted_ttft_ms.

    Rows without a preset of the model or device, and layouts not modelled (attention data parallelism, disaggregation), stay NaN
    with the reason in `note`.
    """
    kind = frame["kind"].iloc[0]
    column = "predicted_us" if kind == "layer" else "predicted_ms"
    out = frame.assign(**{column: np.nan, "calibration": "none", "in_domain": False, "note": "not modelled" if kind == "step" else ""})
    if kind == "serving":
        out["predicted_ttft_ms"] = np.nan
    devices, models = list_devices()["name"].tolist(), list_architectures()["name"].tolist()
    for (gpu, model), rows in frame.groupby(["device", "model"]):
        device, arch = resolve_device(gpu, devices), resolve_model(model, models)
        if device is None or arch is None:
            out.loc[rows.index, "note"] = f"no preset of {'the model' if device else 'the device'}"
            continue
        out.loc[rows.index, "device"] = device
        if kind == "serving":
            for index, tpot, ttft, calibration, note in predict_points(rows, load_device(device), load_architecture(arch)):
                out.loc[index, ["predicted_ms", "predicted_ttft_ms", "calibration", "note"]] = tpot * 1e3, ttft * 1e3, calibration, note
            continue
        for index, seconds, calibration, note in (_layer if kind == "layer" else _step)(rows, load_device(device), load_architecture(arch)):
            out.loc[index, column] = np.asarray(seconds, float) * (1e6 if kind == "layer" else 1e3)
            out.loc[index, "calibration"], out.loc[index, "note"] = calibration, note
    return out


def _layer(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple]:
    for (tp, dtype), part in rows.groupby(["tp", "dtype"]):
        plan = Plan(tp=int(tp), weights=dtype, activations=dtype)
        for sampled, some in part.groupby(part["layer"].isin(["final_layernorm", "lm_head", "sampler"])):
            tokens = np.sort(some["tokens"].unique()).astype(float)
            work = Decode(tokens, 1) if sampled else Prefill(1, tokens)  # those run once per row that is sampled: here, all
            found = {c.op.name: c for c in estimate(arch, usual_cluster(device, int(tp)), plan, work).costed}
            for layer, each in some.groupby("layer"):
                costed = found.get(LAYERS.get(layer, layer))
                if costed is None:
                    continue
                one = np.broadcast_to(costed.time_s / costed.op.count, tokens.shape)
                yield each.index, one[np.searchsorted(tokens, each["tokens"])], costed.timing.calibration, costed.timing.note


def _step(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple]:
    constants = eager.constants_of(device)
    for part, decodes, step in eager.device_steps(rows, device, arch):
        said = eager.eager_s(step.time_s, decodes, part["batch"].to_numpy(float), constants)
        impossible = part["time_ms"].to_numpy() * 1e-3 < step.ideal_s
        yield part.index[~impossible], said[~impossible], step.calibration, "eager: the longer of device and host"
        yield part.index[impossible], np.nan, "none", "set aside: faster than the roofline of the step it is labelled as"
