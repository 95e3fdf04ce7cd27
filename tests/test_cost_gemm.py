"""The form of matrix products, term by term, on a device of round numbers: tiles, waves, splits, fill, unknown forms."""
import numpy as np
import pytest

from roofkit.cost import gemm
from roofkit.cost.calibration import Fit
from roofkit.errors import CostModelError
from roofkit.formats import gemm_format

BF16 = gemm_format("bf16", "bf16")
SM, TAU_NS = 100, 1.0  # peak below: one k-step of a 64 x 64 tile takes 8.192 ns, of 128 x 256 eight times that
RATE = 2 * SM / 1e8  # us per tile element and k-step


class Round:
    """Fits of a device with 100 SMs, 100 TFLOP/s and endless bandwidth, that hold one entry."""

    sm, bw_us, l2_bytes, parent = float(SM), 1e15, 0.0, "round"

    def __init__(self, kernel=None, form="five-tiles", **constants):
        base = {"t0": 0.0, "ec": 1.0, "em": 1.0, "p": 1e6, "ct": 0.0, "k0": 0.0, "tau": TAU_NS, "be": 0.0, "ts": 1e9}
        self.entry = Fit("gemm", "bf16", "toy-1", form, {**base, **constants}, kernel=kernel or {})

    def find(self, op, formats, *_):
        return self.entry

    def peak_us(self, math):
        return 1e8

    def label(self, fit, exact=True):
        return "fitted"

    def note(self, fit):
        return ""


def time_us(m, n, k, **how):
    return gemm.calibrated(m, n, k, BF16, 1.0, Round(**how)).time_s * 1e6


@pytest.mark.parametrize("m, n, k, expected", [
    (1.0, 64.0, 1000.0, 1000 * max(16 * 64 * RATE, TAU_NS * 1e-3)),  # one tile of 16 rows
    (64.0, 6400.0, 1000.0, 1000 * 64 * 64 * RATE),  # 100 tiles of 64 x 64: one wave
    (64.0, 6464.0, 1000.0, 1000 * 5 * 16 * 64 * RATE),  # 101 of them are two waves; 404 of 16 rows are five, each a quarter
    (1280.0, 2560.0, 1000.0, 1000 * 128 * 256 * RATE),  # 100 tiles of 128 x 256, as any smaller tile in whole waves
])
def test_the_fastest_tile_runs_in_whole_waves(m, n, k, expected):
    assert time_us(m, n, k) == pytest.approx(expected)


@pytest.mark.parametrize("even, waves", [(0.0, 2.0), (0.5, 1.75), (1.0, 1.5)])
def test_a_partial_wave_is_spread_over_the_machine_by_the_balanced_share(even, waves):
    m, n, k = 128.0 * 150, 256.0, 1000.0  # 150 of the largest tile on 100 SMs
    large = [r * c for r, c in gemm.TILES]
    assert max(large) == 128 * 256
    assert time_us(m, n, k, be=even, tau=1e3) == pytest.approx(waves * 1000)  # latency-bound steps, equal for every tile: the largest needs fewest


def test_filling_a_tile_grows_with_its_area_and_not_with_its_latency():
    short, deep = time_us(1.0, 64.0, 1000.0, k0=100.0, tau=50.0), time_us(1.0, 64.0, 2000.0, k0=100.0, tau=50.0)
    assert deep - short == pytest.approx(1000 * 50e-3)
    assert 2 * short - deep == pytest.approx(100 * 16 * 64 * RATE)


@pytest.mark.parametrize("k, parts", [(256.0, 1), (512.0, 2), (1024.0, 3), (4096.0, 16), (8192.0, 32), (65536.0, 32)])
def test_one_tile_is_split_along_k_into_at_most_32_parts_of_256(k, parts):
    assert time_us(1.0, 64.0, k, ts=0.0, tau=100.0) == pytest.approx(k / parts * 0.1)
    assert time_us(1.0, 64.0, k, ts=0.0, tau=100.0, kernel={"split": 0}) == pytest.approx(k * 0.1)


def test_a_split_pays_its_reduction():
    assert time_us(1.0, 64.0, 8192.0, ts=3.0, tau=100.0) == pytest.approx(25.6 + 3 * 31 / 32)


def test_kernels_of_64_rows_shrink_only_to_the_rows_there_are():
    for m, rows in ((5.0, 16), (17.0, 32), (64.0, 64), (640.0, 64)):
        assert time_us(m, 64.0, 1000.0, kernel={"rows": 64, "split": 0}, tau=0.0) == pytest.approx(1000 * rows * 64 * RATE)
    assert time_us(640.0, 64.0, 1000.0, kernel={"split": 0}, tau=0.0) == pytest.approx(1000 * 16 * 64 * RATE)


def test_rows_of_64_price_a_sweep_as_its_points():
    m, n, k = np.array([1.0, 30, 64, 100, 5000]), np.array([[[64.0]], [[6400.0]]]), np.array([[256.0], [9000.0]])
    how = {"kernel": {"rows": 64}, "ts": 1.0, "be": 0.3, "k0": 50.0}
    grid = time_us(m, n, k, **how)
    assert grid.shape == (2, 2, 5)
    for i, j, l in np.ndindex(grid.shape):
        assert grid[i, j, l] == pytest.approx(time_us(m[l], n[i, 0, 0], k[j, 0], **how))


def test_a_form_of_an_older_file_is_refused():
    with pytest.raises(CostModelError, match="three-tiles.*roofkit calibrate"):
        time_us(1.0, 64.0, 64.0, form="three-tiles")


def test_the_shipped_products_are_fits_of_these_forms():
    from roofkit.cost.calibration import device_fits
    from roofkit.hardware.presets import load_device
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "l40s", "rtx-pro-6000-server"):
        for fit in device_fits(load_device(name)).all("gemm"):
            assert fit.form == gemm.TILED and 0 <= fit.get("be") <= 1 and {"t0", "ec", "em", "p", "ct", "k0", "tau", "be"} <= set(fit.constants)
