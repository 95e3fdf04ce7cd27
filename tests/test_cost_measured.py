"""Predictions against measured kernels.

The first part is in this file: times published in AIConfigurator's collector tables (github ai-dynamo/aiconfigurator @
095f58a5, Apache-2.0; H100 SXM, TensorRT-LLM 1.3.0rc20, bf16) and NCCL beside engine kernels. The second part reads the
uniform measurement files from ../shared/data/measured where a checkout has them, in benchmark mode (`warm`), and holds
each group's mean error to what its constants promise.
"""
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from roofkit.cost import attention, collectives, gemm, moe
from roofkit.cost.calibration import device_fits
from roofkit.formats import gemm_format
from roofkit.hardware.presets import default_cluster, load_device
from roofkit.ops.kinds import Attention, Collective

H100 = load_device("h100-sxm-80gb")
BF16 = gemm_format("bf16", "bf16")
M = [1, 32, 128, 256, 512, 1024, 2048, 4096, 8192]
GEMM = {  # n x k: us at each m; None = not collected
    (4096, 4096): [16.6, 15.2, 16.1, 18.7, 25.2, 45.3, 88.0, 174.3, 343.6],
    (6144, 4096): [22.1, 22.8, 22.5, 25.0, 36.4, 68.7, 142.6, 264.7, 531.4],
    (8192, 8192): [49.2, 50.5, 52.1, None, 89.8, None, 346.3, None, 1404.8],
    (16384, 4096): [50.2, 51.5, 54.6, None, 92.0, None, 346.9, None, 1652.9],
    (12288, 12288): [111.3, 115.5, 109.7, None, 222.4, None, 756.6, None, 3067.3],
}
PREFILL = {1024: 53.1, 2048: 124.5, 4096: 338.7, 8192: 1084.5, 16384: 4336.7}  # us, batch 1, 32/8 heads of 128
DECODE = {(1, 2048): 13.9, (1, 8192): 24.0, (1, 32768): 64.7, (32, 1024): 67.4, (32, 2048): 105.4, (32, 4096): 190.3, (32, 8192): 363.8,
          (128, 1024): 190.1, (128, 2048): 365.6, (128, 4096): 718.9}
ALL_REDUCE = {  # bf16 elements: us of NCCL 2, 4, 8 ranks, then of the engine's kernel
    1024: (6.3, 9.5, 15.7, 2.8, 3.0, 3.4), 16384: (7.1, 11.2, 18.4, 2.9, 3.4, 3.8), 131072: (8.8, 11.8, 19.2, 3.8, 5.5, 10.2),
    1048576: (27.9, 27.7, 38.2, 9.4, 26.1, 35.5), 16777216: (143.6, 175.7, 199.8, 142.7, 174.9, 197.2), 268435456: (1686, 2300, 2111, 1683, 2305, 2109),
}

MISSES = {(1, 8192): 0.26, ("nccl", 1048576, 2): 0.23}  # rows beyond the 90th percentile of their class, and by how much: findings, kept in view


def head(phase, batch, q, kv):
    return Attention("a", "attention", phase, float(batch), float(q), float(kv), 32, 8, 128, 128, 256)


@pytest.mark.parametrize("shape", GEMM, ids=lambda s: f"{s[0]}x{s[1]}")
def test_products_of_known_models(shape):
    known = np.array([t is not None for t in GEMM[shape]])
    measured = np.array([t for t in GEMM[shape] if t is not None])
    predicted = gemm.calibrated(np.array(M, dtype=float)[known], float(shape[0]), float(shape[1]), BF16, 1, device_fits(H100)).time_s * 1e6
    error = np.abs(predicted / measured - 1)
    assert error.mean() <= 0.064 + 0.03 and error.max() <= 0.25  # mean error on unseen shapes 6.4 %, 90th percentile 14 %


@pytest.mark.parametrize("tokens, us", PREFILL.items())
def test_prefill_attention_of_an_8b_model(tokens, us):
    assert attention.prefill(head("prefill", 1, tokens, tokens), device_fits(H100)).time_s * 1e6 == pytest.approx(us, rel=0.17)  # p90


