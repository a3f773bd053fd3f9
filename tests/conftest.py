"""For all tests: hypothesis measures no time, for a busy machine is no fault; and the markers of what has a lane of its own."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "statistics(quick=False): simulates size or power at length (make test-statistics); quick: in make test too"
    )
    config.addinivalue_line("markers", "faults(quick=False): runs the suites against planted faults (make faults); quick: in CI too")
