from __future__ import annotations

import pytest

from tests.report import runs


@pytest.fixture
def make_run():
    return runs.run_of


@pytest.fixture
def verdicts():
    return {"greedy": runs.GREEDY, "speed": runs.SPEED, "failed": runs.FAILED}


@pytest.fixture
def judged():
    return runs.judgement


@pytest.fixture
def plan():
    return runs.PLAN
