"""Choices of the step explorer: its controls, and a selection turned into the library's values. Room: views.

A selection is `{control key: value}` of plain strings and numbers, as a share link carries it. Texts from visitors are
parsed as JSON and nothing else: no path is opened, no Hub is asked.
"""
from collections.abc import Mapping
from functools import lru_cache

from roofkit.architectures.architecture import Architecture
from roofkit.architectures.presets import list_architectures, load_architecture, load_architecture_text
from roofkit.errors import PlanError, RoofkitError, WorkloadError
from roofkit.formats import FORMATS, KV_FORMATS
from roofkit.hardware.device import Device
from roofkit.hardware.presets import list_devices, load_device
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, Prefill, Workload
from roofkit.views.values import Control

STORED = "checkpoint"  # value of a format control: as the checkpoint stores it
CUSTOM = "custom"  # value of the model control while a pasted config.json is in use
Selection = Mapping[str, str | int]
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)


def _numbers(values: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((f"{v:,}", v) for v in values)


@lru_cache
def _models() -> tuple[tuple[str, str], ...]:
    table = list_architectures().sort_values("name")
    return tuple((f"{name} ({total / 1e9:.3g}B)", name) for name, total in zip(table["name"], table["total_params"], strict=True))


@lru_cache
def _devices() -> tuple[tuple[str, str], ...]:
    table = list_devices().sort_values(["maker", "label"])
    return tuple((label, name) for label, name in zip(table["label"], table["name"], strict=True))


def step_controls(selection: Selection) -> tuple[Control, ...]:
    """Controls for a selection; the length control follows the phase, a pasted config adds its own model entry."""
    models = _models()
    if selection.get("config"):
        models = (("pasted config.json", CUSTOM), *models)
    prefill = selection.get("phase") == "prefill"
    length = (Control("prompt_tokens", "Prompt", "slider", _numbers(_LENGTHS), 2048, "Tokens of each prompt") if prefill else
              Control("context_tokens", "Context", "slider", _numbers(_LENGTHS), 2048, "Tokens of each sequence already in the KV cache"))
    stored = ("as stored", STORED)
    weights = (stored, *((f.name, f.name) for f in FORMATS.values()))
    return (
        Control("model", "Model", "choice", models, CUSTOM if selection.get("config") else "llama-3.1-8b", "Architecture, from a preset or a pasted config.json"),
        Control("device", "Device", "choice", _devices(), "h100-sxm-80gb", "Accelerator; its usual machine gives the links"),
        Control("phase", "Phase", "toggle", (("decode", "decode"), ("prefill", "prefill")), "decode",
                "Decode: one new token per sequence. Prefill: all prompt tokens at once"),
        Control("batch", "Batch", "slider", _numbers(_POWERS), 1 if prefill else 32, "Sequences in the step, over all data-parallel ranks"),
        length,
        Control("tp", "Tensor parallel", "choice", _numbers((1, 2, 4, 8, 16, 32)), 1, "Ranks that split every layer (TP)"),
        Control("pp", "Pipeline", "choice", _numbers((1, 2, 4, 8)), 1, "Pipeline stages (PP)"),
        Control("dp", "Data parallel", "choice", _numbers((1, 2, 4, 8, 16, 32)), 1, "Replicas of the attention layers (DP)"),
        Control("ep", "Expert parallel", "choice", _numbers((1, 2, 4, 8, 16, 32, 64, 128)), 1, "Ranks that share the experts (EP); above TP it spans the data-parallel ranks"),
        Control("weights", "Weights", "choice", weights, STORED, "Number format of the linear weights; as stored: that of the checkpoint"),
        Control("activations", "Activations", "choice", tuple(w for w in weights if w[1] != "int4"), STORED,
                "Number format of the activations in those products; products run in the wider of the two"),
        Control("kv", "KV cache", "choice", (stored, *((f, f) for f in KV_FORMATS)), STORED, "Number format of the KV cache"),
        Control("cost_model", "Cost model", "choice", (("calibrated", "calibrated"), ("simple", "simple"), ("ideal (bound)", "ideal")), "calibrated",
                "Calibrated: forms fitted to measured kernels. Simple: achievable roofline. Ideal: datasheet bound"),
        Control("engine", "Engine", "choice", (("device time only", "none"), ("vLLM", "vllm"), ("SGLang", "sglang"), ("TensorRT-LLM", "trtllm")), "none",
                "Adds the engine's host time and takes its kernels"),
    )


def completed(selection: Selection) -> dict[str, str | int]:
    """The selection with every control's default filled in, unknown keys dropped."""
    controls = step_controls(selection)
    full = {c.key: selection.get(c.key, c.default) for c in controls}
    if selection.get("config"):
        full["config"] = selection["config"]
    return full


def architecture_of(selection: Selection) -> Architecture:
    """The chosen preset, or the pasted config.json. Raises ConfigError or DataError."""
    if selection["model"] == CUSTOM and selection.get("config"):
        return load_architecture_text(str(selection["config"]))
    name = str(selection["model"])
    if name not in dict((v, k) for k, v in _models()):
        raise RoofkitError(f"no model preset is called {name[:60]!r}; choose one from the list or paste its config.json")
    return load_architecture(name)


def device_of(selection: Selection) -> Device:
    """The chosen device preset. Raises DataError for another name."""
    return load_device(str(selection["device"]))


def plan_of(selection: Selection) -> Plan:
    """Plan of the parallel sizes and number formats. Raises PlanError."""
    try:
        sizes = {k: int(selection[k]) for k in ("tp", "pp", "dp", "ep")}
    except (TypeError, ValueError):
        raise PlanError("tp, pp, dp and ep must be whole numbers") from None
    formats = {k: None if selection[k] == STORED else str(selection[k]) for k in ("weights", "activations", "kv")}
    return Plan(**sizes, **formats)


def workload_of(selection: Selection) -> Workload:
    """Decode or Prefill with the selection's sizes. Raises WorkloadError."""
    try:
        batch = int(selection["batch"])
        if selection["phase"] == "prefill":
            return Prefill(batch, int(selection["prompt_tokens"]))
        return Decode(batch, int(selection["context_tokens"]))
    except (TypeError, ValueError) as err:
        raise WorkloadError(f"batch and lengths must be whole numbers of at least 1 ({err})") from None
