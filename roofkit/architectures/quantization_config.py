"""Reads quantization_config, hf_quant_config.json and MLX's quantization -> Quantization. Room: architectures.

Schemas: fp8 {weight_block_size, activation_scheme}; awq, gptq {bits, group_size}; mxfp4; compressed-tensors and modelopt
{config_groups, ignore, kv_cache_scheme} or {quant_algo, kv_cache_quant_algo, exclude_modules}; MLX {bits, group_size}.
Source: quantisation sections of published checkpoints; formats of the compressed-tensors and ModelOpt projects.
"""
import re

from roofkit.architectures.keys import as_int, shown
from roofkit.architectures.quantization import Quantization
from roofkit.errors import UnsupportedQuantizationError

SECTIONS = ("quantization_config", "compression_config")
MAX_PATTERNS = 100_000
ALGORITHMS = {  # ModelOpt's names -> (weights, activations, block)
    "FP8": ("fp8", "fp8", (0, 0)), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8", (1, 0)), "FP8_PB_WO": ("fp8_block", "bf16", (128, 128)),
    "FP8_PB_REAL": ("fp8_block", "fp8_block", (128, 128)), "NVFP4": ("nvfp4", "nvfp4", (1, 16)), "NVFP4_AWQ": ("nvfp4", "nvfp4", (1, 16)),
    "W4A16_NVFP4": ("nvfp4", "bf16", (1, 16)), "MXFP4": ("mxfp4", "bf16", (1, 32)), "W4A16_MXFP4": ("mxfp4", "bf16", (1, 32)),
    "W4A8_MXFP4_FP8": ("mxfp4", "fp8", (1, 32)), "W4A16_AWQ": ("int4", "bf16", (1, 128)), "W4A8_AWQ": ("int4", "fp8", (1, 128)),
    "INT8_SQ": ("int8", "int8", (1, 0)), "W8A16": ("int8", "bf16", (1, 0)), "W8A8_SQ_PER_CHANNEL": ("int8", "int8", (1, 0)),
    "W4A16": ("int4", "bf16", (1, 128))}
KV_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8", "FP4": "nvfp4"}


class _Section:
    """One quantisation dictionary and the words for its errors."""

    def __init__(self, data: dict, model_type: str) -> None:
        self.data, self.model_type = data, model_type

    def bad(self, key: str, why: str) -> UnsupportedQuantizationError:
        return UnsupportedQuantizationError(f"config of model_type {self.model_type!r}, key 'quantization_config.{key}': value "
                                            f"{shown(self.data.get(key))} {why}; remove the quantisation section to count at 16 bit")

    def number(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key)
        number = default if value is None else as_int(value)
        if number is None or abs(number) > 2**20:
            raise self.bad(key, "must be a whole number")
        return number

    def patterns(self, *keys: str) -> tuple[str, ...]:
        found: list[str] = []
        for key in keys:
            value = self.data.get(key) or []
            if not isinstance(value, list) or len(value) > MAX_PATTERNS or any(not isinstance(v, str) for v in value):
                raise self.bad(key, "must be a list of module names")
            found += value
        return tuple(found)


def read_quantization(data: dict, text: dict, quant: dict | None, model_type: str) -> tuple[Quantization | None, str | None]:
    """(how the checkpoint stores its weights or None for 16 bit, note or None).

    data, text   the file and its text dictionary (Kimi has the section inside); quant: contents of hf_quant_config.json
    Raises UnsupportedQuantizationError naming model_type, key and value.
    """
    section = _find(data, text, quant, model_type)
    if section is None:
        return None, None
    found, note = _read(section)
    return found, note


def _find(data: dict, text: dict, quant: dict | None, model_type: str) -> _Section | None:
    for source in (data, text):
        for key in SECTIONS:
            value = source.get(key)
            if value is not None and value != {}:
                return _checked(value, key, model_type)
    mlx = data.get("quantization")
    if mlx is not None and mlx != {}:
        return _checked(mlx, "quantization", model_type)
    if quant is not None:
        inner = quant.get("quantization", quant)
        return _checked(inner, "hf_quant_config.quantization", model_type)
    return None


def _checked(value: object, key: str, model_type: str) -> _Section:
    if not isinstance(value, dict):
        raise UnsupportedQuantizationError(f"config of model_type {model_type!r}, key {key!r}: value {shown(value)} must be a dictionary")
    return _Section(value, model_type)


