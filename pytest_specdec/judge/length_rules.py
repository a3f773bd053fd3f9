"""Rules of an answer's length: where it has to end by its request, and by its arm's own answer without any stop.

That answer without a stop is called plain: it shows the text in which the stop strings of other requests with its prompt are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.answer_end import EndKind, limits_of
from pytest_specdec.judge.verdicts import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.judge.answer_end import RequestLimits
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["Breach", "LengthCase", "LengthFlaw", "WindowPlace", "find_breaches", "length_cases", "texts_by_ids"]


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
class WindowPlace:
    """The place of a token in its window, the tokens of one verify step."""

    offset: int
    """Tokens of the window before it."""
    size: int
    """Tokens of the window, as far as the server delivered them."""
    start: int
    """Tokens of the answer before the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCase:
    """One answer of one arm, with all that its end is judged by."""

    answer: Answer
    limits: RequestLimits
    plain: Choice | None
    """The arm's own longest answer to the same prompt that only a limit or an end of sequence ended; None without one."""
    peer: Choice | None
    """The baseline's answer to the same request; None without one."""
    end_ids: frozenset[int]
    texts: Mapping[tuple[int, ...], str]
    """The text of token ids, as answers show it that a limit cut after them."""

    @property
    def choice(self) -> Choice:
        """The answer's only choice."""
        return self.answer.choice

    @property
    def tokens(self) -> int | None:
        """The number of tokens of the answer; None if neither ids nor usage tell."""
        return self.answer.tokens

    @property
    def stopped(self) -> bool:
        """True if a stop or an end of sequence ended it."""
        return self.choice.finish_reason == "stop"

    @property
    def text_before_stop(self) -> str:
        """The text, without the stop string at its end if the request asks to keep it there."""
        text = self.choice.text
        if self.limits.keeps_stop:
            return next((text.removesuffix(stop) for stop in self.limits.stop_strings if text.endswith(stop)), text)
        return text

    @property
    def follows_plain(self) -> bool:
        """True if the plain answer begins with its tokens, or without token ids with its text."""
        if self.plain is None:
            return False
        ids = self.choice.token_ids
        return self.plain.token_ids[: len(ids)] == ids if ids else self.plain.text.startswith(self.text_before_stop)

    @property
    def end(self) -> int | None:
        """The number of tokens at which the answer should end; None without token ids.

        It is that of the baseline's answer if the baseline stopped and this answer begins with the same tokens, else its own.
        """
        peer = self.peer
        if peer is not None and peer.finish_reason == "stop" and peer.token_ids and self.begins_as(peer):
            return len(peer.token_ids)
        return len(self.choice.token_ids) or None

    def begins_as(self, peer: Choice) -> bool:
        """Return True if it begins with the tokens of ``peer``."""
        return self.choice.token_ids[: len(peer.token_ids)] == peer.token_ids

    @property
    def place(self) -> WindowPlace | None:
        """The place, in its verify window, of the token at which the answer should end.

        The answer's own last window is cut at its end. If the plain answer begins with the same windows, its windows are taken instead,
        since they show this one whole. None if the windows are unknown.
        """
        windows, end = self.choice.windows, self.end
        if not windows or end is None:
            return None
        of_plain = self.plain.windows if self.plain is not None and self.follows_plain else None
        begin_alike = of_plain is not None and of_plain[: len(windows) - 1] == windows[:-1]
        if of_plain and begin_alike and sum(windows) <= len(self.choice.token_ids):
            windows = of_plain
        return _window_place(windows, end)


def _window_place(windows: Sequence[int], end: int) -> WindowPlace | None:
    """Return the window place of token ``end``, counted from 1.

    ``windows`` are the tokens emitted by each step, the prefill's first. None if they do not reach the token.
    """
    start = 0
    for size in windows:
        if start + size >= end:
            return WindowPlace(offset=end - start - 1, size=size, start=start)
        start += size
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """An answer that breaks a rule of length."""

    flaw: LengthFlaw
    case: LengthCase
    what: str

    def __str__(self) -> str:
        return f"{self.case.answer.request_id}: {self.what}"


