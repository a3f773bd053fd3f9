"""What a survey chose is what is judged, replayed, taken up and taken further, and the run says so."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.judge import sampling

LOADED = (sampling,)
"""Once for all sessions in this process: it judges the control, and numpy cannot be imported a second time."""

TESTS = """
import pytest
from sample import *

POOL = workload("pool", requests=8, body={"temperature": 1.0}, survey=True, scored=True, take={Depth.STANDARD: 2})


@pytest.mark.specdec(POOL, family="sampling")
def test_pool(specdec_captured, specdec_check):
    ids = [answer.request_id for answer in specdec_captured.speculative.answers]
    assert ids == [request.id for request in specdec_captured.workload.requests]
    outcome = Outcome.PASS if len(ids) >= ENOUGH else Outcome.INCONCLUSIVE
    specdec_check(say(specdec_captured, outcome, cell=" ".join(ids)))
"""
NOTE = "pool: 4 of 8 prompts chosen for information by a survey of 32 tokens, 1.00 informative ones per token"


def enough(answers):
    return TESTS.replace("ENOUGH", str(answers))


@pytest.fixture
def stored(project, begun_here):
    project.tests(enough(4)).run()
    (run,) = project.runs
    begun_here(run)
    return run


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_the_chosen_prompts_are_judged_and_the_run_says_what_was_chosen(project, workers):
    result = project.tests(enough(2)).run(*workers, subprocess=True)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*pool-4 pool-5*", f"note: {NOTE}"])
    assert NOTE in project.document["notes"]
    assert NOTE in (project.runs[0] / "report.md").read_text()
    (sent,) = project.document["plan"]["workloads"]
    transcript = (project.runs[0] / "transcripts" / "baseline" / "pool.jsonl").read_text()
    assert json.loads(transcript.splitlines()[0])["digest"] == sent["digest"]


def test_a_replay_judges_what_was_chosen(project):
    project.tests(enough(2)).run()
    result = project.run(f"--specdec-replay={project.runs[0]}", config=None)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*pool-4 pool-5*", f"note: {NOTE}"])


def test_a_run_is_taken_further_with_the_prompts_that_were_chosen(project, stored):
    result = project.run(f"--specdec-continue={stored}")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*pool-4 pool-5 pool-6 pool-7*"])
    project.run(f"--specdec-resume={stored}").assert_outcomes(passed=2)
    assert len(project.captures) == 2


def test_a_run_is_taken_up_with_the_prompts_that_were_chosen(project, monkeypatch, begun_here):
    monkeypatch.setenv("FAKE_CAPTURE", "missing:ngram-k3")
    project.tests(enough(2)).run().assert_outcomes(passed=1, errors=1)
    monkeypatch.delenv("FAKE_CAPTURE")
    (run,) = project.runs
    begun_here(run)
    before = (run / "selections" / "pool.json").read_bytes()
    project.run(f"--specdec-resume={run}").assert_outcomes(passed=2)
    assert (run / "selections" / "pool.json").read_bytes() == before
