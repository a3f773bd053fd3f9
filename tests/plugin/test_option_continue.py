"""An inconclusive sampling verdict takes more answers into the same run, under the same share."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.pair import BASELINE

DRAWN = """
import pytest
from sample import *

DRAWN = workload("drawn", requests=8, body={"temperature": 1.0}, take={Depth.STANDARD: 3})


@pytest.mark.specdec(DRAWN, family="sampling")
def test_drawn(specdec_captured, specdec_check):
    answers = len(specdec_captured.speculative.answers)
    specdec_check(say(specdec_captured, Outcome.PASS if answers >= ENOUGH else Outcome.INCONCLUSIVE, cell=f"{answers} answers"))


@pytest.mark.specdec(CODE, family="greedy")
def test_code(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""


def enough(answers):
    return DRAWN.replace("ENOUGH", str(answers))


@pytest.fixture
def stored(project, begun_here):
    project.tests(enough(6)).run()
    (run,) = project.runs
    begun_here(run)
    return run


def cells(run):
    return json.loads((run / "run.json").read_text())["plan"]["judgements"]


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_what_was_inconclusive_is_asked_for_as_much_again(project, stored, workers):
    before = cells(stored)
    result = project.run(f"--specdec-continue={stored}", *workers, subprocess=True)
    result.assert_outcomes(passed=4)
    assert project.runs == [stored]
    assert [capture["workloads"] for capture in project.captures] == [["code", "drawn"], ["code", "drawn", "drawn.more1"]]
    assert cells(stored) == before
    result.stdout.fnmatch_lines(["*6 answers*"])


LATE = """

def pytest_collection_finish(session):
    if getattr(session.config, "workerinput", {}).get("workerid") == "gw1":
        (HERE / "late").touch()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config):
    if getattr(config, "workerinput", {}).get("workerid") == "gw1":
        for _ in range(400):
            if any("more1" in path.read_text() for path in HERE.glob(".specdec/*/plan.json")):
                return
            time.sleep(0.05)
"""


def test_a_worker_that_collects_late_finds_the_round_of_the_others(project, stored):
    """One worker captures as soon as it has collected, and writes the longer plan while another still collects."""
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + LATE)
    project.run(f"--specdec-continue={stored}", "-n2", subprocess=True).assert_outcomes(passed=4)
    assert (project.path / "late").exists()
    assert [capture["workloads"] for capture in project.captures[1:]] == [["code", "drawn", "drawn.more1"]]


def test_a_run_is_taken_further_as_often_as_it_takes(project, stored):
    project.tests(enough(12))
    project.run(f"--specdec-continue={stored}").assert_outcomes(passed=2, failed=2)
    project.run(f"--specdec-continue={stored}").assert_outcomes(passed=4)
    assert project.captures[-1]["workloads"] == ["code", "drawn", "drawn.more1", "drawn.more2"]
    project.run(f"--specdec-replay={stored}", config=None).assert_outcomes(passed=4)


def test_a_run_that_was_taken_further_can_be_resumed(project, stored):
    project.run(f"--specdec-continue={stored}").assert_outcomes(passed=4)
    project.run(f"--specdec-resume={stored}").assert_outcomes(passed=4)
    assert len(project.captures) == 2


def test_nothing_inconclusive_is_a_usage_error(project, stored):
    project.run(f"--specdec-continue={stored}").assert_outcomes(passed=4)
    result = project.run(f"--specdec-continue={stored}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-continue: found no inconclusive or suspicious *"])


def test_more_answers_that_cannot_be_scored_are_a_usage_error(project, stored):
    refused = {"prompt_logprobs": FeatureSupport.REFUSED, "continuations": FeatureSupport.IGNORED}
    run_documents.write_capabilities(RunDirectory.open(stored), BASELINE, Capabilities(support=refused))
    result = project.run(f"--specdec-continue={stored}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-continue: *(prompt_logprobs refused, continuations ignored)*"])


def test_another_selection_is_told_with_its_difference(project, stored):
    result = project.run(f"--specdec-continue={stored}", "-k", "drawn")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-continue: found another plan*", "*plan.workloads.code*"])


@pytest.mark.parametrize("depth, first", [("standard", {"failed": 2, "passed": 2}), ("smoke", {"skipped": 2, "passed": 2})])
def test_what_was_suspicious_is_taken_further_as_the_run_says(project, begun_here, depth, first):
    project.tests(enough(4).replace("INCONCLUSIVE", "SUSPICIOUS").replace("Depth.STANDARD: 3", "Depth.STANDARD: 3, Depth.SMOKE: 2"))
    result = project.run(f"--specdec-depth={depth}", "--specdec-run-dir=kept")
    result.assert_outcomes(**first)
    result.stdout.fnmatch_lines(
        [
            "SUSPICIOUS: draft-k3 sampling (drawn): ? answers",
            "T>0: * SUSPICIOUS ? answers*",
            "Next: *: pytest --specdec-config=tiny --specdec-depth=* --specdec-continue kept",
        ]
    )
    begun_here(project.path / "kept")
    assert (project.path / "kept/report.md").read_text().startswith("## ⚠️" if depth == "smoke" else "## ❌")
    before = cells(project.path / "kept")
    project.run(f"--specdec-depth={depth}", "--specdec-continue=kept").assert_outcomes(passed=4)
    assert cells(project.path / "kept") == before


@pytest.mark.parametrize("other", ["--specdec-replay", "--specdec-resume"])
def test_a_run_is_taken_further_where_it_is(project, stored, other):
    result = project.run(f"--specdec-continue={stored}", f"{other}={stored}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --specdec-continue cannot be combined with {other}*"])


def test_a_run_of_an_older_release_is_refused(stored, refused_as_older):
    refused_as_older(stored, "--specdec-continue")


def test_a_report_of_an_older_release_is_refused(project, stored):
    """A report of another schema is no report without inconclusive verdicts."""
    path = stored / "run.json"
    path.write_text(path.read_text().replace("pytest-specdec/run/4", "pytest-specdec/run/3"))
    result = project.run(f"--specdec-continue={stored}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: an older release wrote this run", f"  where:    {path}", "  found:    schema 'pytest-specdec/run/3'"]
    )
