"""When the chunks of an answer came, and how busy the client and its machine were meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOST_PER_CORE", "WAITED_S", "ClientLoad", "Timing"]

WAITED_S = 0.0005
"""A chunk so soon after another had been waiting: clients read one in 10 to 90 us, and a step of a server takes a millisecond."""

MOST_CPU, MOST_DRAIN, MOST_COALESCED = 0.5, 0.1, 0.05
"""Of a core; of the time between two steps, to read what is there; of reads, those that find several events."""
MOST_PER_CORE = 1.5
"""Processes to a core of the client's machine, from which on its times may be those of a queue: a server that fills all cores has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How busy the client was while it stamped."""

    cpu_share: float
    """Processor time over wall time; 1 is one core."""
    drain_p99_s: float
    """Time that a wake-up took to read what was there, 99th percentile; 0 without any."""
    step_gap_s: float
    """Median time between two reads of one answer; 0 where no answer had two."""
    coalesced: float
    """Share of reads after the first of an answer that brought more than one event: all but one have a stamp that is late."""
    delayed: float | None = None
    """Time that it was ready to run and had no core, over wall time; None where the system does not tell."""

    def __str__(self) -> str:
        """Return the client's load in words."""
        steps = f"{self.drain_p99_s * 1e3:.2f} ms to read what came, {self.step_gap_s * 1e3:.2f} ms between steps"
        delayed = "" if self.delayed is None else f", {self.delayed:.1%} of its time without one"
        return f"{self.cpu_share:.1%} of a core{delayed}, {steps}, {self.coalesced:.1%} of reads found several events"

    @property
    def limited(self) -> str:
        """Reasons why the client, not the server, may have set the measured times; empty without any.

        The client used more than half a core; or reading took more than a tenth of the time between two reads of an answer, taken for two
        steps of the server; or it read late, so that more than 5 % of reads found several events.
        """
        reasons = []
        if self.cpu_share > MOST_CPU:
            reasons.append(f"the client used {self.cpu_share:.0%} of a core (limit {MOST_CPU:.0%})")
        if self.step_gap_s and self.drain_p99_s > MOST_DRAIN * self.step_gap_s:
            drained = f"{self.drain_p99_s * 1e3:.2f} ms of the {self.step_gap_s * 1e3:.2f} ms between two steps"
            reasons.append(f"reading took {drained} (limit {MOST_DRAIN:.0%})")
        # A client reads late if it is busy or waits for a core. An idle one was sent several events at once, and is not to blame.
        unavailable_share = 1.0 if self.delayed is None else self.cpu_share + self.delayed  # 1.0: an unknown wait is taken for one
        was_idle = unavailable_share <= MOST_COALESCED  # it could not be late for more reads than that
        if self.coalesced > MOST_COALESCED and not was_idle:
            reasons.append(f"{self.coalesced:.1%} of reads found several events (limit {MOST_COALESCED:.0%})")
        return "; ".join(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Client stamps in seconds on the capturing process's monotonic clock."""

    sent_s: float
    first_s: float | None
    """When the first chunk that brings tokens came, of reasoning too; None when the answer was not streamed or had none."""
    done_s: float
    first_tokens: int | None = None
    """Tokens that were there at ``first_s``: those of the first chunk and of chunks that had been waiting after it. None where unknown.

    More than the first step's where the client was kept from reading; ``first_s`` is then late by all steps but one.
    """
    content_s: float | None = None
    """When the first chunk came that brings more than reasoning: text, or a part of a tool call. None where unknown."""
    last_s: float | None = None
    """When the last chunk that brings tokens came; ``done_s`` is after it, by the stream's closing events. None where unknown."""
    gaps_us: tuple[int, ...] = ()
    """Microseconds from each chunk that brings tokens to the next, reasoning and tool calls included; empty where unknown."""

    @property
    def chunks_behind_first(self) -> int:
        """The number of chunks sent after the client read the first; 0 if unknown.

        Some chunks may be there already at the first read, and are then not counted. Such a chunk comes within ``WAITED_S`` of the one
        before. A server's step takes longer, so that the first longer gap precedes the first chunk to count.
        """
        chunks_there = next((index for index, gap in enumerate(self.gaps_us) if gap > WAITED_S * 1e6), len(self.gaps_us))
        return len(self.gaps_us) - chunks_there

    @property
    def latency_s(self) -> float:
        """Seconds from sending to the last byte."""
        return self.done_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first token, reasoning included.

        None if the answer was not streamed or had no tokens.
        """
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def content_ttft_s(self) -> float | None:
        """Seconds from sending to the first text or tool call; None if unknown.

        Reasoning does not count.
        """
        return None if self.content_s is None else self.content_s - self.sent_s