def texts_by_ids(arms: Sequence[Transcript], workload: Workload) -> dict[tuple[int, ...], str]:
    """Return the texts of answers cut by a limit, by token ids.

    They show which text the first tokens of another answer have. Answers to requests with stop strings are left out, since a stop string
    may be cut from their text.
    """
    limits = {request.id: limits_of(request) for request in workload.requests}
    answers = (answer for arm in arms for answer in arm.answers if answer.ok and answer.request_id in limits)
    cut = (answer.choice for answer in answers if not limits[answer.request_id].stop_strings)
    return {choice.token_ids: choice.text for choice in cut if choice.finish_reason == "length" and choice.token_ids}


def length_cases(
    workload: Workload, arm: Transcript, baseline: Transcript, end_ids: frozenset[int], texts: Mapping[tuple[int, ...], str]
) -> Iterator[LengthCase]:
    """Yield a case for every answer of ``arm`` with one choice.

    ``end_ids`` are the ids that end a sequence, ``texts`` the texts by token ids of :func:`texts_by_ids`.
    """
    requests = workload.by_id
    baseline_choices = {answer.key: answer.choice for answer in baseline.answers if answer.ok}
    plain = _plain_answers(requests, arm)
    for answer in arm.answers:
        if answer.ok and len(answer.choices) == 1 and answer.request_id in requests:
            request = requests[answer.request_id]
            yield LengthCase(
                answer=answer,
                limits=limits_of(request),
                plain=plain.get(request.prompt_key),
                peer=baseline_choices.get(answer.key),
                end_ids=end_ids,
                texts=texts,
            )


def _plain_answers(requests: Mapping[str, Request], arm: Transcript) -> dict[str, Choice]:
    """Return the plain answer of each prompt, by the prompt's key.

    It is the one with the largest limit among requests without stops, grammar, min_tokens or ignore_eos. Requests without a limit are left
    out.
    """
    longest: dict[str, tuple[int, Choice]] = {}
    for answer in arm.answers:
        request = requests.get(answer.request_id)
        if request is None or not answer.ok:
            continue
        limits = limits_of(request)
        free = limits.kind is EndKind.PLAIN and not limits.ignores_eos and not limits.least
        if free and (limits.most or 0) > longest.get(request.prompt_key, (0,))[0]:
            longest[request.prompt_key] = (limits.most or 0, answer.choice)
    return {key: choice for key, (_, choice) in longest.items()}


def find_breaches(case: LengthCase) -> Iterator[Breach]:
    """Yield the breach of each rule that an answer breaks, in the order of the rules.

    A later one may follow from the first.
    """
    yield from (rule_breach for rule in _RULES if (rule_breach := rule(case)))


def _breach(case: LengthCase, flaw: LengthFlaw, what: str) -> Breach:
    return Breach(flaw=flaw, case=case, what=what)


def _check_overrun(case: LengthCase) -> Breach | None:
    most, tokens = case.limits.most, case.tokens
    if most is None or tokens is None or tokens <= most:
        return None
    return _breach(case, LengthFlaw.OVERRUN, f"{tokens} tokens where max_tokens is {most}")


def _check_usage(case: LengthCase) -> Breach | None:
    usage, ids = case.answer.usage, case.choice.token_ids
    if usage is None or not ids or usage.completion_tokens == len(ids):
        return None
    return _breach(case, LengthFlaw.USAGE, f"usage counts {usage.completion_tokens} completion tokens, the answer has {len(ids)} ids")


def _check_stop_in_text(case: LengthCase) -> Breach | None:
    """Return a breach if text passes or wrongly keeps a stop string.

    The first stop string in the text counts, but not one at its end that the request asked to keep. The flaw is KEPT if the answer stopped
    and ends with it, and BEHIND if the answer stopped after further text. It is LIMIT_FIRST if the answer did not stop, and the verify
    window of its end reaches the token limit. Otherwise, and if a later stop string ended the answer, the stop string was missed: STRADDLED
    if the answer should end at the last of several tokens in a window, else MISSED.

    Returns None without a stop string in the text, and under min_tokens, since not every stop string may stop the answer then. None too if
    the last allowed token completes the stop string: servers may test the limit before the stop.
    """
    first = None if case.limits.least else _first_stop(case, case.text_before_stop)
    if first is None:
        return None
    begin, stop = first
    text_after = case.text_before_stop[begin + len(stop) :]
    what = f"goes on after the stop string {quote(stop)} with {quote(text_after)}"
    place = case.place
    missed = LengthFlaw.STRADDLED if place is not None and place.size > 1 and place.offset == place.size - 1 else LengthFlaw.MISSED
    if case.stopped and not text_after:
        return _breach(case, LengthFlaw.KEPT, f"ends with the stop string {quote(stop)}, which was to be cut off")
    if case.stopped:
        return _breach(case, missed if _ends_at_later_stop(case) else LengthFlaw.BEHIND, what)
    if not text_after and _ends_at_limit(case):
        return None
    if place is not None and case.limits.most is not None and place.start + place.size >= case.limits.most:
        return _breach(case, LengthFlaw.LIMIT_FIRST, f"{what}, up to the limit of the same window")
    return _breach(case, missed, what)


