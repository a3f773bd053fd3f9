from __future__ import annotations

import json

import pytest

TIMED = """
import pytest
from sample import *


@pytest.mark.specdec(workload("timed", timed=True), family="speed")
def test_it(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""
ORDER = ["baseline", "draft-k3", "ngram-k3", "control", "ngram-k3", "draft-k3", "baseline", "draft-k3", "ngram-k3", "baseline"]


def arms(run):
    return [boot["arm"] for boot in json.loads((run / "plan.json").read_text())["boots"]]


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_further_boots_are_planned_said_and_captured(project, workers):
    result = project.tests(TIMED).run("--specdec-boots=3", *workers, subprocess=bool(workers))
    result.assert_outcomes(passed=2)
    (run,) = project.runs
    assert arms(run) == ORDER
    stored = {path.parent.name for path in (run / "transcripts").glob("*/timed.jsonl")}
    assert stored >= {"draft-k3", "draft-k3.boot2", "draft-k3.boot3", "baseline.boot3"}
    if not workers:
        result.stdout.fnmatch_lines(["*10 boots (baseline, draft-k3, ngram-k3, control, ngram-k3 again, draft-k3 again, baseline again,*"])


def test_a_replay_has_the_boots_of_its_run(project):
    project.tests(TIMED).run("--specdec-boots=2")
    (run,) = project.runs
    project.run(f"--specdec-replay={run}").assert_outcomes(passed=2)
    result = project.run(f"--specdec-replay={run}", "--specdec-boots=2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--specdec-boots: found --specdec-replay; expected a new run*"])


def test_a_resumed_run_keeps_its_boots(project, monkeypatch, begun_here):
    monkeypatch.setenv("FAKE_CAPTURE", "missing:ngram-k3")
    project.tests(TIMED).run("--specdec-boots=3")
    monkeypatch.delenv("FAKE_CAPTURE")
    (run,) = project.runs
    begun_here(run)
    project.run(f"--specdec-resume={run}").assert_outcomes(passed=2)
    assert arms(run) == ORDER


def test_attached_servers_are_not_booted_again(project):
    result = project.config("baseline: {url: 'http://127.0.0.1:9'}\n").tests(TIMED).run("--specdec-boots=2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*an attached server is not booted*", "*--specdec-boots*"])
    assert not project.captures
