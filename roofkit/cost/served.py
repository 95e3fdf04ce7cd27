"""Served steps: what a whole step in an engine shows beyond tables of single kernels. Room: cost.

Kernel tables pay every launch floor in full and time the activation quantisation of narrow products with slow kernels of their
own. In a served step, replayed as one graph, launches overlap on some devices, weights of any format stream at the share of the
16-bit kernels, and quantisation costs a short kernel. Applied only when an engine is named; constants with their source in
data/roofkit_data/calibration/served.toml, under the device that was measured (siblings take their parent's). The same file
holds the host times of engines, fitted together with these; a fit tries other constants with `using`.
"""
import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

import numpy as np

from roofkit.cost.calibration import DeviceFits, Fit
from roofkit.cost.model import Timing
from roofkit.ops.kinds import Collective, Elementwise, Op, Transfer


@dataclass(frozen=True, slots=True)
class Corrections:
    """launch, bandwidth   factors on launch floors and on the memory share;  compute   by format, on the arithmetic share;
    quantise_us   by format of the product [us];  smooth_compute   arithmetic share of formats that run as a smooth maximum;
    pass_launch_us   longest launch floor of a pass over activations [us]"""

    launch: float
    bandwidth: float
    compute: dict[str, float]
    quantise_us: dict[str, float]
    smooth_compute: dict[str, float]
    pass_launch_us: float


DEVICE_TABLES = ("launch_scale", "bandwidth_scale", "compute_scale", "quantise_us", "smooth_compute", "pass_launch_us")


@lru_cache(maxsize=1)
def shipped() -> dict:
    """The constants in the package: tables by name, see the file."""
    return tomllib.loads((files("roofkit_data") / "calibration" / "served.toml").read_text(encoding="utf-8"))


_TRIED: ContextVar[tuple[dict, str] | None] = ContextVar("constants of a fit in progress", default=None)


@contextmanager
def using(constants: Mapping) -> Iterator[None]:
    """Price with these constants instead of the package's, as a fit does; the layout is that of the file."""
    token = _TRIED.set((dict(constants), json.dumps({k: constants[k] for k in DEVICE_TABLES}, sort_keys=True)))
    try:
        yield
    finally:
        _TRIED.reset(token)


def constants() -> dict:
    """The constants in force."""
    tried = _TRIED.get()
    return shipped() if tried is None else tried[0]


def key() -> str:
    """Tells apart, for caches, which device constants are in force."""
    tried = _TRIED.get()
    return "" if tried is None else tried[1]


def served(parent: str) -> Corrections:
    """Corrections of the device whose kernels were measured; factors of 1 where nothing was found."""
    return _served(parent, key())


@lru_cache(maxsize=256)
def _served(parent: str, key: str) -> Corrections:
    doc = constants()
    return Corrections(doc["launch_scale"].get(parent, 1.0), doc["bandwidth_scale"].get(parent, 1.0), doc["compute_scale"].get(parent, {}), doc["quantise_us"],
                  doc["smooth_compute"], doc["pass_launch_us"]["any"])


def product(fit: Fit, fits: DeviceFits) -> Fit:
    """Constants of a product as an engine runs it: 16-bit launch and memory share, plus a quantisation kernel for narrow formats."""
    rules, wide = served(fits.parent), fits.find("gemm", ("bf16",)) or fit
    constants = dict(fit.constants)
    if fit.format in rules.quantise_us:
        constants["t0"] = wide.get("t0") + rules.quantise_us[fit.format]
        constants["em"] = max(fit.get("em"), wide.get("em"))
    constants["em"] = min(1.0, constants["em"] * rules.bandwidth)
    constants["ec"] = constants["ec"] * rules.compute.get(fit.format, 1.0)
    if fit.format in rules.smooth_compute:
        return replace(fit, form="smooth-max", constants={**constants, "ec": rules.smooth_compute[fit.format], "p": wide.get("p")})
    return replace(fit, constants=constants)


def launched(op: Op, timing: Timing, fits: DeviceFits) -> Timing:
    """The timing with the launch floor that a replayed graph leaves of it; collectives wait for their peers and keep theirs."""
    if isinstance(op, Collective | Transfer):
        return timing
    rules, floor = served(fits.parent), timing.launch_s
    if isinstance(op, Elementwise):
        floor = np.minimum(floor, rules.pass_launch_us * 1e-6)
    floor = floor * rules.launch
    return replace(timing, time_s=timing.time_s - (timing.launch_s - floor), launch_s=floor)
