"""Baseline answers: how two answers at temperature 0 to one request differ, by their first other token or by their ends.

``before`` is an answer of a run's baseline, with a scored position for each token: its log-probability and those of the most probable
tokens, the listed ones. ``after`` is the answer of another run's baseline or of the same run's control, the baseline booted again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_noise import SIGMAS
from pytest_specdec.judge.old_tokens import TokenDifference
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer
    from pytest_specdec.model.transcript import Choice, Position

__all__ = [
    "are_alike",
    "differs_beyond",
    "differs_unscored",
    "ends_elsewhere",
    "find_difference",
    "has_wrong",
    "logprob_of",
    "near_tie",
    "pair_with_control",
]


def pair_with_control(record: BaselineRecord) -> Iterator[tuple[GreedyAnswer, Choice]]:
    """Yield the baseline's answers at temperature 0, each with the control's.

    Requests that the control did not answer are left out.
    """
    yield from ((answer, answer.control) for answer in record.greedy.values() if answer.control is not None)


def logprob_of(token: int, position: Position) -> float | None:
    """Return the log-probability of ``token``, emitted or listed; None if the position does not tell it."""
    if position.token_id == token and not math.isnan(position.logprob):
        return position.logprob
    return dict(zip(position.top_ids, position.top_logprobs, strict=True)).get(token)


def find_difference(before: GreedyAnswer, after: Choice) -> TokenDifference | None:
    """Return the first difference of two answers, with its gap.

    The gap is how far, in nats, the token of ``after`` lies below the best one by the scores of ``before``. An unlisted token gets the
    distance to the last listed one, its least possible gap. None if one answer begins with the other, if ``before`` was not scored where
    they differ, or if fewer than two tokens are listed there and the token of ``after`` is unlisted.
    """
    index = first_difference(before.choice.token_ids, after.token_ids)
    if index >= min(len(before.choice.token_ids), len(after.token_ids), len(before.positions)):
        return None
    new_id, position = after.token_ids[index], before.positions[index]
    logprob = logprob_of(new_id, position)
    if logprob is None and len(position.top_ids) < 2:  # noqa: PLR2004 - a list of one says nothing of any other token
        return None
    gap = max(position.top_logprobs) - (min(position.top_logprobs) if logprob is None else logprob)
    old_id = before.choice.token_ids[index]
    return TokenDifference(request_id=before.request_id, index=index, old_id=old_id, new_id=new_id, gap=gap)


def has_wrong(answer: GreedyAnswer, tie: float) -> bool:
    """Return True if a token lies more than ``tie`` nats below the best one.

    The scores are those of the answer's own run, and ``tie`` is the largest gap that noise explains.
    """
    return any(max(position.top_logprobs, default=position.logprob) - position.logprob > tie for position in answer.positions)


def differs_unscored(before: GreedyAnswer, after: Choice) -> bool:
    """Return True if two answers differ at a token without a usable score.

    Both answer one request. The scores of ``before`` do not tell there how probable the token of ``after`` was.
    """
    index = first_difference(before.choice.token_ids, after.token_ids)
    return index < min(len(before.choice.token_ids), len(after.token_ids)) and find_difference(before, after) is None


def differs_beyond(before: GreedyAnswer, after: Choice, tie: float) -> bool:
    """Return True if the gap of two answers' first difference exceeds ``tie`` nats.

    False without a difference, and for one without a gap (:func:`find_difference`).
    """
    difference = find_difference(before, after)
    return difference is not None and difference.gap > tie


def near_tie(noise: float) -> float:
    """Return the largest gap of two tokens explained by noise, in nats.

    ``noise`` is the standard deviation, in nats, of one logit's noise between two runs. The difference of two logits has sqrt(2) times as
    much, and six of its standard deviations are allowed.
    """
    return SIGMAS * math.sqrt(2.0) * noise


def are_alike(before: Choice, after: Choice) -> bool:
    """Return True if two answers have the same tokens and the same end."""
    return before.token_ids == after.token_ids and before.finish_reason == after.finish_reason


def ends_elsewhere(before: Choice, after: Choice, *, had_other_limits: bool = False) -> bool:
    """Return True if answers of the same tokens end differently.

    Either the shorter one ends where the other goes on, or both end after the same token with another finish_reason. If their requests
    had different limits of length (``had_other_limits``), an answer that its limit cut is no difference. False if their tokens differ.
    """
    shorter, longer = sorted((before, after), key=lambda choice: len(choice.token_ids))
    if longer.token_ids[: len(shorter.token_ids)] != shorter.token_ids:
        return False
    if len(shorter.token_ids) < len(longer.token_ids):
        return not (had_other_limits and shorter.finish_reason == "length")
    return before.finish_reason != after.finish_reason
