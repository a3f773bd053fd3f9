"""Prompts chosen by a survey of the baseline: once, recorded, before anyone answers, and the same for all arms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec import chosen
from pytest_specdec.capture import candidates, estimate, extension, information
from pytest_specdec.capture.record import record, resume
from pytest_specdec.capture.schedule import Wanted, make
from pytest_specdec.files import calibration, captured, records, scores, transcripts
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.score import Position, Score
from pytest_specdec.model.selection import first
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from pytest_specdec.prompts import selector

ARMS = ("baseline", "control", "draft-k3", "ngram-k3")
WARMEST = ("p3", "p4", "p5")
"""The fake law is the same everywhere, so that the temperature alone makes it informative."""


@pytest.fixture
def pool():
    """Six prompts, the later the warmer, each under two seeds."""
    asked = [
        Request(
            id=f"p{i}" + (f"#{seed}" if seed > 1 else ""),
            route=Route.COMPLETIONS,
            body={"prompt": f"p{i} of pool", "max_tokens": 20, "temperature": 0.3 + 0.1 * i, "seed": seed},
            category="ab"[i % 2],
        )
        for seed in (1, 2)
        for i in range(6)
    ]
    take = {Depth.SMOKE: 2, Depth.STANDARD: 4}
    return Workload(name="pool", version=1, requests=tuple(asked), concurrency=2, take=take, survey=True)


@pytest.fixture(params=[Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def run(request, directory):
    """Capture into one directory, again with ``again``."""

    def _run(config, *workloads, depth=Depth.STANDARD, again=False):
        config = replace(config, placement=request.param)
        _run.plan = make(config, [Wanted(workload=w, family=Family.SAMPLING) for w in workloads], depth)
        return (resume if again else record)(config, _run.plan, directory, deadline_s=None, tell=lambda _: None)

    return _run


def asked(directory, arm, name="pool"):
    return [answer.request_id for answer in transcripts.read(directory, arm, name).answers]


def test_all_arms_answer_what_the_baseline_was_found_to_know_least(run, config, pool, directory):
    assert run(config, pool).state is State.COMPLETE
    selection = records.read_selections(directory)["pool"]
    assert set(selection.chosen) == set(WARMEST)
    assert [(one.id, one.category, one.tokens) for one in selection.candidates] == [(f"p{i}", "ab"[i % 2], 16) for i in range(6)]
    assert {arm: asked(directory, arm) for arm in ARMS} == {arm: [*WARMEST, "p3#2"] for arm in ARMS}
    sent = records.sent(directory, run.plan).workload("pool")
    assert {transcripts.read(directory, arm, "pool").digest for arm in ARMS} == {sent.digest}
    assert sent.digest != run.plan.workload("pool").digest
    assert records.read_plan(directory) == run.plan
    for cell in run.plan.cells:
        found = captured.read(directory, run.plan, cell, ())
        assert [request.id for request in found.workload.requests] == [*WARMEST, "p3#2"]
        assert {score.request_id for score in found.scores[cell.pair]} == {*WARMEST, "p3#2"}


def test_what_was_bought_is_counted_in_answers_that_the_survey_did_not_see(run, config, pool, directory):
    """Of 20 tokens the first 16, as many as the survey asks for, of p3, p4, p5 and p3 again; the law is the same everywhere."""
    run(config, pool)
    each = {one.id: one.per_token for one in records.read_selections(directory)["pool"].candidates}
    mean, bought = sum(each.values()) / 6, (2 * each["p3"] + each["p4"] + each["p5"]) / 4
    (said,) = chosen.notes(directory, records.sent(directory, run.plan))
    assert said.startswith(f"pool: 3 of 6 prompts chosen for information by a survey of 96 tokens, {mean:.2f} informative ones per token; ")
    assert said.endswith(f"; {bought:.2f} in the first 16 of the baseline's answers to the chosen")
    assert bought > mean
    records.write_selection(directory, first(pool, "no reason"))
    assert chosen.notes(directory, run.plan) == ("pool: the first 3 prompts are sent, none chosen for information: no reason",)


def test_without_the_baselines_scores_nothing_is_said_of_what_was_bought(run, config, pool, directory):
    run(config, pool)
    directory.scores("baseline", "baseline", "pool").unlink()
    (said,) = chosen.notes(directory, records.sent(directory, run.plan))
    assert said.endswith("informative ones per token")


def test_the_surveys_answers_and_scores_are_kept_and_their_seeds_never_come_again(run, config, pool, directory):
    run(config, pool)
    found = transcripts.read(directory, "baseline", "pool.survey")
    law = scores.read(directory, "baseline", "baseline", "pool.survey")
    assert asked(directory, "baseline", "pool.survey") == [f"p{i}" for i in range(6)]
    assert [tuple(p.token_id for p in score.positions) for score in law] == [answer.choice.token_ids for answer in found.answers]
    survey = candidates.survey(pool, reported=Route)
    assert survey.digest == found.digest
    assert calibration.read(directory, run.plan) == (), "these prompts ask for a temperature"
    assert information.found(survey, law, 40) == records.read_selections(directory)["pool"].candidates
    seeds = {request.body["seed"] for request in survey.requests}
    assert len(seeds) == 6
    assert not seeds & {request.body["seed"] for request in pool.requests}


def test_the_survey_of_a_pool_without_seeds_has_seeds_of_its_own(pool):
    """So that what an engine draws for the survey, as its own seed has it, is not what it draws for the answers."""
    unseeded = replace(pool, requests=tuple(replace(r, body={k: v for k, v in r.body.items() if k != "seed"}) for r in pool.requests))
    survey = candidates.survey(unseeded, reported=Route)
    assert len({request.seed for request in survey.requests}) == len(survey.requests) == 6
    assert len(survey.turns) == 1


def test_a_server_that_refuses_to_report_is_surveyed_without(run, config, pool, directory, with_args):
    refusing = with_args(config, refuse_fields="logprobs")
    assert run(refusing, pool).state is State.COMPLETE
    assert records.read_selections(directory)["pool"].informative
    assert transcripts.read(directory, "baseline", "pool.survey").digest == candidates.survey(pool, reported=()).digest
    assert calibration.read(directory, run.plan) == ()


def test_the_survey_calibrates_where_it_draws_from_the_law_as_it_is(run, config, pool, directory):
    plain = tuple(replace(request, body={**request.body, "temperature": 1.0}) for request in pool.requests)
    run(config, replace(pool, requests=plain))
    said = transcripts.read(directory, "baseline", "pool.survey").answers
    pairs = calibration.read(directory, run.plan)
    assert len(pairs) == sum(len(answer.choice.token_ids) for answer in said) == 96
    assert all(reported == pytest.approx(position.logprob, abs=1e-4) for reported, position in pairs)


def test_chat_prompts_are_asked_for_what_the_chat_route_reports(pool):
    chat = replace(pool, requests=tuple(replace(request, route=Route.CHAT) for request in pool.requests))
    bodies = [request.body for request in candidates.survey(chat, reported=[Route.CHAT]).requests]
    assert all((body["logprobs"], body["top_logprobs"]) == (True, 1) for body in bodies)
    assert not [r for r in candidates.survey(chat, reported=[Route.COMPLETIONS]).requests if "logprobs" in r.body]


def test_a_seed_that_the_pool_has_is_not_used_again(pool):
    (taken,) = {request.body["seed"] for request in candidates.survey(pool, reported=Route).requests[:1]}
    again = replace(pool, requests=(*pool.requests, replace(pool.requests[0], id="p0#3", body={**pool.requests[0].body, "seed": taken})))
    assert candidates.survey(again, reported=()).requests[0].body["seed"] == taken + 1


def test_nobody_answers_before_the_choice_and_timed_passes_come_before_the_survey(run, config, pool, workload, directory):
    run(config, pool, workload("speed", requests=2, timed=True, passes=2, concurrency=1, scored=False))
    surveyed = [answer.timing for answer in transcripts.read(directory, "baseline", "pool.survey").answers]
    for arm in ARMS:
        assert min(a.timing.sent_s for a in transcripts.read(directory, arm, "pool").answers) >= max(t.done_s for t in surveyed)
    timed = transcripts.read(directory, "baseline", "speed").answers
    assert max(answer.timing.done_s for answer in timed) <= min(t.sent_s for t in surveyed)


def test_what_was_chosen_once_is_never_chosen_anew(run, config, pool, directory, with_args, monkeypatch):
    first = run(with_args(config, "ngram-k3", boot="die"), pool)
    assert [missing.arm for missing in first.missing] == ["ngram-k3"]
    directory.transcript("baseline", "pool").unlink()
    kept = [directory.selection_of("pool"), directory.transcript("draft-k3", "pool"), directory.transcript("baseline", "pool.survey")]
    before = {path: path.read_bytes() for path in kept}
    monkeypatch.setattr(selector, "ranked", lambda *_: ("p0", "p1", "p2"))
    assert run(config, pool, again=True).state is State.COMPLETE
    assert {path: path.read_bytes() for path in before} == before
    assert {tuple(asked(directory, arm)) for arm in ARMS} == {(*WARMEST, "p3#2")}


def test_a_capture_that_was_ended_before_the_choice_chooses_when_it_is_taken_up(run, config, pool, directory, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(selector, "selected", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(config, pool)
    assert records.read_selections(directory) == {}
    assert run(config, pool, again=True).state is State.COMPLETE
    assert {tuple(asked(directory, arm)) for arm in ARMS} == {(*WARMEST, "p3#2")}


def test_where_nothing_can_be_scored_the_first_prompts_are_sent_and_it_is_said(run, config, pool, directory, with_args):
    run(with_args(config, no_prompt_logprobs=True), pool)
    selection = records.read_selections(directory)["pool"]
    assert selection.plain == "0 of 6 have scored answers: prompt_logprobs ignored, continuations ignored"
    assert {tuple(asked(directory, arm)) for arm in ARMS} == {("p0", "p1", "p2", "p0#2")}


def test_a_question_that_kills_the_baseline_costs_one_candidate(run, config, pool, directory, with_args):
    run(with_args(config, "baseline", die_on="p5 of pool"), pool)
    selection = records.read_selections(directory)["pool"]
    assert [one.tokens for one in selection.candidates] == [16, 16, 16, 16, 16, 0]
    assert set(selection.chosen) == {"p2", "p3", "p4"}


def test_at_smoke_depth_there_is_no_survey_and_the_first_prompts_are_sent(run, config, pool, directory):
    assert run(config, pool, depth=Depth.SMOKE).state is State.COMPLETE
    assert (run.plan.pools, records.read_selections(directory)) == ({}, {})
    assert asked(directory, "draft-k3") == ["p0", "p1"]
    assert transcripts.read(directory, "baseline", "pool.survey") is None


def test_more_of_a_chosen_workload_is_more_of_the_chosen_prompts(run, config, pool, directory):
    run(config, pool)
    sent = records.sent(directory, run.plan)
    half = records.read_selections(directory)["pool"].applied(pool)
    more = extension.extended(sent, {"pool": half}, ["draft-k3"], 1)
    ids = [request.id for request in more.workload("pool.more1").requests]
    assert ids == ["p4#2", "p5#2", "p3@1.1", "p4@1.1"]
    assert records.sent(directory, more) == more
    assert not any(boot.chooses for boot in more.boots[len(sent.boots) :])


def test_the_plan_says_which_boot_chooses_and_what_that_costs(config, pool, workload):
    plan = make(config, [Wanted(workload=w, family=Family.SAMPLING) for w in (pool, workload())], Depth.STANDARD)
    assert [boot.chooses for boot in plan.boots] == [("pool",), (), (), ()]
    assert plan.pools == {"pool": pool}
    assert [request.id for request in plan.workload("pool").requests] == ["p0", "p1", "p2", "p0#2"]
    pace = type("Pace", (), {"boot_s": 1.0, "tokens_per_s": 10.0, "scored_tokens_per_s": 100.0})
    steps = estimate.steps(plan.boots, plan.workloads, pace, pools=plan.pools)
    surveyed = {step.doing: step.seconds for step in steps if step.workload == "pool.survey"}
    assert surveyed == {"answering": pytest.approx(6 * 16 / 10.0), "scoring": pytest.approx(6 * 16 / 100.0)}


def test_unscored_workloads_are_no_pools(config, pool):
    plan = make(config, [Wanted(workload=replace(pool, scored=False), family=Family.LIVENESS)], Depth.STANDARD)
    assert (plan.pools, plan.boots[0].chooses) == ({}, ())
    assert [request.id for request in plan.workload("pool").requests] == ["p0", "p1", "p2", "p0#2"]


@pytest.mark.parametrize(
    "body, expected",
    [
        ({}, 1.0),
        ({"temperature": 0.0}, 0.0),
        ({"top_k": 1}, 0.0),
        ({"top_p": 0.5}, 0.0),
        ({"min_p": 0.9}, 0.0),
        ({"temperature": 0.5}, 2.0),
    ],
)
def test_information_is_that_of_the_law_as_requested(body, expected):
    """Two tokens of 0.8 and 0.2: Var(log p) = 0.16 log(4)^2; at half the temperature 16/17 and 1/17, so 16/289 log(16)^2."""
    from math import log

    position = Position(token_id=0, logprob=log(0.8), atom_ids=(0, 1), atom_logprobs=(log(0.8), log(0.2)))
    request = Request(id="a", route=Route.COMPLETIONS, body={"prompt": "p", **body})
    survey = Workload(name="w.survey", version=1, requests=(request,))
    law = Score(request_id="a", arm="baseline", under="baseline", positions=(position, position))
    (found,) = information.found(survey, [law], 2)
    plain, cooled = 2 * 0.16 * log(4) ** 2, 2 * 16 / 289 * log(16) ** 2
    assert found.information == pytest.approx({0.0: 0.0, 1.0: plain, 2.0: cooled}[expected], abs=1e-6)
    assert found.tokens == 2
