"""Short names for the fixtures of suites/: the plugin itself registers ``specdec_*`` only, lest a neighbour's ``check`` pass for ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict

collect_ignore = ["contract"]
"""A suite of an engine's adapter, with boots of its own: it runs where a command line names it."""


@pytest.fixture
def pair(specdec_pair: Pair) -> Pair:
    """Return the pair under judgement."""
    return specdec_pair


@pytest.fixture
def captured(specdec_captured: Captured) -> Captured:
    """Return transcripts and scores of the pair for the workload of the test's mark."""
    return specdec_captured


@pytest.fixture
def captured_run(specdec_captured_run: CapturedRun) -> CapturedRun:
    """Return the pair's transcripts of the whole run."""
    return specdec_captured_run


@pytest.fixture
def spec(specdec_spec: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return the speculative arm's answers."""
    return specdec_spec


@pytest.fixture
def base(specdec_base: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return the baseline's answers."""
    return specdec_base


@pytest.fixture
def check(specdec_check: Callable[[Verdict], None]) -> Callable[[Verdict], None]:
    """Return the function that turns a verdict into the test's outcome."""
    return specdec_check
