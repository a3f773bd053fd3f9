"""Endings: where, why and with which token count every answer ends.

A rule takes an answer's end and ``baseline``, facts learned from the baseline's answers (judge/baseline_endings.py), such as the ids that
end a sequence. It returns a description of the breach, empty if there is none. ``end.peer`` is the baseline's choice for the same request.
Rules need no scores, so every family checks them. A rule that the baseline or the control breaks says nothing about the variant.

Where no such id is learned, the engine may hide its ends: an answer that ends where another goes on may then be a near-tie between the end
and a token, which the judges of tokens hold to the distribution.
"""

# ruff: noqa: ARG001 - the rules share one signature
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.judge.answer_end import AnswerEnd, EndKind, StopCounts, limits_of
from pytest_specdec.judge.baseline_endings import BaselineEndings, learn_endings
from pytest_specdec.judge.verdicts import number_of, quote, say
from pytest_specdec.model.verdict import Example, Outcome, SharedCheck, Symptom
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["BadEnd", "check_endings", "describe_untested_ends", "end_ids"]

_REASONS = ("stop", "length")
_SHOWN = 50
_MOST_DRAFTED = 32
"""Tokens that a verify step may draft if no setting tells: more than any engine drafts by default."""


class BadEnd(StrEnum):
    """Faults at the end of an answer."""

    CUT = "answers are cut short"
    PAST = "answers go on after their end"
    REASON = "the finish_reason is wrong"
    COUNT = "usage counts other tokens than were answered"
    TEXT = "the same tokens are given as another text"


def check_endings(captured: Captured) -> Verdict | None:
    """Return FAIL if answers break a rule of endings, else None.

    The rules (:data:`_RULES`) hold for any correct server: a reported limit was reached, a stop has a reason, nothing follows an end,
    finish_reason and usage agree with the tokens, and the same tokens end in the same way. A rule that an answer of the baseline breaks is
    left out; of several that an answer breaks, the first counts. The variant may end up to k + 1 tokens before the end of the context, for
    k draft tokens of a verify step; the control, which does not draft, may not.
    """
    peers = _answer_ends(captured, captured.baseline_boots)
    draft_tokens = captured.pair.variant.draft.tokens or _MOST_DRAFTED
    ends = _answer_ends(captured, (captured.speculative,))
    baseline = learn_endings(peers, leeway=0 if captured.is_control else draft_tokens + 1)
    excused = [(flaw, rule) for flaw, rule in _RULES if any(rule(peer, baseline) for peer in peers)]
    rules = [named_rule for named_rule in _RULES if named_rule not in excused]
    # Where ids hide ends of sequence, an end before or after the baseline's may be a near-tie and breaks no rule. But if the arm's answers
    # stop far more or less often than the baseline's (``differ``), near-ties do not explain it: each such end then counts as shown, and so
    # breaks a rule. The baseline's own near-ties have excused no rule above.
    if not baseline.shows(EndKind.PLAIN) and _count_stops(captured, ends).differ:
        baseline = replace(baseline, shows_end=baseline.shows_end | {EndKind.PLAIN})
    wrong = [wrong_end for end in ends if (wrong_end := _find_first_breach(end, baseline, rules))]
    return _fail_ending(captured, wrong, {flaw for flaw, _ in excused}) if wrong else None


def end_ids(captured: Captured) -> frozenset[int]:
    """Return the ids that end a sequence, as far as the baseline's answers show them."""
    return learn_endings(_answer_ends(captured, captured.baseline_boots)).eos_ids


def describe_untested_ends(captured: Captured) -> str:
    """Return a clause on ends of sequence left untested by a pass.

    Where ids hide them, an end unlike the baseline's may be a near-tie. Only many such ends are a fault: the clause says how many prompts
    would have to end otherwise, or that no number is enough. Empty if ids show the ends.
    """
    if learn_endings(_answer_ends(captured, captured.baseline_boots)).shows(EndKind.PLAIN):
        return ""
    counts = _count_stops(captured, _answer_ends(captured, (captured.speculative,)))
    if (least := counts.least_difference) is None:
        few = f": {counts.prompts} prompts are too few to tell them from near-ties" if counts.prompts else ""
        return f"; untested: ends of sequence, which no ids show here{few}"
    return f"; ends of sequence, which no ids show here, only if {least} of {counts.prompts} prompts end otherwise"


