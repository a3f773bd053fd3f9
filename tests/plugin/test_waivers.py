"""Waivers: a known failure is expected, loudly, and red again when it expires, heals, or is another one."""

from __future__ import annotations

from datetime import date

import pytest

from pytest_specdec.config.config import Waiver
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.plugin.waivers import apply_waivers
from pytest_specdec.report.run import PytestOutcome

WAIVER = """
waivers:
  - family: greedy
    workload: chat
    variant: draft-k3
    bug: https://example.com/bug/7
    owner: ann
    expires: 2027-01-31
    words: wrong tokens
"""
FAIL = "Outcome.FAIL, names='wrong tokens'"
ON_TIME = "--specdec-date=2027-01-31"


def test_a_known_failure_is_expected_and_said_everywhere(project):
    result = project.config(WAIVER).outcome(FAIL).run(ON_TIME, "--junit-xml=junit.xml")
    result.assert_outcomes(failed=1, xfailed=1)
    known = "KNOWN: draft-k3 greedy (chat): 3 answers; https://example.com/bug/7 (owner ann, until 2027-01-31)"
    result.stdout.fnmatch_lines([known])
    judgements = {one["pair"]: one for one in project.document["judgements"]}
    assert (judgements["draft-k3"]["result"], judgements["ngram-k3"]["result"]) == ("xfailed", "failed")
    assert judgements["draft-k3"]["waiver"] == "https://example.com/bug/7 (owner ann, until 2027-01-31)"
    (run,) = project.runs
    assert "KNOWN: draft-k3 greedy" in (run / "report.md").read_text()
    assert 'name="specdec.waiver" value="https://example.com/bug/7' in (project.path / "junit.xml").read_text()


def test_a_run_whose_only_failures_are_known_is_no_failure(project):
    both = WAIVER + WAIVER.replace("waivers:\n", "").replace("draft-k3", "ngram-k3").removeprefix("\n")
    result = project.config(both).outcome(FAIL).run(ON_TIME)
    result.assert_outcomes(xfailed=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["CORRECTNESS: nothing new found; 2 known failures waived*"])


@pytest.mark.parametrize("verdict, args, line", [
    (FAIL, ["--specdec-date=2027-02-01"], "the waiver of https://example.com/bug/7 expired on 2027-01-31 (tiny.yaml:*); ask ann"),
    ("Outcome.PASS", [ON_TIME], "this waiver is no longer needed: remove it (tiny.yaml:*, https://example.com/bug/7)"),
    ("Outcome.FAIL, names='cut short'", [ON_TIME], "not the failure that the waiver of https://example.com/bug/7 expects, *"),
    (FAIL, [ON_TIME, "--runxfail"], "draft-k3 greedy: 3 answers"),
])  # fmt: skip
def test_a_waiver_that_does_not_hold_is_red_and_says_why(project, verdict, args, line):
    result = project.config(WAIVER).outcome(verdict).run(*args, "-k", "draft-k3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([line])


def test_of_two_tests_of_one_judgement_the_named_one_is_waived(project):
    head = "import pytest\nfrom sample import *\n\n"
    mark, body = (
        "@pytest.mark.specdec(CHAT, family='greedy')\n",
        "(specdec_captured, specdec_check):\n    specdec_check(say(specdec_captured, ",
    )
    project.tests(f"{head}{mark}def test_a{body}{FAIL}))\n\n{mark}def test_b{body}Outcome.PASS))\n")
    project.config(WAIVER + "    test: test_it.py::test_a\n").run(ON_TIME, "-k", "draft-k3").assert_outcomes(xfailed=1, passed=1)
    result = project.config(WAIVER + "    test: test_c\n").run(ON_TIME, "-k", "draft-k3")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["note: waiver not used: tiny.yaml:*: nothing judged greedy of chat on draft-k3 in test_c"])


