"""The pytest entry point: options, hooks and fixtures, each one guard and one call.

A test marked ``specdec`` judges answers that were captured, before the first test, from two servers: the baseline, and a variant of it that
speculates. The two are a pair. A stored run has the answers of all pairs; a replay judges it again. Every pytest run of the environment
loads this module: it imports the standard library and pytest only, the rest comes with the first test of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_specdec.plugin import options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.plugin.live import LiveServer

__all__ = [
    "specdec_base",
    "specdec_baseline_server",
    "specdec_captured",
    "specdec_captured_run",
    "specdec_check",
    "specdec_pair",
    "specdec_spec",
    "specdec_speculative_server",
]

SEEN_BY = frozenset({"specdec_pair", "specdec_baseline_server"})
"""Fixtures that show a test to be of this plugin, with or without a mark. Every test of a variant uses ``specdec_pair``, if only through
another fixture."""

MARK = (
    'specdec(workload, family="greedy"): answers to ``workload`` are captured from every pair and judged as ``family``; see pytest_specdec.'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; wrong ones end the session here."""
    config.addinivalue_line("markers", MARK)
    config.stash[options.SETTINGS] = options.resolve(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Register our plugins in xdist's controller before it starts its workers.

    Only a controller has xdist's plugin ``dsession``. Without it nothing is done.
    """
    if session.config.pluginmanager.hasplugin("dsession"):
        from pytest_specdec.plugin import xdist  # noqa: PLC0415 - only sessions under xdist pay for it

        xdist.register(session.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the header line: config and depth, or the stored run.

    Depth is the setting for the number of requests. A stored run is one to replay, or to complete (``taken_up``). One that was unpacked for
    a replay is named by its archive. None unless the command line has one of this plugin's main options (``Settings.is_wanted``), so that
    other pytest runs of the environment print nothing.
    """
    settings = config.stash[options.SETTINGS]
    if settings.replay:
        return f"specdec: replay of {settings.archives.get(settings.replay, settings.replay)}"
    if settings.taken_up:
        return f"specdec: {'resume' if settings.resume else 'continuation'} of {settings.taken_up}"
    return f"specdec: {settings.config or 'no config'}, {settings.depth}" if settings.is_wanted else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test with the pairs, one for each of the config's variants."""
    if "specdec_pair" in metafunc.fixturenames:
        from pytest_specdec.plugin import collection  # noqa: PLC0415 - only tests of ours pay for it

        collection.parametrise(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> Generator[None]:
    """Sort the tests by pair and plan the run: which servers boot for which requests.

    This is done after all other plugins have selected and shuffled, so that the plan is for the tests that will run. Nothing is done
    without a test of this plugin, known by its mark or by its fixtures.
    """
    collected = list(items)  # before others deselect: the probability of a false alarm is split over deselected tests too
    yield
    if any(item.get_closest_marker("specdec") or not SEEN_BY.isdisjoint(getattr(item, "fixturenames", ())) for item in items):
        from pytest_specdec.plugin import collection  # noqa: PLC0415 - only tests of ours pay for it

        collection.plan(session, items, collected)


@pytest.fixture(scope="session")
def specdec_pair(request: pytest.FixtureRequest) -> Pair:
    """Return the pair under judgement: the baseline and one variant.

    Every test that requests it runs once for each variant of the config.
    """
    from pytest_specdec.plugin import run_state  # noqa: PLC0415 - only tests of ours pay for it

    return run_state.get(request.config, request.param).pair(request.param)


@pytest.fixture
def specdec_captured(request: pytest.FixtureRequest, specdec_pair: Pair) -> Captured:
    """Return this pair's answers to the workload of the test's mark.

    A test that the run's plan leaves out is skipped. The setup ends in an error if the answers were not captured, or if the control, the
    baseline booted again, fails: the baseline then cannot judge.
    """
    from pytest_specdec.plugin import verdicts  # noqa: PLC0415 - only tests of ours pay for it

    return verdicts.read_captured(request.node, specdec_pair)


@pytest.fixture
def specdec_captured_run(request: pytest.FixtureRequest, specdec_pair: Pair) -> CapturedRun:
    """Return all answers of this pair in the whole run.

    They are the answers to every workload of the run, not only to that of the test's mark. Tests are skipped, and setups end in an error,
    as with ``specdec_captured``.
    """
    from pytest_specdec.plugin import verdicts  # noqa: PLC0415 - only tests of ours pay for it

    return verdicts.read_captured_run(request.node, specdec_pair)


@pytest.fixture
def specdec_spec(specdec_captured: Captured) -> tuple[Answer, ...]:
    """Return the speculative arm's answers, for plain asserts."""
    return specdec_captured.speculative.answers


@pytest.fixture
def specdec_base(specdec_captured: Captured) -> tuple[Answer, ...]:
    """Return the baseline's answers, for plain asserts."""
    return specdec_captured.baseline.answers


@pytest.fixture
def specdec_check(request: pytest.FixtureRequest) -> Callable[[Verdict], None]:
    """Return the function for turning a verdict into this test's outcome.

    A test that gets a verdict and never calls it fails, since it would be green whatever the verdict is.
    """
    from pytest_specdec.plugin import verdicts  # noqa: PLC0415 - only tests of ours pay for it

    def check(verdict: Verdict) -> None:
        __tracebackhide__ = True
        verdicts.check(request.node, verdict)

    return check


@pytest.fixture(scope="session")
def specdec_baseline_server(request: pytest.FixtureRequest) -> LiveServer:
    """Return the baseline's running server, for a test's own requests."""
    from pytest_specdec.plugin import live  # noqa: PLC0415 - only tests of ours pay for it

    return request.config.stash[live.LIVE].server("baseline")


@pytest.fixture(scope="session")
def specdec_speculative_server(request: pytest.FixtureRequest, specdec_pair: Pair) -> LiveServer:
    """Return the pair's running speculative server, for a test's own requests.

    Tests with it run once per variant of the config.
    """
    from pytest_specdec.plugin import live  # noqa: PLC0415 - only tests of ours pay for it

    return request.config.stash[live.LIVE].server(specdec_pair.name)
