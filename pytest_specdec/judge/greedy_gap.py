"""A gap: how far an emitted token lies below the baseline's best one, given the arm's own prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.transcript import Answer, Position, Score, Transcript
    from pytest_specdec.model.workload import Workload

__all__ = ["DifferenceKind", "FirstDifference", "ScoredAnswer", "difference", "distinct_gaps", "scored_answers"]

RESOLUTION = 1e-5
"""Nats below which a gap is a tie: scores are stored with seven significant digits."""


class DifferenceKind(StrEnum):
    """Kinds of first differences between two greedy answers to one request."""

    TIE = "tie"
    """The baseline gives both tokens the same probability."""
    NEAR_TIE = "near-tie"
    """The gap is within tolerance."""
    REAL = "wrong token"
    """The gap exceeds the tolerance."""
    END = "end within tolerance"
    """One ended where the other goes on, and the baseline's distribution gives an end as good a chance."""
    LENGTH = "unexplained length"
    """One goes on where the other has ended, and nothing explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """One answer, with a score of the baseline for every token."""

    answer: Answer
    positions: tuple[Position, ...]
    gaps: tuple[float, ...]
    """max_v l(v) - l(x) per token, nats, 0 for the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first token at which an answer and the baseline's own answer part."""

    key: tuple[str, int]
    index: int
    kind: DifferenceKind


def scored_answers(transcript: Transcript, scores: Sequence[Score]) -> tuple[ScoredAnswer, ...]:
    """Return the answered and scored answers of ``transcript``. Raises ValueError when a score is of other tokens than were answered."""
    by_key = {score.key: score.positions for score in scores}
    return tuple(_score_answer(answer, by_key[answer.key]) for answer in transcript.answers if answer.ok and answer.key in by_key)


def distinct_gaps(workload: Workload, answers: Sequence[ScoredAnswer]) -> tuple[float, ...]:
    """Return the gaps of all tokens, each computation once: the same token, gap and prefix again are no new evidence."""
    asks = {request.id: request.asks for request in workload.requests}
    gaps: dict[tuple[str, tuple[int, ...], float], float] = {}
    for each in answers:
        prompt, ids = asks.get(each.answer.request_id, each.answer.request_id), each.answer.choice.token_ids
        gaps |= {(prompt, ids[: index + 1], gap): gap for index, gap in enumerate(each.gaps)}
    return tuple(gaps.values())


def _score_answer(answer: Answer, positions: tuple[Position, ...]) -> ScoredAnswer:
    if tuple(position.token_id for position in positions) != answer.choice.token_ids:
        msg = f"the scores of request {answer.request_id}, pass {answer.pass_index}, are of other tokens than it was answered with"
        raise ValueError(msg)
    return ScoredAnswer(answer=answer, positions=positions, gaps=tuple(map(_gap, positions)))


def _gap(position: Position) -> float:
    """Return the gap; of an unlisted token that of the last top token, which is a lower bound."""
    if math.isnan(position.logprob):
        return max(position.top_logprobs) - min(position.top_logprobs)
    gap = max(position.top_logprobs, default=position.logprob) - position.logprob
    return gap if gap > RESOLUTION else 0.0


def difference(mine: ScoredAnswer, theirs: Answer, tolerance: float, distribution: Sequence[Position] = ()) -> FirstDifference | None:
    """Return where ``mine`` and the baseline's own answer part and how; None when they are equal.

    ``distribution`` is the baseline's at the tokens of its own answer, as far as it is known.
    """
    ours, others = mine.answer.choice.token_ids, theirs.choice.token_ids
    if ours == others:
        return None
    shorter = min(len(ours), len(others))
    index = first_difference(ours, others)
    if index < shorter:
        kind = _kind(mine.gaps[index], tolerance)
    elif index < len(ours):
        kind = _went_on(mine.gaps[index], theirs, tolerance)
    else:
        kind = DifferenceKind.END if _is_contested(distribution[index : index + 1], tolerance) else DifferenceKind.LENGTH
    return FirstDifference(key=mine.answer.key, index=index, kind=kind)


def _kind(gap: float, tolerance: float) -> DifferenceKind:
    if gap == 0.0:
        return DifferenceKind.TIE
    return DifferenceKind.REAL if gap > tolerance else DifferenceKind.NEAR_TIE


def _went_on(gap: float, theirs: Answer, tolerance: float) -> DifferenceKind:
    """Class a token where the baseline stopped without showing an end of sequence: the gap is that to the end."""
    if gap > tolerance:
        return DifferenceKind.REAL
    return DifferenceKind.END if theirs.choice.finish_reason == "stop" else DifferenceKind.LENGTH


def _is_contested(distribution: Sequence[Position], tolerance: float) -> bool:
    """Whether an end that no id shows may have been as good as the baseline's token: another one is within tolerance of the best."""
    best = [sorted(position.top_logprobs, reverse=True)[:2] for position in distribution]
    return any(len(two) > 1 and two[0] - two[1] <= tolerance for two in best)
