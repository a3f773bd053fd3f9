"""The calibration: what baseline and variants report of plain draws is scored, in a workload of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture import extension
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record, resume
from pytest_specdec.files import captured, transcripts
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload

pytestmark = pytest.mark.usefixtures("calibrating")
NAME = "noise.calibration"


@pytest.fixture
def drawn():
    """Forty prompts under a seed and a temperature, of which four are sent."""
    asked = tuple(
        Request(
            id=f"p{i}",
            route=Route.COMPLETIONS,
            body={"prompt": f"p{i} of drawn", "max_tokens": 6, "temperature": 0.5, "top_k": 5, "seed": i},
        )
        for i in range(40)
    )
    return Workload(name="drawn", version=1, requests=asked, concurrency=8, take={Depth.SMOKE: 2, Depth.STANDARD: 4}, draft_scored=True)


def plan_of(config, *workloads, depth=Depth.STANDARD, family=Family.SAMPLING):
    return make(config, [SelectedWorkload(workload=workload, family=family) for workload in workloads], depth)


@pytest.fixture(params=[Placement.IN_TURN, pytest.param(Placement.SIDE_BY_SIDE, marks=pytest.mark.nightly)])
def run(request, directory):
    """Capture into one directory, again with ``again``."""

    def _run(config, *workloads, depth=Depth.STANDARD, again=False):
        _run.plan = plan_of(replace(config, placement=request.param), *workloads, depth=depth)
        return (resume if again else record)(config, _run.plan, directory, deadline_s=None, tell=lambda _: None)

    return _run


def reporting(directory, name):
    """The arms whose answers to ``name`` report log-probabilities."""
    arms = ("baseline", "control", "draft-k3", "ngram-k3")
    found = {arm: transcripts.read(directory, arm, name) for arm in arms}
    return [arm for arm, transcript in found.items() if transcript and any(answer.choice.logprobs for answer in transcript.answers)]


def test_all_arms_report_and_are_scored_apart_from_what_is_judged(run, config, drawn, directory):
    assert run(config, drawn).state is State.COMPLETE
    assert (reporting(directory, NAME), reporting(directory, "drawn")) == (["baseline", "control", "draft-k3", "ngram-k3"], [])
    (own,) = run.plan.scored_by(NAME)
    assert own == ("baseline" if run.plan.placement is Placement.SIDE_BY_SIDE else "control")
    answers = transcripts.read(directory, "control" if own == "baseline" else "baseline", NAME).answers
    found = captured.read_calibrations(directory, run.plan, "draft-k3")
    pairs = found.decode
    assert len(answers) == 32
    assert [len(each) for each in pairs.answers] == [len(answer.choice.token_ids) for answer in answers]
    assert len(pairs) == sum(len(answer.choice.token_ids) for answer in answers) == 32 * 64
    assert (len(found.same_boot), len(found.verify)) == (32 * 64, 32 * 64)
    for each in (pairs, found.same_boot, found.verify):
        assert all(told == pytest.approx(position.logprob, abs=1e-4) for told, position in each)


def test_at_smoke_depth_the_one_baseline_boot_reports_as_both_of_its_arms(run, config, drawn, directory):
    assert run(config, drawn, depth=Depth.SMOKE).state is State.COMPLETE
    assert reporting(directory, NAME) == ["baseline", "control", "draft-k3", "ngram-k3"]
    first, again = (transcripts.read(directory, arm, NAME).answers for arm in ("baseline", "control"))
    assert len(first) == len(again) == 12
    assert len(captured.read_calibration(directory, run.plan)) in {12 * 64, 2 * 12 * 64}, "what both say alike counts once"


def test_a_baseline_that_refuses_to_report_leaves_the_noise_unknown(run, config, drawn, directory, with_args):
    assert run(with_args(config, refuse_fields="logprobs"), drawn).state is State.COMPLETE
    assert not captured.read_calibration(directory, run.plan)


@pytest.mark.nightly
def test_an_interrupted_calibration_is_taken_up_again(run, config, drawn, directory):
    run(config, drawn)
    directory.transcript("draft-k3", NAME).unlink()
    others = {path: path.read_bytes() for path in directory.root.glob("transcripts/*/drawn.jsonl")}
    assert run(config, drawn, again=True).state is State.COMPLETE
    assert len(captured.read_calibrations(directory, run.plan, "draft-k3").verify) == 32 * 64
    assert {path: path.read_bytes() for path in others} == others


def test_it_draws_from_the_distribution_as_it_is_without_seeds(config, drawn):
    asked = plan_of(config, drawn).workload(NAME)
    assert len(asked.requests) == 32
    assert all(request.unprocessed and request.draws_unseeded for request in asked.requests)
    assert asked.calibrates
    assert (asked.top_tokens, asked.draft_scored) == (20, False)


def test_the_distribution_is_listed_as_far_as_it_goes_whatever_the_judges_need(config, drawn):
    plain = replace(drawn, requests=tuple(replace(r, body={"prompt": r.id, "max_tokens": 6, "temperature": 1.0}) for r in drawn.requests))
    copying = replace(config, variants=config.variants[1:])
    top_tokens = {(asked.arm, asked.workload): asked.top_tokens for boot in plan_of(copying, plain).boots for asked in boot.scores}
    assert (top_tokens["baseline", "drawn"], top_tokens["baseline", NAME]) == (5, 20)


def test_the_chat_route_is_asked_in_its_own_words(config, drawn):
    bodies = {request.route: request.body for request in plan_of(config, drawn).workload(NAME).requests}
    assert (bodies[Route.CHAT]["logprobs"], bodies[Route.CHAT]["top_logprobs"]) == (True, 1)
    assert bodies[Route.COMPLETIONS]["logprobs"] == 1


def test_one_calibration_serves_all_sampling_of_a_run(config, drawn, workload):
    plan = plan_of(config, replace(drawn, name="other"), drawn)
    assert [one.name for one in plan.workloads] == ["defaults.calibration", "drawn", NAME, "other"]
    assert {judgement.workload for judgement in plan.judgements} == {"drawn", "other"}
    fuller = plan_of(config, drawn, workload("timed", timed=True), workload("wild", may_kill=True))
    assert fuller.boots[0].answers == ("timed", "defaults.calibration", "drawn", NAME, "wild")


def test_the_noise_is_measured_by_the_same_requests_whichever_tests_are_selected(config, drawn, workload):
    selections = [[(drawn, family)] for family in Family if family is not Family.SPEED] + [
        [(drawn, Family.GREEDY), (workload("more"), Family.STATE)]
    ]
    plans = [make(config, [SelectedWorkload(workload=one, family=of) for one, of in chosen], Depth.STANDARD) for chosen in selections]
    assert len({plan.workload(NAME).digest for plan in plans}) == 1
    assert all(
        {boot.arm for boot in plan.boots if NAME in boot.answers} == {"baseline", "control", "draft-k3", "ngram-k3"} for plan in plans
    )


def test_where_only_seconds_are_judged_there_is_none(config, drawn):
    assert [one.name for one in plan_of(config, drawn, family=Family.SPEED).workloads] == ["drawn"]


def test_what_is_not_scored_needs_none(config, drawn):
    assert [one.name for one in plan_of(config, replace(drawn, scored=False)).workloads] == ["drawn"]


def test_a_run_that_is_taken_further_does_not_calibrate_again(config, drawn):
    plan = plan_of(config, drawn)
    more = extension.extend(plan, {"drawn": drawn}, ["draft-k3"], 1)
    assert not any(NAME in boot.answers for boot in more.boots[len(plan.boots) :])
    assert extension.base(more).boots == plan.boots
