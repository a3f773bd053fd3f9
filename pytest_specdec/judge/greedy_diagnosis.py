"""Diagnosis of a wrong greedy token: where answers diverge, and which step of speculation explains it.

A scored answer has a gap for each token, in nats below the baseline's best one; a wrong token's gap exceeds the tolerance. A verify window
is the tokens that one verify step emits, and a slot is a token's place in its window. At draft slots stand accepted draft tokens and, last,
the token in place of the first rejected one. At the bonus slot stands the token after a fully accepted draft. Masks have an element per
token, of all answers in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.sampling.draft_distribution import PromptLookup, drafting
from pytest_specdec.judge.verdicts import quote
from pytest_specdec.stats import proportions
from pytest_specdec.stats.sequences import first_difference
from pytest_specdec.stats.verify_slots import join_slots, slots_from_windows, unknown_slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.judge.sampling.draft_distribution import DraftSource
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position
    from pytest_specdec.stats.verify_slots import VerifySlots

    Bools = npt.NDArray[np.bool_]
    Ints = npt.NDArray[np.int64]

__all__ = [
    "ACCEPTED_UNVERIFIED",
    "AFTER_FULL",
    "AT_DRAFTS",
    "BONUS",
    "EVERYWHERE",
    "IGNORED",
    "IGNORED_AT_DRAFTS",
    "NOT_ROLLED_BACK",
    "RECOVERED",
    "SHORT_PROMPT",
    "STOPPED_DRAFTS",
    "UNNAMED",
    "describe_divergence",
    "fault_name",
    "ignored_penalties",
    "probability",
]

_CONTEXT_TOKENS = 8
_CONTEXT_CHARACTERS = 40


def describe_divergence(scored: ScoredAnswer, index: int, baseline: Answer | None, allowed: Tolerance) -> tuple[str, ...]:
    """Return three lines on the wrong token ``index`` of an answer.

    The first has the tokens before it, the second the best token by the baseline's scores, the third the emitted one; each has ids, the
    last two have probabilities. Texts are quoted too if ``baseline``, its own answer to the request, has the same tokens before ``index``:
    only then the texts diverge here too. ``allowed`` is the tolerance that the token exceeds, in nats.
    """
    position = scored.positions[index]
    texts = _quote_texts(scored.answer, baseline, index)
    ids_before = scored.answer.choice.token_ids[max(0, index - _CONTEXT_TOKENS) : index]
    best = position.top_ids[0] if position.top_ids else position.token_id
    best_logprob = max(position.top_logprobs, default=position.logprob)
    distance = f"{scored.gaps[index]:.3g} nats below the best token, {allowed.gap:.3g} allowed ({allowed.reason})"
    next_best = f"   (next best id {position.top_ids[1]} p={math.exp(position.top_logprobs[1]):.3g})" if len(position.top_ids) > 1 else ""
    return (
        f"shared       {texts.shared or 'its own tokens'} ids … {' '.join(map(str, ids_before)) or '(none)'}",
        f"baseline     {texts.baseline}id {best} p={math.exp(best_logprob):.3g}{next_best}",
        f"speculative  {texts.arm}id {position.token_id} {probability(position)}   {distance}",
    )


def probability(position: Position) -> str:
    """Return the token's probability in words, or its upper bound if it is not listed."""
    if math.isnan(position.logprob):
        return f"p<{math.exp(min(position.top_logprobs)):.3g}"
    return f"p={math.exp(position.logprob):.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuotedTexts:
    """The texts of two answers around their first difference, quoted; empty if they do not differ there."""

    shared: str = ""
    """The end of what both begin with."""
    baseline: str = ""
    """How the baseline's answer goes on, with a space after it."""
    arm: str = ""
    """How the judged arm's goes on, likewise."""


