"""``--specdec-exit-codes``: the class of the run as the exit code; pytest's own otherwise."""

from __future__ import annotations

import pytest

CASES = [
    ("Outcome.PASS", "clean", 0),
    ("Outcome.FAIL", "finding", 1),
    ("Outcome.INVALID, transient=True", "infrastructure", 75),
    ("Outcome.INCONCLUSIVE", "undecided", 76),
    ("Outcome.INVALID", "setup invalid", 78),
]


@pytest.mark.examples(2)
@pytest.mark.parametrize("outcome, expected, code", CASES, ids=[expected for _, expected, _ in CASES])
@pytest.mark.parametrize("asked", [(), ("--specdec-exit-codes",)], ids=["pytest's", "by class"])
def test_the_exit_code_is_that_of_the_class_where_it_is_asked_for(project, outcome, expected, code, asked):
    result = project.outcome(outcome).run(*asked)
    assert result.ret == (code if asked else min(code, 1))
    assert project.document["class"] == expected
    result.stdout.fnmatch_lines([f"RESULT: {expected}*"])


@pytest.mark.parametrize("how, expected, code", [("raises", "infrastructure", 75), ("refused", "setup invalid", 78)])
def test_a_capture_that_a_retry_cannot_heal_is_told_from_one_that_it_may(project, monkeypatch, how, expected, code):
    monkeypatch.setenv("FAKE_CAPTURE", how)
    result = project.tests().run("--specdec-exit-codes")
    assert result.ret == code
    assert project.document["class"] == expected
    (run,) = project.runs
    assert project.run(f"--specdec-replay={run}", "--specdec-exit-codes", config=None).ret == code


def test_a_test_of_ones_own_that_fails_beside_a_clean_run_keeps_1(project):
    project.outcome("Outcome.PASS")
    project.pytester.makepyfile(test_own="def test_own():\n    assert False\n")
    assert project.run("--specdec-exit-codes").ret == 1
    assert project.document["class"] == "clean"


@pytest.mark.nightly
def test_workers_do_not_change_it(project):
    result = project.outcome("Outcome.INVALID").run("--specdec-exit-codes", "-n2", subprocess=True)
    assert result.ret == 78


def test_an_error_of_usage_keeps_pytests_own_code(project):
    result = project.outcome("Outcome.PASS").run("--specdec-exit-codes", "--specdec-depth=none")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
