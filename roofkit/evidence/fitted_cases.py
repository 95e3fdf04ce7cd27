"""Fitted cases: a measured table of any kind that has a form -> its cases. Room: evidence.

Kernel tables in roofkit.evidence.cases; passes, mixed launches and the expert exchange in modules of their own.
"""
from collections.abc import Callable, Iterator

import pandas as pd

from roofkit.evidence.cases import Case, cases
from roofkit.evidence.exchange_cases import exchange_cases
from roofkit.evidence.mixed_cases import mixed_cases
from roofkit.evidence.pass_cases import pass_cases
from roofkit.hardware.device import Device

BUILDERS: dict[str, Callable[[pd.DataFrame, Device], Iterator[Case]]] = {
    "elementwise": pass_cases, "layer": pass_cases, "mixed_attention": mixed_cases, "moe_all2all": exchange_cases,
}


def fitted_cases(frame: pd.DataFrame, device: Device) -> Iterator[Case]:
    """Every case of a table of one kind and one device. Raises MeasurementError that names a kind without a fitted form."""
    return BUILDERS.get(frame["kind"].iloc[0], cases)(frame, device)
