from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_diagnosis import IGNORED, IGNORED_AT_DRAFTS
from pytest_specdec.judge.penalised_scores import penalise
from pytest_specdec.model.captured import Capabilities, Captured
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.transcript import Position
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.penalties import Penalties
from pytest_specdec.stats.request_params import penalties
from tests.judge.captured_values import VARIANT, answer, captured, score

OTHER = 7
ANSWER = PenaltyWindow()


def two_top_tokens(token: int, *, chosen: int | None = None, gap: float = 0.5) -> Position:
    """``token`` is the raw favourite, OTHER lies ``gap`` below."""
    laid = {token: -0.5, OTHER: -0.5 - gap}
    mine = token if chosen is None else chosen
    return Position(token_id=mine, logprob=laid[mine], top_ids=tuple(laid), top_logprobs=tuple(laid.values()))


def test_presence_counts_once_and_frequency_each_time():
    distribution = penalise([two_top_tokens(1), two_top_tokens(1), two_top_tokens(1)], Penalties(presence=0.8, frequency=0.3), ANSWER)
    assert [round(position.logprob, 6) for position in distribution] == [-0.5, -1.6, -1.9]
    assert [position.top_ids[0] for position in distribution] == [1, OTHER, OTHER]


def test_a_token_that_is_not_told_counts_with_the_most_that_it_can_be():
    """Every top token may be penalised below it: to put it below the lowest of them would invent a gap."""
    unlisted = Position(token_id=9, logprob=math.nan, top_ids=(1, OTHER), top_logprobs=(-0.5, -1.0))
    *_, last = penalise([two_top_tokens(1), two_top_tokens(1, chosen=OTHER), unlisted], Penalties(frequency=2.0), ANSWER)
    assert (last.top_logprobs, last.logprob) == ((-2.5, -3.0), -1.0)
    (plain,) = penalise([unlisted], Penalties(), ANSWER)
    assert plain is unlisted


def test_a_bias_needs_no_history():
    (position,) = penalise([two_top_tokens(1)], Penalties(bias={OTHER: 1.0}), ANSWER)
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


def answered(
    chosen: list[list[int]], windows: tuple[int, ...] | None = None, *, right: list[int] | None = None, **known: PenaltyWindow
) -> Captured:
    """Answers under a presence penalty of 1: token 1 is the raw favourite everywhere, half a nat above OTHER. No prompt holds either."""
    right = right or [1, OTHER, *[1] * 28]  # both are held after two tokens, so that the favourite comes back
    mine = [answer(f"chat-{i:02}", tuple(tokens), windows=windows) for i, tokens in enumerate(chosen)]
    theirs = [answer(f"chat-{i:02}", tuple(right)) for i in range(len(chosen))]
    distributions = {
        arm: [_scored(arm, each) for each in answers] for arm, answers in ((VARIANT, mine), ("control", theirs), ("baseline", theirs))
    }
    scores = {arm: tuple(scores) for arm, scores in distributions.items()}
    seen = captured("greedy", mine, theirs, theirs, scores=scores, capabilities={"baseline": Capabilities(**known)})
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


def behind(seen: Captured, prompt: tuple[int, ...]) -> Captured:
    """The same after other prompts."""
    arms = {
        arm: replace(arm_of, answers=tuple(replace(each, prompt_token_ids=prompt) for each in arm_of.answers))
        for arm in ("baseline", "control", "speculative")
        if (arm_of := getattr(seen, arm)) is not None
    }
    return replace(seen, **arms)


COUNTED = [OTHER, 1, *[1] * 28]
"""The choices after a prompt that holds token 1, where it counts: OTHER first, then the favourite of two that were both seen."""


@pytest.mark.parametrize("chosen, outcome", [(COUNTED, Outcome.PASS), ([1, OTHER, *[1] * 28], Outcome.FAIL)])
def test_a_prompt_counts_where_the_engine_says_so(chosen, outcome):
    seen = answered([chosen] * 10, right=COUNTED, penalty_window=PenaltyWindow(prompt=True))
    assert greedy.judge(behind(seen, (1,))).outcome is outcome


def test_the_prompt_may_be_known_to_the_scorer_alone():
    seen = behind(answered([COUNTED] * 10, right=COUNTED, penalty_window=PenaltyWindow(prompt=True)), ())
    verdict = greedy.judge(seen)
    assert (verdict.outcome, verdict.headline) == (
        Outcome.INVALID,
        "the prompt's token ids of chat-00 are missing: its penalties count them",
    )
    scores = {arm: tuple(replace(score, prompt_token_ids=(1,)) for score in scores) for arm, scores in seen.scores.items()}
    assert greedy.judge(replace(seen, scores=scores)).outcome is Outcome.PASS


def test_a_baseline_that_repeats_itself_against_its_window_is_named_so():
    """Its answers are those of a server that counts the prompt; what its engine says is that it does not."""
    seen = behind(answered([COUNTED] * 10, right=COUNTED), (1,))
    for each in (seen, seen.as_control()):
        verdict = greedy.judge(each)
        assert verdict.outcome is Outcome.INVALID
        known = "its penalties are not those that its engine is known for, over the answer, repetition over prompt and answer"
        assert verdict.headline.startswith(f"the baseline repeats itself, but {known}: "), verdict.headline


def test_a_baseline_that_ignores_penalties_is_named_so():
    verdict = greedy.judge(answered([[1] * 30] * 10, right=[1] * 30))
    assert (verdict.outcome, verdict.headline.split(":")[0]) == (Outcome.INVALID, f"the baseline repeats itself, but {IGNORED}")


def test_what_is_reported_under_penalties_is_no_noise():
    """Some engines report the distribution that penalties left: it says nothing of how scores lie about reports."""
    seen = answered([[1, OTHER, *[1] * 28]] * 10)
    reporting = tuple(
        replace(each, choices=(replace(each.choice, logprobs=tuple(-3.0 * (i % 2) for i in range(30))),)) for each in seen.baseline.answers
    )
    assert greedy.judge(replace(seen, baseline=replace(seen.baseline, answers=reporting))).outcome is Outcome.PASS
