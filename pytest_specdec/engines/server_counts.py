"""What servers count: the verify steps of an answer, and all clients' traffic.

A verify step checks a draft: it emits the accepted draft tokens and one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_specdec.model.spec_counters import SpecCounters

__all__ = ["Traffic", "VerifySteps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySteps:
    """The verify steps of one answer, as a server reports them."""

    accepted: tuple[int, ...]
    """Accepted draft tokens per verify step."""
    drafted: tuple[int, ...]
    """Draft tokens per verify step."""

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens emitted at once: the prefill's one, then those of each verify step."""
        return (1, *(accepted + 1 for accepted in self.accepted))

    @property
    def counters(self) -> SpecCounters:
        """The speculation counters of these verify steps, as servers report them.

        Steps without a draft are left out of ``drafts``, as servers do not count them. Item i of ``accepted_per_position``
        counts the steps with more than i accepted draft tokens: those that accepted the draft token at position i.
        """
        longest = max(self.drafted, default=0)
        return SpecCounters(
            drafts=sum(1 for drafted in self.drafted if drafted),
            draft_tokens=sum(self.drafted),
            accepted_tokens=sum(self.accepted),
            accepted_per_position=tuple(sum(1 for a in self.accepted if a > i) for i in range(longest)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A server's work, by its own counters of all clients' requests.

    They count from the server's start, or from the last reading for a dialect with ``counters_drain``.
    """

    started_s: float | None = None
    """Start time in seconds since 1970; like the other fields, None if not reported."""
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    preemptions: int | None = None
    """Requests that were put off because the cache was full."""

    def __add__(self, other: Traffic) -> Traffic:
        """Return the work of two ranks, processes of one server, together.

        The start is the later one, so that it changes if either is started anew. A figure that either lacks is None.
        """
        return Traffic(
            started_s=None if self.started_s is None or other.started_s is None else max(self.started_s, other.started_s),
            prompt_tokens=_add_known(self.prompt_tokens, other.prompt_tokens),
            generated_tokens=_add_known(self.generated_tokens, other.generated_tokens),
            preemptions=_add_known(self.preemptions, other.preemptions),
        )


def _add_known(count: int | None, other: int | None) -> int | None:
    """Return the sum of two figures; None if one is missing."""
    return None if count is None or other is None else count + other
