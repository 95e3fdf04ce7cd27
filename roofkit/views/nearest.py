"""Nearest choice that works: what to change when a selection cannot be computed or does not fit. Room: views."""
from collections.abc import Callable, Iterator

from roofkit.views.choices import STORED, Selection
from roofkit.views.values import Control

_LABELS = {"tp": "TP", "pp": "PP", "dp": "DP", "ep": "EP", "batch": "batch", "context_tokens": "context", "prompt_tokens": "prompt"}
_ORDER = ("tp", "ep", "batch", "activations", "weights", "kv", "pp", "dp", "context_tokens", "prompt_tokens")
_PAIRED = (  # formats that only make sense together
    {"weights": STORED, "activations": STORED, "kv": STORED}, {"weights": STORED, "activations": "bf16"},
    {"weights": "fp16", "activations": "fp16"}, {"weights": "bf16", "activations": "bf16"}, {"weights": "fp8", "activations": "fp8"},
    {"weights": "int4", "activations": "bf16"}, {"weights": "int4", "activations": "fp16"}, {"weights": "bf16", "activations": "bf16", "kv": "bf16"})
_TRIES = 60


def nearest(selection: Selection, controls: tuple[Control, ...], works: Callable[[Selection], bool]) -> tuple[dict, str]:
    """(control changes, label) of the first selection that `works`, closest changes first; ({}, "") when none of 60 does."""
    for n, change in enumerate(_candidates(selection, controls)):
        if n >= _TRIES:
            break
        if works({**selection, **change}):
            return change, ", ".join(f"{_LABELS.get(k, k)} {'as stored' if v == STORED else v}" for k, v in change.items())
    return {}, ""


def _candidates(selection: Selection, controls: tuple[Control, ...]) -> Iterator[dict]:
    """One control moved by one option, then by two, ...; then pairs of formats; then tensor parallelism with a format."""
    options = {c.key: [v for _, v in c.options] for c in controls}
    here = {k: options[k].index(selection[k]) for k in _ORDER if k in options and selection.get(k) in options[k]}
    for distance in range(1, 12):
        for key, i in here.items():
            if key in ("weights", "activations", "kv"):
                continue
            # more ranks before fewer, a smaller batch before a larger one
            for j in ((i + distance, i - distance) if key in ("tp", "pp", "ep", "dp") else (i - distance, i + distance)):
                if 0 <= j < len(options[key]) and not (key in _LABELS and key not in ("tp", "pp", "dp", "ep") and j > i):
                    yield {key: options[key][j]}
        if distance == 2:
            yield from ({k: v for k, v in pair.items() if selection.get(k) != v} for pair in _PAIRED)
    for tp in options.get("tp", []):
        for pair in (_PAIRED[4], _PAIRED[5]):
            yield {"tp": tp, **pair}
        yield {"tp": tp, "ep": 1, "dp": 1, "pp": 1}
    for pp in options.get("pp", []):
        yield {"tp": 8, "pp": pp}