@pytest.mark.parametrize("shape, us", DECODE.items(), ids=lambda x: str(x))
def test_decode_attention_of_an_8b_model(shape, us):
    batch, context = shape
    assert attention.decode(head("decode", batch, 1, context), device_fits(H100), warm=True).time_s * 1e6 == pytest.approx(us, rel=MISSES.get(shape, 0.20))  # p90


@pytest.mark.parametrize("elements", ALL_REDUCE)
def test_all_reduce_of_nccl_and_of_an_engine(elements):
    fits = device_fits(H100)
    for i, stack in enumerate(("nccl", "trtllm-custom")):
        fit = fits.find("all_reduce", ("bf16",), stacks=(stack,))
        for ranks, us in zip((2, 4, 8), ALL_REDUCE[elements][3 * i:]):
            start, wire = collectives._fastest(*zip(*collectives._branches(fit, "all_reduce", 2.0 * elements, ranks, fits.link_us)))
            if ranks == 4:  # never fitted: on an unseen rank count the documented error is 14 % on average
                assert float(start + wire) == pytest.approx(us, rel=0.45)
            else:
                assert float(start + wire) == pytest.approx(us, rel=MISSES.get((stack, elements, ranks), 0.20))
    served = [collectives.collective(Collective("c", "collectives", "all_reduce", 2.0 * elements, r), default_cluster(H100), fits).time_s for r in (2, 8)]
    assert served[1] * 1e6 == pytest.approx(min(ALL_REDUCE[elements][2], ALL_REDUCE[elements][5]), rel=0.20)


# ---------------------------------------------------------------------------------------------------------------------
SHARED = Path(__file__).parents[2] / "shared" / "data" / "measured"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no measurement files in {SHARED}")
PRESETS = {"A100-SXM-80GB": "a100-sxm-80gb", "H100-SXM": "h100-sxm-80gb", "B200-SXM": "b200-sxm-180gb", "L40S": "l40s", "RTX-PRO-6000": "rtx-pro-6000-server"}
FORMATS = {"bf16": ("bf16", "bf16"), "fp8": ("fp8", "fp8"), "fp8_block": ("fp8_block", "fp8_block"), "nvfp4": ("nvfp4", "nvfp4"), "int8_wo": ("int8", "bf16"),
           "int4_wo": ("int4", "bf16"), "w8a8_int8": ("int8", "int8"), "w4a16_mxfp4": ("mxfp4", "bf16"), "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8")}
SLACK = 0.01  # an in-sample error may exceed the cross-validated one by this much: other rounding of the constants


@cache
def rows(name):
    return pd.read_csv(SHARED / f"{name}.csv")


def regimes(frame, compute_us, memory_us):
    """launch: both ideal times under 3 us; else memory or compute when one is at least twice the other; else balanced."""
    bound = np.where(memory_us >= 2 * compute_us, "memory", np.where(compute_us >= 2 * memory_us, "compute", "balanced"))
    return pd.Series(np.where(np.maximum(compute_us, memory_us) < 3, "launch", bound), index=frame.index)


WORST = {"launch": 0.19, "memory": 0.21, "balanced": 0.16, "compute": 0.13}  # mean error of the worst device in each regime


@needs_shared
@pytest.mark.parametrize("gpu, dtype", [("A100-SXM-80GB", "bf16"), ("A100-SXM-80GB", "int8_wo"), ("A100-SXM-80GB", "int4_wo"), ("A100-SXM-80GB", "w8a8_int8"),
                                        ("H100-SXM", "bf16"), ("H100-SXM", "fp8"), ("H100-SXM", "fp8_block"), ("B200-SXM", "bf16"), ("B200-SXM", "fp8"),
                                        ("B200-SXM", "nvfp4"), ("L40S", "bf16"), ("L40S", "fp8"), ("RTX-PRO-6000", "bf16"), ("RTX-PRO-6000", "fp8"), ("RTX-PRO-6000", "nvfp4")])
