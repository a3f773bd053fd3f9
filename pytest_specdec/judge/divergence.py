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
    from collections.abc import Iterator

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position, Transcript

__all__ = ["Divergence", "SharedPrefix", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Two tokens after the same prefix."""

    request_id: str
    index: int
    """Of the token in both answers, from 0."""
    mine: Position
    theirs: Position
    gap: float
    """Raw log-probability of the baseline's token minus that of the other, nats: below 0 if the other one is likelier."""

    def __str__(self) -> str:
        tokens = f"id {self.mine.token_id} for the baseline's {self.theirs.token_id}"
        return f"{self.request_id}: token {self.index}: {tokens}, gap {self.gap:.3g} nats"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Agreement of one arm's answers at temperature 0 with the baseline's, up to each first difference."""

    tokens: int
    """Compared tokens: equal ones, and each first difference that has a score."""
    divergences: tuple[Divergence, ...]
    unscored: int
    """Answers that differ from the baseline's at a token without a score."""


def shared(captured: Captured, arm: Transcript) -> SharedPrefix:
    """Compare the answers of ``arm`` with the baseline's, up to the first differing token.

    An answer that only ends earlier than the other has no differing token. Raises ValueError if a score is of another token than was
    answered.
    """
    own = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    greedy = {request.id for request in captured.workload.requests if request.greedy}
    pairs = [(mine, own[mine.key]) for mine in arm.answers if mine.ok and mine.key in own and mine.request_id in greedy]
    alike = [first_difference(mine.choice.token_ids, theirs.choice.token_ids) for mine, theirs in pairs]
    parted = [(pair, index) for pair, index in zip(pairs, alike, strict=True) if index < _shorter(*pair)]
    divergences = tuple(_divergences(captured, arm.arm, parted))
    return SharedPrefix(tokens=sum(alike) + len(divergences), divergences=divergences, unscored=len(parted) - len(divergences))


def _shorter(mine: Answer, theirs: Answer) -> int:
    return min(len(mine.choice.token_ids), len(theirs.choice.token_ids))


def _divergences(captured: Captured, arm: str, parted: list[tuple[tuple[Answer, Answer], int]]) -> Iterator[Divergence]:
    """Yield the divergence of each pair of answers that has scores of both its tokens."""
    scores = {name: {score.key: score.positions for score in captured.scores.get(name, ())} for name in (arm, BASELINE)}
    for (mine, theirs), index in parted:
        ours, others = (_position(scores[name].get(one.key, ()), one, index) for name, one in ((arm, mine), (BASELINE, theirs)))
        gap = None if ours is None or others is None else _gap(ours, others)
        if ours is not None and others is not None and gap is not None:
            yield Divergence(request_id=mine.request_id, index=index, mine=ours, theirs=others, gap=gap)


def _position(positions: tuple[Position, ...], answer: Answer, index: int) -> Position | None:
    """Return the score of token ``index``; None if it was not scored.

    Raises ValueError if it is another token's.
    """
    if index >= len(positions):
        return None
    if positions[index].token_id != answer.choice.token_ids[index]:
        msg = f"the scores of request {answer.request_id}, pass {answer.pass_index}, are of other tokens than it was answered with"
        raise ValueError(msg)
    return positions[index]


def _gap(mine: Position, theirs: Position) -> float | None:
    """Return the log-probability of ``theirs`` minus that of ``mine``, in nats.

    An unlisted token lies below all listed ones: the value nearest to 0 that the gap can then have is returned, which claims least. None if
    neither token is listed.
    """
    if math.isnan(mine.logprob) and math.isnan(theirs.logprob):
        return None
    least = min(theirs.top_logprobs if math.isnan(mine.logprob) else mine.top_logprobs, default=-math.inf)
    if math.isnan(mine.logprob):
        return max(0.0, theirs.logprob - least)
    return min(0.0, least - mine.logprob) if math.isnan(theirs.logprob) else theirs.logprob - mine.logprob
