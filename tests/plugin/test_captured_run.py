"""A test of the whole run: it is given every workload's answers, also in a replay and in workers, and wrong use is a clear error."""

from __future__ import annotations

import pytest

from pytest_specdec.judge import invariants
from pytest_specdec.judge.drafting import verdict

LOADED = (verdict, invariants)
"""Once for all sessions in this process: numpy cannot be imported a second time."""

TESTS = """
import pytest
from sample import CHAT, CODE, say


@pytest.mark.specdec(CODE, family="greedy")
def test_code(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))


@pytest.mark.specdec(CHAT, family="invariants")
def test_all(specdec_captured_run, specdec_check):
    run = specdec_captured_run
    specdec_check(say(run.whole, headline=f"{len(run.whole.speculative.answers)} answers of {[p.workload.name for p in run.parts]}, "
                                          f"without {run.missing}"))
"""
ALONE = "\n".join([*TESTS.splitlines()[:4], *TESTS.splitlines()[10:]])


def headlines(project):
    return {j["verdict"]["headline"] for j in project.document["judgements"] if j["family"] == "invariants"}


@pytest.mark.examples(1)
@pytest.mark.parametrize("args", [(), ("-n2",)])
def test_every_workload_of_the_run_is_there_and_its_own_as_well(project, args):
    project.tests(TESTS).run(*args, subprocess=bool(args)).assert_outcomes(passed=4)
    assert headlines(project) == {"6 answers of ['chat', 'code'], without ()"}


def test_alone_it_is_given_the_answers_to_its_own_workload(project):
    project.tests(ALONE).run().assert_outcomes(passed=2)
    assert headlines(project) == {"3 answers of ['chat'], without ()"}
    assert [capture["workloads"] for capture in project.captures] == [["chat"]]


def test_a_replay_gives_it_the_stored_answers(project):
    project.tests(TESTS).run()
    (run,) = project.runs
    project.run(f"--specdec-replay={run}", "-k", "test_all").assert_outcomes(passed=2)


def test_a_workload_that_an_arm_did_not_answer_is_listed_as_missing(project):
    project.tests(TESTS).run()
    (run,) = project.runs
    (run / "transcripts/baseline/code.jsonl").unlink()
    result = project.run(f"--specdec-replay={run}", "-k", "test_all", "-rA", "-v")
    result.assert_outcomes(passed=2)
    assert "3 answers of ['chat'], without ('code',)" in result.stdout.str()


def test_without_answers_to_its_own_workload_it_is_an_error(project):
    project.tests(TESTS).run()
    (run,) = project.runs
    (run / "transcripts/baseline/chat.jsonl").unlink()
    result = project.run(f"--specdec-replay={run}", "-k", "test_all")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*not captured: the run has no answers of baseline/chat*"])


def test_a_control_that_breaks_the_rules_is_an_invalid_set_up(project):
    """Its answers have no finish_reason where the baseline's have one: the family's own judge says so before the test runs."""
    project.tests(TESTS).run()
    (run,) = project.runs
    for path in (run / "transcripts/control").glob("*.jsonl"):
        path.write_text(path.read_text().replace('"finish_reason":"stop"', '"finish_reason":null'))
    result = project.run(f"--specdec-replay={run}", "-k", "test_all")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*invalid: the control fails invariants on chat*", "*the finish_reason is wrong*"])


WRONG = {
    "of a family that judges workloads": (
        "@pytest.mark.specdec(CHAT, family='greedy')\ndef test_it(specdec_captured_run): pass\n",
        "*found specdec_captured_run in a test of greedy*whole_run=True*",
    ),
    "with both fixtures": (
        "@pytest.mark.specdec(CHAT, family='invariants')\ndef test_it(specdec_captured, specdec_captured_run): pass\n",
        "*found a mark and both fixtures*",
    ),
    "without a workload": ("@pytest.mark.specdec(family='invariants')\ndef test_it(specdec_captured_run): pass\n", "*found no workload*"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_a_usage_error(project, case):
    text, line = WRONG[case]
    result = project.tests(f"import pytest\nfrom sample import *\n\n{text}").run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line.split("*whole_run")[0] + "*"])
    assert not project.captures


def test_a_verdict_that_is_not_checked_fails_its_test(project):
    text = TESTS.split("@pytest.mark.specdec(CHAT", maxsplit=1)[0]
    text += "@pytest.mark.specdec(CHAT, family='invariants')\ndef test_all(specdec_captured_run):\n"
    text += "    from pytest_specdec import judge\n    judge.invariants.judge(specdec_captured_run)\n"
    project.tests(text).run().assert_outcomes(passed=2, failed=2)
