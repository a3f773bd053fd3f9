"""What one run says of a release: by the tests that the fault turns red at the bad end, and by the class of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.bisect.record import Question
from pytest_specdec.bisect.search import Answer
from pytest_specdec.bisect.trial import answer_of, pytest_command, read_trial
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import FAILED, GREEDY, SPEED, judgement, run_of

RED = judgement(FAILED, PytestOutcome.FAILED, nodeid="target")
GREEN = judgement(GREEDY, nodeid="target")
OTHER = judgement(replace(FAILED, names="another"), PytestOutcome.FAILED, nodeid="other")
REFUSED = judgement(replace(GREEDY, outcome=Outcome.REFUSED), PytestOutcome.SKIPPED, nodeid="target")
OPEN = judgement(replace(GREEDY, outcome=Outcome.INCONCLUSIVE), PytestOutcome.FAILED, nodeid="target")
SKIPPED = replace(OPEN, result=PytestOutcome.SKIPPED)
SUSPICIOUS = judgement(replace(GREEDY, outcome=Outcome.SUSPICIOUS), nodeid="target")
MISSING = judgement(
    None, PytestOutcome.ERROR, nodeid="target", pair="draft-k3", workload="chat", family=GREEDY.family, error="a server died"
)
INVALID = replace(MISSING, is_invalid=True)
NO_SERVER = Status(state=State.INCOMPLETE, error="no such program", lasting=True)


@pytest.mark.parametrize("run, answer", [
    (run_of(RED), Answer.BAD),
    (run_of(RED, MISSING), Answer.BAD),
    (run_of(GREEN), Answer.GOOD),
    (run_of(OTHER, GREEN), Answer.GOOD),
    (run_of(OTHER), Answer.OPEN),
    (run_of(REFUSED, judgement(GREEDY, nodeid="other")), Answer.UNTESTABLE),
    (run_of(OPEN), Answer.OPEN),
    (run_of(SUSPICIOUS), Answer.OPEN),
    (run_of(MISSING), Answer.OPEN),
    (run_of(INVALID), Answer.UNTESTABLE),
    (run_of(status=NO_SERVER), Answer.UNTESTABLE),
    (run_of(), Answer.OPEN),
], ids=[
    *("red", "red-and-missing", "green", "other-red", "target-not-run", "refused", "inconclusive", "suspicious", "missing", "invalid"),
    *("no-server", "nothing"),
])  # fmt: skip
def test_a_run_answers_by_the_tests_of_the_bad_end(run, answer):
    assert answer_of(run, frozenset({"target"})) is answer


@pytest.mark.parametrize("run, answer", [
    (run_of(OTHER, GREEN), Answer.BAD),
    (run_of(GREEN, judgement(SPEED, nodeid="speed")), Answer.GOOD),
    (run_of(GREEN, SUSPICIOUS), Answer.OPEN),
    (run_of(GREEN, SKIPPED), Answer.OPEN),
    (run_of(GREEN, REFUSED), Answer.GOOD),
    (run_of(GREEN, SKIPPED, REFUSED), Answer.OPEN),
    (run_of(REFUSED), Answer.UNTESTABLE),
], ids=["any-red", "clean", "suspicious", "inconclusive", "one-refused", "inconclusive-and-refused", "all-refused"])  # fmt: skip
def test_before_the_bad_end_is_run_every_test_is_a_target(run, answer):
    assert answer_of(run, frozenset()) is answer


def test_a_bad_trial_has_the_finding_of_the_target_and_its_replay():
    trial = read_trial("0.2", run_of(OTHER, RED), frozenset({"target"}), run_directory="runs/0.2-1", exit_code=1, seconds=3.0)
    assert (trial.answer, trial.name, trial.headline) == (Answer.BAD, "accept-all", FAILED.headline)
    assert trial.faults == ("other", "target")
    assert trial.replay == RED.replay


WAIVED = replace(RED, result=PytestOutcome.WAIVED, waiver="a bug")
HEALED = replace(GREEN, result=PytestOutcome.FAILED, waiver="a bug")
"""At standard depth: the waiver is no longer needed."""


@pytest.mark.parametrize("targets", [frozenset(), frozenset({"target"})], ids=["at the bad end", "elsewhere"])
def test_a_waiver_hides_no_fault_and_makes_none(targets):
    """The fault that is looked for may be a known one, which other runs of the config expect."""
    trial = read_trial("0.2", run_of(WAIVED), targets, run_directory="runs/0.2-1", exit_code=0, seconds=3.0)
    assert (trial.answer, trial.name, trial.faults, trial.replay) == (Answer.BAD, "accept-all", ("target",), RED.replay)
    trial = read_trial("0.2", run_of(HEALED), targets, run_directory="runs/0.2-1", exit_code=78, seconds=3.0)
    assert (trial.answer, trial.faults) == (Answer.GOOD, ())


def test_a_trial_without_an_answer_says_why():
    trial = read_trial("0.2", run_of(status=NO_SERVER), frozenset(), run_directory="runs/0.2-1", exit_code=78, seconds=3.0)
    assert (trial.answer, trial.headline, trial.faults) == (Answer.UNTESTABLE, "no such program", ())
    trial = read_trial("0.2", run_of(MISSING), frozenset({"target"}), run_directory="runs/0.2-1", exit_code=75, seconds=3.0)
    assert trial.headline == "a server died"


def test_an_undecided_run_is_continued_in_its_own_directory(tmp_path):
    question = Question(
        config="c.yaml", config_digest="", good="1", bad="2", tests=("suites", "-k", "a or b"), depth="smoke", detection=1.0
    )
    command = pytest_command(question, tmp_path, continues=False)
    assert command[1:6] == ("-m", "pytest", "suites", "-k", "a or b")
    assert f"--specdec-run-dir={tmp_path}" in command
    again = pytest_command(question, tmp_path, continues=True)
    assert f"--specdec-continue={tmp_path}" in again
    assert not any("run-dir" in word for word in again)