def _read(s: _Section) -> tuple[Quantization, str | None]:
    method = s.data.get("quant_method")
    if method is None:
        if s.data.get("quant_algo") is not None:
            method = "modelopt"
        elif s.data.get("config_groups") is not None:
            method = "compressed-tensors"
        elif s.data.get("bits") is not None:
            method = "mlx"
        else:
            raise s.bad("quant_method", "is absent and nothing else says the scheme")
    reader = METHODS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise s.bad("quant_method", f"is not a scheme that roofkit knows; known: {', '.join(METHODS)}")
    found = reader(s, method)
    return found if isinstance(found, tuple) else (found, None)


def _fp8(s: _Section, method: str) -> Quantization:
    block = s.data.get("weight_block_size")
    excluded = s.patterns("modules_to_not_convert", "ignored_layers")
    static = s.data.get("activation_scheme") == "static"
    if block is None:
        return Quantization(method, "fp8", "fp8", _kv(s), excluded, 1.0, (1, 0) if method == "fbgemm_fp8" else (0, 0), static)
    sizes = [as_int(b) for b in block] if isinstance(block, list) else []
    if len(sizes) != 2 or any(b is None or not 1 <= b <= 2**20 for b in sizes):
        raise s.bad("weight_block_size", "must be two positive numbers")
    return Quantization(method, "fp8_block", "fp8_block", _kv(s), excluded, 1 + 4 / (sizes[0] * sizes[1]), (sizes[0], sizes[1]), static)


def _grouped(bits: int, group: int, extra_bytes: float) -> float:
    return bits / 8 + (extra_bytes / group if group > 0 else 0.0)


def _integer(s: _Section, method: str) -> Quantization:
    bits = s.number("bits", s.data.get("w_bit") if as_int(s.data.get("w_bit")) else 4)
    group = s.number("group_size", s.data.get("q_group_size") if as_int(s.data.get("q_group_size")) else 128)
    if bits not in (4, 8):
        raise s.bad("bits", "is not 4 or 8")
    zeros = bits / 8
    per = 4.0 if method == "mlx" else 2.0 + zeros  # MLX: scale and bias of 16 bit; others: a 16-bit scale and a packed zero
    return Quantization(method, f"int{bits}", "bf16", _kv(s), s.patterns("modules_to_not_convert"), _grouped(bits, group, per),
                        (1, max(group, 0)))


def _mxfp4(s: _Section, method: str) -> Quantization:
    return Quantization(method, "mxfp4", "bf16", _kv(s), s.patterns("modules_to_not_convert"), 0.5 + 1 / 32, (1, 32))


def _compressed(s: _Section, method: str):
    groups = s.data.get("config_groups")
    if not isinstance(groups, dict) or not groups or any(not isinstance(g, dict) for g in groups.values()):
        raise s.bad("config_groups", "must be a dictionary of groups")
    read = [_group(s, g) for g in groups.values()]
    excluded = s.patterns("ignore")
    weights, activations, block, each, static = read[0]
    note = None if len({r[:2] for r in read}) == 1 else f"mixed precision checkpoint: all quantised weights are counted as {weights}"
    return Quantization(method, weights, activations, _kv(s), excluded, each, block, static), note


def _group(s: _Section, group: dict) -> tuple[str, str, tuple[int, int], float, bool]:
    w = group.get("weights")
    if not isinstance(w, dict):
        raise s.bad("config_groups", "has a group without weights")
    weights, block, each = _tensor(s, w)
    a = group.get("input_activations")
    if a is None:
        return weights, "bf16", block, each, False
    if not isinstance(a, dict):
        raise s.bad("config_groups", "has input_activations that are no dictionary")
    bits, kind = as_int(a.get("num_bits")), a.get("type", "float")
    activations = weights if weights != "int4" and bits in (4, 8) and (bits == 4) == weights.endswith("fp4") else {8: "fp8" if kind == "float" else "int8", 16: "bf16"}.get(bits)
    if activations is None:
        raise s.bad("config_groups", f"has activations of {shown(a.get('num_bits'))} bits")
    return weights, activations, block, each, a.get("dynamic") is False