def _ends_at_limit(case: LengthCase) -> bool:
    tokens, most = case.tokens, case.limits.most
    return case.choice.finish_reason == "length" and tokens is not None and most is not None and tokens >= most


def _ends_at_later_stop(case: LengthCase) -> bool:
    """Return True if the plain answer has a stop string right after the text.

    Such a stop string ended the answer and was cut off, after the answer had passed another one.
    """
    plain, text = case.plain, case.text_before_stop
    return plain is not None and case.follows_plain and any(plain.text.startswith(text + stop) for stop in case.limits.stop_strings)


def _check_stop_place(case: LengthCase) -> Breach | None:
    """Return a breach if the answer ends elsewhere than at its stop.

    The text should end at the first stop string in the plain answer's text, with finish_reason stop. The flaw is REASON for the right text
    with another finish_reason, below the token limit; INCLUDE if a stop string that was to stay is cut off; and PLACE for any other text.
    Returns None if the plain answer has no stop string, does not begin with this answer, or if an end of sequence may have ended it.
    """
    stops, plain = case.limits.stop_strings, case.plain
    first = _first_stop(case, plain.text) if stops and plain is not None and case.follows_plain else None
    if first is None or plain is None:
        return None
    begin, stop = first
    expected = plain.text[: begin + len(stop)] if case.limits.keeps_stop else plain.text[:begin]
    text, cut = case.choice.text, plain.text[:begin]
    if text == expected:
        at_limit = case.tokens is None or case.limits.most is None or case.tokens >= case.limits.most
        what = f"finish_reason {case.choice.finish_reason!r} at the stop string {quote(stop)}"
        return None if case.stopped or at_limit else _breach(case, LengthFlaw.REASON, what)
    if not case.stopped or not _shows_stop(case, plain, expected):
        return None
    if case.limits.keeps_stop and text == cut:
        return _breach(case, LengthFlaw.INCLUDE, f"the stop string {quote(stop)} was to stay and is cut off")
    return _breach(case, LengthFlaw.PLACE, f"ends with {quote(text[-20:])}; before the first stop string stands {quote(cut[-20:])}")


def _shows_stop(case: LengthCase, plain: Choice, expected: str) -> bool:
    """Return True if a stop string surely ended the answer.

    The last id shows that where ids show ends of sequence. Elsewhere ids may hide one after any beginning of the text of ``plain``: the
    server has to name the stop string, or the answer to have the tokens of the baseline's, whose text is ``expected``.
    """
    ids, peer = case.choice.token_ids, case.peer
    if ids and case.end_ids:
        return ids[-1] not in case.end_ids
    if not plain.text.startswith(case.choice.text) or case.choice.stop_string in case.limits.stop_strings:
        return True
    return peer is not None and bool(peer.token_ids) and peer.text == expected and case.begins_as(peer)


def _first_stop(case: LengthCase, text: str) -> tuple[int, str] | None:
    """Return the position and text of the first effective stop string.

    First is the one complete first in ``text``; it has to be complete after the text of the first min_tokens tokens. Returns None if there
    is none, or if that text is unknown.
    """
    exempt = _exempt_characters(case)
    if exempt is None:
        return None
    places = [(text.find(stop, max(0, exempt - len(stop) + 1)), stop) for stop in case.limits.stop_strings]
    return min(((at, stop) for at, stop in places if at != -1), key=lambda place: place[0] + len(place[1]), default=None)


def _exempt_characters(case: LengthCase) -> int | None:
    """Return the number of characters of the first min_tokens tokens; 0 without min_tokens.

    Only a stop string that ends after them may stop the answer. Returns None if no answer shows their text.
    """
    if not case.limits.least:
        return 0
    text = case.texts.get(case.choice.token_ids[: case.limits.least])
    return None if text is None else len(text)


