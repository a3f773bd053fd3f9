"""A transcript: everything one arm answered to one workload in one boot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_specdec.model.answer import Answer

__all__ = ["Casualty", "Ending", "SpecCounters", "Transcript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCounters:
    """Speculation counters of a server, or the difference of two readings.

    Named after vLLM's series: ``drafts`` are verify steps with a draft, ``accepted_tokens`` leave the bonus token out.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        before = earlier.accepted_per_position + (0,) * len(self.accepted_per_position)
        return SpecCounters(
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted_tokens=self.accepted_tokens - earlier.accepted_tokens,
            accepted_per_position=tuple(now - then for now, then in zip(self.accepted_per_position, before, strict=False)),
        )

    def __add__(self, other: SpecCounters) -> SpecCounters:
        longest = max(len(self.accepted_per_position), len(other.accepted_per_position))
        mine, theirs = (c.accepted_per_position + (0,) * (longest - len(c.accepted_per_position)) for c in (self, other))
        return SpecCounters(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted_per_position=tuple(a + b for a, b in zip(mine, theirs, strict=True)),
        )

    @property
    def rejected_tokens(self) -> int:
        """Draft tokens that were not accepted, those behind the first rejection included."""
        return self.draft_tokens - self.accepted_tokens

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, 0..1; 0 when nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verify step, the bonus or recovered token included; 1 when nothing was drafted."""
        return 1.0 + (self.accepted_tokens / self.drafts if self.drafts else 0.0)


class Ending(StrEnum):
    """How a server failed a request."""

    DIED = "died"
    HUNG = "hung"
    ERROR = "5xx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Casualty:
    """A request in flight when a server died, hung or answered 5xx, and what sending it again to a fresh server showed."""

    request_id: str
    ending: Ending
    recurred: bool | None
    """Whether the request, on a fresh server of the same arm, did it again; None where no restart was left to find out."""
    group: tuple[str, ...] = ()
    """The smallest group of requests seen to do it again when in flight together, by id; empty where the request was sent alone."""
    failure: int = 0
    """Which failure of this transcript's server it belongs to, from 0: what was in flight together shares it."""
    process: str = ""
    """Which process ended and how: ``api server, exit code -9``."""
    cause: str = ""
    """The first exception that the server's log tells of, and where it was raised; empty where it tells none."""
    log_tail: tuple[str, ...] = ()
    """The last lines of the server's log, at most 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The answers of one arm to one workload, with what the server counted meanwhile."""

    arm: str
    """``baseline``, ``control``, or the variant's name."""
    boot: int
    """Which boot of the run answered, from 0."""
    workload: str
    digest: str
    answers: tuple[Answer, ...]
    """In the order of the workload's requests, pass by pass; a request that was not sent has an answer with status None."""
    counters: SpecCounters | None = None
    """Speculation counters over exactly these answers; None where the server has none."""
    casualties: tuple[Casualty, ...] = ()
    restarts: int = 0
    concurrency: int | None = None
    """Requests in flight at most, where the server was found to fail with as many as the workload says; None elsewhere."""
    started_at: str = ""
    """UTC, ISO 8601."""
    wall_s: float = 0.0

    @property
    def unexplained(self) -> tuple[tuple[Casualty, ...], ...]:
        """The failures that nothing brought about again, each with what was in flight; none where another one here recurred."""
        if any(casualty.recurred for casualty in self.casualties):
            return ()
        by_failure: dict[int, list[Casualty]] = {}
        for casualty in self.casualties:
            by_failure.setdefault(casualty.failure, []).append(casualty)
        return tuple(map(tuple, by_failure.values()))

    @property
    def tokens(self) -> int:
        """Emitted tokens over all choices."""
        return sum(len(choice.token_ids) for answer in self.answers for choice in answer.choices)

    def __repr__(self) -> str:
        return f"<Transcript {self.arm}/{self.workload}: {len(self.answers)} answers, {self.tokens} tokens>"
