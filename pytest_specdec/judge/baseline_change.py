"""Baseline change: whether two runs' baselines give the same answers, and what kind of change there is if not.

Compared are the prompts' token ids, the distributions after the same prefixes (stats/logit_shift.py), and the answers at temperature 0:
their ends where the tokens are the same, and the first tokens that differ. What is tolerated comes from the noise that both runs measured.
In one run a reported log-probability and its score differ by the noise of two kernels, a² + b². The scores of two runs differ by 2 a² at
most, and so by no more than the sum of both runs' squares, whichever of the kernels is the noisier one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.stats import logit_shift, proportions
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer
    from pytest_specdec.model.transcript import Choice, Position
    from pytest_specdec.stats.logit_shift import LogitShift

__all__ = ["BaselineChange", "BaselineRelation", "ChangeKind", "TokenDifference", "compare"]

RESOLUTION = 1e-3
"""Nats per logit that never count as a change: far less than any kernel's noise but that of single precision."""
NUMERICS_UP_TO = 0.1
"""Nats per logit up to which a shift is one of kernels or precision: bfloat16 across engines shows .03."""
WEIGHTS_UP_TO = 1.0
"""Nats per logit up to which a shift is one of quantised weights or caches, beyond which the model is another one or answers wrongly."""
SIGMAS = 6.0
"""Standard deviations of the difference of two logits within which two choices at temperature 0 are a near-tie."""
ALPHA = 1e-3
"""Level of each of the two tests: of the shift, and of the number of answers that differ by more than noise."""


class BaselineRelation(StrEnum):
    """What two baselines are to each other."""

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    """Too little was scored in both runs."""


class ChangeKind(StrEnum):
    """What changed, as far as it can be told."""

    CHAT_TEMPLATE = "the chat template gives other prompts"
    TOKENIZER = "prompts have other token ids"
    NUMERICS = "numerics, as of another kernel or precision"
    WEIGHTS = "a broad shift, as of quantised weights or caches"
    MODEL = "another model, or one that answers wrongly"
    ANSWERS = "single answers differ by more than noise"
    ENDS = "answers end elsewhere after the same tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDifference:
    """The first token at which two answers at temperature 0 differ."""

    request_id: str
    index: int
    """From 0."""
    old_id: int
    new_id: int
    gap: float
    """Nats that the choice of either run lies below the best token by the other run, the larger of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChange:
    """The comparison of two runs' baselines."""

    relation: BaselineRelation
    kinds: tuple[ChangeKind, ...] = ()
    shift: LogitShift | None = None
    """None if too few prompts have scores in both runs."""
    allowed: float = 0.0
    """Nats per logit that the noise of both runs explains."""
    prompts: int = 0
    """Prompts in both runs."""
    other_prompts: tuple[str, ...] = ()
    """Of them, those with other token ids: their route and fields, as text."""
    answers: int = 0
    """Requests at temperature 0 that both baselines answered after the same prompt."""
    differences: tuple[TokenDifference, ...] = ()
    """Where these answers first differ, the widest gap first."""
    beyond: int = 0
    """Of the differences, those that noise does not explain."""
    other_ends: tuple[str, ...] = ()
    """Requests whose answers end elsewhere after the same tokens, by id."""


def compare(old: BaselineRecord, new: BaselineRecord) -> BaselineChange:
    """Return how the baseline of ``new`` relates to that of ``old``.

    CHANGED if prompts have other token ids, if the shift is certainly larger than the noise of both runs explains, if more answers differ
    beyond noise than between each baseline and its control, or if answers end elsewhere. UNKNOWN if no shift can be measured, or a run did
    not measure its noise, and nothing else shows a change.
    """
    prompts = old.prompts.keys() & new.prompts.keys()
    other_prompts = tuple(sorted(prompt for prompt in prompts if tuple(old.prompts[prompt]) != tuple(new.prompts[prompt])))
    shift, noises = _measure_shift(old, new), [logit_shift.measure(record.draws.answers) for record in (old, new)]
    allowed = math.sqrt(RESOLUTION**2 + sum(noise.high**2 for noise in noises if noise))
    answers = [(before, new.greedy[asks]) for asks, before in old.greedy.items() if asks in new.greedy] if not other_prompts else []
    first_differences = [_first_difference(before, after.choice, after.positions) for before, after in answers]
    differences = sorted(filter(None, first_differences), key=lambda difference: (-difference.gap, difference.request_id))
    near_tie = _near_tie(allowed)
    beyond = sum(difference.gap > near_tie for difference in differences)
    change = BaselineChange(
        relation=BaselineRelation.SAME,
        shift=shift,
        allowed=allowed,
        prompts=len(prompts),
        other_prompts=other_prompts,
        answers=len(answers),
        differences=tuple(differences),
        beyond=beyond,
        other_ends=tuple(before.request_id for before, after in answers if _ends_elsewhere(before.choice, after.choice)),
    )
    kinds = tuple(_kinds(change, old, has_more=_has_more_differences(beyond, len(answers), (old, new), near_tie)))
    if kinds:
        return replace(change, relation=BaselineRelation.CHANGED, kinds=kinds)
    return change if shift and all(noises) else replace(change, relation=BaselineRelation.UNKNOWN)


