"""Speculation counters: those of a server, and those of each of its ranks.

Draft positions count from 0 within a draft; ``accepted_per_position`` has by position how often its token was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["RankCounters", "SpecCounters", "sum_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCounters:
    """Speculation counters of a server, or the difference of two readings.

    ``drafts`` are verify steps with a draft, ``accepted_tokens`` leave the bonus token out.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        """Return what was counted since an ``earlier`` reading of the server.

        Draft positions that the earlier reading lacks count from 0.
        """
        earlier_positions = earlier.accepted_per_position + (0,) * len(self.accepted_per_position)
        return SpecCounters(
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted_tokens=self.accepted_tokens - earlier.accepted_tokens,
            accepted_per_position=tuple(now - then for now, then in zip(self.accepted_per_position, earlier_positions, strict=False)),
        )

    def __add__(self, other: SpecCounters) -> SpecCounters:
        """Return the sums of both, draft position by draft position."""
        longest = max(len(self.accepted_per_position), len(other.accepted_per_position))
        ours, others = (c.accepted_per_position + (0,) * (longest - len(c.accepted_per_position)) for c in (self, other))
        return SpecCounters(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted_per_position=tuple(a + b for a, b in zip(ours, others, strict=True)),
        )

    @property
    def rejected_tokens(self) -> int:
        """Draft tokens not accepted, also those after the first rejection."""
        return self.draft_tokens - self.accepted_tokens

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens per verify step, the bonus or recovered token included.

        It is 1 if nothing was drafted, since every step then emits one token.
        """
        return 1.0 + (self.accepted_tokens / self.drafts if self.drafts else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """The counters of one rank of a server.

    A rank is a process of the server, or a part of a process that its counters have a label for.
    """

    name: str
    """The process's name or address, and the rank's label."""
    counters: SpecCounters
    generated_tokens: int | None = None
    """Tokens that it generated; None if it does not count them."""

    @property
    def began_anew(self) -> bool:
        """True if the counters began anew between the two readings.

        Only the difference of two readings shows it: some count in it is below 0.
        """
        counts = self.counters
        return min(counts.drafts, counts.draft_tokens, counts.accepted_tokens, self.generated_tokens or 0) < 0

    def __sub__(self, earlier: RankCounters) -> RankCounters:
        """Return what the rank counted since an ``earlier`` reading."""
        now, then = self.generated_tokens, earlier.generated_tokens
        return RankCounters(
            name=self.name,
            counters=self.counters - earlier.counters,
            generated_tokens=None if now is None or then is None else now - then,
        )

    def __add__(self, other: RankCounters) -> RankCounters:
        """Return the sums of two counts of the same rank."""
        ours, others = self.generated_tokens, other.generated_tokens
        return RankCounters(
            name=self.name,
            counters=self.counters + other.counters,
            generated_tokens=None if ours is None or others is None else ours + others,
        )


def sum_ranks(parts: Iterable[Sequence[RankCounters]]) -> tuple[RankCounters, ...]:
    """Return the sums by rank over the counts of several workloads."""
    totals: dict[str, RankCounters] = {}
    for rank in (rank for part in parts for rank in part):
        totals[rank.name] = totals[rank.name] + rank if rank.name in totals else rank
    return tuple(totals.values())