def _tensor(s: _Section, w: dict) -> tuple[str, tuple[int, int], float]:
    bits, kind, group = as_int(w.get("num_bits")), w.get("type", "int"), as_int(w.get("group_size"))
    strategy = w.get("strategy") or ("group" if group and group > 0 else "tensor")
    if bits == 8 and kind == "float":
        shape = w.get("block_structure")
        if strategy == "block":
            sizes = [as_int(b) for b in shape] if isinstance(shape, list) else [128, 128]
            if len(sizes) != 2 or any(b is None or b < 1 for b in sizes):
                raise s.bad("config_groups", "has a block_structure that is not two positive numbers")
            return "fp8_block", (sizes[0], sizes[1]), 1 + 4 / (sizes[0] * sizes[1])
        return "fp8", (1, 0) if strategy == "channel" else (0, 0), 1.0
    if bits == 8 and kind == "int":
        return "int8", (1, group) if group and group > 0 else (1, 0), _grouped(8, group or 0, 2.0)
    if bits == 4 and kind == "int":
        size = group if group and group > 0 else 0
        return "int4", (1, size), _grouped(4, size, 2.0)
    if bits == 4 and kind == "float":
        return ("mxfp4", (1, 32), 0.5 + 1 / 32) if group == 32 else ("nvfp4", (1, 16), 0.5 + 1 / 16)
    raise s.bad("config_groups", f"has weights of {shown(w.get('num_bits'))} bits, type {shown(kind)}")


def _modelopt(s: _Section, method: str):
    algorithm = s.data.get("quant_algo")
    if s.data.get("config_groups") is not None:
        return _compressed(s, method)
    excluded = s.patterns("exclude_modules", "ignore")
    note = None
    if isinstance(algorithm, str) and algorithm.upper() == "MIXED_PRECISION":
        algorithm = _most_common(s)
        note = f"mixed precision checkpoint: all quantised weights are counted as {algorithm}"
    entry = ALGORITHMS.get(algorithm.upper()) if isinstance(algorithm, str) else None
    if entry is None:
        raise s.bad("quant_algo", f"is not known; known: {', '.join(ALGORITHMS)}")
    weights, activations, block = entry
    group = s.number("group_size", block[1]) if weights in ("int4", "nvfp4", "mxfp4") else block[1]
    each = {"fp8": 1.0, "fp8_block": 1 + 4 / 16384, "nvfp4": 0.5 + 1 / max(group, 1), "mxfp4": 0.5 + 1 / max(group, 1), "int8": 1.0,
            "int4": _grouped(4, group, 2.0)}[weights]
    return Quantization(method, weights, activations, _kv(s), excluded, each, (block[0], group), activations in ("fp8", "nvfp4")), note


def _most_common(s: _Section) -> str:
    layers = s.data.get("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        raise s.bad("quantized_layers", "must say the algorithm of each layer of a mixed precision checkpoint")
    names = [v.get("quant_algo") if isinstance(v, dict) else v for v in layers.values()]
    names = [n for n in names if isinstance(n, str)]
    return max(sorted(set(names)), key=names.count) if names else ""


def _kv(s: _Section) -> str | None:
    scheme, algorithm = s.data.get("kv_cache_scheme"), s.data.get("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        found = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4", (4, "int"): "int4"}.get(
            (as_int(scheme.get("num_bits")), scheme.get("type", "float")))
        if found is None:
            raise s.bad("kv_cache_scheme", "is not an 8- or 4-bit scheme")
        return found
    name = scheme if isinstance(scheme, str) else algorithm
    if name is None or name == "" or (isinstance(name, str) and name.lower() in ("none", "auto")):
        return None
    if not isinstance(name, str) or name.upper() not in KV_ALGORITHMS:
        raise s.bad("kv_cache_quant_algo", f"is not known; known: {', '.join(KV_ALGORITHMS)}")
    return KV_ALGORITHMS[name.upper()]


METHODS = {"fp8": _fp8, "fbgemm_fp8": _fp8, "awq": _integer, "gptq": _integer, "auto-round": _integer, "mlx": _integer, "mxfp4": _mxfp4,
           "compressed-tensors": _compressed, "modelopt": _modelopt}


def collapse_layers(patterns: tuple[str, ...], n_layers: int) -> tuple[str, ...]:
    """Patterns that name every layer by its number -> one pattern with a star; the others stay as they are."""
    seen: dict[str, set[int]] = {}
    for p in patterns:
        if (m := re.search(r"\blayers\.(\d+)(?=\.|$|\*)", p)) and not p.startswith("re:") and len(m.group(1)) < 6:
            seen.setdefault(p[: m.start(1)] + "*" + p[m.end(1):], set()).add(int(m.group(1)))
    whole = {name for name, at in seen.items() if len(at) == n_layers > 1}
    found: dict[str, None] = {}
    for p in patterns:
        star = re.sub(r"\blayers\.\d+(?=\.|$|\*)", "layers.*", p, count=1)
        found[star if star in whole and not p.startswith("re:") else p] = None
    return tuple(found)
