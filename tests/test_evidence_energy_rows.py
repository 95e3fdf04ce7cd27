"""Served energy: the shares are recovered from made-up boards, unseen models and GPUs are judged, the shipped model is the one that is judged."""
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofkit.cost import energy
from roofkit.errors import MeasurementError
from roofkit.evidence import energy_rows as rows

LAYOUTS = (("H100-SXM", "meta-llama/Llama-3.1-8B-Instruct", 1, 1), ("H100-SXM", "Qwen/Qwen3-32B", 2, 1), ("H100-SXM", "meta-llama/Llama-3.3-70B-Instruct", 4, 1),
           ("H100-SXM", "Qwen/Qwen3-30B-A3B-Instruct-2507", 2, 2), ("B200-SXM", "meta-llama/Llama-3.1-8B-Instruct", 1, 1), ("B200-SXM", "Qwen/Qwen3-32B", 1, 1))


def table(power=500.0):
    """Runs as the public table has them: its times and powers are made up."""
    out = []
    for gpu, model, n, ep in LAYOUTS:
        for batch in (8, 32, 128, 256):
            speed = 40.0 * batch
            out.append({"gpu": gpu, "model": model, "task": "lm-arena-chat", "precision": "bfloat16", "n_gpu": n, "tp": n, "ep": ep, "dp": 1, "avg_batch_size": batch - 0.02,
                        "avg_output_len": 400.0, "output_throughput_tokens_per_sec": speed, "avg_power_watts": power * n, "energy_per_token_joules": power * n / speed})
    return pd.DataFrame(out)


def with_power(parts, shares):
    """The same parts, their boards drawing what the model says for these shares."""
    for part in parts:
        part.rows["power_w"] = part.power_w(shares, part.rows["measured_s"].to_numpy())
    return parts


def test_what_is_judged_is_the_energy_of_a_step():
    shares = rows.shipped_shares()
    for part in rows.served(table()):
        assert part.power_w(shares) == pytest.approx(np.asarray(part.step.energy.average_w), rel=1e-9)
        assert part.token_j(shares) == pytest.approx(np.asarray(part.step.energy_j / part.rows["batch"].to_numpy()), rel=1e-9)


@pytest.mark.parametrize("true", [{"busy": 0.35, "rest": 0.2}, {"busy": 0.8, "rest": 0.9}])
def test_known_shares_are_recovered_from_noisy_boards(true):
    parts = with_power(rows.served(table()), true)
    rng = np.random.default_rng(0)
    for part in parts:
        part.rows["power_w"] *= np.exp(0.01 * rng.standard_normal(len(part.rows)))
    found = rows.fit_shares(parts)
    assert found["busy"] == pytest.approx(true["busy"], abs=0.05) and found["rest"] == pytest.approx(true["rest"], abs=0.1)
    assert found == rows.fit_shares(parts)


def test_a_step_that_took_longer_than_predicted_waits_at_floor_power():
    part, shares = rows.served(table())[0], {"busy": 0.5, "rest": 0.5}
    own = np.asarray(part.step.time_s, float)
    floor = energy.power_model(part.step.cluster.device).floor_w
    assert part.power_w(shares, own) == pytest.approx(part.power_w(shares))
    assert (part.power_w(shares, 3 * own) - floor) * 3 == pytest.approx(part.power_w(shares) - floor)
    faster = part.power_w(shares, own / 2)
    assert (faster > part.power_w(shares)).all() and (faster <= energy.power_model(part.step.cluster.device).limit_w).all()


def test_nothing_judged_was_fitted_on_and_every_row_is_judged_once():
    parts = with_power(rows.served(table()), {"busy": 0.6, "rest": 0.5})
    for rule, key in (("model", "arch"), ("gpu", "device"), ("half", "arch")):
        seen = []
        for shares, judged in rows.held_out(parts, rule):
            names = {p.rows[key].iloc[0] for p in judged}
            assert rule == "half" or len(names) == 1
            assert shares == rows.fit_shares([p for p in parts if p.rows[key].iloc[0] not in names], split=rule == "gpu")
            seen += judged
        assert sorted(map(id, seen)) == sorted(map(id, parts))


def test_an_unseen_gpu_takes_the_split_fitted_on_the_others():
    parts = rows.served(table())
    true = {"busy": 0.7, "rest": 0.4}
    for part in parts:
        part.rows["power_w"] = part.power_w(true, part.rows["measured_s"].to_numpy(), split=True)
    for shares, judged in rows.held_out(parts, "gpu"):
        assert shares["busy"] == pytest.approx(0.7, abs=0.02)
        if judged[0].rows["device"].iloc[0] == "h100-sxm-80gb":
            points = rows.energy_points(judged, ("shipped",))
            assert set(points["op"]) == {rows.POWER, rows.TOKEN}


def test_rows_that_cannot_be_priced_are_left_out_and_an_empty_rest_is_an_error():
    good = table()
    odd = pd.concat([good, good.head(4).assign(task="image-chat"), good.head(4).assign(model="nobody/knows-it"), good.head(4).assign(precision="mxfp4"), good.head(4).assign(dp=4)])
    assert sum(len(p.rows) for p in rows.served(odd)) == len(good)
    with pytest.raises(MeasurementError, match="no row of this table"):
        rows.served(good.assign(task="image-chat"))
    with pytest.raises(MeasurementError, match="lacks avg_power_watts"):
        rows.served(good.drop(columns="avg_power_watts"))


def test_the_refit_writes_shares_that_load_and_errors_that_are_zero_on_its_own_model(tmp_path, monkeypatch):
    import tomllib
    true, plain = {"busy": 0.62, "rest": 0.45}, rows.served
    monkeypatch.setattr(rows, "served", lambda m: with_power(plain(m), true))
    found = rows.refit_energy(table(), tmp_path, date="2026-11")
    doc = tomllib.loads((tmp_path / "generic.toml").read_text())
    assert doc["busy"]["value"] == pytest.approx(0.62, abs=0.01) and doc["rest"]["value"] == pytest.approx(0.45, abs=0.02) and doc["busy"]["kind"] == "fitted"
    assert doc["floor"]["kind"] == "assumed" and set(energy.SHARES) <= set(doc)
    power = found[found["op"] == rows.POWER]
    assert set(found["split"]) == {"half", "model", "gpu"} and set(found["regime"]) == {"all"}  # what the fit saw is no evidence
    assert (power.loc[power["split"].isin(["model", "half"]), "mape"] < 0.01).all()
    wrong = rows.energy_points(rows.served(table()), ("shipped",)).query("op == @rows.POWER")
    assert (wrong["predicted_us"] / wrong["measured_us"] - 1).abs().max() > 0.02  # shares that are not the boards' own are seen to be wrong


SERVED = Path(__file__).parents[2] / "shared" / "data" / "measured" / "energy_mlenergy.csv"


@pytest.mark.skipif(not SERVED.is_file(), reason=f"no {SERVED}")
def test_board_power_of_served_models_stays_within_its_error_on_models_and_gpus_left_out():
    points = rows.energy_points(rows.served(SERVED), ("model", "gpu"))
    points = points[points["op"] == rows.POWER]
    error = (points["predicted_us"] / points["measured_us"] - 1).groupby([points["split"], points["device"]])
    assert len(points) == 2 * 317 and error.agg(lambda e: e.abs().mean()).max() < 0.18
    assert error.mean()["model"].abs().max() < 0.05 and error.mean()["gpu"].abs().max() < 0.12
