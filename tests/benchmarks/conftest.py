"""`make bench`: every figure that the design promises, measured here, beside its target. Not part of `make test`."""
import os
import platform

import pytest

_ROWS: list[tuple[str, float, float, str]] = []


@pytest.fixture
def promise():
    """promise(what, measured, target, unit): one row of the closing table; the target is a limit from above."""
    return lambda what, measured, target, unit: _ROWS.append((what, measured, target, unit))


def pytest_terminal_summary(terminalreporter):
    if not _ROWS:
        return
    terminalreporter.section("promises of the design")
    terminalreporter.line(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    for what, measured, target, unit in _ROWS:
        verdict = "holds" if measured <= target else "MISSED"
        terminalreporter.line(f"  {what:58}{measured:>9.3g} {unit:5} at most {target:<6g} {verdict}")