def _quote_texts(answer: Answer, baseline: Answer | None, index: int) -> _QuotedTexts:
    """Return the texts of the arm's answer and the baseline's, where they differ.

    All are empty without a baseline's answer, if the token ids differ before ``index``, or if the texts do not differ.
    """
    if baseline is None or baseline.choice.token_ids[:index] != answer.choice.token_ids[:index]:
        return _QuotedTexts()
    text, other = answer.choice.written, baseline.choice.written
    common = text[: first_difference(text, other)]
    # Quotes begin with the differing word, unless one text is whole and the other just goes on.
    start = common.rfind(" ") if " " in common and len(common) < min(len(text), len(other)) else len(common)
    if text[start:] == other[start:]:
        return _QuotedTexts()
    shared = f"… {quote(common[max(0, start - _CONTEXT_CHARACTERS) : start], _CONTEXT_CHARACTERS)}"
    return _QuotedTexts(shared=shared, baseline=f"{quote(other[start:], 16)} ", arm=f"{quote(text[start:], 16)} ")


ACCEPTED_UNVERIFIED = "draft tokens accepted without verification"
NOT_ROLLED_BACK = "state after a rejected draft: the KV cache is not rolled back"
RECOVERED = "the token in place of a rejected draft token is not the target's"
BONUS = "the token after a fully accepted draft is not the target's"
IGNORED = "penalties or biases are ignored"
IGNORED_AT_DRAFTS = f"{IGNORED} at draft positions"
AFTER_FULL = "state after a fully accepted draft: the KV cache or the positions behind it are wrong"
EVERYWHERE = "nearly every token is wrong: the target is verified at other positions or by another distribution"
AT_DRAFTS = "draft positions are verified wrongly, the one after a whole draft rightly: they may see tokens ahead of their own"
STOPPED_DRAFTS = "state where drafts stop: the step without a draft does not go on from the last accepted token"
SHORT_PROMPT = "answers to prompts of exactly one verify window are wrong: they are taken for a decode step"
UNNAMED = "wrong tokens, cause not identified"

_MOST_WRONG = 0.9
"""Fraction of the wrong tokens that must show the fault, where the rest may follow from them."""
_NEARLY_ALL = 0.8
"""Fraction of all tokens above which the slot of a wrong one tells nothing."""
_HALF, _SHOWS_WITHIN = 0.5, 4
"""Fraction of the answers' first wrong tokens that must stand where drafts stop, within so many tokens: a wrong state need not show at
once."""
_CHANCE = 0.01
"""Probability that wrong tokens spread evenly would fall where the name says."""

_UNKNOWN = -1


def fault_name(captured: Captured, answers: Sequence[ScoredAnswer], gap: float) -> str:
    """Return the name of the fault behind the wrong tokens' places.

    Wrong are tokens with a gap above ``gap``, in nats. Each fault makes tokens wrong at certain places. It is named if the wrong tokens
    gather there, beyond chance (:func:`_gather_in`); the first that fits counts. EVERYWHERE if none fits, windows are known and over four
    fifths of all tokens are wrong; else :data:`UNNAMED`. The name does not change the verdict: the tokens are wrong in any case.
    """
    wrong_by_answer = [np.array(scored.gaps) > gap for scored in answers]
    wrong = np.concatenate(wrong_by_answer)
    all_tokens = np.ones_like(wrong)
    # A server may take a prompt with as many tokens as a verify window for a decode step.
    window_tokens = captured.pair.variant.draft.tokens + 1
    of_short_prompts = np.concatenate([np.full(len(scored.gaps), scored.answer.prompt_tokens == window_tokens) for scored in answers])
    if _gather_in(of_short_prompts, wrong, all_tokens):
        return SHORT_PROMPT
    drafter = drafting(captured)
    slots_by_answer = [_greedy_slots(drafter, scored.answer) for scored in answers]
    slots = join_slots(slots_by_answer)
    draft_ids = np.concatenate([_proposed_tokens(captured, drafter, *pair) for pair in zip(answers, slots_by_answer, strict=True)])
    accepted_drafts = _mark_draft_tokens(draft_ids, answers, slots)
    # One in ten may stand elsewhere, where it may follow from the others.
    if _gather_in(accepted_drafts, wrong, all_tokens, least_share=_MOST_WRONG):
        return ACCEPTED_UNVERIFIED
    if _begin_at_stops(wrong_by_answer, slots_by_answer):
        return STOPPED_DRAFTS
    name = _name_by_slot(wrong, slots_by_answer)
    has_windows = bool(slots.known.any())
    return EVERYWHERE if name == UNNAMED and has_windows and wrong.mean() > _NEARLY_ALL else name