def test_measured_products(gpu, dtype):
    frame = rows(f"gemm_{gpu.lower()}")
    frame = frame[frame.dtype == dtype]
    fits, fmt = device_fits(load_device(PRESETS[gpu])), gemm_format(*FORMATS[dtype])
    m, n, k = (frame[c].to_numpy(float) for c in "mnk")
    error = pd.Series(np.abs(gemm.calibrated(m, n, k, fmt, 1, fits, warm=True).time_s * 1e6 / frame.time_us - 1), index=frame.index)
    assert error.mean() <= gemm.fit_for(fmt, fits)[0].mape + SLACK
    moved = n * k * fmt.weight_bytes_per_el + m * (k * fmt.act_bytes_per_el + 2 * n)
    by_regime = error.groupby(regimes(frame, 2 * m * n * k / fits.peak_us(fmt.math), moved / fits.bw_us)).mean()
    assert all(by_regime[r] <= WORST[r] for r in by_regime.index), by_regime


def attention_ops(frame, phase, kv):
    for (heads, kv_heads, dim, window), part in frame.groupby(["heads", "kv_heads", "head_dim", "window"]):
        q = part.q_len.to_numpy(float) if phase == "prefill" else 1.0
        yield part.index, Attention("a", "attention", phase, part.batch.to_numpy(float), q, part.kv_len.to_numpy(float), int(heads), int(kv_heads), int(dim), int(dim),
                                    2 * int(dim), 1.0 if kv == "fp8" else 2.0, kv, part.dtype.iloc[0], int(window) or None)


@needs_shared
@pytest.mark.parametrize("gpu, engine, dtype, kv", [
    ("A100-SXM-80GB", "trtllm", "bf16", "bf16"), ("A100-SXM-80GB", "vllm", "bf16", "bf16"), ("B200-SXM", "trtllm", "bf16", "bf16"), ("B200-SXM", "trtllm", "bf16", "fp8"),
    ("B200-SXM", "trtllm", "fp8", "fp8"), ("H100-SXM", "trtllm", "bf16", "bf16"), ("H100-SXM", "trtllm", "bf16", "fp8"), ("H100-SXM", "trtllm", "fp8", "fp8"),
    ("H100-SXM", "vllm", "bf16", "bf16"), ("H100-SXM", "vllm", "bf16", "fp8"), ("L40S", "vllm", "bf16", "bf16"), ("L40S", "vllm", "bf16", "fp8"),
    ("RTX-PRO-6000", "vllm", "bf16", "bf16"), ("RTX-PRO-6000", "vllm", "bf16", "fp8")])
def test_measured_prefill_attention(gpu, engine, dtype, kv):
    frame = rows("attention_prefill")
    frame = frame[(frame.gpu == gpu) & frame.source.str.contains(engine) & (frame.dtype == dtype) & (frame.kv_dtype == kv) & (frame.q_len > 1)]
    fits = device_fits(load_device(PRESETS[gpu]), engine)
    error = pd.Series(0.0, index=frame.index)
    for index, op in attention_ops(frame, "prefill", kv):
        error[index] = np.abs(attention.prefill(op, fits).time_s * 1e6 / frame.time_us[index] - 1)
    assert error.mean() <= fits.find("attention_prefill", (f"{dtype}/{kv}",)).mape + SLACK


@needs_shared
@pytest.mark.parametrize("gpu, engine, kv", [("A100-SXM-80GB", "vllm", "bf16")] + [
    (g, e, kv) for g, e in (("B200-SXM", "trtllm"), ("H100-SXM", "trtllm"), ("H100-SXM", "vllm"), ("L40S", "vllm"), ("RTX-PRO-6000", "vllm")) for kv in ("bf16", "fp8")])
