"""Import, one estimate, a batch axis, a serving run, the values of a page. Run by `make bench`."""
import statistics
import subprocess
import sys
from time import perf_counter, process_time

import numpy as np
import pytest

import roofkit as rk
from roofkit.views.step import step_view


@pytest.fixture(scope="module")
def case() -> tuple:
    return rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb"), rk.Plan()


def test_import(promise):
    """CPU seconds that `import roofkit` adds to numpy and pandas, median of seven fresh interpreters."""
    code = "import time, numpy, pandas; start = time.process_time(); import roofkit; print(time.process_time() - start)"
    runs = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(7)]
    promise("import roofkit, beyond numpy and pandas", statistics.median(runs), 0.25, "CPU-s")


@pytest.mark.parametrize("model, tp", [("llama-3.1-8b", 1), ("llama-3.1-70b", 8), ("deepseek-v3", 8)])
def test_estimate(benchmark, promise, model, tp):
    arch, device, plan = rk.load_architecture(model), rk.load_device("h100-sxm-80gb"), rk.Plan(tp=tp)
    benchmark(lambda: rk.estimate(arch, device, plan, rk.Decode(32, 2048)).time_s)
    promise(f"one estimate, {model} TP{tp} decode", benchmark.stats.stats.median * 1e3, 3, "ms")


def test_batch_axis(benchmark, promise, case):
    """512 batches at once cost about as much as one point."""
    batches = np.arange(1, 513)
    benchmark(lambda: rk.estimate(*case, rk.Decode(batches, 2048)).time_s)
    axis = benchmark.stats.stats.min
    single = min(_seconds(lambda: rk.estimate(*case, rk.Decode(32, 2048)).time_s) for _ in range(50))
    promise("batch axis of 512, as a multiple of one point", axis / single, 4, "x")


def test_page_values(benchmark, promise):
    """The Python side of one slider step of the app; the browser's share is measured in tests/browser."""
    batches = iter([2 ** (i % 8) for i in range(100_000)])
    benchmark(lambda: step_view({"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "batch": next(batches)}))
    promise("values of the step explorer after a slider step", benchmark.stats.stats.median * 1e3, 50, "ms")


@pytest.mark.parametrize("requests, target", [(1_000, 0.15), (10_000, 1.5)])
def test_simulation(promise, case, requests, target):
    """CPU seconds of a serving run, 1,024 tokens in and 256 out at 8 requests/s; tables of step times included."""
    sent = rk.poisson_requests(8, requests, 1024, 256)
    promise(f"{requests:,} requests served", min(_cpu_seconds(lambda: rk.simulate(*case, sent, engine="vllm")) for _ in range(3)), target, "CPU-s")


def test_simulation_is_linear(promise, case):
    """Ten times the requests, at most twelve times the CPU seconds."""
    few, many = (min(_cpu_seconds(lambda: rk.simulate(*case, sent, engine="vllm")) for _ in range(2)) for sent in (rk.poisson_requests(8, n, 1024, 256) for n in (5_000, 50_000)))
    promise("50,000 requests, as a multiple of 5,000", many / few, 12, "x")


def _cpu_seconds(work) -> float:
    start = process_time()
    work()
    return process_time() - start


def _seconds(work) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
