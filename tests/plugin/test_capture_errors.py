"""What goes wrong in a capture is a setup error of the tests that miss it: in full once, then by reference."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.examples(2)
@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
@pytest.mark.parametrize("how, line", [("raises", "the server did not come up"), ("broken", "ZeroDivisionError: a bug")])
def test_a_capture_that_fails_is_an_error_of_every_test(project, monkeypatch, how, line, workers):
    monkeypatch.setenv("FAKE_CAPTURE", how)
    result = project.tests().run(*workers, subprocess=bool(workers))
    processes = 2 if workers else 1
    result.assert_outcomes(errors=processes)
    result.stdout.fnmatch_lines([f"=* {4 - processes} not captured*"])
    assert result.ret == 1
    assert line in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*nothing could be judged*"])


def test_a_cause_is_told_in_full_once(project, monkeypatch):
    monkeypatch.setenv("FAKE_CAPTURE", "missing:draft-k3")
    result = project.tests().run()
    result.assert_outcomes(passed=2, errors=1)
    assert result.ret == 1
    text = result.stdout.str()
    assert text.count("found:    exit code 7") == 1
    assert text.count("ERROR at setup") == text.count("\nERROR test_it.py::") == 1
    assert "  draft-k3 greedy, liveness NOT CAPTURED: " in text
    result.stdout.fnmatch_lines(["=* 2 passed, 1 error, 1 not captured *"])
    result.stdout.fnmatch_lines(
        [
            "CORRECTNESS: 2 of 4 *",
            "T=0:*NOT CAPTURED*ok *3/3",
            "survives*NOT CAPTURED*ok *3/3",
            "Next: *servers): pytest *--specdec-resume *",
        ]
    )


def run_with_judge(project, judge):
    """Run one scored test whose family is judged by ``judge``, an expression."""
    conftest = (project.path / "conftest.py").read_text()
    project.pytester.makeconftest(
        conftest
        + "\nfrom pytest_specdec.judge import registry\nfrom pytest_specdec.model.verdict import Outcome\n\n"
        + "@pytest.fixture(autouse=True)\ndef judges(monkeypatch):\n    from sample import say\n"
        + f"    monkeypatch.setattr(registry, 'judge_of', lambda row: {judge})\n"
    )
    project.tests(
        "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(workload('scored', scored=True), family='greedy')\n"
        "def test_it(specdec_captured, specdec_check): specdec_check(say(specdec_captured))\n"
    )
    return project.run()


def test_a_control_that_fails_makes_its_workload_invalid(project):
    result = run_with_judge(project, "lambda captured: say(captured, Outcome.FAIL, headline='the control differs')")
    result.assert_outcomes(errors=1)
    text = result.stdout.str()
    assert text.count("the control differs") == 1
    result.stdout.fnmatch_lines(["invalid: the control fails greedy on scored*", "*INVALID*", "=* 1 error, 1 invalid *"])


def test_a_judge_that_breaks_on_the_control_is_an_error_and_no_pass(project):
    result = run_with_judge(project, "lambda captured: {}['a bug']")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*KeyError: 'a bug'*"])


def test_sigterm_ends_a_capture_cleanly(project, monkeypatch):
    monkeypatch.setenv("FAKE_CAPTURE", "slow")
    monkeypatch.setenv("FAKE_SECONDS", "60")
    project.tests()
    command = [sys.executable, "-m", "pytest", "--specdec-config=tiny"]
    process = subprocess.Popen(command, cwd=project.path, stdout=subprocess.PIPE, text=True)
    try:
        while not (project.path / "capturing").exists():
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in out
    assert "INTERNALERROR" not in out


def test_the_deadline_reaches_the_capture(project):
    project.tests().run("--specdec-deadline=90.5")
    assert project.captures[0]["deadline_s"] == 90.5


ENDS_BADLY = """

def ends_badly(config, plan, directory, *, deadline_s, tell):
    fake(config, plan, directory, deadline_s=deadline_s, tell=tell)
    status = Status(state=State.INCOMPLETE, error="a server could not be ended\\n  found:    the container c still runs")
    records.write_status(directory, status)
    return status


def pytest_configure(config):
    record.record, record.resume = ends_badly, resumed
"""


def test_an_error_at_the_end_of_a_whole_capture_is_said_and_no_success(project):
    """Every test has its answers and none fails: a container that was left running would go unseen."""
    project.pytester.makeconftest((project.path / "conftest.py").read_text() + ENDS_BADLY)
    result = project.tests().run()
    result.assert_outcomes(passed=4)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*ENDED IN AN ERROR: a server could not be ended; found:    the container c still runs"])