def test_measured_decode_attention(gpu, engine, kv):
    frame = rows("attention_decode")
    frame = frame[(frame.gpu == gpu) & frame.source.str.contains(engine) & (frame.kv_dtype == kv)]
    fits = device_fits(load_device(PRESETS[gpu]), engine)
    parts = []
    for index, op in attention_ops(frame, "decode", kv):
        fit = attention._decode_fit(op, fits, op.group)[0]
        error = np.abs(attention.decode(op, fits, warm=True).time_s * 1e6 / frame.time_us[index].to_numpy() - 1)
        behind = (op.kv_tokens > op.window) if op.window else np.zeros(len(index), bool)
        parts.append(pd.DataFrame({"error": error, "class": np.where(behind, "window", fit.cls), "doc": np.where(behind, np.nan, fit.mape)}))
    table = pd.concat(parts)
    full = table[table["class"] != "window"].groupby("class").agg({"error": "mean", "doc": "first"})
    limit = full["doc"] + 0.02 + (0.03 if kv == "bf16" and gpu in ("L40S", "RTX-PRO-6000") else 0.0)  # windows there never pack: priced by one class
    assert (full["error"] <= limit).all(), full
    if (table["class"] == "window").any():
        allowed = 0.32 if (gpu, engine, kv) == ("H100-SXM", "trtllm", "bf16") else 0.14  # that window kernel is not understood
        assert table.loc[table["class"] == "window", "error"].mean() <= allowed


@needs_shared
@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H100-SXM", "B200-SXM"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_measured_latent_attention(gpu, phase, kv):
    frame = rows("attention_mla")
    frame = frame[(frame.gpu == gpu) & (frame.phase == phase) & (frame.kv_dtype == kv) & ((frame.phase == "decode") | (frame.q_len > 1))]
    fits, per_el = device_fits(load_device(PRESETS[gpu])), 1.0 if kv == "fp8" else 2.0
    errors = []
    for heads, part in frame.groupby("heads"):
        b, q, length, h = part.batch.to_numpy(float), part.q_len.to_numpy(float), part.kv_len.to_numpy(float), int(heads)
        timing = attention.prefill(Attention("a", "attention", phase, b, q, length, h, h, 192, 128, 320, per_el, kv, latent=True), fits) if phase == "prefill" else \
            attention.decode(Attention("a", "attention", phase, b, 1.0, length, h, 1, 576, 512, 576, per_el, kv, latent=True), fits, warm=True)
        errors.append(np.abs(timing.time_s * 1e6 / part.time_us - 1))
    fit = fits.find(f"mla_{phase}", ("bf16/" + kv if phase == "prefill" else kv,))
    assert pd.concat(errors).mean() <= fit.mape + SLACK


@needs_shared
@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H100-SXM", "B200-SXM", "L40S"])
def test_measured_expert_blocks(gpu):
    frame, fits = rows("moe"), device_fits(load_device(PRESETS[gpu]))
    frame = frame[frame.gpu == gpu]
    for (dtype, kernel), group in frame.groupby(["dtype", "kernel"]):
        cls = kernel.replace("moe_torch_flow_", "").replace("moe_torch_flow", "torch")
        fit, fmt, errors = fits.find("moe", (dtype,), (cls,)), gemm_format(*FORMATS[dtype]), []
        for law, part in group.groupby("distribution"):
            t, h, i, k, e, tp, ep = (part[c].to_numpy(float) for c in ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"))
            n, distinct = moe.routing(t, k, e, ep, None if law == "balanced" else float(law.split("_")[-1]), fit.get("gam"))
            op = SimpleNamespace(tokens=t, experts=e / ep, hidden=h, inter=np.floor(i / tp), matrices=2 if cls == "nongated" else 3, format=fmt)  # many shapes at once
            errors.append(np.abs(moe.block_us(op, fit, fits, n, distinct, warm=True)[0] / part.time_us - 1))
        assert pd.concat(errors).mean() <= fit.mape + SLACK, (dtype, kernel)


@needs_shared
@pytest.mark.parametrize("gpu", list(PRESETS))
def test_measured_collectives(gpu):
    frame, fits = rows("collectives"), device_fits(load_device(PRESETS[gpu]))
    frame = frame[(frame.gpu == gpu) & ~frame.algo.str.contains("eager|vidur")]
    for (op, library), group in frame.groupby(["op", "algo"]):
        kind, errors = op.replace("alltoall", "all_to_all"), []
        fit = fits.find(kind, ("bf16",), stacks=(library,))
        for ranks, part in group.groupby("ranks"):
            start, wire = collectives._fastest(*zip(*collectives._branches(fit, kind, part.bytes.to_numpy(float), int(ranks), fits.link_us)))
            errors.append(np.abs((start + wire) / part.time_us - 1))
        assert pd.concat(errors).mean() <= fit.mape + SLACK, (op, library)