def _mark_after(marked: Bools) -> Bools:
    """Mark the tokens of one answer after its first marked one."""
    return np.logical_or.accumulate(marked) & (np.cumsum(marked) - marked > 0)


def _begin_at_stops(wrong_by_answer: Sequence[Bools], slots_by_answer: Sequence[VerifySlots]) -> bool:
    """Return True if answers go wrong where their drafts stop.

    Drafts stop at a step without a draft right after one that accepted some. A state that is wrong there need not show at once: half of the
    answers' first wrong tokens have to stand at a stop or at the three tokens after it, beyond chance. No wrong token may come before the
    first stop of its answer. Both arguments have an element per answer.
    """
    stops_by_answer = [_mark_stops(slots) for slots in slots_by_answer]
    before_stops = np.concatenate([~np.logical_or.accumulate(stops) for stops in stops_by_answer])
    if (np.concatenate(wrong_by_answer) & before_stops).any():
        return False
    first_wrong = np.concatenate([wrong & (np.cumsum(wrong) == 1) for wrong in wrong_by_answer])
    # Each stop marks itself and the tokens right after it.
    near_stops = np.concatenate([np.convolve(stops, np.ones(_SHOWS_WITHIN))[: len(stops)] > 0 for stops in stops_by_answer])
    has_window = np.concatenate([slots.known for slots in slots_by_answer])
    return _gather_in(near_stops, first_wrong, has_window, least_share=_HALF)


def _mark_stops(slots: VerifySlots) -> Bools:
    """Mark the token of each step without a draft, right after a step that accepted some."""
    # A token after others in its window shows that the window's draft tokens before it were accepted.
    after_accepted = np.concatenate([[False], slots.slot[:-1] > 0])
    return np.asarray(after_accepted & (slots.slot == 0) & (slots.drafted == 0))


def ignored_penalties(captured: Captured, answers: Sequence[ScoredAnswer], raw: Sequence[ScoredAnswer], gap: float) -> str:
    """Return the name of ignored penalties or biases, or nothing.

    ``answers`` and ``raw`` are the same answers, scored with and without penalties and biases. Wrong are tokens with a gap above ``gap``
    nats. If nine in ten of them are right by the raw scores, the server ignores penalties and biases; else the name is empty. It is
    IGNORED_AT_DRAFTS if all wrong tokens stand at draft slots, beyond chance, else IGNORED.
    """
    wrong = np.concatenate([np.array(scored.gaps) > gap for scored in answers])
    right_without = np.concatenate([np.array(scored.gaps) <= gap for scored in raw])
    if not wrong.any() or (wrong & right_without).sum() < _MOST_WRONG * wrong.sum():
        return ""
    source = drafting(captured)
    slots = join_slots([_greedy_slots(source, scored.answer) for scored in answers])
    return IGNORED_AT_DRAFTS if slots.known.any() and _gather_in(slots.draft_slot, wrong, slots.known) else IGNORED


