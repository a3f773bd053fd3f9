"""A run that could not tell takes more requests into the same judgement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture import extension
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, make
from pytest_specdec.capture.runner import record, resume
from pytest_specdec.files import captured, run_documents
from pytest_specdec.model.plan import ROUNDS, Placement, Role
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family


@pytest.fixture
def whole(workload):
    drawn = workload("drawn", requests=7, draft_scored=True, take={Depth.SMOKE: 3})
    return replace(drawn, requests=tuple(replace(r, body={**r.body, "seed": i}) for i, r in enumerate(drawn.requests)))


@pytest.fixture(params=[Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def plan(request, config, workload, whole):
    wanted = [SelectedWorkload(workload=whole, family=Family.SAMPLING), SelectedWorkload(workload=workload(), family=Family.GREEDY)]
    return make(replace(config, placement=request.param), wanted, Depth.SMOKE)


def further(plan, whole, round_, pairs=("draft-k3",)):
    return extension.extend(plan, {"drawn": whole}, pairs, round_)


def asked(plan, name):
    return [request.id for request in plan.workload(name).requests]


def test_the_rest_of_the_list_comes_first_and_then_all_of_it_under_fresh_seeds(plan, whole):
    once = further(plan, whole, 1)
    assert asked(once, "drawn.more1") == ["p3", "p4", "p5"]
    twice = further(once, whole, 2)
    assert asked(twice, "drawn.more2") == ["p6", "p0@2.1", "p1@2.1", "p2@2.1", "p3@2.1", "p4@2.1"]
    requests = twice.workload("drawn.more2").requests
    assert requests[0] == whole.requests[6]
    assert len({request.body["seed"] for request in requests[1:]}) == 5
    assert requests[1].body["prompt"] == whole.requests[0].body["prompt"]
    assert twice == further(further(plan, whole, 1), whole, 2)
    assert twice.extensions == {"drawn": ("drawn.more1", "drawn.more2")}


def test_what_was_asked_without_seeds_is_asked_so_again(plan, whole):
    unseeded = replace(whole, requests=tuple(replace(r, body={k: v for k, v in r.body.items() if k != "seed"}) for r in whole.requests))
    plan = replace(plan, workloads=tuple(unseeded.at(Depth.SMOKE) if w.name == "drawn" else w for w in plan.workloads))
    twice = further(further(plan, unseeded, 1), unseeded, 2)
    requests = twice.workload("drawn.more2").requests
    assert [request.id for request in requests[:2]] == ["p6", "p0@2.1"]
    assert {request.seed for request in requests} == {None}
    assert requests[1].body == unseeded.requests[0].body


def test_a_round_is_added_once_and_can_be_taken_off(plan, whole):
    once = further(plan, whole, 1)
    assert further(once, whole, 1) is once
    assert replace(extension.base(further(once, whole, 2)), estimate_s=plan.estimate_s) == plan
    assert (extension.rounds(plan), extension.rounds(once)) == (0, 1)


@pytest.mark.parametrize("placement", [Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def test_a_plan_knows_what_asking_again_adds_at_most(config, workload, placement):
    """All rounds of every workload with counts, which a run with open counts in all of them would ask."""
    config = replace(config, placement=placement)
    counted = SelectedWorkload(workload=workload(), family=Family.GREEDY)
    drawn = SelectedWorkload(workload=workload("drawn"), family=Family.SAMPLING)
    plan = make(config, [counted, drawn], Depth.STANDARD)
    again = extension.extend(plan, {"greedy": workload()}, [pair.name for pair in plan.pairs], 1, again={"greedy"})
    assert plan.again_s == ROUNDS * again.estimate_s > 0
    assert plan.estimate_s == make(config, [counted, drawn], Depth.STANDARD, options=PlanOptions(deadline_s=1e9)).estimate_s
    for wanted, depth, deadline_s in (([drawn], Depth.STANDARD, None), ([counted], Depth.SMOKE, None), ([counted], Depth.STANDARD, 1e9)):
        assert make(config, wanted, depth, options=PlanOptions(deadline_s=deadline_s)).again_s == 0.0


def test_no_share_and_no_judgement_is_added(plan, whole):
    assert further(plan, whole, 1).judgements == plan.judgements


def test_a_round_boots_its_variants_one_baseline_and_their_drafts(plan, whole):
    added = further(plan, whole, 1).boots[len(plan.boots) :]
    assert sorted(boot.role for boot in added) == sorted([Role.VARIANT, Role.CONTROL, Role.DRAFT])
    assert [boot.index for boot in added] == [len(plan.boots) + i for i in range(3)]
    assert {name for boot in added for name in boot.answers} == {"drawn.more1"}


@pytest.mark.examples(1)
def test_more_answers_are_judged_together_with_those_that_were_there(config, plan, whole, directory):
    config = replace(config, placement=plan.placement)
    first = record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    before = {path: path.read_bytes() for path in directory.root.rglob("*.jsonl") if path.name != "progress.jsonl"}
    more = further(plan, whole, 1)
    run_documents.write_plan(directory, more)
    status = resume(config, more, directory, deadline_s=None, tell=lambda _: None)
    assert (status.state, status.boots) == (State.COMPLETE, first.boots + 3)
    assert {path: path.read_bytes() for path in before} == before
    stored = run_documents.read_plan(directory)
    drawn = {
        judgement.pair: captured.read(directory, stored, judgement, ())
        for judgement in stored.judgements
        if judgement.family is Family.SAMPLING
    }
    one, other = drawn["draft-k3"], drawn["ngram-k3"]
    ids = [f"p{i}" for i in range(6)]
    for transcript in (one.baseline, one.control, one.speculative):
        assert [answer.request_id for answer in transcript.answers] == ids
    assert [request.id for request in one.workload.requests] == ids
    assert all([score.request_id for score in one.scores[arm]] == ids for arm in ("draft-k3", "control", "baseline"))
    assert [score.request_id for score in one.draft_scores["draft-k3"]] == ids
    assert one.speculative.counters.drafts == sum(len(a.choice.windows) - 1 for a in one.speculative.answers)
    assert [answer.request_id for answer in other.speculative.answers] == ids[:3]
    assert one.alpha == other.alpha == plan.judgements[0].alpha


def test_what_counts_left_open_is_asked_again_in_the_same_traffic_behind_other_prefixes(plan, whole, workload):
    name = workload().name
    again = extension.extend(plan, {"drawn": whole, name: workload()}, ["draft-k3"], 1, again={name})
    first, more = again.workload(name), again.workload(f"{name}.more1")
    assert replace(more, name=name, requests=first.requests) == first
    assert [request.body["prompt"] for request in more.requests] == [f"Part 1.\n\n{request.body['prompt']}" for request in first.requests]
    assert [(each.id, each.body.keys()) for each in more.requests] == [(each.id, each.body.keys()) for each in first.requests]
    assert asked(again, "drawn.more1") == ["p3", "p4", "p5"]
    answering = {boot.arm for boot in again.boots[len(plan.boots) :] if f"{name}.more1" in boot.answers}
    assert "draft-k3" in answering
