"""A soak round: what one arm did in one stretch of the same traffic that goes on for minutes."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_specdec.model.spec_counters import RankCounters, SpecCounters

__all__ = ["SoakRound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakRound:
    """What one server did in one round of a soak, in sums alone."""

    at_s: float
    """Its end, in seconds since the soak began."""
    seconds: float
    """Its length."""
    requests: int
    """Requests that were answered."""
    tokens: int
    """Tokens of their answers."""
    failed: int = 0
    """Requests that the server failed."""
    refused: int = 0
    """Requests that the server refused as unsupported, which is no failure of it."""
    counters: SpecCounters | None = None
    """What was drafted in it; None where the server counts nothing, or was started anew in it."""
    ranks: tuple[RankCounters, ...] = ()
    """The same by rank; empty where the counters have one source."""
    resident_mib: float | None = None
    """Resident memory of the server's processes at its end, in MiB; None where they belong to somebody else, or cannot be read."""
    changed: tuple[str, ...] = ()
    """Requests at temperature 0, by id, of which an answer has other tokens than before the soak."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of its answers per second of it."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def drafted_share(self) -> float | None:
        """The share of its tokens that were accepted drafts; None without counters or tokens.

        It falls alike where fewer drafts are accepted and where fewer are made.
        """
        return self.counters.accepted_tokens / self.tokens if self.counters is not None and self.tokens else None
