"""Eager steps: constants are recovered, rows faster than physics are set aside."""
import numpy as np
import pandas as pd
import pytest

import roofkit as rk
from roofkit.evidence import eager, eager_fit
from roofkit.hardware.presets import load_device

TRUE = {"h0": 25e3, "h1": 400.0, "hp": 45e3, "s": 0.7}


def rows():
    out = []
    for tp in (2, 4, 8):
        for batch in (1, 2, 4, 8, 16, 32):
            out += [("H100-SXM", "llama2-70b", "vllm(x)", tp, phase, batch, length, length, 0, "fp16", 1.0) for phase in ("prefill", "decode") for length in (128, 512, 2048)]
    frame = pd.DataFrame(out, columns=["gpu", "model", "engine", "tp", "phase", "batch", "in_len", "ctx_len", "out_len", "dtype", "time_ms"])
    device, arch = load_device("h100-sxm-80gb"), rk.load_architecture("llama-2-70b")
    for part, decodes, step in eager.device_steps(frame, device, arch):
        frame.loc[part.index, "time_ms"] = eager.eager_s(step.time_s, decodes, part["batch"].to_numpy(float), TRUE) * 1e3
    return frame


def test_known_constants_are_recovered():
    fit, points = eager_fit.fit_eager(rows(), load_device("h100-sxm-80gb"))
    assert {k: pytest.approx(v, rel=0.02) for k, v in TRUE.items()} == fit.constants
    assert fit.mape < 0.01 and len(points) == len(rows()) / 3


def test_a_row_faster_than_its_bound_is_set_aside():
    frame = rows()
    frame.loc[0, "time_ms"] = 1e-3
    said = rk.predict(frame)
    assert np.isnan(said.loc[0, "predicted_ms"]) and "roofline" in said.loc[0, "note"]
    assert said["predicted_ms"].iloc[1:].notna().all()


def test_another_device_takes_the_nearest_constants():
    assert eager.constants_of(load_device("h200-sxm-141gb")) == eager.shipped()["h100-sxm-80gb"]
    assert eager.constants_of(load_device("t4")) == eager.shipped()["a100-sxm-80gb"]
