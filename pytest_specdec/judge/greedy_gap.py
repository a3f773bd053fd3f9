"""A gap: how far an emitted token lies below the baseline's best one, given the arm's own prefix.

The baseline, the same server without speculation, scores each answer of an arm: a position has the log-probability of one emitted token,
nan if it is not listed, and those of the baseline's most probable tokens there. An answer's key is its request id and pass.
"""

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

__all__ = ["DifferenceKind", "FirstDifference", "ScoredAnswer", "answer_lengths", "classify_difference", "distinct_gaps", "scored_answers"]

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
    """One ended where the other goes on, and by the baseline's distribution an end may be as probable, within tolerance."""
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
    """The first token at which an answer differs from the baseline's own answer."""

    key: tuple[str, int]
    """The answer's request id and pass."""
    index: int
    """Of the token, from 0."""
    kind: DifferenceKind


def scored_answers(transcript: Transcript, scores: Sequence[Score]) -> tuple[ScoredAnswer, ...]:
    """Return the scored answers of ``transcript``, each with its gaps.

    Raises ValueError if a score is of other tokens than were answered.
    """
    by_key = {score.key: score.positions for score in scores}
    return tuple(_score_answer(answer, by_key[answer.key]) for answer in transcript.answers if answer.ok and answer.key in by_key)


def distinct_gaps(workload: Workload, answers: Sequence[ScoredAnswer]) -> tuple[float, ...]:
    """Return the gaps of all tokens, counting repeated computations once.

    A token with the same request, prefix and gap as an earlier one is no new evidence. Requests that differ in seed or token limit alone
    are one question here.
    """
    questions = {request.id: request.asks_without_limit for request in workload.requests}
    gaps: dict[tuple[str, tuple[int, ...], float], float] = {}
    for scored in answers:
        question, ids = questions.get(scored.answer.request_id, scored.answer.request_id), scored.answer.choice.token_ids
        gaps |= {(question, ids[: index + 1], gap): gap for index, gap in enumerate(scored.gaps)}
    return tuple(gaps.values())


def answer_lengths(workload: Workload, answers: Sequence[ScoredAnswer]) -> tuple[int, ...]:
    """Return the number of scored tokens of each distinct request.

    They tell how many wrong answers an alarm needs (``Tolerance.ruled_out_answers``). Requests that differ in seed or token limit alone are
    one question, since a fault of its prompt makes all of its answers wrong. The shortest of them counts, so that no more wrong tokens are
    expected than come. Answers without tokens are left out.
    """
    questions = {request.id: request.asks_without_limit for request in workload.requests}
    lengths: dict[str, int] = {}
    for scored in answers:
        question = questions.get(scored.answer.request_id, scored.answer.request_id)
        if scored.gaps:
            lengths[question] = min(len(scored.gaps), lengths.get(question, len(scored.gaps)))
    return tuple(lengths.values())


def _score_answer(answer: Answer, positions: tuple[Position, ...]) -> ScoredAnswer:
    """Return ``answer`` with the gap of each of its tokens.

    A gap is how far, in nats, a token lies below the baseline's most probable one. Raises ValueError if ``positions``, its scores, are of
    other tokens.
    """
    if tuple(position.token_id for position in positions) != answer.choice.token_ids:
        msg = f"the scores of request {answer.request_id}, pass {answer.pass_index}, are of other tokens than it was answered with"
        raise ValueError(msg)
    return ScoredAnswer(answer=answer, positions=positions, gaps=tuple(map(_gap, positions)))


def _gap(position: Position) -> float:
    """Return a token's distance below the best one in nats, 0 within a tie.

    Tokens tie if the digits of the scores cannot tell them apart. An unlisted token gets the gap of the last top token, a lower bound of
    its own.
    """
    if math.isnan(position.logprob):
        return max(position.top_logprobs) - min(position.top_logprobs)
    gap = max(position.top_logprobs, default=position.logprob) - position.logprob
    return gap if gap > RESOLUTION else 0.0


def classify_difference(
    scored: ScoredAnswer, baseline: Answer, tolerance: float, distribution: Sequence[Position] = ()
) -> FirstDifference | None:
    """Return the first difference of an answer from the baseline's own.

    If the answer has a token there, the gap of this token decides, also after the baseline's end. If the answer ends there and the
    baseline's goes on, it is END if an end is within tolerance by ``distribution``, else LENGTH. ``tolerance`` is the largest gap explained
    by noise, in nats; ``distribution`` has the baseline's scores of each token of its own answer, empty if unknown. None if the tokens are
    equal.
    """
    ids, baseline_ids = scored.answer.choice.token_ids, baseline.choice.token_ids
    if ids == baseline_ids:
        return None
    index = first_difference(ids, baseline_ids)
    goes_on, baseline_goes_on = index < len(ids), index < len(baseline_ids)
    if goes_on and baseline_goes_on:
        kind = _classify_gap(scored.gaps[index], tolerance)
    elif goes_on:
        kind = _classify_continuation(scored.gaps[index], baseline, tolerance)
    else:
        is_end = index < len(distribution) and _may_end(distribution[index], tolerance)
        kind = DifferenceKind.END if is_end else DifferenceKind.LENGTH
    return FirstDifference(key=scored.answer.key, index=index, kind=kind)


def _classify_gap(gap: float, tolerance: float) -> DifferenceKind:
    if gap == 0.0:
        return DifferenceKind.TIE
    return DifferenceKind.REAL if gap > tolerance else DifferenceKind.NEAR_TIE


def _classify_continuation(gap: float, baseline: Answer, tolerance: float) -> DifferenceKind:
    """Return the kind of a token emitted after the baseline's end.

    ``gap`` is how far that token lies below the baseline's best one there, in nats. It is a wrong token (REAL) beyond the tolerance.
    """
    if gap > tolerance:
        return DifferenceKind.REAL
    # Where the baseline stopped, this token was nearly as probable as its end of sequence.
    if baseline.choice.finish_reason == "stop":
        return DifferenceKind.END
    # The limit that cut the baseline's answer is this one's too, and should have cut it at the same token.
    return DifferenceKind.LENGTH


def _may_end(position: Position, tolerance: float) -> bool:
    """Return True if an end may be within tolerance of the best token.

    ``position`` has the baseline's most probable tokens where the answer ended. The id of the end is not known here. It is not the best
    token, since the baseline went on with that one. If any other token is within tolerance, so is the second best.
    """
    best_two = sorted(position.top_logprobs, reverse=True)[:2]
    return len(best_two) > 1 and best_two[0] - best_two[1] <= tolerance
