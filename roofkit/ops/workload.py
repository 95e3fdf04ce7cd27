"""Workloads: what one forward step is asked to do. Room: ops. Any number may be an array: the axis of a sweep."""
from dataclasses import dataclass

import numpy as np

from roofkit.errors import WorkloadError
from roofkit.ops.kinds import Num


def _check(where: str, least: int = 1, **values) -> None:
    for key, value in values.items():
        try:
            array = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            raise WorkloadError(f"{where}: {key}={value!r} is not a number") from None
        if array.size == 0 or not np.isfinite(array).all() or (array < least).any() or (array % 1 != 0).any():
            raise WorkloadError(f"{where}: {key}={value!r} must be whole and at least {least}")


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """All prompt tokens of `batch` sequences at once.

    batch           sequences over all data-parallel ranks [sequences]
    prompt_tokens   tokens of each prompt, cached ones included [tokens]
    cached_tokens   leading tokens already in the KV cache (prefix hit) [tokens]
    """

    batch: Num
    prompt_tokens: Num
    cached_tokens: Num = 0
    phase = "prefill"

    def __post_init__(self) -> None:
        _check("Prefill", batch=self.batch, prompt_tokens=self.prompt_tokens)
        _check("Prefill", least=0, cached_tokens=self.cached_tokens)
        if (np.asarray(self.cached_tokens) >= np.asarray(self.prompt_tokens)).any():
            raise WorkloadError(f"Prefill: cached_tokens={self.cached_tokens} must be below prompt_tokens={self.prompt_tokens}; "
                                f"at least one token is computed")


@dataclass(frozen=True, slots=True, eq=False)
class Decode:
    """One new token for each of `batch` sequences that have `context_tokens` in the KV cache when the step starts."""

    batch: Num
    context_tokens: Num
    phase = "decode"

    def __post_init__(self) -> None:
        _check("Decode", batch=self.batch)
        _check("Decode", least=0, context_tokens=self.context_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class MixedBatch:
    """A chunked-prefill step: `batch` decoding sequences at `context_tokens`, beside `chunks` prefill chunks.

    chunk_tokens    new prompt tokens of each chunk [tokens]; cached_tokens of the same prompts before it [tokens]
    """

    batch: Num
    context_tokens: Num
    chunk_tokens: Num
    cached_tokens: Num = 0
    chunks: Num = 1
    phase = "mixed"

    def __post_init__(self) -> None:
        _check("MixedBatch", batch=self.batch, chunk_tokens=self.chunk_tokens, chunks=self.chunks)
        _check("MixedBatch", least=0, context_tokens=self.context_tokens, cached_tokens=self.cached_tokens)


Workload = Prefill | Decode | MixedBatch
