"""A workload that asks for a small cache: baseline and variants answer it from servers of their own, and count whom they preempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.files import captured, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import pressure
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts import pressure as prompts
from tests.capture.test_reference_capture import CONFIG, workload

TOGETHER = prompts.together(max_tokens=48, take={Depth.STANDARD: 8})
WANTED = [
    SelectedWorkload(workload=workload("plain", 0.0), family=Family.GREEDY),
    SelectedWorkload(workload=TOGETHER, family=Family.PRESSURE),
]


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
