"""Machine: what runs the timed kernels here, and the record of it. Room: evidence.

numpy always; torch, on the CPU or CUDA, where it is installed. The kernels are plain: a matrix product, softmax attention,
and a small decoder built from the two, so that their work can be counted. Nothing about who or where is recorded.
"""
import io
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass

import numpy as np

from roofkit.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class Rule:
    """How one point is timed: warm-up calls, then samples until both counts are reached or the time is up.

    warm_calls      calls before the clock starts, at least; more until warm_s has passed [calls, s]
    sample_s        one sample repeats the call until it lasts that long, so the clock's steps do not show [s]
    samples, point_s   samples wanted at least; time spent on one point at most [samples, s]
    """

    warm_calls: int = 2
    warm_s: float = 0.02
    sample_s: float = 0.004
    samples: int = 7
    point_s: float = 0.35


def time_call(call: Callable[[], object], sync: Callable[[], None], rule: Rule) -> tuple[float, float, int]:
    """Median time of one call [s], half the interquartile range over the median [0..1], and samples taken."""
    begin, calls = time.perf_counter(), 0
    while not calls or (calls < rule.warm_calls or time.perf_counter() - begin < rule.warm_s) and time.perf_counter() - begin < rule.point_s:
        call()
        sync()
        calls += 1
    once = (time.perf_counter() - begin) / calls
    inner = max(1, round(rule.sample_s / max(once, 1e-9)))
    samples: list[float] = []
    start = time.perf_counter()
    while not samples or (len(samples) < rule.samples and time.perf_counter() - start < rule.point_s * (1 if len(samples) > 2 else 2)):
        tick = time.perf_counter()
        for _ in range(inner):
            call()
        sync()
        samples.append((time.perf_counter() - tick) / inner)
    if len(samples) == 1:
        return samples[0], 0.0, 1
    low, middle, high = statistics.quantiles(samples, n=4)
    return middle, (high - low) / 2 / middle, len(samples)


class NumpyBackend:
    """fp32 kernels on the CPU through numpy and its BLAS."""

    name, dtype, on_gpu = "numpy", "fp32", False

    def __init__(self) -> None:
        self._values = np.random.default_rng(0).standard_normal(1 << 18, dtype=np.float32)

    def array(self, *shape: int):
        """Normal numbers, repeated where the array is larger than a stored block: drawing them would outlast the timing."""
        return np.resize(self._values, shape)

    def sync(self) -> None:
        """Nothing to wait for: numpy returns when it is done."""

    def matmul(self, x, w):
        return x @ w

    def silu(self, x):
        return x / (1.0 + np.exp(-x))

    def norm(self, x):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)

    def attention(self, q, k, v, causal: bool):
        """Softmax attention, q [batch, heads, queries, width], k and v [batch, heads, keys, width]."""
        scores = q @ k.swapaxes(-1, -2)
        if causal:
            scores += np.triu(np.full(scores.shape[-2:], -1e30, np.float32), 1 + k.shape[-2] - q.shape[-2])
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores @ v

    def heads(self, x, batch: int, heads: int):
        return np.ascontiguousarray(x.reshape(batch, -1, heads, x.shape[-1] // heads).swapaxes(1, 2))

    def flat(self, x):
        return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, x.shape[1] * x.shape[3])


class TorchBackend:
    """The same kernels through torch: fp32 on the CPU, bf16 on a CUDA device."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise MeasurementError("backend 'torch' is not installed; use backend='numpy' or install torch") from None
        self._torch = torch
        self.on_gpu = torch.cuda.is_available()
        self.name = f"torch-{torch.__version__.split('+')[0]}" + ("-cuda" if self.on_gpu else "-cpu")
        self.dtype = "bf16" if self.on_gpu else "fp32"
        self._place = {"device": "cuda" if self.on_gpu else "cpu", "dtype": torch.bfloat16 if self.on_gpu else torch.float32}
        torch.set_grad_enabled(False)

    def array(self, *shape: int):
        return self._torch.randn(*shape, **self._place)

    def sync(self) -> None:
        if self.on_gpu:
            self._torch.cuda.synchronize()

    def matmul(self, x, w):
        return x @ w

    def silu(self, x):
        return self._torch.nn.functional.silu(x)

    def norm(self, x):
        return x * (x * x).mean(-1, keepdim=True).add(1e-5).rsqrt()

    def attention(self, q, k, v, causal: bool):
        return self._torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal and q.shape[-2] == k.shape[-2])

    def heads(self, x, batch: int, heads: int):
        return x.reshape(batch, -1, heads, x.shape[-1] // heads).transpose(1, 2).contiguous()

    def flat(self, x):
        return x.transpose(1, 2).reshape(-1, x.shape[1] * x.shape[3])


def backend(name: str = "auto"):
    """"numpy", "torch", or "auto": torch where it drives a GPU, else numpy. Raises MeasurementError for another name."""
    if name == "numpy":
        return NumpyBackend()
    if name == "torch":
        return TorchBackend()
    if name != "auto":
        raise MeasurementError(f"backend {name!r} is not known; use 'auto', 'numpy' or 'torch'")
    try:
        found = TorchBackend()
    except MeasurementError:
        return NumpyBackend()
    return found if found.on_gpu else NumpyBackend()


def environment(engine, rule: Rule) -> dict[str, object]:
    """What ran: processor, cores, BLAS with its threads, versions, timing rule; for the record beside the measurements."""
    record: dict[str, object] = {
        "processor": _processor(), "cores": _cores(), "machine": platform.machine(), "system": platform.system(),
        "python": platform.python_version(), "numpy": np.__version__, "blas": _blas(), "backend": engine.name, "dtype": engine.dtype,
        "clock_state": "as found, not fixed", "rule": {k: getattr(rule, k) for k in Rule.__slots__},
        "threads": {k: os.environ[k] for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if k in os.environ},
    }
    try:
        import threadpoolctl
        record["blas_threads"] = [{k: p[k] for k in ("internal_api", "version", "num_threads") if k in p} for p in threadpoolctl.threadpool_info()]
    except ImportError:
        pass
    if engine.on_gpu:
        record["processor"] = engine._torch.cuda.get_device_name()
        record["cuda"] = engine._torch.version.cuda
    return record


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _blas() -> str:
    try:
        found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{found.get('name')} {found.get('version')}"
    except (TypeError, KeyError):
        text = io.StringIO()
        with redirect_stdout(text):
            np.show_config()
        return " ".join(text.getvalue().split())[:200]
