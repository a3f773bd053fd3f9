"""The fixtures, all called ``specdec_*``: what a test of ours asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict

__all__ = ["specdec_base", "specdec_captured", "specdec_check", "specdec_pair", "specdec_spec"]


@pytest.fixture(scope="session")
def specdec_pair(request: pytest.FixtureRequest) -> Pair:
    """Return the pair under judgement; every test that asks for it runs once per variant of the config."""
    from pytest_specdec.plugin import run_state  # noqa: PLC0415 - only tests of ours pay for it

    return run_state.get(request.config).pair(request.param)


@pytest.fixture
def specdec_captured(request: pytest.FixtureRequest, specdec_pair: Pair) -> Captured:
    """Return what this pair answered to the workload of the test's mark; an error when it was not captured or its control fails."""
    from pytest_specdec.plugin import verdicts  # noqa: PLC0415 - only tests of ours pay for it

    return verdicts.captured(request.node, specdec_pair)


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
    """Return the one function that turns a verdict into this test's outcome."""
    from pytest_specdec.plugin import verdicts  # noqa: PLC0415 - only tests of ours pay for it

    def check(verdict: Verdict) -> None:
        __tracebackhide__ = True
        verdicts.check(request.node, verdict)

    return check
