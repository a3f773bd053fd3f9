"""Lists of log-probabilities: what a request asked for is there, in order, and no value contradicts another.

The rules need no scores. A rule that the baseline or the control breaks says nothing about the variant. A flaw is a broken rule, with the
figures that show it; a few thousandths of a nat are rounding. A list has the most probable tokens in the place of one emitted token.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import exp, fsum
from typing import TYPE_CHECKING

from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Choice, ListedTokens, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["BadList", "asked_top", "check_lists"]

_ROUNDING = 5e-3
"""Nats by which two reports of one number may differ: servers print few digits, and sum in half precision."""
_MASS = 1.02
"""The largest sum of listed probabilities that rounding explains."""
_SAME = 20
"""Tokens from which on one value for most of them cannot be chance."""
_MOST, _EXCUSED = 0.5, 0.4
"""Fraction of the arm's tokens beyond which one value is a constant, and that of the baseline's beyond which this is excused.

The second is smaller, since chance decides on which side of the first a text of certain tokens falls."""
_SHOWN = 20
_ALL = "all answers"
"""In place of a request id, for a flaw of an arm's values together."""


class BadList(StrEnum):
    """A way for reported log-probabilities to be wrong in themselves."""

    IMPOSSIBLE = "reported log-probabilities are above 0"
    COUNT = "log-probabilities are missing for some tokens"
    MISSING = "log-probabilities are missing"
    ZERO = "reported log-probabilities are zero"
    CONSTANT = "reported log-probabilities are one constant"
    FEWER = "fewer most probable tokens are listed than asked for"
    UNSORTED = "the most probable tokens are listed out of order"
    WITHOUT = "the emitted token is missing from the most probable ones or listed with another value"
    MASS = "listed probabilities add up to more than 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListFlaw:
    """One flaw of one answer, or of all values of an arm together."""

    flaw: BadList
    request_id: str
    what: str
    """The figures that show it, in words."""

    def __str__(self) -> str:
        return f"{self.request_id}: {self.what}"


def asked_top(request: Request) -> int | None:
    """Return the number of most probable tokens requested with each token.

    On the completions route ``logprobs`` is that number, on the chat route ``top_logprobs``. 0 if only the emitted token's
    log-probability is requested, None if no log-probabilities are.
    """
    requested = request.body.get("logprobs")
    if requested is None or requested is False:
        return None
    top = request.body.get("top_logprobs") if requested is True else requested
    return top if isinstance(top, int) and not isinstance(top, bool) else 0


def check_lists(captured: Captured) -> Verdict | None:
    """Return FAIL if lists of log-probabilities contradict themselves or the request.

    A rule that a boot of the baseline breaks too is left out. None if no other rule is broken.
    """
    requests = captured.workload.by_id
    # The baseline's values are called one constant at a smaller share than the arm's, lest chance puts only the arm's beyond the limit.
    excused = {breach.flaw for peer in captured.baseline_boots for breach in _find_flaws(peer, requests, _EXCUSED)}
    wrong = [breach for breach in _find_flaws(captured.speculative, requests, _MOST) if breach.flaw not in excused]
    return _fail_lists(captured, wrong) if wrong else None


def _fail_lists(captured: Captured, wrong: list[_ListFlaw]) -> Verdict:
    """Return FAIL, named by the first flaw in the order of :class:`BadList`."""
    order = list(BadList)
    flaw, *further = sorted({breach.flaw for breach in wrong}, key=order.index)
    first = next(breach for breach in wrong if breach.flaw is flaw)
    others = ", ".join(other.value for other in further)
    return say(
        captured,
        Outcome.FAIL,
        f"{flaw.value} {_where(wrong, flaw)}, in none of the baseline's" + (f"; also {others}" if others else ""),
        short=(f"first        {first}",),
        evidence=tuple(map(str, wrong[:_SHOWN])),
        cell="wrong lists",
        names=flaw.value,
        figures={"answers_with_wrong_lists": float(len({breach.request_id for breach in wrong}))},
    )


def _where(wrong: list[_ListFlaw], flaw: BadList) -> str:
    answers = {breach.request_id for breach in wrong if breach.flaw is flaw}
    return "for most tokens" if _ALL in answers else f"in {len(answers)} answers"


def _find_flaws(transcript: Transcript, requests: Mapping[str, Request], most: float) -> Iterator[_ListFlaw]:
    """Yield the flaws of one arm's answers, then of all its values together.

    Only successful answers to requests for log-probabilities count. One value for more than the fraction ``most`` of all tokens is a flaw.
    """
    values: list[float] = []
    for answer in transcript.answers:
        request = requests.get(answer.request_id)
        top = None if request is None else asked_top(request)
        if request is None or top is None or not answer.ok:
            continue
        for choice in answer.choices:
            values += choice.logprobs or ()
            for flaw, what in _find_choice_flaws(choice, top, request.route):
                yield _ListFlaw(flaw=flaw, request_id=answer.request_id, what=what)
    yield from _find_constant(values, most)


