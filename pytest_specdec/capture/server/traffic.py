"""The traffic of an attached server, by its counters of tokens, compared with the answers that came from there.

An attached server is somebody else's, and its counters include the requests of all clients. What they grew by around a workload, beyond its
answers, shows other clients. If the judged variant's counters lack tokens, a load balancer may have sent its requests to the baseline's
server, here called the peer. Requests aside are those sent in addition to workloads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.transcript import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.engines.server_counts import Traffic
    from pytest_specdec.model.transcript import Answer

_PAUSE_S = 0.02
"""Seconds between two readings of counters that a server updates after its answers."""
_SETTLING = 10
"""Such readings at most: the counters of a server that others use do not rest."""
_LATE = 50
"""Such readings of counters that still lack tokens which were answered."""
_CLOCK_S = 1.0
"""Seconds by which a start may seem to move while the clock is set."""
_BEYOND = 16
"""Tokens of an answer that a server may generate and not send, such as those of a window after a stop."""
_UNCOUNTED = 0.25
"""Fraction of the answered tokens that counters may lack: some engines leave the first token of each answer out."""
_COVERED = 0.75
"""Fraction of the lacking tokens that the baseline's counters must have for its server to be the one that answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """Tokens that a server counted between two readings."""

    prompt: int
    generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """What counters show beyond the answers to one workload.

    A text is empty if they show nothing of the kind.
    """

    replaced: str = ""
    """How it shows that another server answers than before."""
    foreign: str = ""
    """Tokens of other clients' requests."""
    elsewhere: str = ""
    """How it shows that the baseline's server gave some of the answers."""
    uncounted: str = ""
    """Answered tokens that are not in its counters, for an unknown reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """Tokens of requests beside a workload, and of their answers."""

    prompt_tokens: int = 0
    generated_tokens: int = 0

    def __add__(self, answer: Answer) -> Aside:
        """Return these tokens and those of one more request and answer."""
        usage = answer.usage or Usage(prompt_tokens=0, completion_tokens=0)
        prompt, generated = self.prompt_tokens + usage.prompt_tokens, self.generated_tokens + usage.completion_tokens
        return Aside(prompt_tokens=prompt, generated_tokens=generated)


class TrafficAccount:
    """Compares an attached server's counters around one workload."""

    def __init__(self, server: ArmServer) -> None:
        self._server = server
        self._before: Traffic | None = None
        """The server's counters before the workload; None if it reports none."""
        self._peer: Traffic | None = None
        """Those of the baseline's server before it."""
        self._aside = server.aside
        """Tokens of requests aside, before the workload."""

    def begin(self) -> None:
        """Read the counters once they have stopped growing.

        Before that they may still be counting earlier requests.
        """
        self._before = self._read_settled()
        self._peer = self._server.peer_traffic() if self._before is not None else None
        self._aside = self._server.aside

    def end(self, answers: Sequence[Answer] | None) -> Discrepancy:
        """Return the discrepancy between the counters and ``answers``.

        ``answers`` are all answers that the server gave here, or None if they are not all known. Tokens of requests aside since
        :meth:`begin` count like theirs. A server that counted more has other clients (``foreign``). If it counted less, either the
        baseline's server gave some of the answers (``elsewhere``), or the reason is unknown (``uncounted``).
        """
        after = self._server.traffic()
        if replacement := replacement_evidence(self._before, after):
            return Discrepancy(replaced=replacement)
        usages = [answer.usage for answer in answers or () if answer.usage is not None]
        if answers is None or len(usages) < len(answers) or self._before is None:
            return Discrepancy()  # tokens of unknown answers would pass for other clients'
        aside, aside_before = self._server.aside, self._aside
        generated_tokens = sum(usage.completion_tokens for usage in usages) + aside.generated_tokens - aside_before.generated_tokens
        # The most that a server may count: the prompt once for each choice.
        prompt_counts = (usage.prompt_tokens * len(answer.choices) for answer, usage in zip(answers, usages, strict=True))
        prompt_tokens = sum(prompt_counts) + aside.prompt_tokens - aside_before.prompt_tokens
        after = self._await_counts(after, generated_tokens)  # some servers count late
        foreign = foreign_tokens(self._before, after, prompt_tokens=prompt_tokens, generated_tokens=generated_tokens, answers=len(answers))
        lacking = uncounted_tokens(self._before, after, generated_tokens=generated_tokens)
        if lacking is None:
            return Discrepancy(foreign=foreign)
        by_baseline = baseline_evidence(lacking, self._peer, self._server.peer_traffic())
        return Discrepancy(foreign=foreign, elsewhere=by_baseline, uncounted="" if by_baseline else str(lacking))

    def _read_settled(self) -> Traffic | None:
        """Return the counters once two readings agree.

        After ten further readings they are returned as they are, since the counters of a server with other clients never rest.
        """
        traffic = self._server.traffic()
        for _ in range(_SETTLING if traffic else 0):
            time.sleep(_PAUSE_S)
            before, traffic = traffic, self._server.traffic()
            if traffic == before:
                break
        return traffic

    def _await_counts(self, after: Traffic | None, generated_tokens: int) -> Traffic | None:
        """Return the counters once they include the answers.

        ``after`` is the first reading, None without one, ``generated_tokens`` the tokens of the answers. Some servers count their tokens
        only after the answer. After 50 further readings, a second in all, the counters are returned as they are.
        """
        for _ in range(_LATE):
            lacking = uncounted_tokens(self._before, after, generated_tokens=generated_tokens)
            if lacking is None:  # all are counted, or nothing can be said without a reading
                break
            time.sleep(_PAUSE_S)
            after = self._server.traffic()
        return after


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Generated tokens that were answered and not counted."""

    answered: int
    counted: int

    def __str__(self) -> str:
        return f"its counters grew by {self.counted:,} generated tokens, and the answers brought {self.answered:,}"


def uncounted_tokens(before: Traffic | None, after: Traffic | None, *, generated_tokens: int) -> Lacking | None:
    """Return the answered tokens missing from a server's counters.

    ``before`` and ``after`` are readings around a workload, whose answers have ``generated_tokens`` tokens. Returns None if the counters
    are unknown, or lack so few as some engines always leave out: at most 16 tokens, or a quarter.
    """
    if before is None or after is None or before.generated_tokens is None or after.generated_tokens is None:
        return None
    counted = after.generated_tokens - before.generated_tokens
    is_allowed = generated_tokens - counted <= max(_BEYOND, _UNCOUNTED * generated_tokens)
    return None if is_allowed else Lacking(answered=generated_tokens, counted=counted)


def baseline_evidence(lacking: Lacking, before: Traffic | None, after: Traffic | None) -> str:
    """Return a sentence if the baseline's server answered in the variant's place.

    ``before`` and ``after`` are readings of the baseline's server, to which nothing was sent from here between them.
    If it counted at least three quarters of the tokens that the variant's server lacks, a load balancer probably sent
    the variant's requests there. Returns an empty string if it did not, or if its counters are unknown.
    """
    if before is None or after is None:
        return ""
    peer_tokens = _growth(before, after).generated
    covers = peer_tokens >= _COVERED * (lacking.answered - lacking.counted)
    return f"{lacking}; those of the baseline's server grew by {peer_tokens:,} meanwhile" if covers else ""


def replacement_evidence(before: Traffic | None, after: Traffic | None) -> str:
    """Return a sentence if two readings come from different servers.

    A different server shows by a start time that differs by more than a second, or by counters that went back. Returns an empty string
    without such evidence.
    """
    if before is None or after is None:
        return ""
    if before.started_s is not None and after.started_s is not None and abs(after.started_s - before.started_s) > _CLOCK_S:
        return f"it started {after.started_s - before.started_s:.0f} s later than the one before"
    growth = _growth(before, after)
    return "its counters went back" if growth.prompt < 0 or growth.generated < 0 else ""


def foreign_tokens(before: Traffic | None, after: Traffic | None, *, prompt_tokens: int, generated_tokens: int, answers: int) -> str:
    """Return the tokens counted for other clients, in words.

    They are the growth of the counters that ``answers`` answers do not explain. Returns an empty string without any.

    ``prompt_tokens`` and ``generated_tokens`` are the most that the requests from here took. Up to 16 more generated tokens per answer are
    no sign of others, since a server may generate some that it does not send. If there are prompt tokens of others, all are named.
    """
    if before is None or after is None:
        return ""
    growth = _growth(before, after)
    prompt, generated = growth.prompt - prompt_tokens, growth.generated - generated_tokens
    excess = [f"{prompt:,} prompt tokens"] if prompt > 0 else []
    excess += [f"{generated:,} generated tokens"] if generated > _BEYOND * answers or (excess and generated > 0) else []
    return " and ".join(excess)


def _growth(before: Traffic, after: Traffic) -> _Growth:
    """Return the growth of the token counters between two readings.

    It is 0 for a counter that either reading lacks, and negative if the counter went back.
    """

    def difference(later: int | None, earlier: int | None) -> int:
        return 0 if later is None or earlier is None else later - earlier

    return _Growth(
        prompt=difference(after.prompt_tokens, before.prompt_tokens), generated=difference(after.generated_tokens, before.generated_tokens)
    )
