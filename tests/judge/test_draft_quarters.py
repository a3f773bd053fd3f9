"""Long answers: drafts that get worse from their first quarter to their last are named; a text that grows harder is not."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.drafting.findings import compare_quarters
from pytest_specdec.judge.drafting.traffic import drafted_answers
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import answer, requests

GOOD = (1, *(3, 2, 4, 1) * 24, 1)
"""240 tokens in whole steps, 1.5 accepted each."""
DEAD_LATE = (1, *(3, 2, 4, 1) * 18, *(1,) * 60, 1)
"""The same up to the last quarter."""
HALVED = (1, *(3, 2, 4, 1) * 18, *(2, 1) * 20, 1)


def a_long_run(windows, *, body=None, drafted=3):
    asked = requests(len(windows), **(body or {}))
    said = [
        answer(request.id, range(sum(each)), finish="length", windows=each, drafted=(drafted,) * (len(each) - 1))
        for request, each in zip(asked, windows, strict=True)
    ]
    return a_run(a_part(Workload(name="plain", version=1, requests=asked), said, said, family="speed"), alpha=1.8e-4)


def found(windows, **fields):
    return compare_quarters(drafted_answers(a_long_run(windows, **fields)))


def test_drafts_that_die_late_in_most_answers_are_named():
    verdict = speed.judge(a_long_run([DEAD_LATE] * 9 + [GOOD] * 3))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "drafts get worse in the course of an answer")
    assert "in 9 of 12 prompts" in verdict.headline
    assert verdict.cell == "worse late in answers"


@pytest.mark.parametrize("windows", [[GOOD] * 12, [HALVED] * 12, [DEAD_LATE] * 5 + [GOOD] * 7])
def test_answers_that_keep_more_and_a_few_that_lose_all_raise_no_alarm(windows):
    assert speed.judge(a_long_run(windows)).outcome is not Outcome.FAIL


def test_the_figures_are_those_of_the_first_and_the_last_quarter():
    (finding,) = found([DEAD_LATE] * 4)
    assert (finding.bad, finding.first) == (4, "plain/chat-00")
    assert finding.p_value == finding.least_p == pytest.approx(1e-4)
    assert finding.summary.startswith("0.00 accepted per step in the last quarter, 1.5")


@pytest.mark.parametrize("why", [
    {"windows": [GOOD[:61]] * 12},
    {"windows": [(1,) * 250] * 12},
    {"windows": [(1, *(2, 1, 1, 1) * 11, *(1,) * 150)] * 12},
    {"windows": [DEAD_LATE] * 12, "body": {"presence_penalty": 1.0}},
])  # fmt: skip
def test_short_answers_those_with_few_accepted_tokens_and_penalties_are_not_asked(why):
    assert found(**why) == []


def simulated(rng, *, prompts=12, tokens=256, level=0.3, dead_from=None):
    """Windows of k = 3: every prompt has an acceptance of its own, which wanders along the answer as texts do."""
    answers = []
    for _ in range(prompts):
        own, wander, windows = rng.normal(level, 0.7), 0.0, [1]
        while sum(windows) < tokens:
            wander = 0.95 * wander + rng.normal(0.0, 0.25)
            alive = dead_from is None or sum(windows) <= dead_from
            rate = alive / (1.0 + np.exp(-own - wander))
            windows.append(1 + next((number for number in range(3) if rng.random() >= rate), 3))
        answers.append(tuple(windows))
    return answers


def alarms(rng, runs, **fields):
    """At the level of a run of two variants, over twenty findings."""
    outcomes = [found(simulated(rng, **fields)) for _ in range(runs)]
    return sum(finding.is_striking and finding.p_value <= 1.8e-4 / 20 for findings in outcomes for finding in findings)


@pytest.mark.parametrize(
    "runs", [pytest.param(20, marks=pytest.mark.statistics(quick=True)), pytest.param(400, marks=pytest.mark.statistics)]
)
def test_texts_that_wander_raise_no_alarm_and_drafts_that_die_behind_200_of_256_tokens_do(runs):
    rng = np.random.default_rng(7)
    assert alarms(rng, runs) == alarms(rng, runs // 2, level=-2.0) == 0
    assert alarms(rng, runs // 2, dead_from=200) >= 0.98 * (runs // 2)
