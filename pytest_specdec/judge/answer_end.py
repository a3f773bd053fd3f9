"""The end of an answer: the limits that its request sets, and what the answer shows of its end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Answer, Choice
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["AnswerEnd", "EndKind", "RequestLimits", "StopCounts", "limits_of"]

_NEVER = 1e-7
"""Level at which answers stop too often or too seldom for near-ties: a ten-thousandth of a run's budget, which needs no share of it."""


class EndKind(StrEnum):
    """Kinds of requests, by what else than the model or the limit may end their answers."""

    PLAIN = "plain"
    STOPS = "stops"
    """Stop strings or stop token ids of the request."""
    GRAMMAR = "grammar"
    """A grammar, which ends where its document does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits that a request sets to the end of its answer."""

    most: int | None
    """Tokens at most; None if the request leaves it to the server."""
    least: int
    """Tokens before which nothing ends an answer."""
    ignores_eos: bool
    stop_strings: tuple[str, ...]
    stop_ids: frozenset[int]
    keeps_stop: bool
    """Whether the stop string stays in the text."""
    grammar: bool
    """Whether a grammar constrains the answer."""

    @property
    def kind(self) -> EndKind:
        """The kind of the request; a grammar comes before stops, since no token shows its end."""
        if self.grammar:
            return EndKind.GRAMMAR
        return EndKind.STOPS if self.stop_strings or self.stop_ids else EndKind.PLAIN


def limits_of(request: Request) -> RequestLimits:
    """Return a request's limits on the end of its answer.

    A field that is absent or of another type sets no limit.
    """
    body = request.body
    return RequestLimits(
        most=request.token_limit,
        least=_whole_number(body.get("min_tokens")) or 0,
        ignores_eos=body.get("ignore_eos") is True,
        stop_strings=tuple(stop for stop in _items(body.get("stop")) if isinstance(stop, str) and stop),
        stop_ids=frozenset(token for token in _items(body.get("stop_token_ids")) if isinstance(token, int)),
        keeps_stop=body.get("include_stop_str_in_output") is True,
        grammar=request.grammar is not None,
    )


def _whole_number(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _items(value: JSON) -> Sequence[JSON]:
    """Return the items of a field; a text is one item, and any other value has none."""
    if isinstance(value, str):
        return (value,)
    return value if isinstance(value, Sequence) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """One choice of one answer, with all that its end is judged by."""

    answer: Answer
    choice: Choice
    limits: RequestLimits
    peer: Choice | None
    """The baseline's choice for the same request; None without one with token ids, if either answer has several choices, or if it is this
    very choice."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The emitted token ids; empty if the server gives none."""
        return self.choice.token_ids

    @property
    def tokens(self) -> int | None:
        """The number of emitted tokens; None if neither ids nor usage tell."""
        # Usage counts the tokens of all choices together, so that only ids tell those of one.
        return (len(self.ids) or None) if len(self.answer.choices) > 1 else self.answer.tokens

    @property
    def context(self) -> int:
        """Tokens of prompt and answer; an unknown number counts as 0."""
        prompt = len(self.answer.prompt_token_ids) or (self.answer.usage.prompt_tokens if self.answer.usage else 0)
        return prompt + (self.tokens or 0)

    @property
    def excess_tokens(self) -> int | None:
        """The completion tokens that usage counts beyond the ids of all choices; None without usage."""
        usage = self.answer.usage
        return None if usage is None else usage.completion_tokens - sum(len(choice.token_ids) for choice in self.answer.choices)

    @property
    def below_limit(self) -> bool:
        """True if finish_reason is length with fewer tokens than the request allows."""
        most = self.limits.most
        return self.choice.finish_reason == "length" and self.tokens is not None and most is not None and self.tokens < most

    @property
    def at_limit(self) -> bool:
        """True if it has exactly as many tokens as the request allows."""
        return self.tokens is not None and self.tokens == self.limits.most


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCounts:
    """Numbers of prompts of which the first plain answer stops by itself, with ``finish_reason`` stop.

    They are those of the judged arm (``stops``) and of the baseline, over the same ``prompts``. A plain answer is one to a request
    without stops and without a grammar (:attr:`EndKind.PLAIN`).
    """

    prompts: int
    """Prompts that both arms gave a plain answer to."""
    stops: int
    """Those of which the judged arm's answer stops by itself."""
    baseline_stops: int

    @property
    def differ(self) -> bool:
        """True if the arm's stops are too many, or too few, for near-ties.

        At a near-tie, two tokens of nearly the same probability, noise may choose the other one and so move an answer's end, independently
        for different prompts. A correct server still stops by itself as often as the baseline. That is tested in both directions by
        Fisher's exact test, at a level of 1e-7 each.
        """
        n, stops, baseline_stops = self.prompts, self.stops, self.baseline_stops
        more, fewer = ((stops, n, baseline_stops, n), (baseline_stops, n, stops, n))
        return min(proportions.greater_than_other(*more), proportions.greater_than_other(*fewer)) <= _NEVER

    @property
    def least_difference(self) -> int | None:
        """The least difference in stops to count as too large.

        So many more stops, or so many fewer, would count as different (:attr:`differ`). A report says by it how fine the test is. None if
        not even the largest difference would, as with few prompts.
        """
        # The larger the difference the smaller its p-value, so that False comes before True: the first True is searched by bisection. If
        # no smaller difference counts, the bisection ends at that of all prompts, which has not been tried yet.
        difference = bisect_left(range(self.prompts), x=True, key=self._would_show)
        return difference if self._would_show(difference) else None

    def _would_show(self, difference: int) -> bool:
        """Return True if the test would notice so many stops more, or fewer, than the baseline's.

        One of the two is enough, since there may be no room for the other: at most all prompts can stop, and no fewer than none.
        """
        more, fewer = min(self.prompts, self.baseline_stops + difference), max(0, self.baseline_stops - difference)
        return replace(self, stops=more).differ or replace(self, stops=fewer).differ
