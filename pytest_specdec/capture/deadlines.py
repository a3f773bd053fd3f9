"""Deadlines: how long an answer is waited for before its request counts as hung."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import JSON, Request

FACTOR = 10.0
"""Times as long as needed that an answer may take: speculation that slow is of no use."""
FLOOR_S = 10.0
"""Seconds that every answer gets: a pause of the machine is no hang."""
COMPILING_S = 60.0
"""Seconds for an arm's first answers, if only its own pace is known, and beside other servers: kernels may be compiled meanwhile.

The first request for log-probabilities took more than 10 s on vLLM's CPU build while four other servers used its two cores.
"""
_SLOWER = 5.0
"""Times the arm's slowest answer so far that each further one gets at least: a compilation or a busy machine slows some as much."""
_CHARACTERS = 4.0
"""Characters of a body per token, about: an estimate of how much there is to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Seconds for one answer, and where they come from."""

    seconds: float
    reason: str = ""


class Deadlines:
    """The deadlines of one workload's requests on one arm, a server under test.

    A request may take :data:`FACTOR` times what the baseline needed for it. If that is not known, as at smoke depth, where variants
    answer first, the arm's own pace in this workload is used instead; before there is one, the limit. No deadline is above the limit.
    """

    def __init__(self, limit_s: float, baseline: Transcript | None, *, paced: bool, shares_machine: bool = False) -> None:
        """Take the limit, and what deadlines are estimated from.

        No deadline exceeds ``limit_s``, in seconds. ``baseline`` has the baseline's answers to the same workload, None if unknown: the
        deadlines then follow the time per token of the arm's own answers if ``paced``, and are all ``limit_s`` if not. ``shares_machine``
        says that other servers of the capture may answer at the same time.
        """
        self._limit = Deadline(seconds=limit_s)
        self._uses_own_pace = paced and baseline is None
        self._least_s = COMPILING_S if shares_machine else FLOOR_S
        """Seconds that every answer gets: compiling takes long while other servers use the machine."""
        self._baseline = {} if baseline is None else {answer.key: answer for answer in baseline.answers if answer.ok}
        self._pace_s = 0.0
        """Seconds per token read or written, of the slowest answer so far."""

    @property
    def limit_s(self) -> float:
        """Seconds that no deadline exceeds."""
        return self._limit.seconds

    def deadline_of(self, request: Request, pass_index: int, slowest_s: float) -> Deadline:
        """Return the deadline of one request, with the reason for it.

        ``slowest_s`` is the time of the arm's slowest answer so far, 0 before the first. The reason is empty if the deadline is the limit.
        """
        # Kernels may be compiled before the first answer; later ones may take five times as long as the slowest.
        least_s = max(self._least_s, _SLOWER * slowest_s) if slowest_s else COMPILING_S
        answer = self._baseline.get((request.id, pass_index))
        if answer is not None and (needed_s := _needed_s(request, answer)):
            return self._cap_at_limit(max(least_s, FACTOR * needed_s), f"the baseline needed {needed_s:.2g} s")
        if self._uses_own_pace and self._pace_s:
            needed_s = self._pace_s * _estimate_tokens(request)
            # Other requests of this arm may still need kernels to be compiled.
            return self._cap_at_limit(max(COMPILING_S, least_s, FACTOR * needed_s), f"at this arm's pace it needs {needed_s:.2g} s")
        return self._limit

    def learn(self, request: Request, answer: Answer) -> None:
        """Update the arm's pace by the time of an answer."""
        if answer.timing is not None:
            self._pace_s = max(self._pace_s, answer.timing.latency_s / _estimate_tokens(request))

    def _cap_at_limit(self, seconds: float, reason: str) -> Deadline:
        return Deadline(seconds=seconds, reason=reason) if seconds < self._limit.seconds else self._limit


def _needed_s(request: Request, answer: Answer) -> float | None:
    """Return the seconds of the baseline's ``answer``, stretched to the token limit.

    They are stretched because another arm's answer may be longer than the baseline's. The answer's tokens are those of its longest choice,
    since choices are generated side by side, or else the number reported. Returns None without a time or a token limit.
    """
    limit = request.token_limit
    longest_tokens = max((len(choice.token_ids) for choice in answer.choices), default=0)
    answer_tokens = longest_tokens or (answer.usage.completion_tokens if answer.usage else 0)
    if answer.timing is None or not limit:
        return None
    return answer.timing.latency_s * max(1.0, limit / max(1, answer_tokens))


def _estimate_tokens(request: Request) -> float:
    """Return about how many tokens a request reads and may write."""
    return (request.token_limit or 1) + len(json.dumps(request.body)) / _CHARACTERS


_FRAME = 4
"""Parts of a stream in addition to those with tokens: a role, usage, the end."""


def describe_overdue(deadline_s: float, parts: int, body: Mapping[str, JSON]) -> str:
    """Return the error message for an answer past its deadline.

    ``parts`` is the number of pieces that came. The message tells apart no answer, part of an answer, and a stream with more parts than the
    token limit in ``body`` allows, with ``_FRAME`` more for parts without tokens. ``body`` is empty for a request that is not streamed.
    """
    message = f"no answer within {deadline_s:g} s"
    token_limit = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if isinstance(token_limit, int) and parts > token_limit + _FRAME:
        return f"{message}: its stream has no end, {parts:,} parts came where max_tokens is {token_limit}"
    return f"{message}: it began and has no end, {parts:,} parts came" if parts else message