@pytest.mark.parametrize("words, also, holds", [
    ("cut short", "", True),
    ("cut short", "; also the finish_reason is wrong in 2", False),
    ("finish_reason", "; also the finish_reason is wrong in 2", False),
    ("answers", "; also answers go on in 2, answers are empty in 1", True),
    ("answers", "; also answers go on in 2, the finish_reason is wrong in 1", False),
    ("", "; also the finish_reason is wrong in 2", True),
])  # fmt: skip
def test_a_further_fault_is_waived_only_where_the_words_expect_it_too(words, also, holds):
    day = date(2027, 1, 31)
    waiver = Waiver(family=Family.LENGTHS, workload="w", variant="v", bug="#7", owner="ann", expires=day, words=words, source="tiny.yaml:3")
    headline = f"answers are cut short: 30 of 100 answers{also}"
    verdict = Verdict(outcome=Outcome.FAIL, family=Family.LENGTHS, pair="v", workload="w", headline=headline, names="answers are cut short")
    waived = apply_waivers([waiver], verdict, PytestOutcome.FAILED, nodeid="test_it", depth=Depth.STANDARD, day=day)
    assert (waived.result is PytestOutcome.WAIVED) is holds


@pytest.mark.parametrize("verdict, args, outcome", [
    ("Outcome.PASS", ["--specdec-depth=smoke"], {"passed": 1}),
    ("Outcome.NOT_DECIDED", [], {"passed": 1}),
    ("Outcome.INVALID", [], {"failed": 1}),
    ("Outcome.INCONCLUSIVE", ["--specdec-depth=smoke"], {"skipped": 1}),
    ("Outcome.REFUSED", [], {"skipped": 1}),
])  # fmt: skip
def test_a_verdict_that_blames_nobody_is_what_it_is(project, verdict, args, outcome):
    project.config(WAIVER).outcome(verdict).run(*args, ON_TIME, "-k", "draft-k3").assert_outcomes(**outcome)


def test_a_replay_judges_by_the_waivers_of_its_run_and_by_the_day_it_is_given(project):
    project.config(WAIVER).outcome(FAIL).run(ON_TIME)
    (run,) = project.runs
    project.run(f"--specdec-replay={run}", "--specdec-date=2027-01-01", config="").assert_outcomes(failed=1, xfailed=1)
    project.run(f"--specdec-replay={run}", "--specdec-date=2028-01-01", config="").assert_outcomes(failed=2)


def test_a_waiver_of_nothing_that_was_judged_is_noted(project):
    result = project.config(WAIVER.replace("workload: chat", "workload: chatt")).outcome(FAIL).run(ON_TIME)
    result.stdout.fnmatch_lines(["note: waiver not used: tiny.yaml:*: nothing judged greedy of chatt on draft-k3"])


@pytest.mark.parametrize("old, new, problem", [
    ("2027-01-31", "2027-02-30", "tiny.yaml:* waivers[[]0].expires: found '2027-02-30', expected a day, such as 2027-01-31"),
    ("variant: draft-k3", "variant: draft-k4", "*waivers[[]0].variant: found 'draft-k4', *did you mean 'draft-k3'?"),
    ("    owner: ann\n", "", "*waivers[[]0].owner: found nothing, expected a value: it must be given"),
    ("family: greedy", "family: greed", "*waivers[[]0].family: *"),
    ("owner: ann", "ower: ann", "*waivers[[]0].ower: found an unknown key, *did you mean 'owner'?"),
])  # fmt: skip
def test_a_wrong_waiver_ends_the_run_before_anything_boots(project, old, new, problem):
    result = project.config(WAIVER.replace(old, new)).outcome(FAIL).run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{problem}"])
    assert not project.captures


def test_two_waivers_of_one_judgement_are_refused(project):
    result = project.config(WAIVER + WAIVER.replace("\nwaivers:\n", "")).outcome(FAIL).run()
    result.stderr.fnmatch_lines(["*waivers[[]1]: found a second waiver of one judgement, expected one, with one bug"])


def test_a_day_that_is_none_is_a_usage_error(project):
    result = project.outcome(FAIL).run("--specdec-date=tomorrow")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*expected a day such as 2027-01-31; found 'tomorrow'*"])
