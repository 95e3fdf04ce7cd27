"""Steps: predictions of whole steps, of layers inside them, and of steady serving points. Room: evidence.

Serving points go through the steady-state form, not a simulation: a decode step of all clients plus its share of the steps
that also hold a prompt chunk. It gives TPOT; TTFT is mostly protocol (start burst, scheduling lead) and needs the simulator.
"""
from collections.abc import Iterator

import numpy as np
import pandas as pd

from roofkit.architectures.architecture import Architecture
from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.errors import RoofkitError
from roofkit.evidence.measurements import resolve_device
from roofkit.hardware.device import Device
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import default_cluster, list_devices, load_device
from roofkit.inference.step import Step, estimate
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, MixedBatch, Prefill

LAYERS = {"qkv_proj": "qkv_proj", "o_proj": "o_proj", "gate_up_proj": "gate_up_proj", "down_proj": "down_proj", "act_fn": "activation", "rotary_emb": "rope_kv_write",
          "layernorm": "add_norm", "final_layernorm": "final_norm", "embedding": "embedding", "lm_head": "logits", "sampler": "sampling", "qk_norm": "qk_norm"}
EAGER_HOST = {"h100-sxm-80gb": (30e-3, 0.3e-3), "a100-sxm-80gb": (44e-3, 0.3e-3)}  # 2023 vLLM without graphs: s a step, s a sequence; fitted to Splitwise rows
WEIGHTS = {"fp4": "nvfp4", "fp8": "fp8", "bf16": "bf16", "bfloat16": "bf16", "int4": "int4"}
CHUNK = {"vllm": 8192, "trtllm": 16384, "sglang": 8192}  # tokens of one step at most, as the public runs set them