def _find_choice_flaws(choice: Choice, top: int, route: Route) -> Iterator[tuple[BadList, str]]:
    """Yield the flaws of one choice's log-probabilities, with their figures.

    ``top`` is the number of most probable tokens that the request asks for at each token. A choice that has tokens and no log-probabilities
    has the flaw MISSING alone. FEWER stands for any number of lists that is not that of log-probabilities.
    """
    tokens, logprobs = len(choice.token_ids), choice.logprobs
    if logprobs is None:
        if tokens:
            yield BadList.MISSING, f"no log-probabilities, or null among them, for {tokens} tokens"
        return
    listed = choice.listed or ()
    highest = max((*logprobs, *(value for tokens_listed in listed for value in tokens_listed.logprobs)), default=0.0)
    if highest > _ROUNDING:
        yield BadList.IMPOSSIBLE, f"a log-probability of {highest:.4g}"
    if tokens and len(logprobs) != tokens:
        yield BadList.COUNT, f"{len(logprobs)} log-probabilities for {tokens} tokens"
    if top and len(listed) != len(logprobs):
        yield BadList.FEWER, f"{len(listed)} lists for {len(logprobs)} log-probabilities"
    for index, (tokens_listed, logprob) in enumerate(zip(listed, logprobs, strict=False)):
        for flaw, what in _find_list_flaws(tokens_listed, logprob, top, route):
            yield flaw, f"token {index + 1}: {what}"


def _find_list_flaws(listed: ListedTokens, reported: float, top: int, route: Route) -> Iterator[tuple[BadList, str]]:
    """Yield the flaws of one token's list of most probable tokens.

    ``reported`` is the emitted token's log-probability outside the list, ``top`` the number of tokens asked for. On the completions route
    the list may begin with the emitted token, whatever its rank, so that its order is judged without that token. WITHOUT stands for an
    emitted token listed with another value, and for one that is missing from a list which reaches below it.
    """
    ranked = [
        logprob for token, logprob in zip(listed.tokens, listed.logprobs, strict=True) if route is Route.CHAT or token != listed.token
    ]
    if len(listed.tokens) < top:
        yield BadList.FEWER, f"{len(listed.tokens)} tokens listed, {top} asked for"
    rise = next(((before, after) for before, after in pairwise(ranked) if after > before + _ROUNDING), None)
    if rise is not None:
        yield BadList.UNSORTED, f"{rise[1]:.4f} is listed after {rise[0]:.4f}"
    # Several listed tokens may have the name of the emitted one, such as that of half a character.
    emitted_logprobs = [logprob for token, logprob in zip(listed.tokens, listed.logprobs, strict=True) if token == listed.token]
    if emitted_logprobs and min(abs(logprob - reported) for logprob in emitted_logprobs) > _ROUNDING:
        yield BadList.WITHOUT, f"{reported:.4f} reported of the token, {emitted_logprobs[0]:.4f} listed"
    is_list_whole = 0 < top <= len(listed.tokens)
    if not emitted_logprobs and is_list_whole and reported > min(listed.logprobs) + _ROUNDING:
        yield BadList.WITHOUT, f"the token, at {reported:.4f}, is not among {top} that reach down to {min(listed.logprobs):.4f}"
    # An unlisted token adds its probability to the sum. A log-probability above 0, a flaw of its own, counts as 0.
    mass = fsum(exp(min(logprob, 0.0)) for logprob in listed.logprobs) + (0.0 if emitted_logprobs else exp(min(reported, 0.0)))
    if mass > _MASS:
        yield BadList.MASS, f"the listed probabilities add up to {mass:.3f}"


def _find_constant(values: list[float], most: float) -> Iterator[_ListFlaw]:
    """Yield a flaw if one value is repeated too often.

    It makes up more than the fraction ``most`` of ``values``, the log-probabilities of one arm. It may be the 0 of certain tokens: the
    baseline's values then have the flaw too, which excuses the arm's. Of fewer than 20 values none is too frequent.
    """
    if len(values) < _SAME:
        return
    (value, count), *_ = Counter(values).most_common(1)
    if count > most * len(values):
        flaw = BadList.ZERO if value == 0.0 else BadList.CONSTANT
        yield _ListFlaw(flaw=flaw, request_id=_ALL, what=f"{count} of {len(values)} log-probabilities are {value:g}")
