"""For all tests: hypothesis measures no time, for a busy machine is no fault; and the markers of what has a lane of its own."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "statistics(quick=False): simulates size or power at length (make test-statistics); quick: in make test too"
    )
    config.addinivalue_line(
        "markers",
        "nightly: boots servers or sessions for what a cheaper case of make unit shows too, a browser, or a real engine (make nightly)",
    )
    config.addinivalue_line("markers", "faults(quick=False): runs the suites against planted faults (make faults); quick: in CI too")


def pytest_itemcollected(item):
    """Refuse a whole run against a planted fault outside its lane: `make unit` would run all rows of it, for minutes."""
    if item.get_closest_marker("faults") and item.path.parent.name != "faults":
        msg = f"{item.nodeid} has the mark `faults`: it belongs in tests/faults, which `make faults` and `make faults-quick` run"
        raise pytest.UsageError(msg)
