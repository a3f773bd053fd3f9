"""Enlargement: long boots are asked more of what is sampled, at a stated price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture import enlargement
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, make
from pytest_specdec.config import load
from pytest_specdec.config.config import Overlay
from pytest_specdec.model.plan import Placement, Rates
from pytest_specdec.model.workload import Depth, Family
from tests.test_suites import wanted

pytestmark = pytest.mark.usefixtures("calibrating")
CONFIGS = Path(__file__).parents[2] / "suites" / "configs"
LONG = Rates(boot_s=120.0, tokens_per_s=20.0, scored_tokens_per_s=1500.0, scaling=0.8)
GPU = Rates(boot_s=120.0, tokens_per_s=60.0, scored_tokens_per_s=1500.0, scaling=0.8)


@pytest.fixture
def plan(config, workload):
    """Plan a sampled workload of 5 out of 100 requests beside one of each other kind."""
    take = {Depth.SMOKE: 2, Depth.STANDARD: 5}
    entries = [
        SelectedWorkload(workload=workload("sampled", requests=100, take=take), family=Family.SAMPLING),
        SelectedWorkload(workload=workload("greedy", requests=100, take=take), family=Family.GREEDY),
        SelectedWorkload(workload=workload("timed", requests=100, take=take, timed=True), family=Family.SPEED),
        SelectedWorkload(workload=workload("both", requests=100, take=take), family=Family.SAMPLING),
        SelectedWorkload(workload=workload("both", requests=100, take=take), family=Family.SPEED),
    ]

    def _plan(rates=LONG, depth=Depth.STANDARD, config=config, entries=entries, **more):
        return make(config, entries, depth, options=PlanOptions(rates=rates, **more))

    return _plan


def sizes(plan):
    return {workload.name: len(workload.requests) for workload in plan.workloads}


def test_long_boots_are_asked_up_to_ten_times_what_is_sampled_and_nothing_else(plan):
    found = plan()
    assert sizes(found) == {"sampled": 50, "greedy": 5, "timed": 5, "both": 50, "noise.calibration": 32, "defaults.calibration": 24}
    assert found.enlarged == {"sampled": 5, "both": 5}


def test_the_workloads_own_list_is_the_end(plan, workload):
    short = [SelectedWorkload(workload=workload("sampled", requests=12, take={Depth.STANDARD: 5}), family=Family.SAMPLING)]
    assert sizes(plan(entries=short))["sampled"] == 12
    whole = [SelectedWorkload(workload=workload("sampled", requests=12), family=Family.SAMPLING)]
    assert plan(entries=whole).enlarged == {}


@pytest.mark.parametrize("placement", [Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def test_more_requests_cost_at_most_a_third_of_the_boots_and_no_half_step_more_would_fit(placement):
    config = replace(load.load(CONFIGS / "qwen3-eagle3.yaml"), placement=placement)
    found, usual = (make(config, wanted(), Depth.STANDARD, options=PlanOptions(rates=GPU, enlarged=enlarged)) for enlarged in (None, {}))
    usual_boots = [boot for boot in usual.boots if not boot.small_cache]
    boots = len(usual_boots) * GPU.boot_s if placement is Placement.IN_TURN else GPU.boot_s * 1.4
    assert 0 < found.estimate_s - usual.estimate_s <= boots / 3
    factor = sizes(found)["long-sampled"] / sizes(usual)["long-sampled"]
    more = {name: int((factor + 0.5) * size) for name, size in found.enlarged.items()}
    assert 2 < factor < 10
    assert make(config, wanted(), Depth.STANDARD, options=PlanOptions(rates=GPU, enlarged=more)).estimate_s - usual.estimate_s > boots / 3


def test_the_suites_are_asked_more_in_sampling_only():
    config = load.load(CONFIGS / "qwen3-eagle3.yaml")
    found, usual = (make(config, wanted(), Depth.STANDARD, options=PlanOptions(rates=GPU, enlarged=enlarged)) for enlarged in (None, {}))
    assert set(found.enlarged) == {"all-sampled", "all-sampled-p0.9", "copy-sampled-t0.6", "long-sampled"}
    assert found.enlarged == {name: sizes(usual)[name] for name in found.enlarged}
    digests = [{w.name: w.digest for w in one.workloads if w.name not in found.enlarged} for one in (found, usual)]
    assert digests[0] == digests[1]


def test_visits_of_attached_servers_are_no_boots(plan, config):
    baseline = replace(config, baseline=Overlay(url="http://a:1"))
    everything = replace(config, engine=replace(config.engine, url="http://a:1"))
    found, usual = (plan(GPU, config=baseline, enlarged=enlarged) for enlarged in (None, {}))
    booted = sum(not boot.attached for boot in usual.boots)
    assert 0 < booted < len(usual.boots)
    assert 0 < found.estimate_s - usual.estimate_s <= booted * GPU.boot_s / 3
    assert plan(config=everything).enlarged == {}


def test_a_draft_model_that_answers_nothing_is_no_boot_that_pays(plan, config, workload):
    """Its boot scores drafts: what the servers that answer cost is what more answers may cost a part of."""
    entries = [
        SelectedWorkload(workload=workload("sampled", requests=999, take={Depth.STANDARD: 5}, draft_scored=True), family=Family.SAMPLING)
    ]
    dear = replace(GPU, tokens_per_s=1.0, scored_tokens_per_s=1e9)
    found, usual = (plan(dear, entries=entries, enlarged=enlarged) for enlarged in (None, {}))
    answering = sum(bool(boot.answers) for boot in usual.boots)
    assert answering < len(usual.boots)
    assert 0 < found.estimate_s - usual.estimate_s <= answering * dear.boot_s / 3


def test_shares_and_boots_stay(plan):
    found, usual = plan(), plan(enlarged={})
    assert (found.judgements, found.boots) == (usual.judgements, usual.boots)
    assert found.estimate_s > usual.estimate_s


@pytest.mark.examples(2)
@pytest.mark.parametrize("name", ["reference", "reference-continuations", "vllm-cpu", "vllm-cpu-padded"])
def test_a_run_of_an_engine_that_boots_quickly_is_as_its_depth_says(name):
    config = load.load(CONFIGS / f"{name}.yaml")
    plan = make(config, wanted(), Depth.STANDARD)
    assert plan.enlarged == {}
    assert sizes(plan)["all-sampled"] == 56
    loaded = replace(plan.rates, boot_s=89.0)
    assert make(config, wanted(), Depth.STANDARD, options=PlanOptions(rates=loaded)).enlarged == {}


@pytest.mark.parametrize("depth", [Depth.SMOKE, Depth.DEEP])
def test_a_quick_look_stays_quick_and_the_deepest_has_no_more(plan, depth):
    assert plan(depth=depth).enlarged == {}


def test_a_deadline_is_not_planned_past(plan):
    usual = plan(enlarged={})
    assert plan(deadline_s=usual.estimate_s + 1e6) == replace(plan(), again_s=0.0)
    some = plan(deadline_s=usual.estimate_s + 15.0)
    assert 5 < sizes(some)["sampled"] < 50
    assert some.estimate_s <= usual.estimate_s + 15.0
    assert plan(deadline_s=1.0) == replace(usual, again_s=0.0)


def test_what_was_taken_is_taken_again_whatever_boots_cost_now(plan):
    begun = plan()
    again = {name: sizes(begun)[name] for name in begun.enlarged}
    assert plan(rates=begun.rates, enlarged=again, deadline_s=1.0) == replace(begun, again_s=0.0)
    assert sizes(plan(rates=Rates(boot_s=1.0), enlarged=again)) == sizes(begun)


def test_a_dearer_token_buys_fewer_requests():
    config = load.load(CONFIGS / "qwen3-eagle3.yaml")
    bought = [
        sizes(make(config, wanted(), Depth.STANDARD, options=PlanOptions(rates=replace(GPU, tokens_per_s=per_s))))["all-sampled"]
        for per_s in (10, 20, 60, 300)
    ]
    assert bought == sorted(set(bought))
    assert bought[-1] == 320
    assert enlargement.MOST == 10
