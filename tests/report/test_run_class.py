"""A run has one class, by who has to act."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report.run import PytestOutcome, RunClass
from tests.report.runs import FAILED, GREEDY, judgement, run_of

PASSED, FOUND = judgement(GREEDY), judgement(FAILED, PytestOutcome.FAILED)
INVALID = judgement(replace(GREEDY, outcome=Outcome.INVALID), PytestOutcome.FAILED)
ONCE = judgement(replace(GREEDY, outcome=Outcome.INVALID, transient=True), PytestOutcome.FAILED)
OPEN = judgement(replace(GREEDY, outcome=Outcome.INCONCLUSIVE), PytestOutcome.FAILED)
EXCUSED = judgement(replace(GREEDY, outcome=Outcome.SUSPICIOUS), PytestOutcome.SKIPPED)
MISSING = judgement(None, PytestOutcome.ERROR, error="not captured: no answers", pair="draft-k3", workload="chat", family=GREEDY.family)
CONTROL = replace(MISSING, error="invalid: the control fails", is_invalid=True)
HEALED = judgement(GREEDY, PytestOutcome.FAILED, waiver="#7")
REFUSED = judgement(replace(GREEDY, outcome=Outcome.REFUSED), PytestOutcome.SKIPPED)


@pytest.mark.parametrize(
    "judgements, expected",
    [
        ([PASSED], RunClass.CLEAN),
        ([PASSED, FOUND, CONTROL, ONCE, OPEN], RunClass.FINDING),
        ([PASSED, CONTROL, MISSING, ONCE, OPEN], RunClass.SETUP_INVALID),
        ([PASSED, INVALID], RunClass.SETUP_INVALID),
        ([PASSED, HEALED], RunClass.SETUP_INVALID),
        ([REFUSED], RunClass.SETUP_INVALID),
        ([PASSED, ONCE, OPEN], RunClass.INFRASTRUCTURE),
        ([PASSED, MISSING], RunClass.INFRASTRUCTURE),
        ([PASSED, OPEN], RunClass.UNDECIDED),
        ([PASSED, EXCUSED], RunClass.UNDECIDED),
        ([], RunClass.UNDECIDED),
    ],
)
def test_the_first_that_holds_counts(judgements, expected):
    assert run_of(*judgements).run_class is expected


def test_a_capture_that_did_not_end_is_infrastructure_unless_something_was_found():
    incomplete = Status(state=State.INCOMPLETE, boots=1, wall_s=1.0)
    assert run_of(PASSED, status=incomplete).run_class is RunClass.INFRASTRUCTURE
    assert run_of(PASSED, status=None).run_class is RunClass.INFRASTRUCTURE
    assert run_of(PASSED, FOUND, status=incomplete).run_class is RunClass.FINDING


def test_answers_that_no_retry_brings_are_a_setup_to_correct():
    """A CI policy would ask for an unknown flag, or with a wrong key, again and again."""
    refused = Status(state=State.INCOMPLETE, boots=1, wall_s=1.0, lasting=True)
    assert run_of(PASSED, MISSING, status=refused).run_class is RunClass.SETUP_INVALID
    assert run_of(PASSED, FOUND, MISSING, status=refused).run_class is RunClass.FINDING


def test_exit_codes_are_distinct_and_none_is_pytests_but_those_that_mean_the_same():
    codes = {each.exit_code for each in RunClass}
    assert len(codes) == len(RunClass)
    assert codes & {int(code) for code in pytest.ExitCode} == {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