def _measure_shift(old: BaselineRecord, new: BaselineRecord) -> LogitShift | None:
    """Return the shift over all prefixes that both runs scored, prompt by prompt."""
    by_prompt: dict[str, list[tuple[float, Position]]] = {}
    for key, before in old.prefixes.items():
        after = new.prefixes.get(key)
        pair = _pair_of_one_token(before.position, after.position) if after else None
        if pair is not None:
            by_prompt.setdefault(before.prompt, []).append(pair)
    return logit_shift.measure(by_prompt.values())


def _pair_of_one_token(old: Position, new: Position) -> tuple[float, Position] | None:
    """Return the old log-probability of the old token, and the new position as if it had been emitted there too.

    None if the new run does not tell its log-probability.
    """
    logprob = _logprob_of(old.token_id, new)
    if logprob is None or math.isnan(old.logprob):
        return None
    return old.logprob, replace(new, token_id=old.token_id, logprob=logprob)


def _logprob_of(token: int, position: Position) -> float | None:
    """Return the log-probability of ``token``, emitted or listed; None if the position does not tell it."""
    if position.token_id == token and not math.isnan(position.logprob):
        return position.logprob
    return dict(zip(position.top_ids, position.top_logprobs, strict=True)).get(token)


def _first_difference(before: GreedyAnswer, after: Choice, after_positions: Sequence[Position] = ()) -> TokenDifference | None:
    """Return where two answers to one request first differ.

    None if one begins with the other, or if neither run scored the position.
    """
    index = first_difference(before.choice.token_ids, after.token_ids)
    if index >= min(len(before.choice.token_ids), len(after.token_ids)):
        return None
    old_id, new_id = before.choice.token_ids[index], after.token_ids[index]
    gaps = [_gap(before.positions, index, new_id), _gap(after_positions, index, old_id)]
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return None
    return TokenDifference(request_id=before.request_id, index=index, old_id=old_id, new_id=new_id, gap=max(known))


def _gap(positions: Sequence[Position], index: int, token: int) -> float | None:
    """Return how far ``token`` lies below the best token, nats; None without a score.

    A token that is not listed lies at least as far below as the last one listed.
    """
    if index >= len(positions):
        return None
    listed = positions[index].top_logprobs
    logprob = _logprob_of(token, positions[index])
    return max(listed) - (min(listed) if logprob is None else logprob)


def _has_more_differences(beyond: int, answers: int, records: Sequence[BaselineRecord], near_tie: float) -> bool:
    """Return True if more answers differ beyond noise than between each run's own baseline and control.

    By Fisher's exact test; a single one is enough if both runs measured no noise.
    """
    if not beyond:
        return False
    if near_tie <= _near_tie(RESOLUTION * math.sqrt(3.0)):
        return True
    repeated = [answer for record in records for answer in record.greedy.values() if answer.control is not None]
    again = [_first_difference(answer, answer.control) for answer in repeated if answer.control is not None]
    own = sum(difference is not None and difference.gap > near_tie for difference in again)
    return proportions.greater_than_other(beyond, answers, own, max(1, len(repeated))) <= ALPHA


def _near_tie(allowed: float) -> float:
    """Return the gap up to which two choices are a near-tie: the difference of two logits has sqrt(2) times the noise of one."""
    return SIGMAS * math.sqrt(2.0) * allowed


def _ends_elsewhere(before: Choice, after: Choice) -> bool:
    """Return True if one answer ends where the other goes on, or ends for another reason, after the same tokens.

    An answer cut by its limit says nothing of where it would have ended.
    """
    shorter, longer = sorted((before, after), key=lambda choice: len(choice.token_ids))
    if longer.token_ids[: len(shorter.token_ids)] != shorter.token_ids:
        return False
    if len(shorter.token_ids) < len(longer.token_ids):
        return True
    return before.finish_reason != after.finish_reason


def _kinds(change: BaselineChange, old: BaselineRecord, *, has_more: bool) -> Iterator[ChangeKind]:
    """Yield what changed, the kind that explains the others first."""
    if change.other_prompts:
        yield ChangeKind.CHAT_TEMPLATE if set(change.other_prompts) <= old.chats else ChangeKind.TOKENIZER
    shift = change.shift
    if shift is not None and shift.low > change.allowed:
        yield (
            ChangeKind.NUMERICS if shift.nats <= NUMERICS_UP_TO else ChangeKind.WEIGHTS if shift.nats <= WEIGHTS_UP_TO else ChangeKind.MODEL
        )
    elif has_more:
        yield ChangeKind.ANSWERS
    if change.other_ends:
        yield ChangeKind.ENDS
