"""Rules of an answer's length: where it has to end by its request, and by its arm's own answer without any stop.

That answer without a stop is called plain (judge/length_cases.py). A case is one answer with what its end is judged by: its request's
limits, ``most`` tokens (max_tokens) and ``least`` (min_tokens), the plain answer, and ``peer``, the baseline's answer to the same request.
Each rule returns the breach of the answer, or None if it keeps the rule. A verify window is the tokens that one verify step emits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.answer_end import EndKind
from pytest_specdec.judge.verdicts import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_specdec.judge.length_cases import LengthCase
    from pytest_specdec.model.transcript import Choice

__all__ = ["Breach", "LengthFlaw", "find_breaches"]


class LengthFlaw(StrEnum):
    """Kinds of breaches, those that explain others first."""

    OVERRUN = "max_tokens is overrun by part of a window"
    USAGE = "usage counts tokens that were not answered"
    STRADDLED = "a stop string over two windows is missed"
    MISSED = "a stop string inside a window is missed"
    LIMIT_FIRST = "the limit goes before a stop in the same window"
    BEHIND = "what stands after the stop is delivered too"
    KEPT = "the stop string stays in the text"
    INCLUDE = "include_stop_str_in_output is ignored"
    REASON = "finish_reason says length for a stop"
    PLACE = "the stop string is cut from the wrong place"
    STOP_ID = "a stop token inside a window is ignored"
    END = "an end of sequence inside a window is ignored"
    DESPITE = "an end of sequence ends an answer despite ignore_eos"
    EARLY = "min_tokens is not reached"
    STEPS = "min_tokens is counted in steps"
    UNDERSHOT = "max_tokens is undershot by part of a window"
    STOP_REASON = "stop_reason names another stop than the one that ended the answer"
    STOP_REASON_LOST = "stop_reason is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """An answer that breaks a rule of length."""

    flaw: LengthFlaw
    case: LengthCase
    what: str

    def __str__(self) -> str:
        return f"{self.case.answer.request_id}: {self.what}"


def find_breaches(case: LengthCase) -> Iterator[Breach]:
    """Yield the breach of each rule that an answer breaks, in the order of the rules.

    A later one may follow from the first.
    """
    yield from (rule_breach for rule in _RULES if (rule_breach := rule(case)))


def _breach(case: LengthCase, flaw: LengthFlaw, what: str) -> Breach:
    return Breach(flaw=flaw, case=case, what=what)


def _check_overrun(case: LengthCase) -> Breach | None:
    """Return a breach if the answer has more tokens than max_tokens; None if either is unknown."""
    most, tokens = case.limits.most, case.tokens
    if most is None or tokens is None or tokens <= most:
        return None
    return _breach(case, LengthFlaw.OVERRUN, f"{tokens} tokens where max_tokens is {most}")


def _check_usage(case: LengthCase) -> Breach | None:
    """Return a breach if usage counts other tokens than the answer has ids; None without either."""
    usage, ids = case.answer.usage, case.choice.token_ids
    if usage is None or not ids or usage.completion_tokens == len(ids):
        return None
    return _breach(case, LengthFlaw.USAGE, f"usage counts {usage.completion_tokens} completion tokens, the answer has {len(ids)} ids")


def _check_stop_in_text(case: LengthCase) -> Breach | None:
    """Return a breach if text passes or wrongly keeps a stop string.

    The first stop string in the text counts, but not one at its end that the request asked to keep. Returns None without one, and under
    min_tokens, since not every stop string may stop the answer then.
    """
    text = case.text_before_stop
    first = None if case.limits.least else _first_stop(case, text)
    if first is None:
        return None
    text_after = text[first.begin + len(first.stop) :]
    what = f"goes on after the stop string {quote(first.stop)} with {quote(text_after)}"
    if not case.has_stopped:
        return _check_limit_after_stop(case, text_after, what)
    if not text_after:
        return _breach(case, LengthFlaw.KEPT, f"ends with the stop string {quote(first.stop)}, which was to be cut off")
    # It passed this stop string and ended at a later one, or it stopped here and the text after it was delivered too.
    return _breach(case, _name_missed_stop(case) if _ends_at_later_stop(case) else LengthFlaw.BEHIND, what)


def _check_limit_after_stop(case: LengthCase, text_after: str, what: str) -> Breach | None:
    """Return the breach, described by ``what``, of an answer not stopped by its stop string."""
    # The last allowed token completes the stop string: servers may test the limit before the stop.
    if not text_after and _ends_at_limit(case):
        return None
    place, most = case.place, case.limits.most
    if place is not None and most is not None and place.start + place.size >= most:
        return _breach(case, LengthFlaw.LIMIT_FIRST, f"{what}, up to the limit of the same window")
    return _breach(case, _name_missed_stop(case), what)


def _name_missed_stop(case: LengthCase) -> LengthFlaw:
    """Return the flaw of a missed stop string, by the place where the answer should end.

    A server that looks for stops only after whole windows misses those inside a window, but not one that ends with its window. If such a
    one is missed, it began in an earlier window: STRADDLED, else MISSED.
    """
    place = case.place
    ends_with_window = place is not None and place.size > 1 and place.offset == place.size - 1
    return LengthFlaw.STRADDLED if ends_with_window else LengthFlaw.MISSED


def _ends_at_limit(case: LengthCase) -> bool:
    """Return True if finish_reason is length at max_tokens or beyond."""
    tokens, most = case.tokens, case.limits.most
    return case.choice.finish_reason == "length" and tokens is not None and most is not None and tokens >= most


def _ends_at_later_stop(case: LengthCase) -> bool:
    """Return True if a stop string right after the text ended the answer.

    It was cut off: the plain answer, which no stop ends, shows it. The text itself has an earlier stop string, which was passed.
    """
    plain, text = case.plain, case.text_before_stop
    return plain is not None and case.follows_plain and any(plain.text.startswith(text + stop) for stop in case.limits.stop_strings)


def _check_stop_place(case: LengthCase) -> Breach | None:
    """Return a breach if the answer ends elsewhere than at its stop.

    The plain answer goes on where this one stops, so that the text should end at the first stop string in it, with finish_reason stop. The
    flaw is REASON for the right text with another finish_reason; INCLUDE if a stop string that was to stay is cut off; and PLACE for any
    other text. Returns None if the plain answer has no stop string, or does not begin with this answer.
    """
    stops, plain = case.limits.stop_strings, case.plain
    first = _first_stop(case, plain.text) if stops and plain is not None and case.follows_plain else None
    if first is None or plain is None:
        return None
    text, text_before = case.choice.text, plain.text[: first.begin]
    expected = text_before + first.stop if case.limits.keeps_stop else text_before
    if text == expected:
        # At a limit, which the server may have set itself if the request has none, finish_reason may be length.
        may_be_at_limit = case.tokens is None or case.limits.most is None or case.tokens >= case.limits.most
        what = f"finish_reason {case.choice.finish_reason!r} at the stop string {quote(first.stop)}"
        return None if case.has_stopped or may_be_at_limit else _breach(case, LengthFlaw.REASON, what)
    # A limit or an end of sequence may have ended an answer with another text.
    if not case.has_stopped or not _has_stop_string_ended(case, plain, expected):
        return None
    if case.limits.keeps_stop and text == text_before:
        return _breach(case, LengthFlaw.INCLUDE, f"the stop string {quote(first.stop)} was to stay and is cut off")
    return _breach(case, LengthFlaw.PLACE, f"ends with {quote(text[-20:])}; before the first stop string stands {quote(text_before[-20:])}")


def _has_stop_string_ended(case: LengthCase, plain: Choice, expected: str) -> bool:
    """Return True if a stop string, and no end of sequence, surely ended the answer.

    The answer stopped, with another text than ``expected``, the one of ``plain`` up to its first stop string.
    """
    ids, peer = case.choice.token_ids, case.peer
    if ids and case.end_ids:
        return ids[-1] not in case.end_ids
    # An end of sequence leaves a beginning of the plain answer's text, a stop string cut from the wrong place may leave another one.
    if not plain.text.startswith(case.choice.text):
        return True
    if case.choice.stop_string in case.limits.stop_strings:  # the server names it
        return True
    # Else the baseline's answer must have ended at the stop string, with tokens that this one has too.
    return peer is not None and bool(peer.token_ids) and peer.text == expected and case.begins_as(peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StopPlace:
    """A stop string in a text."""

    begin: int
    """Characters of the text before it."""
    stop: str


def _first_stop(case: LengthCase, text: str) -> _StopPlace | None:
    """Return the first effective stop string of the request in ``text``.

    First is the one that ends first. Effective are those that end after the text of the first min_tokens tokens, which no stop may end.
    Returns None if there is none, or if that text is unknown.
    """
    exempt = _exempt_characters(case)
    if exempt is None:
        return None
    # A stop string may begin within the exempt characters, but has to end after them.
    begins = {stop: text.find(stop, max(0, exempt - len(stop) + 1)) for stop in case.limits.stop_strings}
    places = [_StopPlace(begin=begin, stop=stop) for stop, begin in begins.items() if begin != -1]
    return min(places, key=lambda place: place.begin + len(place.stop), default=None)


def _exempt_characters(case: LengthCase) -> int | None:
    """Return the number of characters of the first min_tokens tokens; 0 without min_tokens.

    Only a stop string that ends after them may stop the answer. Returns None if no answer shows their text.
    """
    if not case.limits.least:
        return 0
    text = case.texts.get(case.choice.token_ids[: case.limits.least])
    return None if text is None else len(text)


def _check_min_tokens(case: LengthCase) -> Breach | None:
    """Return a breach if the answer stops before min_tokens; None if its tokens are unknown."""
    tokens, least = case.tokens, case.limits.least
    if not case.has_stopped or tokens is None or tokens >= least:
        return None
    return _breach(case, LengthFlaw.EARLY, f"stops after {tokens} tokens where min_tokens is {least}")


def _check_stop_after_min_tokens(case: LengthCase) -> Breach | None:
    """Return a breach if the answer passes a stop string after min_tokens.

    ``text_before_stop`` is the whole text, without a stop string that the request keeps at its end. :func:`_first_stop` leaves out those
    within the first min_tokens tokens. Returns None without min_tokens, where :func:`_check_stop_in_text` decides.
    """
    first = _first_stop(case, case.text_before_stop) if case.limits.least else None
    if first is None:
        return None
    return _breach(case, LengthFlaw.STEPS, f"passes the stop string {quote(first.stop)} after {case.limits.least} tokens, its min_tokens")


def _check_passed_ids(case: LengthCase) -> Breach | None:
    """Return a breach if tokens follow a stop or an end of sequence.

    Stops are the request's stop token ids. Ends of sequence do not count if the request ignores them; the first min_tokens tokens are
    exempt. The flaw is STOP_ID or END, by the id that was passed, or BEHIND.
    """
    ids, limits = case.choice.token_ids, case.limits
    eos_ids = frozenset() if limits.ignores_eos else case.end_ids
    enders = limits.stop_ids | eos_ids
    passed = next((index for index in range(limits.least, len(ids) - 1) if ids[index] in enders), None)
    if passed is None:
        return None
    what = f"{len(ids) - passed - 1} tokens after id {ids[passed]}, which ends an answer"
    # If the answer stopped, and not at its last id, it stopped at the passed one: the tokens after that were delivered too.
    if case.has_stopped and ids[-1] not in enders:
        return _breach(case, LengthFlaw.BEHIND, what)
    return _breach(case, LengthFlaw.STOP_ID if ids[passed] in limits.stop_ids else LengthFlaw.END, what)


def _check_ignore_eos(case: LengthCase) -> Breach | None:
    """Return a breach if the answer stops despite ignore_eos; None if a stop or a grammar may end it."""
    if not case.has_stopped or not case.limits.ignores_eos or case.limits.kind is not EndKind.PLAIN:
        return None
    return _breach(case, LengthFlaw.DESPITE, f"stops after {case.tokens} tokens despite ignore_eos")


def _check_undershot(case: LengthCase) -> Breach | None:
    """Return a breach if finish_reason is length below max_tokens; None if either number is unknown."""
    most, tokens = case.limits.most, case.tokens
    if case.choice.finish_reason != "length" or most is None or tokens is None or tokens >= most:
        return None
    return _breach(case, LengthFlaw.UNDERSHOT, f"finish_reason 'length' after {tokens} of {most} allowed tokens")


def _check_stop_reason(case: LengthCase) -> Breach | None:
    """Return a breach if the stop_reason names no stop that ended the answer.

    finish_reason has to be stop too. Without a stop_reason :func:`_check_lost_stop_reason` decides.
    """
    choice, limits = case.choice, case.limits
    named = choice.stop_token_id if choice.stop_string is None else choice.stop_string
    if named is None:
        return _check_lost_stop_reason(case)
    last = choice.token_ids[-1] if choice.token_ids else None
    if isinstance(named, str):
        is_right = named in limits.stop_strings
    elif last is not None and last in limits.stop_ids:
        is_right = named == last
    else:
        # The last token need not be a stop id of the request: vLLM reports those of a model's generation config too.
        is_right = named == last or named in limits.stop_ids
    if is_right and case.has_stopped:
        return None
    what = f"stop_reason {quote(named) if isinstance(named, str) else named} beside finish_reason {choice.finish_reason!r}"
    stops = [*map(quote, limits.stop_strings), *(["stop_token_ids"] if limits.stop_ids else [])]
    what += f", where the request asks for {', '.join(stops) or 'no stop'}" + ("" if last is None else f" and the last token is {last}")
    return _breach(case, LengthFlaw.STOP_REASON, what)


def _check_lost_stop_reason(case: LengthCase) -> Breach | None:
    """Return a breach if only the baseline's answer has a stop_reason.

    It is called for answers without one alone (:func:`_check_stop_reason`). Both answers have to have the same tokens and finish_reason;
    else returns None.
    """
    peer, choice = case.peer, case.choice
    if peer is None or not choice.token_ids or (choice.token_ids, choice.finish_reason) != (peer.token_ids, peer.finish_reason):
        return None
    named = peer.stop_token_id if peer.stop_string is None else peer.stop_string
    return None if named is None else _breach(case, LengthFlaw.STOP_REASON_LOST, f"no stop_reason; the baseline's is {named!r}")


_RULES: tuple[Callable[[LengthCase], Breach | None], ...] = (
    _check_overrun,
    _check_usage,
    _check_stop_in_text,
    _check_min_tokens,
    _check_stop_after_min_tokens,
    _check_stop_place,
    _check_passed_ids,
    _check_ignore_eos,
    _check_undershot,
    _check_stop_reason,
)
