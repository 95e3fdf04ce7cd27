"""Requests: what arrives, when, and how long it is. Room: serving.

Open loop: arrival times are given (a trace, a Poisson process). Closed loop: `concurrency` clients, each of which sends the next
request of the list as soon as its last one is answered, as load generators with a concurrency limit do.
"""
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofkit.errors import WorkloadError


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in the order in which they are sent.

    arrival_s       [n] when each is sent [s], not falling; zeros in a closed loop, where the engine decides
    prompt_tokens   [n] tokens of each prompt;  output_tokens   [n] tokens of each answer, at least 1
    concurrency     clients of a closed loop; None = open loop
    Raises WorkloadError for an empty list, a length below 1, a time that is not finite or falls.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    concurrency: int | None = None

    def __post_init__(self) -> None:
        for name in ("arrival_s", "prompt_tokens", "output_tokens"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        sizes = {len(self.arrival_s), len(self.prompt_tokens), len(self.output_tokens)}
        if len(sizes) != 1 or 0 in sizes:
            raise WorkloadError("requests need arrival_s, prompt_tokens and output_tokens of one length, at least 1")
        if not np.isfinite(self.arrival_s).all() or (self.arrival_s < 0).any() or (np.diff(self.arrival_s) < 0).any():
            raise WorkloadError("requests: arrival_s must be finite, not negative and sorted; sort the trace by arrival")
        for name in ("prompt_tokens", "output_tokens"):
            values = np.asarray(getattr(self, name), float)
            if not np.isfinite(values).all() or (values < 1).any() or (values % 1 != 0).any():
                raise WorkloadError(f"requests: {name} must be whole numbers of at least 1")
        if self.concurrency is not None and (int(self.concurrency) != self.concurrency or self.concurrency < 1):
            raise WorkloadError(f"requests: concurrency={self.concurrency!r} must be a whole number of at least 1")

    def __len__(self) -> int:
        return len(self.arrival_s)


def poisson_requests(rate: float, n: int, prompt_tokens: int, output_tokens: int, seed: int = 0) -> Requests:
    """`n` requests of one size, exponential gaps at `rate` [requests/s]. Raises WorkloadError for a rate or n not above zero."""
    if not np.isfinite(rate) or rate <= 0:
        raise WorkloadError(f"rate={rate!r} must be above zero requests per second")
    if int(n) != n or n < 1:
        raise WorkloadError(f"n={n!r} must be a whole number of at least 1 request")
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, int(n))
    return Requests(np.cumsum(gaps), np.full(int(n), prompt_tokens), np.full(int(n), output_tokens))


def closed_loop(clients: int, n: int, prompt_tokens: int, output_tokens: int, shortest: float = 1.0, seed: int = 0) -> Requests:
    """`n` requests from `clients` clients without think time; lengths uniform in [shortest, 1] x nominal, whole tokens.

    Raises WorkloadError for shortest outside (0, 1], clients or n below 1.
    """
    if not 0 < shortest <= 1:
        raise WorkloadError(f"shortest={shortest!r} must be a share in (0, 1] of the nominal length")
    if int(n) != n or n < 1:
        raise WorkloadError(f"n={n!r} must be a whole number of at least 1 request")
    rng = np.random.default_rng(seed)

    def lengths(nominal: int) -> np.ndarray:
        return np.maximum(rng.integers(int(nominal * shortest), int(nominal) + 1, int(n)), 1)

    return Requests(np.zeros(int(n)), lengths(prompt_tokens), lengths(output_tokens), int(clients))


def load_trace(path_or_frame) -> Requests:
    """Requests of a table with columns arrival_s, prompt_tokens, output_tokens (csv, parquet or DataFrame), sorted by arrival.

    Raises WorkloadError for a missing file or column.
    """
    if isinstance(path_or_frame, pd.DataFrame):
        frame = path_or_frame
    else:
        try:
            frame = pd.read_parquet(path_or_frame) if str(path_or_frame).endswith(".parquet") else pd.read_csv(path_or_frame)
        except (OSError, ValueError) as error:
            raise WorkloadError(f"trace {path_or_frame}: {error}; give a csv or parquet with arrival_s, prompt_tokens, output_tokens") from None
    missing = {"arrival_s", "prompt_tokens", "output_tokens"} - set(frame.columns)
    if missing:
        raise WorkloadError(f"trace: columns {', '.join(sorted(missing))} are missing; it has {', '.join(map(str, frame.columns))}")
    frame = frame.sort_values("arrival_s", kind="stable")
    return Requests(*(frame[c].to_numpy() for c in ("arrival_s", "prompt_tokens", "output_tokens")))