def _check_min_tokens(case: LengthCase) -> Breach | None:
    tokens, least = case.tokens, case.limits.least
    if not case.stopped or tokens is None or tokens >= least:
        return None
    return _breach(case, LengthFlaw.EARLY, f"stops after {tokens} tokens where min_tokens is {least}")


def _check_stop_after_min_tokens(case: LengthCase) -> Breach | None:
    """Return a breach if the answer passes a stop string after min_tokens.

    Returns None without min_tokens, where :func:`_check_stop_in_text` decides, and if the text of the first min_tokens tokens is unknown.
    """
    first = _first_stop(case, case.text_before_stop) if case.limits.least else None
    if first is None:
        return None
    return _breach(case, LengthFlaw.STEPS, f"passes the stop string {quote(first[1])} after {case.limits.least} tokens, its min_tokens")


def _check_passed_ids(case: LengthCase) -> Breach | None:
    """Return a breach if tokens follow a stop or an end of sequence.

    Stops are the request's stop token ids. Ends of sequence do not count if the request ignores them; the first min_tokens tokens are
    exempt. The flaw is BEHIND if the answer stopped and its last id ends nothing: it ended at the earlier id, and the tokens after that
    were delivered too. Else it is STOP_ID or END, by the id that was passed.
    """
    ids, limits = case.choice.token_ids, case.limits
    ends = frozenset() if limits.ignores_eos else case.end_ids
    at = next((i for i in range(limits.least, len(ids) - 1) if ids[i] in limits.stop_ids or ids[i] in ends), None)
    if at is None:
        return None
    flaw = LengthFlaw.STOP_ID if ids[at] in limits.stop_ids else LengthFlaw.END
    what = f"{len(ids) - at - 1} tokens after id {ids[at]}, which ends an answer"
    return _breach(case, LengthFlaw.BEHIND if case.stopped and ids[-1] not in limits.stop_ids | ends else flaw, what)


def _check_ignore_eos(case: LengthCase) -> Breach | None:
    if not case.stopped or not case.limits.ignores_eos or case.limits.kind is not EndKind.PLAIN:
        return None
    return _breach(case, LengthFlaw.DESPITE, f"stops after {case.tokens} tokens despite ignore_eos")


def _check_undershot(case: LengthCase) -> Breach | None:
    most, tokens = case.limits.most, case.tokens
    if case.choice.finish_reason != "length" or most is None or tokens is None or tokens >= most:
        return None
    return _breach(case, LengthFlaw.UNDERSHOT, f"finish_reason 'length' after {tokens} of {most} allowed tokens")


def _check_stop_reason(case: LengthCase) -> Breach | None:
    """Return a breach if the stop_reason names no stop that ended the answer.

    It has to name one of the request's stops, and finish_reason to be stop. A stop_reason that is a token id must be the last token, or one
    of the request's stop ids if the answer ends with none of its stop ids. The last token may be an id that the request does not list: vLLM
    reports those of a model's generation config too. Without a stop_reason :func:`_check_lost_stop_reason` decides.
    """
    choice, limits = case.choice, case.limits
    named = choice.stop_token_id if choice.stop_string is None else choice.stop_string
    if named is None:
        return _check_lost_stop_reason(case)
    last = choice.token_ids[-1] if choice.token_ids else None
    ends_at_stop = last is not None and last in limits.stop_ids
    is_stop = named in limits.stop_strings if isinstance(named, str) else named == last or (not ends_at_stop and named in limits.stop_ids)
    if is_stop and case.stopped:
        return None
    what = f"stop_reason {quote(named) if isinstance(named, str) else named} beside finish_reason {choice.finish_reason!r}"
    asked_for = [*map(quote, limits.stop_strings), *(["stop_token_ids"] if limits.stop_ids else [])]
    what += f", where the request asks for {', '.join(asked_for) or 'no stop'}" + ("" if last is None else f" and the last token is {last}")
    return _breach(case, LengthFlaw.STOP_REASON, what)


def _check_lost_stop_reason(case: LengthCase) -> Breach | None:
    """Return a breach if only the baseline's answer has a stop_reason.

    Both answers have to have the same tokens and finish_reason; else returns None.
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
