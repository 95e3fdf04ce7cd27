"""Units: SI parsing and formatting, the only place with 1e9 and 2**30. Room: ground.

Base units inside roofkit are s, bytes, FLOP, FLOP/s, bytes/s, J, W, USD, m2; data files and screens use prefixes.
GB is 1e9 bytes, GiB is 2**30 bytes; one multiply-add is 2 FLOPs; 1 TOP/s is 1e12 operations/s.
"""
import math

from roofkit.errors import UnitError

_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}

UNITS: dict[str, tuple[str, float]] = {  # printed unit -> (dimension, factor to the base unit)
    **{f"{p}B": ("bytes", f) for p, f in {**_SI, **_BINARY}.items()},
    **{f"{p}B/s": ("bytes/s", f) for p, f in {**_SI, **_BINARY}.items()},
    **{f"{p}bit/s": ("bytes/s", f / 8) for p, f in _SI.items()},
    **{f"{p}b/s": ("bytes/s", f / 8) for p, f in _SI.items() if p},
    **{f"{p}FLOP/s": ("FLOP/s", f) for p, f in _SI.items()},
    **{f"{p}OP/s": ("FLOP/s", f) for p, f in _SI.items()},
    **{f"{p}FLOP": ("FLOP", f) for p, f in _SI.items()},
    **{f"{p}s": ("s", f) for p, f in {"": 1.0, **_SMALL}.items()},
    **{f"{p}Hz": ("Hz", f) for p, f in _SI.items()},
    **{f"{p}W": ("W", f) for p, f in {**_SI, "m": 1e-3}.items()},
    **{f"{p}J": ("J", f) for p, f in {**_SI, **_SMALL}.items()},
    "pJ/bit": ("J/byte", 8e-12), "pJ/B": ("J/byte", 1e-12), "pJ/FLOP": ("J/FLOP", 1e-12),
    "mm2": ("m2", 1e-6), "USD": ("USD", 1.0), "USD/h": ("USD/s", 1 / 3600.0),
    "count": ("count", 1.0), "ratio": ("ratio", 1.0), "bit": ("count", 1.0), "billion": ("count", 1e9), "million": ("count", 1e6),
}


def to_base(value: float, unit: str, dimension: str | None = None, where: str = "value") -> float:
    """`value` in the printed `unit` -> base unit of its dimension.

    Raises UnitError when the unit is unknown or does not measure `dimension` ("bytes/s", "FLOP/s", "s", ...).
    """
    if unit not in UNITS:
        raise UnitError(f"{where}: unit {unit!r} is not known; use one like GB (1e9 bytes), GiB (2**30), GB/s, TFLOP/s, us, W")
    found, factor = UNITS[unit]
    if dimension is not None and found != dimension:
        good = ", ".join(u for u, (d, _) in UNITS.items() if d == dimension)
        raise UnitError(f"{where}: unit {unit!r} measures {found}, not {dimension}; use one of {good}")
    return float(value) * factor


_PREFIXES = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")]


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """A number for people: `si(1.234e12, 'FLOP/s')` -> '1.23 TFLOP/s'; three significant digits, no exponent.

    >>> si(0.00456, "s"), si(15.28e9, "B"), si(0, "s")
    ('4.56 ms', '15.3 GB', '0 s')
    """
    if value == 0 or not math.isfinite(value):
        return f"{'0' if value == 0 else 'not finite'} {unit}".strip()
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale * 0.9995:
            break
    scaled = value / scale
    # {:.3g} would print 1e+03 for 999.7
    text = f"{scaled:.0f}" if abs(scaled) >= 10**digits * 0.9995 else f"{scaled:.{digits}g}"
    return f"{text} {prefix}{unit}".strip()


def gb(n_bytes: float) -> str:
    """Bytes as GB (1e9), the unit of everything on screen except capacities printed in GiB; MB (1e6) below 0.1 GB."""
    return f"{n_bytes / 1e6:.3g} MB" if abs(n_bytes) < 1e8 else f"{n_bytes / 1e9:.4g} GB"


def percent(share: float, digits: int = 1) -> str:
    """A share 0..1 as text: 0.123 -> '12.3 %'."""
    return f"{100 * share:.{digits}f} %"


def params(count: float, digits: int = 3) -> str:
    """A parameter count as people say it: 8.03e9 -> '8.03B', 1.04e12 -> '1.04T'."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= scale * 0.9995:
            scaled = count / scale
            return f"{scaled:.0f}{suffix}" if scaled >= 10**digits * 0.9995 else f"{scaled:.{digits}g}{suffix}"
    return f"{count:.0f}"
