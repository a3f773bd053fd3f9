from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_diagnosis import IGNORED, IGNORED_AT_DRAFTS
from pytest_specdec.model.captured import Captured
from pytest_specdec.model.transcript import Position
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.penalties import Penalties
from pytest_specdec.stats.request_params import penalties
from tests.judge.captured_values import VARIANT, answer, captured, score

OTHER = 7


def two_top_tokens(token: int, *, chosen: int | None = None, gap: float = 0.5) -> Position:
    """``token`` is the raw favourite, OTHER lies ``gap`` below."""
    laid = {token: -0.5, OTHER: -0.5 - gap}
    mine = token if chosen is None else chosen
    return Position(token_id=mine, logprob=laid[mine], top_ids=tuple(laid), top_logprobs=tuple(laid.values()))


def test_presence_counts_once_and_frequency_each_time():
    distribution = greedy.penalised([two_top_tokens(1), two_top_tokens(1), two_top_tokens(1)], Penalties(presence=0.8, frequency=0.3))
    assert [round(position.logprob, 6) for position in distribution] == [-0.5, -1.6, -1.9]
    assert [position.top_ids[0] for position in distribution] == [1, OTHER, OTHER]


def test_a_token_that_is_not_told_counts_with_the_most_that_it_can_be():
    """Every top token may be penalised below it: to put it below the lowest of them would invent a gap."""
    unlisted = Position(token_id=9, logprob=math.nan, top_ids=(1, OTHER), top_logprobs=(-0.5, -1.0))
    *_, last = greedy.penalised([two_top_tokens(1), two_top_tokens(1, chosen=OTHER), unlisted], Penalties(frequency=2.0))
    assert (last.top_logprobs, last.logprob) == ((-2.5, -3.0), -1.0)
    (plain,) = greedy.penalised([unlisted], Penalties())
    assert plain is unlisted


def test_a_bias_needs_no_history():
    (position,) = greedy.penalised([two_top_tokens(1)], Penalties(bias={OTHER: 1.0}))
    assert (position.top_ids, position.logprob) == ((OTHER, 1), -0.5)


@pytest.mark.parametrize(
    "body, expected",
    [
        ({}, Penalties()),
        ({"presence_penalty": 1, "frequency_penalty": None}, Penalties(presence=1.0)),
        ({"frequency_penalty": 0.5, "logit_bias": {"7": -100}}, Penalties(frequency=0.5, bias={7: -100.0})),
    ],
)
def test_a_body_says_what_is_added(body, expected):
    assert penalties(body) == expected
    assert penalties(body).adds == (expected != Penalties())


def answered(chosen: list[list[int]], windows: tuple[int, ...] | None = None) -> Captured:
    """Answers under a presence penalty of 1: token 1 is the raw favourite everywhere, half a nat above OTHER."""
    right = [1, OTHER, *[1] * 28]  # both are held after two tokens, so that the favourite comes back
    mine = [answer(f"chat-{i:02}", tuple(tokens), windows=windows) for i, tokens in enumerate(chosen)]
    theirs = [answer(f"chat-{i:02}", tuple(right)) for i in range(len(chosen))]
    distributions = {
        arm: [_scored(arm, each) for each in answers] for arm, answers in ((VARIANT, mine), ("control", theirs), ("baseline", theirs))
    }
    seen = captured("greedy", mine, theirs, theirs, scores={arm: tuple(scores) for arm, scores in distributions.items()})
    asked = tuple(replace(request, body={**request.body, "presence_penalty": 1.0}) for request in seen.workload.requests)
    return replace(seen, workload=replace(seen.workload, requests=asked))


def _scored(arm, each):
    positions = tuple(two_top_tokens(1, chosen=token) for token in each.choice.token_ids)
    return replace(score(arm, each, ()), positions=positions)


def test_the_penalised_favourite_is_the_baselines_choice():
    verdict = greedy.judge(answered([[1, OTHER, *[1] * 28]] * 10))
    assert verdict.outcome is Outcome.PASS


def test_the_raw_favourite_is_not():
    verdict = greedy.judge(answered([[1] * 30] * 10))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, IGNORED)


def test_ignored_at_draft_positions_only_is_said():
    verdict = greedy.judge(answered([[1, 1, *[1] * 28]] * 10, windows=(1, 4, 4, 4, 4, 4, 4, 4, 1)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, IGNORED)
    spread = [1, 1, 1, 1, OTHER, *[1] * 25]
    verdict = greedy.judge(answered([spread] * 10, windows=(1, 4, 4, 4, 4, 4, 4, 4, 1)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, IGNORED_AT_DRAFTS)
