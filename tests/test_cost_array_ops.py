"""A cost is cheap: numpy operations per call are counted, whatever the size of the sweep."""
import numpy as np
import pytest

from roofkit.cost import attention, collectives, elementwise, gemm, moe
from roofkit.cost.calibration import device_fits
from roofkit.formats import gemm_format
from roofkit.hardware.presets import default_cluster, load_device
from roofkit.ops.kinds import Attention, Collective, Elementwise, GroupedGemm


class Counted(np.ndarray):
    """An array that counts every ufunc and numpy function it takes part in."""

    calls = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        Counted.calls += 1
        plain = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
        out = getattr(ufunc, method)(*plain, **{k: v for k, v in kwargs.items() if k != "out"})
        return out.view(Counted) if isinstance(out, np.ndarray) else out

    def __array_function__(self, func, types, args, kwargs):
        Counted.calls += 1
        return func(*[x.view(np.ndarray) if isinstance(x, Counted) else x for x in args], **kwargs)


def counted(values) -> np.ndarray:
    return np.asarray(values, dtype=float).view(Counted)


BATCH = np.arange(1, 513.0)
H100, L40S = device_fits(load_device("h100-sxm-80gb")), device_fits(load_device("l40s"))


def attend(phase, **kw):
    shape = dict(batch=counted(BATCH), q_tokens=1.0, kv_tokens=counted(BATCH * 16), n_heads=32, n_kv_heads=8, qk_dim=128, v_dim=128, kv_elements=256)
    return Attention("a", "attention", phase, **{**shape, **kw})


def products(name, weights, activations):
    m, n, k = counted(BATCH[None]), counted([[6144.0], [4096.0], [28672.0]]), counted([[4096.0], [4096.0], [4096.0]])
    return lambda: gemm.calibrated(m, n, k, gemm_format(weights, activations), 1.0, name)


def deepest():
    """One tile of output under a deep k: every split is tried."""
    return gemm.calibrated(counted(BATCH[None]), counted([[64.0], [1024.0]]), counted([[65536.0], [16384.0]]), gemm_format("bf16", "bf16"), 1.0, L40S, warm=True)


def experts():
    op = GroupedGemm("e", "experts", counted(BATCH), counted(BATCH * 2), counted(np.minimum(BATCH * 2, 8)), 8, 8, 2, 4096, 14336, 3, gemm_format("bf16", "bf16"))
    return moe.experts(op, H100)


LATENT = dict(n_heads=128, n_kv_heads=1, qk_dim=576, v_dim=512, kv_elements=576, latent=True)
ROWS = [  # what, call, most array operations: gemm 170 and attention 65 are the budget of the product
    ("gemm bf16", products(H100, "bf16", "bf16"), 170), ("gemm fp8", products(H100, "fp8", "fp8"), 170), ("gemm L40S", products(L40S, "bf16", "bf16"), 170),
    ("gemm, every split", deepest, 170),
    ("decode", lambda: attention.decode(attend("decode"), H100), 65),
    ("decode unpacked", lambda: attention.decode(attend("decode", n_kv_heads=32), H100), 65),
    ("decode mla", lambda: attention.decode(attend("decode", **LATENT), H100), 65),
    ("prefill", lambda: attention.prefill(attend("prefill", q_tokens=counted(BATCH)), H100), 65),
    ("experts", experts, 65),
    ("all-reduce", lambda: collectives.collective(Collective("c", "collectives", "all_reduce", counted(BATCH * 8192), 8), default_cluster("h100-sxm-80gb"), H100), 65),
    ("norm", lambda: elementwise.elementwise(Elementwise("norm", "norm_elementwise", counted(BATCH), 8192, 8192, 1), H100), 20),
]


@pytest.mark.parametrize("what, call, most", ROWS, ids=[r[0] for r in ROWS])
def test_array_operations_of_one_call(what, call, most):
    Counted.calls = 0
    timing = call()
    assert np.size(timing.time_s) >= 512
    assert 0 < Counted.calls <= most, f"{what}: {Counted.calls} array operations"


def test_a_windowed_layer_costs_two_kernels():
    Counted.calls = 0
    attention.decode(attend("decode", window=1024), H100)
    assert Counted.calls <= 110
