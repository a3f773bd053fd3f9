"""Length cases: one answer each, with all that its end is judged by.

An answer of the same arm to the same prompt without any stop is called plain: it shows the text in which the stop strings of other requests
with its prompt are looked for. A window is the tokens that one verify step emits; the limit may cut the last one of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.answer_end import EndKind, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.judge.answer_end import RequestLimits
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["LengthCase", "WindowPlace", "length_cases", "texts_by_ids"]


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
    def has_stopped(self) -> bool:
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

        Windows that reach beyond the answer's tokens are whole. Otherwise the last may have been cut, and the plain answer's windows are
        taken, which show it whole. That answer has to begin with this one and to have the same windows before the last. None if the windows
        are unknown.
        """
        sizes, end = self.choice.windows, self.end
        if not sizes or end is None:
            return None
        plain_sizes = self.plain.windows if self.plain is not None and self.follows_plain else None
        begin_alike = plain_sizes is not None and plain_sizes[: len(sizes) - 1] == sizes[:-1]
        if plain_sizes and begin_alike and sum(sizes) <= len(self.choice.token_ids):
            sizes = plain_sizes
        return _window_place(sizes, end)


def _window_place(sizes: Sequence[int], end: int) -> WindowPlace | None:
    """Return the window place of token ``end``, counted from 1.

    ``sizes`` are the tokens emitted by each step, the prefill's first. None if they do not reach the token.
    """
    start = 0
    for size in sizes:
        if start + size >= end:
            return WindowPlace(offset=end - start - 1, size=size, start=start)
        start += size
    return None


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
    plain: dict[str, Choice] = {}
    largest_limits: dict[str, int] = {}
    for answer in arm.answers:
        request = requests.get(answer.request_id)
        if request is None or not answer.ok:
            continue
        limits, key = limits_of(request), request.prompt_key
        is_plain = limits.kind is EndKind.PLAIN and not limits.ignores_eos and not limits.least
        if is_plain and (limits.most or 0) > largest_limits.get(key, 0):
            largest_limits[key], plain[key] = limits.most or 0, answer.choice
    return plain
