"""An answer: what one arm said to one request, when, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Answer", "Choice", "Timing", "Usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Client stamps in seconds on the capturing process's monotonic clock."""

    sent_s: float
    first_s: float | None
    """When the first chunk with content came; None when the answer was not streamed or had no content."""
    done_s: float
    first_tokens: int | None = None
    """Tokens that were there at ``first_s``: those of the first chunk and of chunks that had been waiting behind it. None where unknown.

    More than the first step's where the client was kept from reading; ``first_s`` is then late by all steps but one.
    """

    @property
    def latency_s(self) -> float:
        """Seconds from sending to the last byte."""
        return self.done_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first content, where the answer was streamed."""
        return None if self.first_s is None else self.first_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The server's own token counts."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the ``n`` answers to a request."""

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """The emitted tokens as ids, an emitted end-of-sequence token included; empty where the server does not tell."""
    finish_reason: str | None = None
    logprobs: tuple[float, ...] | None = None
    """Natural-log probabilities of the emitted tokens as this server reported them, one per token id; None when not asked for."""
    windows: tuple[int, ...] | None = None
    """Tokens emitted per step; the first entry is the prefill's (1), each later one a verify step's 1..k+1. None where unknown.

    The sum may exceed ``len(token_ids)`` when the last window was cut by a limit.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one request in one pass."""

    request_id: str
    pass_index: int = 0
    """From 0; always 0 where the workload has one pass."""
    status: int | None
    """The HTTP status; None when no answer came (connection lost, hung, or quarantined and not sent)."""
    error: str | None = None
    """The server's message for a 4xx or 5xx, or how the connection ended."""
    prompt_token_ids: tuple[int, ...] = ()
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    timing: Timing | None = None

    @property
    def ok(self) -> bool:
        """Whether the server answered 200."""
        return self.status == 200  # noqa: PLR2004 - the one status that means success here

    @property
    def choice(self) -> Choice:
        """The only choice, or an empty one when there is none."""
        return self.choices[0] if self.choices else Choice()

    @property
    def key(self) -> tuple[str, int]:
        """What this answer is to: request id and pass."""
        return (self.request_id, self.pass_index)