def _answer_ends(captured: Captured, transcripts: Sequence[Transcript]) -> list[AnswerEnd]:
    """Return the ends of all answers of ``transcripts``, choice by choice.

    Each has the baseline's choice for the same request beside it, if there is a single one with token ids.
    """
    limits = {request.id: limits_of(request) for request in captured.workload.requests}
    baseline = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    return [
        AnswerEnd(answer=answer, choice=choice, limits=limits[answer.request_id], peer=_baseline_choice(answer, baseline.get(answer.key)))
        for transcript in transcripts
        for answer in transcript.answers
        if answer.ok and answer.request_id in limits
        for choice in answer.choices
    ]


def _count_stops(captured: Captured, ends: Sequence[AnswerEnd]) -> StopCounts:
    """Return the number of prompts with a plain answer that stops by itself.

    A plain answer's request has neither stops nor a grammar. The first one to each prompt counts, of ``ends`` and of the baseline. Answers
    without the baseline's beside them are left out.
    """
    pairs: dict[str, tuple[Choice, Choice]] = {}
    for end in ends:
        if end.limits.kind is EndKind.PLAIN and end.peer is not None:
            pairs.setdefault(captured.workload.by_id[end.answer.request_id].prompt_key, (end.choice, end.peer))
    stops = sum(choice.finish_reason == "stop" for choice, _ in pairs.values())
    baseline_stops = sum(peer.finish_reason == "stop" for _, peer in pairs.values())
    return StopCounts(prompts=len(pairs), stops=stops, baseline_stops=baseline_stops)


def _baseline_choice(answer: Answer, other: Answer | None) -> Choice | None:
    """Return the only choice of ``other``, the baseline's answer to the same request.

    None without token ids, if either answer has several choices, and if ``other`` is ``answer`` itself.
    """
    if other is None or other is answer or len(answer.choices) != 1 or len(other.choices) != 1:
        return None
    return other.choice if other.choice.token_ids else None


