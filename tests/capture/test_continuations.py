"""A capture of the reference engine that serves no prompt log-probabilities, beside one that does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.scoring import ScoringRequest, scorer
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.server_recipes import ServerRecipes
from pytest_specdec.files import captured, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import sampling
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.stats.raw_distribution import raw_distribution
from tests.capture.test_reference_capture import CONFIG, workload

REFUSING = replace(CONFIG, engine=replace(CONFIG.engine, args={**CONFIG.engine.args, "prompt-logprobs": False}))
WANTED = (
    SelectedWorkload(workload=workload("greedy", 0.0), family=Family.GREEDY),
    SelectedWorkload(workload=workload("sampled", 1.0, draft_scored=True), family=Family.SAMPLING),
)
NUMERICS = 5e-5
"""Nats: logits in single precision, from one long batch there and many short ones here; of 116,450 the largest was off by 1.4e-5."""
PLACED = [
    pytest.param((Depth.SMOKE, Placement.IN_TURN), marks=pytest.mark.nightly),
    pytest.param((Depth.STANDARD, Placement.IN_TURN), marks=pytest.mark.nightly),
    pytest.param(
        (Depth.SMOKE, Placement.SIDE_BY_SIDE), marks=pytest.mark.nightly
    ),  # tests/faults/test_continuations.py judges such a capture
]


@pytest.fixture(scope="module", params=PLACED, ids="-".join)
def run(request, tmp_path_factory):
    depth, placement = request.param
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / depth)
    config = replace(REFUSING, placement=placement)
    plan = make(config, WANTED, depth, ["draft-k3"])
    return plan, directory, record(config, plan, directory, deadline_s=None, tell=lambda _: None)


def scored(run):
    plan, directory, _ = run
    for boot in plan.boots:
        for asked in boot.scores:
            yield boot, asked, transcripts.read_scores(directory, boot.under, asked.arm, asked.workload)


def test_everything_is_scored_although_prompt_logprobs_are_refused(run):
    plan, directory, status = run
    assert (status.state, status.missing) == (State.COMPLETE, ())
    assert plan.route is ScoringRoute.CONTINUATIONS
    for _, asked, distributions in scored(run):
        answers = transcripts.read(directory, asked.arm, asked.workload).answers
        assert [tuple(p.token_id for p in distribution.positions) for distribution in distributions] == [
            answer.choice.token_ids for answer in answers
        ]


def test_the_probe_says_which_route_was_taken_and_what_log_probabilities_are_of(run):
    _, directory, _ = run
    found = run_documents.read_capabilities(directory)["baseline"]
    assert found.support["prompt_logprobs"] is FeatureSupport.REFUSED
    assert found.support["continuations"] is FeatureSupport.HONOURED
    assert found.route is ScoringRoute.CONTINUATIONS
    assert found.raw_logprobs


def test_a_tokens_own_log_probability_is_known_where_it_is_listed_only(run):
    for _, asked, distributions in scored(run):
        for position in (p for distribution in distributions for p in distribution.positions):
            assert len(position.top_ids) == asked.top_tokens
            assert math.isnan(position.logprob) == (position.token_id not in position.top_ids)


def test_a_judge_gets_the_form_of_the_distribution_whose_size_is_measured(run):
    """``benchmarks.size --form one-token``: an emitted token's log-probability is nan exactly where it is the tail."""
    plan, _, _ = run
    for _, asked, distributions in scored(run):
        if asked.workload == "sampled":
            found = raw_distribution(
                [p for distribution in distributions for p in distribution.positions], plan.workload("sampled").top_tokens, 4096
            )
            is_listed = (found.ids == found.chosen[:, None]).any(axis=1)
            assert (np.isnan(found.chosen_logprobs) == ~is_listed).all()


def test_both_routes_come_to_the_same_distribution(run):
    plan, directory, _ = run
    for boot in plan.boots:
        if not boot.scores:
            continue
        recipes = ServerRecipes(config=CONFIG, plan=plan, directory=directory)
        with ArmServer(recipes.recipe_of(replace(boot, index=boot.index + 100)), heartbeat=lambda: None) as arm:
            whole = scorer(ScoringRoute.PROMPT_LOGPROBS, arm, 60.0)
            for asked in boot.scores:
                distributions = {
                    distribution.key: distribution.positions
                    for distribution in transcripts.read_scores(directory, boot.under, asked.arm, asked.workload)
                }
                for answer in transcripts.read(directory, asked.arm, asked.workload).answers:
                    same(distributions[answer.key], whole.distribution(sequence(answer, asked.top_tokens)).positions)


def sequence(answer, top_tokens):
    return ScoringRequest(prompt_token_ids=answer.prompt_token_ids, token_ids=answer.choice.token_ids, top_tokens=top_tokens)


def same(mine, theirs):
    assert len(mine) == len(theirs) > 0
    for one, other in zip(mine, theirs, strict=True):
        known, true = (dict(zip(p.top_ids, p.top_logprobs, strict=True)) for p in (one, other))
        shared = known.keys() & true.keys()
        assert len(shared) >= len(known) - 1  # of two tokens that tie for the last place either may be listed
        assert all(math.isclose(known[token], true[token], abs_tol=NUMERICS) for token in shared)
        assert math.isnan(one.logprob) or math.isclose(one.logprob, other.logprob, abs_tol=NUMERICS)


def test_a_verdict_says_how_its_tokens_were_scored(run):
    plan, directory, _ = run
    (judgement,) = (judgement for judgement in plan.judgements if judgement.family is Family.SAMPLING)
    verdict = sampling.judge(captured.read(directory, plan, judgement, ()))
    assert "scored by one-token continuations" in verdict.evidence[-1]


def test_the_draft_model_alone_takes_the_route_of_its_engine(run):
    drafts = [(asked.arm, distributions) for boot, asked, distributions in scored(run) if boot.role is Role.DRAFT]
    assert {arm for arm, _ in drafts} == {"draft-k3", "control"}
    assert all(distribution.under == "draft" for _, distributions in drafts for distribution in distributions)
