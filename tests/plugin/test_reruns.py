"""Tests that run again, or in parts, give the judgements of their last run, each once."""

from __future__ import annotations

import pytest

RERUNS = """

from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    "As pytest-rerunfailures does with --reruns=1."
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for is_last in (False, True):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = next((report for report in reports if report.failed), None)
        if failed and not is_last:
            failed.outcome = "rerun"
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        if not failed:
            break
        item._initrequest()
    return True


def pytest_report_teststatus(report):
    return ("rerun", "R", "RERUN") if report.outcome == "rerun" else None
"""
HEAD = "import pytest\nfrom sample import *\n\nN = []\n\n\n@pytest.mark.specdec(CHAT, family='greedy')\n"
CASES = {
    "fails again": ("specdec_check(say(specdec_captured, Outcome.FAIL))", ["failed"]),
    "passes then": ("N.append(0); specdec_check(say(specdec_captured, Outcome.PASS if len(N) > 1 else Outcome.FAIL))", ["passed"]),
    "fails by its own check": ("N.append(0); specdec_check(say(specdec_captured)); assert len(N) > 1", ["passed"]),
}


def results(project):
    return [judgement["result"] for judgement in project.document["judgements"]]


@pytest.mark.parametrize("case", CASES)
def test_a_test_that_runs_again_gives_the_judgement_of_its_last_run(project, case):
    body, expected = CASES[case]
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + RERUNS)
    result = project.tests(f"{HEAD}def test_it(specdec_captured, specdec_check):\n    {body}\n").run("-k", "draft-k3")
    assert "INTERNALERROR" not in result.stdout.str()
    assert results(project) == expected


def test_subtests_give_each_judgement_once(project):
    body = """def test_it(specdec_captured, specdec_check, subtests):
    with subtests.test("one"):
        specdec_check(say(specdec_captured, Outcome.FAIL))
    with subtests.test("two"):
        specdec_check(say(specdec_captured))
"""
    project.tests(HEAD + body).run("-k", "draft-k3")
    assert results(project) == ["failed", "passed"]
