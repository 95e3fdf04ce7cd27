"""Checkpoint: bytes and scales of the stored weights, with the modules that a scheme leaves at 16 bit. Room: architectures."""
import re
from fnmatch import fnmatchcase
from functools import lru_cache

from roofkit.architectures import shapes
from roofkit.architectures.counting import text_params
from roofkit.formats import FORMATS

NEVER_QUANTIZED_PARTS = ("router",)  # routers stay at 16 bit in every published scheme, listed or not
OTHER_NAMES = {  # the same matrix in other checkpoints: patterns may use either
    "mlp.gate": ("mlp.router", "block_sparse_moe.gate", "feed_forward.router", "mixer.gate"),
    "self_attn.q_proj": ("self_attn.qkv_proj", "attention.wqkv"), "mlp.shared_experts": ("mlp.shared_expert", "shared_mlp"),
    "mlp.experts": ("block_sparse_moe.experts", "feed_forward.experts"), "linear_attn": ("mixer",)}


def is_excluded(patterns: tuple[str, ...], name: str) -> bool:
    """Whether one of the patterns keeps the module at 16 bit; `name` like model.layers.3.self_attn.q_proj.

    A pattern is a name or its prefix at a dot, a component of the name, a glob, or a regular expression after "re:".
    """
    return any(_matches(p, name) for p in patterns)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        compiled = _compiled(pattern[3:])
        return compiled is not None and compiled.search(name) is not None
    if pattern == name or name.startswith(pattern + ".") or f".{pattern}." in f".{name}.":
        return True
    return "*" in pattern and (fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*") or fnmatchcase(name, "*." + pattern))


@lru_cache(maxsize=1024)
def _compiled(pattern: str):
    if len(pattern) > 200 or re.search(r"[+*}]\s*\)\s*[+*{]", pattern):
        return None  # nested repetition can take for ever; such a pattern excludes nothing
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _names(layer: int, matrix: shapes.Matrix):
    base = f"layers.{layer}.{matrix.name}"
    yield "model." + base
    yield "model.language_model." + base
    yield "language_model.model." + base
    for ours, others in OTHER_NAMES.items():
        if matrix.name.startswith(ours):
            for other in others:
                yield f"model.layers.{layer}.{other}{matrix.name[len(ours):]}"


def quantized_matrices(arch) -> list[tuple[shapes.Matrix, int]]:
    """(matrix, layers) of every matrix that the checkpoint stores quantised; empty without quantisation.

    A pattern that names single layers is respected; equal layers are tested by their own index.
    """
    q = arch.quantization
    if q is None:
        return []
    found = []
    for group in arch.groups:
        for matrix in shapes.layer_matrices(group, arch.hidden):
            if matrix.part in NEVER_QUANTIZED_PARTS:
                continue
            layers = sum(1 for i in group.positions if not any(is_excluded(q.excluded, n) for n in _names(i, matrix)))
            if layers:
                found.append((matrix, layers))
    return found


def quantized_params(arch) -> int:
    """Weights that the checkpoint stores in the narrow format [parameters]."""
    return sum(m.params * n for m, n in quantized_matrices(arch))


def scale_elements(arch, mtp: bool = False) -> int:
    """Scales of the quantised weights of the text model, apart from the parameters; `mtp` adds its draft layers [elements].

    One per block of rows x columns of each matrix, plus one per matrix for static activations. Source: DeepSeek-V3's
    128 x 128 blocks; Qwen3-32B-FP8 has 1,904,640.
    """
    if arch.quantization is None:
        return 0
    rows, cols = arch.quantization.block
    total = 0
    drafts = [(m, arch.mtp.count) for m in shapes.layer_matrices(arch.mtp, arch.hidden) if m.part != "router"] if mtp and arch.mtp else []
    for m, layers in quantized_matrices(arch) + drafts:
        down = 1 if rows == 0 else -(-m.rows // rows)
        across = 1 if cols == 0 else -(-m.cols // cols)
        total += layers * m.copies * (down * across + (1 if arch.quantization.static_activations else 0))
    return total


def bytes_per_weight(arch) -> float:
    """Bytes of one quantised weight with its share of the scales; that of the 16-bit format without quantisation [bytes]."""
    q = arch.quantization
    if q is None:
        return FORMATS[arch.dtype].bytes_per_el
    return FORMATS[q.weights].bytes_per_el if q.bytes_per_weight is None else q.bytes_per_weight


def weight_bytes(arch) -> float:
    """Bytes of the stored text model: quantised matrices with scales, everything else at the checkpoint's 16 or 32 bit [bytes]."""
    narrow = quantized_params(arch)
    return narrow * bytes_per_weight(arch) + (text_params(arch) - narrow) * FORMATS[arch.dtype].bytes_per_el
