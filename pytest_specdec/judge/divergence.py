"""A divergence: the first token at which an answer bound to a grammar differs from the baseline's, with both raw log-probabilities.

Up to there both answers are the same, so the grammar allows both the same tokens, and at temperature 0 the baseline takes the likeliest of
them. If the variant's token is likelier, the grammar forbids it and its mask was skipped. If it is less likely, the grammar may allow it,
and it is the wrong choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position, Transcript

__all__ = ["Divergence", "SharedPrefix", "compare_prefixes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Two tokens after the same prefix."""

    answer: Answer
    """The arm's."""
    index: int
    """Of the token in both answers, from 0."""
    token: Position
    """The arm's token."""
    baseline: Position
    """The baseline's token, scored after the same prefix."""
    gap: float
    """Raw log-probability of the baseline's token minus that of the other, nats: below 0 if the other one is likelier."""

    def __str__(self) -> str:
        tokens = f"id {self.token.token_id} for the baseline's {self.baseline.token_id}"
        return f"{self.answer.request_id}: token {self.index}: {tokens}, gap {self.gap:.3g} nats"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Agreement of one arm's answers at temperature 0 with the baseline's, up to each first difference."""

    tokens: int
    """Compared tokens: equal ones, and each first difference that has a score."""
    divergences: tuple[Divergence, ...]
    requests: int
    """Distinct requests of the compared answers: those that ask the same are one."""
    unscored: int
    """Answers that differ from the baseline's at a token without a score."""


def compare_prefixes(captured: Captured, arm: Transcript) -> SharedPrefix:
    """Return how far an arm's answers equal the baseline's.

    Only successful answers at temperature 0 are compared, up to their first differing token. The result holds that token of both arms with
    their raw log-probabilities (``captured.scores``). An answer counts as unscored if these do not tell how far the two lie apart: a score
    is missing there, or does not list the token. An answer that only ends earlier than the other has no differing token. Raises ValueError
    if an answer's scores belong to other tokens than its own.
    """
    baseline = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    # What each request at temperature 0 asks, as text: requests with equal texts are counted as one.
    questions = {request.id: request.asks for request in captured.workload.requests if request.greedy}
    scores = {name: {score.key: score.positions for score in captured.scores.get(name, ())} for name in (arm.arm, BASELINE)}
    equal_tokens, differing, divergences = 0, 0, []
    answers = [answer for answer in arm.answers if answer.ok and answer.key in baseline and answer.request_id in questions]
    for answer in answers:
        ids, baseline_ids = answer.choice.token_ids, baseline[answer.key].choice.token_ids
        index = first_difference(ids, baseline_ids)
        equal_tokens += index
        if index < min(len(ids), len(baseline_ids)):
            differing += 1
            token = _find_score(scores[arm.arm].get(answer.key, ()), answer, index)
            baseline_token = _find_score(scores[BASELINE].get(answer.key, ()), baseline[answer.key], index)
            divergence = _compare_scores(answer, index, token, baseline_token)
            divergences += [] if divergence is None else [divergence]
    return SharedPrefix(
        # A scored first difference is a compared token as well.
        tokens=equal_tokens + len(divergences),
        divergences=tuple(divergences),
        requests=len({questions[answer.request_id] for answer in answers}),
        unscored=differing - len(divergences),
    )


def _compare_scores(answer: Answer, index: int, token: Position | None, baseline: Position | None) -> Divergence | None:
    """Return the divergence of an answer from the baseline's at token ``index``.

    ``token`` and ``baseline`` are the scored positions of both answers' tokens there. None if one is missing, or their gap is unknown.
    """
    gap = None if token is None or baseline is None else _least_gap(token, baseline)
    if token is None or baseline is None or gap is None:
        return None
    return Divergence(answer=answer, index=index, token=token, baseline=baseline, gap=gap)


def _find_score(positions: tuple[Position, ...], answer: Answer, index: int) -> Position | None:
    """Return the score of token ``index``; None if it was not scored.

    Raises ValueError if it is another token's.
    """
    if index >= len(positions):
        return None
    if positions[index].token_id != answer.choice.token_ids[index]:
        msg = f"the scores of request {answer.request_id}, pass {answer.pass_index}, are of other tokens than it was answered with"
        raise ValueError(msg)
    return positions[index]


def _least_gap(token: Position, baseline: Position) -> float | None:
    """Return the log-probability of ``baseline`` minus that of ``token``, in nats.

    Both follow the same tokens, so that both positions have one distribution. One of the two may be unlisted (nan), and so lies below all
    tokens that are listed at the other's position: the value nearest to 0 that the gap can then have is returned, which claims least.
    None if both are unlisted, or no token is listed at the other's position.
    """
    is_token_listed, is_baseline_listed = not math.isnan(token.logprob), not math.isnan(baseline.logprob)
    if is_token_listed and is_baseline_listed:
        return baseline.logprob - token.logprob
    if is_baseline_listed and baseline.top_logprobs:
        return max(0.0, baseline.logprob - min(baseline.top_logprobs))
    if is_token_listed and token.top_logprobs:
        return min(0.0, min(token.top_logprobs) - token.logprob)
    return None
