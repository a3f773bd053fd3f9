"""Draft steps: contexts add up, and the step that a limit may have cut is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.draft_steps import DraftStep, StepSum, steps, total
from pytest_specdec.model.transcript import SpecCounters, Usage
from tests.judge.captured_values import answer


def test_each_step_stands_behind_the_tokens_of_those_before_it():
    got = steps(answer(windows=(1, 4, 2, 3), drafted=(3, 3, 2), usage=Usage(prompt_tokens=10, completion_tokens=10)))
    assert got == (DraftStep(context=11, drafted=3, accepted=3), DraftStep(context=15, drafted=3, accepted=1))


def test_a_prompt_without_usage_counts_its_ids():
    assert steps(answer(windows=(1, 2, 2)))[0].context == 4


@pytest.mark.parametrize("drafted", [None, (3,), (3, 3, 3, 3)])
def test_drafts_that_do_not_fit_the_windows_are_unknown(drafted):
    assert [step.drafted for step in steps(answer(windows=(1, 2, 2, 1), drafted=drafted))] == [None, None]


@pytest.mark.parametrize("windows", [None, (), (1,), (1, 3)])
def test_an_answer_without_whole_steps_has_none(windows):
    assert steps(answer(windows=windows)) == ()


def test_all_steps_together_come_from_the_windows_and_else_from_what_the_answer_reports():
    counted = replace(answer(tokens=range(9)), counters=SpecCounters(drafts=3, draft_tokens=9, accepted_tokens=5))
    assert total(counted) == StepSum(tokens=8, steps=3)
    assert total(replace(answer(windows=(1, 4, 2, 3)), counters=counted.counters)) == StepSum(tokens=6, steps=2)
    assert total(answer()) is total(replace(answer(), counters=SpecCounters())) is None
