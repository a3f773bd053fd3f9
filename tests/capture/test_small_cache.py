"""A workload that asks for a small cache: baseline and variants answer it from servers of their own, and count whom they preempt."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.server import readiness
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.workload_runner import WorkloadResult, WorkloadRunner
from pytest_specdec.engines.tensorrt_llm.dialect import TensorRtLlmDialect
from pytest_specdec.files import captured, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import pressure
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import Transcript
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts import pressure as prompts
from tests.capture.test_reference_capture import CONFIG, workload

TOGETHER = prompts.together(max_tokens=48, take={Depth.STANDARD: 8})
WANTED = [
    SelectedWorkload(workload=workload("plain", 0.0), family=Family.GREEDY),
    SelectedWorkload(workload=TOGETHER, family=Family.PRESSURE),
]


@pytest.mark.nightly  # `make suites` has such servers
@pytest.mark.parametrize("placement", [Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def test_servers_with_a_small_cache_preempt_and_are_judged_by_the_usual_one(placement, tmp_path):
    config = replace(CONFIG, placement=placement, variants=CONFIG.variants[1:])
    directory, plan = RunDirectory.create(tmp_path / "run"), make(config, WANTED, Depth.STANDARD)
    status = record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert status.state is State.COMPLETE
    arms = {arm: transcripts.read(directory, arm, TOGETHER.name) for arm in ("baseline", "ngram-k3", "control")}
    assert all(arms[arm].preemptions > 0 for arm in ("baseline", "ngram-k3"))
    assert arms["control"].preemptions == 0
    assert transcripts.read(directory, "baseline", "plain").preemptions is None
    assert {arm: plan.boots[transcript.boot].small_cache for arm, transcript in arms.items()} == {
        "baseline": True,
        "ngram-k3": True,
        "control": False,
    }
    (judgement,) = (each for each in plan.judgements if each.family is Family.PRESSURE)
    assert pressure.judge(captured.read(directory, plan, judgement, ())).outcome is Outcome.PASS


IDLE_ROUNDS = {"baseline": 3, "ngram-k3": 2}


@pytest.mark.nightly
def test_requests_that_preempt_nothing_are_sent_again_at_most_twice(tmp_path, monkeypatch):
    """A round reads the count before and after."""
    read_count, readings = ArmServer.preemptions, Counter()

    def idle_first(arm):
        readings[arm] += 1
        is_idle = readings[arm] <= 2 * IDLE_ROUNDS["ngram-k3" if arm.recipe.setup.speculative else "baseline"]
        return 0 if is_idle else read_count(arm)

    monkeypatch.setattr(ArmServer, "preemptions", idle_first)
    config = replace(CONFIG, placement=Placement.IN_TURN, variants=CONFIG.variants[1:])
    directory, plan, steps = RunDirectory.create(tmp_path / "run"), make(config, WANTED[1:], Depth.STANDARD), []
    assert record(config, plan, directory, deadline_s=None, tell=steps.append).state is State.COMPLETE
    preempted = {arm: transcripts.read(directory, arm, TOGETHER.name).preemptions for arm in IDLE_ROUNDS}
    assert (preempted["baseline"], preempted["ngram-k3"] > 0) == (0, True)
    assert [step.arm for step in steps if "did not overlap enough" in step.doing] == ["baseline", "baseline", "ngram-k3", "ngram-k3"]


PAUSED = '[{"inflightBatchingStats": {"numPausedRequests": %d}}]'


@pytest.mark.parametrize("restarts", [0, 1])
def test_counts_that_every_reading_resets_go_on_over_a_restart(restarts, config, recipe, monkeypatch):
    """Their sum has the requests that an earlier workload of the boot paused; only a count of the server's own begins anew."""
    pages = [PAUSED % 5, PAUSED % 0, PAUSED % 0, PAUSED % 3, *[PAUSED % 0] * 30]
    monkeypatch.setattr(readiness, "get", lambda *_, **__: pages.pop(0))
    arm = ArmServer(replace(recipe(config), dialect=TensorRtLlmDialect("m", {}, completions_list_tokens=True)), lambda: None)
    monkeypatch.setattr(ArmServer, "running", True)
    assert arm.preemptions() == 5
    reporter = SimpleNamespace(left_s=math.inf, update=lambda *_: None)
    runner = WorkloadRunner(arm, TOGETHER, name="v", boot=0, deadlines=SimpleNamespace(limit_s=60.0), reporter=reporter)
    runner.begin()
    arm.restarts += restarts
    runner.end()
    assert runner.result().transcript.preemptions == 3


def test_a_further_round_that_is_cut_short_leaves_the_whole_one_before_it():
    whole = WorkloadResult(transcript=Transcript(arm="v", boot=0, workload="small", digest="d", answers=(), preemptions=0), missing="")
    cut = replace(whole, missing="no time is left")
    session = SimpleNamespace(reporter=SimpleNamespace(left_s=100.0, say=lambda _text: None), _answer_round=lambda _runner: cut)
    assert BootSession._repeat_until_preempted(session, whole, lambda: None) is whole