def _name_by_slot(wrong: Bools, slots_by_answer: Sequence[VerifySlots]) -> str:
    """Return the fault's name by the slots of wrong tokens, else UNNAMED.

    ``wrong`` is a mask over all answers. Each fault spares some tokens: it is named if no wrong token is among these, beyond chance
    (:func:`_gather_in`). The first that fits counts.
    """
    slots = join_slots(slots_by_answer)
    # A wrong draw, of the bonus token or of the one in place of a rejected draft token, spares all other slots.
    wrong_draws = ((slots.bonus_slot, BONUS), (slots.draft_slot & slots.ended, RECOVERED))
    drawn, draw_fault = next(((drawn, fault) for drawn, fault in wrong_draws if not (wrong & ~drawn).any()), (None, UNNAMED))
    # A cache that is not rolled back spares all up to an answer's first rejection. It stays wrong to the end; ``after_rejection`` marks
    # just the next window. If all wrong tokens stand at one kind of slot, only tokens at such slots are compared.
    compared = slots.known if drawn is None else drawn
    past_rejection = np.concatenate([np.logical_or.accumulate(of_answer.after_rejection) for of_answer in slots_by_answer])
    if _gather_in(past_rejection & compared, wrong, compared):
        return NOT_ROLLED_BACK
    if drawn is not None and _gather_in(drawn, wrong, slots.known):
        return draw_fault
    # A state that is wrong after a fully accepted draft spares all up to the first bonus token.
    past_bonus = np.concatenate([_mark_after(of_answer.bonus_slot) for of_answer in slots_by_answer])
    if _gather_in(past_bonus, wrong, slots.known):
        return AFTER_FULL
    # If all wrong tokens follow a bonus token, it may still be that fault, only not beyond chance.
    if not (wrong & ~past_bonus).any():
        return UNNAMED
    # The verify step itself is wrong at draft slots, if nearly all wrong tokens stand there.
    return AT_DRAFTS if _gather_in(slots.draft_slot, wrong, slots.known, least_share=_MOST_WRONG) else UNNAMED


def _mark_draft_tokens(draft_ids: Ints, answers: Sequence[ScoredAnswer], slots: VerifySlots) -> Bools:
    """Return a mask of accepted draft tokens, one element per token.

    ``draft_ids`` are the tokens that the drafter would propose, -1 if unknown. Known verify windows show the accepted slots; a proposed
    token, if known, has to be the emitted one. Without windows the proposed token alone decides.
    """
    emitted = np.concatenate([np.array(scored.answer.choice.token_ids, dtype=np.int64) for scored in answers])
    # A token that ends its window at a draft slot replaces a rejected one.
    accepted = slots.draft_slot & ~slots.ended
    is_proposed = draft_ids == emitted
    return np.asarray((slots.known & accepted & (is_proposed | (draft_ids == _UNKNOWN))) | (~slots.known & is_proposed))


def _gather_in(place: Bools, wrong: Bools, compared: Bools, *, least_share: float = 1.0) -> bool:
    """Return True if wrong tokens gather in ``place`` beyond chance.

    At least ``least_share`` of them has to lie there. By chance each wrong token would lie there as often as the tokens of ``compared``
    do: a binomial test at 1 % has to reject that. All three are masks with one element per token. False without wrong tokens.
    """
    inside, count = int((wrong & place).sum()), int(wrong.sum())
    if not count or inside < least_share * count:
        return False
    return proportions.greater_than_rate(inside, count, float(place[compared].mean())) <= _CHANCE


def _greedy_slots(source: DraftSource, answer: Answer) -> VerifySlots:
    """Return the slots of an answer's tokens in its verify windows; unknown ones without windows."""
    choice = answer.choice
    if choice.windows is None:
        return unknown_slots(len(choice.token_ids))
    return slots_from_windows(choice.windows, len(choice.token_ids), lambda start: source.draft_length(answer, start))


def _proposed_tokens(captured: Captured, source: DraftSource, scored: ScoredAnswer, slots: VerifySlots) -> Ints:
    """Return the token id that the drafter proposes at each token, -1 if unknown.

    Prompt lookup (n-gram drafting) follows from the tokens alone; else it is the best token of the draft model, if that was served alone
    and scored this answer.
    """
    answer, all_unknown = scored.answer, np.full(len(scored.answer.choice.token_ids), _UNKNOWN, dtype=np.int64)
    if isinstance(source, PromptLookup):
        return np.where(slots.known, source.propose_tokens(answer, slots.slot), all_unknown)
    scores = {score.key: score.positions for score in captured.draft_scores.get(captured.arm, ())}
    positions = scores.get(answer.key, ())
    best = [position.top_ids[0] if position.top_ids else _UNKNOWN for position in positions]
    return np.array(best, dtype=np.int64) if len(best) == len(all_unknown) else all_unknown
