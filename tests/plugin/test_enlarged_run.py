"""A run whose boots take minutes is planned once: what it sends is read from its plan from then on."""

from __future__ import annotations

import json
import shutil

import pytest

TESTS = """
import pytest
from sample import *

DRAWN = workload("drawn", requests=40, body={"temperature": 1.0}, take={Depth.STANDARD: 3})


@pytest.mark.specdec(DRAWN, family="sampling")
def test_drawn(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured, Outcome.INCONCLUSIVE, cell=f"{len(specdec_captured.speculative.answers)} answers"))


@pytest.mark.specdec(CODE, family="greedy")
def test_code(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""

SLOW = {"boot_s": 200.0, "tokens_per_s": 50.0, "scored_tokens_per_s": 500.0, "scaling": 0.5, "source": "from the capture itself"}


@pytest.fixture
def slow(project, begun_here):
    """Leave a run of the same config behind, whose boots took minutes."""
    project.tests(TESTS).config("allow_inconclusive: [sampling]\n").run()
    (run,) = project.runs
    begun_here(run)
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "rates": SLOW}))
    return run


def sent(run):
    plan = json.loads((run / "plan.json").read_text())
    return {workload["name"]: len(workload["requests"]) for workload in plan["workloads"]}


def begun(project, slow, *args):
    project.run(*args, subprocess=True)
    (run,) = (run for run in project.runs if run != slow)
    return run


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_after_long_boots_more_is_sampled(project, slow, workers):
    run = begun(project, slow, *workers)
    assert sent(slow)["drawn"] == 3
    assert sent(run) == {"code": 3, "drawn": 30}
    verdicts = [judgement["verdict"] for judgement in json.loads((run / "run.json").read_text())["judgements"]]
    assert [verdict["cell"] for verdict in verdicts if verdict["family"] == "sampling"] == ["30 answers"] * 2
    assert project.captures[-1]["workloads"] == ["code", "drawn"]


def test_the_plan_says_so(project, slow):
    project.run("--co").stdout.fnmatch_lines(
        [
            "*about 1?:?? (from 1 earlier run on this machine)",
            "  a boot takes about 3:20, so each arm is sent 30 sampled requests instead of 3",
        ]
    )


@pytest.mark.examples(1)
@pytest.mark.parametrize("option", ["--specdec-resume", "--specdec-continue"])
def test_a_run_that_is_taken_up_sends_what_its_plan_says(project, slow, begun_here, option):
    run = begun(project, slow)
    begun_here(run)
    shutil.rmtree(slow)
    before = sent(run)
    project.run(f"{option}={run}", "--specdec-deadline=1000s").assert_outcomes(passed=2, skipped=2)
    assert {name: count for name, count in sent(run).items() if ".more" not in name} == before
    assert sent(run).get("drawn.more1", 30) == 30


def test_a_replay_judges_what_was_captured(project, slow):
    run = begun(project, slow)
    shutil.rmtree(slow)
    project.run(f"--specdec-replay={run}", "-rA").stdout.no_fnmatch_line("*NOT CAPTURED*")


APART = """

def pytest_collection(session):
    if getattr(session.config, "workerinput", {}).get("workerid") == "gw1":
        from pytest_specdec.capture import rates
        from pytest_specdec.model.plan import Rates

        rates.expected_rates = lambda *_: Rates(boot_s=1.0)
"""


@pytest.mark.nightly
def test_workers_that_estimate_differently_judge_one_plan(project, slow):
    """Another run may end between the plans of two workers."""
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + APART)
    run = begun(project, slow, "-n2")
    verdicts = [judgement["verdict"] for judgement in json.loads((run / "run.json").read_text())["judgements"]]
    assert [verdict["cell"] for verdict in verdicts if verdict["family"] == "sampling"] == [f"{sent(run)['drawn']} answers"] * 2