def predict_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of kind step, layer or serving with predicted_ms (predicted_us for layers), calibration, in_domain and note.

    Rows without a preset of the model or device, and layouts not modelled (attention data parallelism, disaggregation), stay NaN
    with the reason in `note`.
    """
    kind = frame["kind"].iloc[0]
    column = "predicted_us" if kind == "layer" else "predicted_ms"
    out = frame.assign(**{column: np.nan, "calibration": "none", "in_domain": False, "note": ""})
    price = {"layer": _layer, "step": _step, "serving": _serving}[kind]
    devices, models = list_devices()["name"].tolist(), list_architectures()["name"].tolist()
    for (gpu, model), rows in frame.groupby(["device", "model"]):
        device, arch = resolve_device(gpu, devices), resolve_model(model, models)
        if device is None or arch is None:
            out.loc[rows.index, "note"] = f"no preset of {'the model' if device else 'the device'}"
            continue
        out.loc[rows.index, "device"] = device
        for index, seconds, calibration, note in price(rows, load_device(device), load_architecture(arch)):
            out.loc[index, column] = np.asarray(seconds, float) * (1e6 if kind == "layer" else 1e3)
            out.loc[index, "calibration"], out.loc[index, "note"] = calibration, note
    return out


def resolve_model(name: str, known) -> str | None:
    """`Qwen/Qwen3-30B-A3B-Instruct-2507` -> `qwen3-30b-a3b`: the longest preset that the name starts with; None without one."""
    plain = str(name).split("/")[-1].lower().replace("_", "-").replace("llama2", "llama-2").replace("llama3", "llama-3")
    fitting = [k for k in known if plain == k or plain.startswith(k + "-")]
    return max(fitting, key=len, default=None)


def _cluster(device: Device, ranks: int) -> Cluster:
    usual = default_cluster(device)
    return usual if usual.devices_per_node >= ranks else Cluster(device, max(ranks, 8))


def _layer(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple]:
    for (tp, dtype), part in rows.groupby(["tp", "dtype"]):
        plan = Plan(tp=int(tp), weights=dtype, activations=dtype)
        for sampled, some in part.groupby(part["layer"].isin(["lm_head", "sampler"])):
            tokens = np.sort(some["tokens"].unique()).astype(float)
            work = Decode(tokens, 1) if sampled else Prefill(1, tokens)  # those two run once per sequence
            found = {c.op.name: c for c in estimate(arch, _cluster(device, int(tp)), plan, work).costed}
            for layer, each in some.groupby("layer"):
                costed = found.get(LAYERS.get(layer, layer))
                if costed is None:
                    continue
                one = np.broadcast_to(costed.time_s / costed.op.count, tokens.shape)
                yield each.index, one[np.searchsorted(tokens, each["tokens"])], costed.timing.calibration, costed.timing.note


def _step(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple]:
    for (tp, dtype, phase, engine), part in rows.groupby(["tp", "dtype", "phase", "engine"]):
        if phase not in ("prefill", "decode") or not str(engine).startswith("vllm"):
            yield part.index, np.nan, "none", f"{engine} {phase} is not modelled"
            continue
        b, tokens = part["batch"].to_numpy(float), part["in_len"].to_numpy(float)
        work = Prefill(b, tokens) if phase == "prefill" else Decode(b, part["ctx_len"].to_numpy(float))
        step = estimate(arch, _cluster(device, int(tp)), Plan(tp=int(tp), weights=dtype, activations=dtype, kv=dtype), work)
        host, each = EAGER_HOST.get(device.name, (0.0, 0.0))
        yield part.index, np.maximum(step.time_s, host + each * b), step.calibration, "eager: the longer of device and host"


def _serving(rows: pd.DataFrame, device: Device, arch: Architecture) -> Iterator[tuple]:
    rows = rows.assign(precision=rows["precision"].fillna("bf16"), attn_dp=rows.get("attn_dp", pd.Series(1, rows.index)), ep=rows.get("ep", pd.Series(1, rows.index)))
    for (engine, precision, tp, ep, dp, mode), part in rows.groupby(["engine", "precision", "tp", "ep", "attn_dp", "mode"], dropna=False):
        reason = "disaggregated" if mode != "agg" else "attention data parallel" if dp > 1 else "" if precision in WEIGHTS else f"precision {precision}"
        if reason:
            yield part.index, np.nan, "none", f"{reason} rows are not modelled by the steady form"
            continue
        try:
            plan = Plan(tp=int(tp), ep=int(ep) if ep and ep > 0 else 1, weights=WEIGHTS[precision], activations=WEIGHTS[precision],
                        kv="fp8" if precision != "bf16" and (engine == "trtllm" or device.name.startswith("b200")) else "bf16")
            tpot, step = steady_tpot_s(arch, _cluster(device, int(tp)), plan, engine, *(part[c].to_numpy(float) for c in ("isl", "osl", "concurrency")))
        except RoofkitError as error:
            yield part.index, np.nan, "none", str(error)[:120]
            continue
        yield part.index, tpot, step.calibration, "steady form, no simulation"


def bound_ms(frame: pd.DataFrame) -> np.ndarray:
    """Roofline of one decode step of every serving row's stated concurrency [ms]: what no server beats; NaN where not modelled."""
    out = pd.Series(np.nan, frame.index)
    devices, models = list_devices()["name"].tolist(), list_architectures()["name"].tolist()
    for (gpu, model, precision, tp), rows in frame.groupby(["device", "model", frame["precision"].fillna("bf16"), "tp"]):
        device, arch = resolve_device(gpu, devices), resolve_model(model, models)
        if device is None or arch is None or precision not in WEIGHTS:
            continue
        try:  # one replica of tp devices, the cache in one byte an element: never more work than the row had
            plan = Plan(tp=int(tp), weights=WEIGHTS[precision], activations=WEIGHTS[precision], kv="fp8")
            each = np.maximum((rows["concurrency"] / np.maximum(rows["n_gpu"] / tp, 1)).to_numpy(float), 1.0)
            step = estimate(load_architecture(arch), _cluster(load_device(device), int(tp)), plan, Decode(each, rows["isl"].to_numpy(float)), cost_model="ideal")
        except RoofkitError:
            continue
        out[rows.index] = step.time_s * 1e3
    return out.to_numpy()


def steady_tpot_s(arch: Architecture, cluster: Cluster, plan: Plan, engine: str, isl, osl, concurrency) -> tuple[np.ndarray, Step]:
    """Mean time per output token of `concurrency` clients in closed loop [s], and the decode step it rests on.

    Every client decodes at the mean context isl + osl/2; of the osl steps of a request, concurrency x ceil(isl / chunk) hold a
    prompt chunk of someone and last as long as that mixed step. Arguments broadcast.
    """
    isl, osl, c = np.broadcast_arrays(*(np.asarray(x, float) for x in (isl, osl, concurrency)))
    decode = estimate(arch, cluster, plan, Decode(c, isl + osl / 2), engine=engine)
    chunk = np.minimum(isl, CHUNK.get(engine, 8192))
    mixed = estimate(arch, cluster, plan, MixedBatch(np.maximum(c - 1, 1), isl + osl / 2, chunk), engine=engine)
    extra = np.maximum(mixed.time_s - decode.time_s, 0.0)
    return decode.time_s + c * (isl / chunk) / osl * extra, decode