def _describe_unreached(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of a finish_reason length below the limit.

    Empty for any other end, and if the answer fills the context, as the baseline's answers show its size.
    """
    is_explained = not end.below_limit or baseline.fills(end)
    return "" if is_explained else f"finish_reason 'length' after {end.tokens} of {end.limits.most} allowed tokens"


def _describe_early_stop(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of a stop against min_tokens or ignore_eos.

    A stop breaks ``ignore_eos`` only if nothing else may end the answer: the request has no stops and no grammar. Empty if neither is
    broken, and without a number of tokens.
    """
    limits, tokens = end.limits, end.tokens
    if end.choice.finish_reason != "stop" or tokens is None:
        return ""
    if tokens < limits.least:
        return f"finish_reason 'stop' after {tokens} tokens where min_tokens is {limits.least}"
    has_no_other_end = limits.kind is EndKind.PLAIN
    return f"finish_reason 'stop' after {tokens} tokens despite ignore_eos" if limits.ignores_eos and has_no_other_end else ""


def _describe_stop_below_limit(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Describe a stop before the limit at a token that ends no sequence."""
    return "" if end.at_limit else _describe_ordinary_stop(end, baseline)


def _describe_stop_at_limit(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Describe a stop at the limit after a token that ends no sequence: its reason is length."""
    return _describe_ordinary_stop(end, baseline) if end.at_limit else ""


def _describe_ordinary_stop(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of a stop at an ordinary token, or before any token.

    Ordinary are ids after which the baseline's answers go on. Empty for requests with stops or a grammar, if the answer does not stop
    there, and if an end of sequence may stand behind its ids unseen. Empty too below the limit if no end of sequence is known.
    """
    if end.limits.kind is not EndKind.PLAIN or end.choice.finish_reason != "stop":
        return ""
    if not baseline.gives_ids or baseline.hides(EndKind.PLAIN):
        return ""
    if not end.ids:
        return "finish_reason 'stop' before any token" if not end.choice.written else ""
    # No id is hidden after the last one if usage counts none, or if the baseline has plain answers that stop: none hides its end here.
    is_counted_whole = len(end.answer.choices) == 1 and end.excess_tokens == 0
    baseline_stops = EndKind.PLAIN in baseline.hides_end  # it has only the kinds with a stopped answer
    if not is_counted_whole and not baseline_stops:
        return ""
    has_known_reason = end.at_limit or bool(baseline.eos_ids)  # at the limit it would be length, at a known end of sequence stop
    if not has_known_reason or end.ids[-1] not in baseline.ordinary:
        return ""
    return f"finish_reason 'stop' after {end.tokens} tokens, at id {end.ids[-1]}, which ends no sequence"


def _describe_overrun(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Describe an answer with more tokens than the request allows."""
    most, tokens = end.limits.most, end.tokens
    return f"{tokens} tokens where max_tokens is {most}" if tokens is not None and most is not None and tokens > most else ""


def _describe_tokens_after_end(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of tokens after an end of sequence or stop id.

    Ids among the first min_tokens tokens do not count, nor ends of sequence under ignore_eos. Empty without such tokens.
    """
    enders = end.limits.stop_ids | (frozenset() if end.limits.ignores_eos else baseline.eos_ids)
    at = next((i for i, token in enumerate(end.ids[:-1]) if token in enders and i >= end.limits.least), None)
    return "" if at is None else f"{len(end.ids) - at - 1} tokens after id {end.ids[at]}, which ends an answer"


def _describe_text_after_stop(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of text after a stop string; empty without.

    Empty under min_tokens too, since text does not show from which character on a stop string ends the answer.
    """
    if end.limits.least:
        return ""
    for stop, text in product(end.limits.stop_strings, (end.choice.reasoning, end.choice.text)):
        # A stop string that the request keeps may stand at the very end.
        if stop in (text[: -len(stop)] if end.limits.keeps_stop else text):
            return f"text goes on after the stop string {quote(stop)}"
    return ""


def _describe_early_end(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of an end before the baseline's.

    The baseline's answer goes on from the same tokens. Empty if it does not or is missing. A stop is explained if ids may hide its end of
    sequence, which then may be a near-tie; any other end if the answer fills the context.
    """
    peer, reason = end.peer, end.choice.finish_reason
    if peer is None or not end.ids or len(end.ids) >= len(peer.token_ids) or peer.token_ids[: len(end.ids)] != end.ids:
        return ""
    is_explained = not baseline.shows(end.limits.kind) if reason == "stop" else baseline.fills(end)
    return "" if is_explained else f"finish_reason {reason!r} after {len(end.ids)} tokens; the baseline goes on to {len(peer.token_ids)}"


def _describe_late_end(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of tokens after the baseline's stop.

    The baseline's answer stops after the same tokens. Empty if it does not, or if ids may hide such ends, which then may be near-ties.
    """
    peer = end.peer
    if peer is None or peer.finish_reason != "stop" or not baseline.shows(end.limits.kind):
        return ""
    more = len(end.ids) - len(peer.token_ids)
    goes_on = more > 0 and end.ids[: len(peer.token_ids)] == peer.token_ids
    return f"{more} token{'s' if more > 1 else ''} after the {len(peer.token_ids)} at which the baseline stops" if goes_on else ""


def _describe_wrong_reason(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of a wrong finish_reason; empty if it is right.

    It is wrong if it is missing, if it is another than the baseline's for the same tokens, or if it is neither stop nor length and the
    request has no grammar.
    """
    reason, peer = end.choice.finish_reason, end.peer
    if reason is None:
        return "no finish_reason"
    if peer is not None and end.ids == peer.token_ids and reason != peer.finish_reason:
        return f"finish_reason {reason!r}; the baseline's is {peer.finish_reason!r} for the same tokens"
    return f"finish_reason {reason!r}" if reason not in _REASONS and not end.limits.grammar else ""


def _describe_wrong_count(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of a wrong usage; empty if it is right.

    Usage may exceed the ids by as many tokens as the baseline's does: by 0, or by 1 for an end of sequence that is counted and not shown.
    It is checked once per answer, at the first choice, since it counts all choices together. Empty if the baseline does not give both ids
    and usage, or if the answer has text without ids.
    """
    answer, allowed_excesses = end.answer, baseline.miscounts  # of the baseline's answers, by finish reason and kind of request
    if not allowed_excesses or end.choice is not answer.choices[0]:
        return ""
    if answer.usage is None:
        return "no usage"
    has_ids = any(choice.token_ids for choice in answer.choices)
    if not has_ids and any(choice.written or choice.tool_calls for choice in answer.choices):
        return ""  # Without ids there is nothing to count; the judges of tokens report that they are missing.
    # For kinds of ends that the baseline does not have, all of its own excesses are allowed, and one token for a hidden end.
    excesses_of_others = frozenset({0, 1}).union(*allowed_excesses.values())
    by_choice = [allowed_excesses.get((str(choice.finish_reason), end.limits.kind), excesses_of_others) for choice in answer.choices]
    # Each choice may bring any of its allowed excesses; usage shows only their sum.
    allowed_sums = {sum(excesses) for excesses in product(*by_choice)}
    if end.excess_tokens in allowed_sums:
        return ""
    emitted = sum(len(choice.token_ids) for choice in answer.choices)
    return f"usage counts {answer.usage.completion_tokens} completion tokens; the answer has {emitted} ids"


def _describe_reasoning_count(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of more reasoning tokens than completion tokens.

    Empty if usage has no more of them, or does not count them.
    """
    usage = end.answer.usage
    if usage is None or usage.reasoning_tokens is None or usage.reasoning_tokens <= usage.completion_tokens:
        return ""
    return f"usage counts {usage.reasoning_tokens} reasoning tokens among {usage.completion_tokens} completion tokens"


def _describe_wrong_text(end: AnswerEnd, baseline: BaselineEndings) -> str:
    """Return a description of another text for the baseline's tokens.

    Reasoning is compared before the text, without regard to an incomplete last character. Empty if both are equal, if the tokens are not,
    or without a baseline's choice beside it.
    """
    if end.peer is None or end.ids != end.peer.token_ids:
        return ""
    return _describe_text_difference("reasoning", end.choice.reasoning, end.peer.reasoning) or _describe_text_difference(
        "text", end.choice.text, end.peer.text
    )


def _describe_text_difference(what: str, text: str, baseline_text: str) -> str:
    """Return a description of two texts' first difference; empty without one.

    ``what`` is the name of the texts. An incomplete last character, U+FFFD, is ignored.
    """
    text, baseline_text = text.rstrip("\ufffd"), baseline_text.rstrip("\ufffd")
    if text == baseline_text:
        return ""
    at = first_difference(text, baseline_text)
    return f"{what} goes on with {quote(text[at:], 20)}, the baseline's with {quote(baseline_text[at:], 20)}, from the same tokens"


Rule: TypeAlias = Callable[[AnswerEnd, BaselineEndings], str]

_RULES: tuple[tuple[BadEnd, Rule], ...] = (
    (BadEnd.CUT, _describe_unreached),
    (BadEnd.CUT, _describe_early_stop),
    (BadEnd.PAST, _describe_overrun),
    (BadEnd.PAST, _describe_tokens_after_end),
    (BadEnd.PAST, _describe_text_after_stop),
    (BadEnd.CUT, _describe_stop_below_limit),
    (BadEnd.CUT, _describe_early_end),
    (BadEnd.PAST, _describe_late_end),
    (BadEnd.REASON, _describe_stop_at_limit),
    (BadEnd.REASON, _describe_wrong_reason),
    (BadEnd.COUNT, _describe_wrong_count),
    (BadEnd.COUNT, _describe_reasoning_count),
    (BadEnd.TEXT, _describe_wrong_text),
)
"""Rules for the ends of any correct server; each returns a description of its breach, empty if the end keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongEnd:
    """An end that breaks a rule."""

    flaw: BadEnd
    end: AnswerEnd
    what: str

    def __str__(self) -> str:
        return f"{self.end.answer.request_id}, pass {self.end.answer.pass_index}: {self.what}"


def _find_first_breach(end: AnswerEnd, baseline: BaselineEndings, rules: Sequence[tuple[BadEnd, Rule]]) -> WrongEnd | None:
    """Return the first rule that ``end`` breaks; None if it keeps all."""
    broken = ((flaw, rule(end, baseline)) for flaw, rule in rules)
    return next((WrongEnd(flaw=flaw, end=end, what=what) for flaw, what in broken if what), None)


def _fail_ending(captured: Captured, wrong: Sequence[WrongEnd], excused: Collection[BadEnd]) -> Verdict:
    """Return FAIL, named by the most frequent flaw.

    ``wrong`` has one broken rule per answer. ``excused`` are the flaws of rules that the baseline breaks too: these rules were not applied,
    others of the same flaw were.
    """
    counts = Counter(wrong_end.flaw for wrong_end in wrong)
    flaw, count = counts.most_common(1)[0]
    first = next(wrong_end for wrong_end in wrong if wrong_end.flaw is flaw)
    others = ", ".join(f"{other.value} in {number}" for other, number in counts.items() if other is not flaw)
    comparison = "by a rule that the baseline's keep" if flaw in excused else "none of the baseline's"
    answers, peer = sum(answer.ok for answer in captured.speculative.answers), first.end.peer
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    return say(
        captured,
        Outcome.FAIL,
        f"{flaw.value}: {count} of {answers} answers, {comparison}" + (f"; also {others}" if others else ""),
        short=(
            f"first        {first.end.answer.request_id}: {first.what}",
            *([] if peer is None else [f"baseline     {len(peer.token_ids)} tokens, finish_reason {peer.finish_reason!r}"]),
        ),
        evidence=(*map(str, wrong[:_SHOWN]), *more),
        cell=number_of(len(wrong), "wrong end"),
        names=flaw.value,
        check=SharedCheck.ENDING,
        example=Example(symptom=Symptom.ANSWER, request_id=first.end.answer.request_id, pass_index=first.end.answer.pass_index),
        figures={"answers": float(answers), "wrong_ends": float(len(wrong))},
    )
