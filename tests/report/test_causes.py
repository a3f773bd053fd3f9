"""Failures that follow from one fault are one cause, under the name of the earliest and most specific."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.concurrency import DEAD_DRAFTS
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.verdict import SharedCheck
from pytest_specdec.report.causes import find_causes
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import FAILED, judgement, run_of

OVERRUN = "max_tokens is overrun by part of a window"
PAST, COUNT = "answers go on after their end", "usage counts other tokens than were answered"
UNVERIFIED, LENIENT = "draft tokens accepted without verification", "lenient acceptance 1.25 p/q"
DIES = "the server dies on a request with logprobs=5"
NOTHING = "nothing drafted in the judged requests"
OFF = "drafting is off for requests with a grammar"


def failure(family, name, check=None, workload="w"):
    return judgement(replace(FAILED, family=family, names=name, check=check, workload=workload), PytestOutcome.FAILED)


def ending(family, name=PAST):
    return failure(family, name, SharedCheck.ENDING)


def leaders(*failures):
    return [(cause.leader.family, len(cause.failures)) for cause in find_causes(failures, FAMILIES)]


@pytest.mark.parametrize(
    "failures, expected",
    [
        ([ending("greedy"), failure("lengths", OVERRUN), ending("parameters"), ending("seeds")], [("lengths", 4)]),
        ([ending("greedy"), failure("tools", "a tool call is delivered as text"), ending("parameters")], [("greedy", 3)]),
        ([failure("lengths", OVERRUN), ending("parameters"), ending("seeds")], [("lengths", 3)]),
        ([ending("greedy", COUNT), ending("invariants", COUNT), ending("state", COUNT)], [("invariants", 3)]),
        ([failure("invariants", "special tokens stand in the text"), ending("greedy"), ending("tools")], [("invariants", 3)]),
        ([failure("sampling", LENIENT), failure("greedy", UNVERIFIED), failure("parameters", UNVERIFIED)], [("greedy", 3)]),
        (
            [failure("sampling", LENIENT), failure("structured", "worse"), failure("tools", "a required tool call does not come")],
            [("sampling", 3)],
        ),
        ([failure("logprobs", DIES, SharedCheck.SERVER), failure("liveness", DIES, SharedCheck.SERVER)], [("liveness", 2)]),
        ([failure("structured", f"{NOTHING} (0 drafts)", SharedCheck.DRAFTING), failure("speed", OFF)], [("speed", 2)]),
        ([failure("concurrency", DEAD_DRAFTS, SharedCheck.DRAFTING), failure("speed", OFF)], [("speed", 2)]),
        (
            [
                failure("structured", f"{NOTHING} (0 drafts)", SharedCheck.DRAFTING),
                failure("tools", f"{NOTHING} (9)", SharedCheck.DRAFTING),
            ],
            [("structured", 2)],
        ),
    ],
)
def test_failures_of_one_fault_are_one_cause_led_by_the_most_specific(failures, expected):
    assert leaders(*failures) == leaders(*reversed(failures)) == expected


@pytest.mark.parametrize(
    "failures",
    [
        [failure("greedy", UNVERIFIED), failure("liveness", DIES, SharedCheck.SERVER)],
        [
            failure("state", "the second identical prompt is answered wrongly"),
            failure("concurrency", "answers go wrong only under concurrency"),
        ],
        [failure("logprobs", "reported log-probabilities are zero"), ending("lengths")],
        [failure("greedy", UNVERIFIED), failure("invariants", "usage counts another prompt")],
        *([failure(family, "words of other requests"), failure("speed", "")] for family in ("concurrency", "seeds", "endurance")),
    ],
)
def test_failures_that_explain_nothing_of_each_other_are_causes_of_their_own(failures):
    assert len(leaders(*failures)) == 2


def test_the_cause_with_most_failures_comes_first_and_tests_without_a_verdict_have_their_own():
    asserted = judgement(None, PytestOutcome.FAILED, nodeid="mine.py::test_tone", pair="draft-k3", workload="w", family=FAILED.family)
    causes = find_causes([asserted, ending("state"), ending("seeds")], FAMILIES)
    assert [len(cause.failures) for cause in causes] == [2, 1]
    assert causes[0].families == ("seeds", "state")


def test_what_rows_follow_leads_nowhere_back():
    """A circle would have no leader."""
    left = {name: set(row.follows) for name, row in FAMILIES.items()}
    while left:
        free = {name for name, follows in left.items() if not follows & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {name: follows for name, follows in left.items() if name not in free}


def test_a_failure_without_a_verdict_has_a_cause_to_itself():
    """An assertion in a test of one's own may be a mistake of the test: its traceback stays."""
    own = judgement(None, PytestOutcome.FAILED, pair="ngram-k3", workload="w", family=FAMILIES["structured"].name, nodeid="own.py::test_it")
    assert leaders(failure("greedy", UNVERIFIED), own) == [("greedy", 1), ("structured", 1)]


def test_a_follower_points_to_its_leader_unless_its_test_leads_another_cause():
    """One test judges two workloads: in one it leads, in the other it follows."""
    first = judgement(replace(FAILED, names=UNVERIFIED), PytestOutcome.FAILED, nodeid="first")
    again = judgement(replace(FAILED, names=UNVERIFIED, workload="again"), PytestOutcome.FAILED, nodeid="again")
    both = judgement(replace(FAILED, names=UNVERIFIED, workload="both"), PytestOutcome.FAILED, nodeid="both")
    alone = judgement(replace(FAILED, family="liveness", names=DIES, workload="alone"), PytestOutcome.FAILED, nodeid="both")
    run = run_of(first, again, both, alone)
    assert len(run.findings) == 2
    assert run.pointers == {"again": f"follows from first: {UNVERIFIED}"}
