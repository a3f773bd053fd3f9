"""For all tests: hypothesis measures no time, for a busy machine is no fault; and the markers of what has a lane of its own."""

from __future__ import annotations

import gc

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
    config.addinivalue_line(
        "markers", "examples(n): n of the test's cases, evenly spread, are in make unit, and the others in make nightly"
    )
    config.addinivalue_line("markers", "faults(quick=False): runs the suites against planted faults (make faults); quick: in CI too")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exempt all that is collected from garbage collection: it lives for the whole session, and took a tenth of the processor time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as nightly the cases that a test with the mark `examples` has beyond those."""
    cases = {}
    for item in items:
        if mark := item.get_closest_marker("examples"):
            cases.setdefault((item.path, item.originalname, *mark.args), []).append(item)
    for (*_, count), several in cases.items():
        quick = {round(at * (len(several) - 1) / max(count - 1, 1)) for at in range(count)}
        for at, item in enumerate(several):
            if at not in quick and not item.get_closest_marker("nightly"):
                item.add_marker("nightly")


def pytest_itemcollected(item):
    """Refuse a whole run against a planted fault outside its lane: `make unit` would run all rows of it, for minutes."""
    if item.get_closest_marker("faults") and item.path.parent.name != "faults":
        msg = f"{item.nodeid} has the mark `faults`: it belongs in tests/faults, which `make faults` and `make faults-quick` run"
        raise pytest.UsageError(msg)
