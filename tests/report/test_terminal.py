from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import terminal
from pytest_specdec.report.run import PytestOutcome


def text_of(run):
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in terminal.lines(run))


def next_of(run):
    return ["".join(piece.text for piece in line) for line in terminal.next_steps(run)]


def test_red_begins_with_a_sentence_per_variant_and_ends_with_the_replay(make_run, verdicts, judged):
    run = make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.FAILED))
    first, second = text_of(run).splitlines()[:2]
    assert first.startswith("CORRECTNESS: FAILED, 1 finding (ngram-k3) ")
    assert second.startswith("WRONG: ngram-k3: ")
    assert "accept-all" in second
    first, last = next_of(run)
    assert first.endswith(": python -m pytest_specdec show .specdec/reference-1 'suites/greedy/test_greedy.py::test_x[draft-k3]'")
    assert last.endswith(": " + run.commands.replay)
    assert last not in next_of(replace(run, replayed=True)), "that would be the same again"


def test_a_speed_alone_is_asked_for_again(make_run, verdicts, judged):
    slow = judged(replace(verdicts["speed"], outcome=Outcome.FAIL), PytestOutcome.FAILED)
    assert next_of(make_run(slow))[1].endswith("the same command again is a second opinion")
    assert len(next_of(make_run(slow, judged(verdicts["failed"], PytestOutcome.FAILED)))) == 2


def test_a_failure_that_a_retry_may_settle_ends_with_the_resume(make_run, verdicts, judged):
    once = replace(verdicts["greedy"], outcome=Outcome.INVALID, transient=True)
    first, _ = next_of(make_run(judged(verdicts["greedy"]), judged(once, PytestOutcome.FAILED)))
    assert first == "Next: ask again what a server failed on: pytest --specdec-resume .specdec/reference-1"


def test_suspicion_stands_above_the_table_and_ends_with_the_continuation(make_run, verdicts, judged):
    suspicious = replace(verdicts["greedy"], outcome=Outcome.SUSPICIOUS, family=Family.SAMPLING, headline="not cleared", cell="1:10^4.4")
    run = make_run(judged(verdicts["greedy"]), judged(suspicious, PytestOutcome.SKIPPED))
    assert not run.red
    first, second, third = text_of(run).splitlines()[:3]
    assert (first.partition("  ")[0], third) == ("CORRECTNESS: SUSPICIOUS (draft-k3)", "")
    assert second.startswith("SUSPICIOUS: draft-k3 sampling (chat)")
    (step,) = next_of(run)
    assert step.endswith(": " + run.commands.continued)


@pytest.mark.parametrize("status", [None, Status(state=State.INCOMPLETE, boots=1, wall_s=1.0)], ids=["none", "incomplete"])
def test_an_incomplete_capture_ends_with_the_resumption_alone(make_run, verdicts, judged, status):
    run = make_run(judged(verdicts["failed"], PytestOutcome.FAILED), status=status)
    (step,) = next_of(run)
    assert f"{run.directory}/servers" in step
    assert step.endswith(": " + run.commands.resume)


def test_a_green_run_leaves_nothing_to_type(make_run, verdicts, judged):
    assert next_of(make_run(judged(verdicts["greedy"]))) == []


def test_an_interrupted_run_has_no_table(make_run):
    assert text_of(make_run()).splitlines()[0].startswith("reference (reference 0.1.0, target), standard: 0 judgements")


def test_a_run_that_could_not_judge_is_red(make_run, verdicts, judged):
    run = make_run(judged(replace(verdicts["greedy"], outcome=Outcome.INCONCLUSIVE), PytestOutcome.SKIPPED))
    assert run.red
    assert "nothing could be judged" in text_of(run)


def test_detectable_faults_of_every_workload_wait_for_verbose(make_run, verdicts, judged):
    run = make_run(*[judged(replace(verdicts["greedy"], workload=f"w{i}")) for i in range(9)])
    assert text_of(run).count("at a rate above 0.15%") == 1
    assert text_of(replace(run, verbose=True)).count("at a rate above 0.15%") == 9


def test_reasons_beyond_a_screen_wait_for_verbose(make_run, verdicts, judged):
    every = [replace(verdicts["greedy"], outcome=Outcome.REFUSED, headline=f"reason {i}") for i in range(terminal.REASON_LINES + 3)]
    run = make_run(*[judged(verdict, PytestOutcome.SKIPPED) for verdict in every])
    assert text_of(run).count(": reason ") == terminal.REASON_LINES
    assert "3 more with -v" in text_of(run)
    assert text_of(replace(run, verbose=True)).count(": reason ") == len(every)


def test_the_capability_matrix_comes_with_a_refusal(make_run, verdicts, judged):
    refused = replace(verdicts["greedy"], outcome=Outcome.REFUSED)
    assert "capabilities:" not in text_of(make_run(judged(verdicts["greedy"])))
    text = text_of(make_run(judged(verdicts["greedy"]), judged(refused, PytestOutcome.SKIPPED)))
    assert [line.split() for line in text.splitlines() if line.startswith(("feature", "json_schema"))] == [
        ["feature", "baseline", "draft-k3"],
        ["json_schema", "honoured", "-"],
    ]
