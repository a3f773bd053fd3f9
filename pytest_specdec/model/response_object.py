"""The response object of OpenAI's Responses API: its status, its output, and the events that streamed it, as a client received them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMPLETED", "FUNCTION_CALL", "INCOMPLETE", "MESSAGE", "REASONING", "OutputItem", "ResponseObject", "StreamEvent"]

COMPLETED, INCOMPLETE = "completed", "incomplete"
"""Statuses of a response that has ended without a failure."""
MESSAGE, FUNCTION_CALL, REASONING = "message", "function_call", "reasoning"
"""Types of the output items that are read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputItem:
    """One item of a response's output."""

    type: str
    """``message``, ``function_call``, ``reasoning``, or another as the server names it."""
    text: str = ""
    """The texts of a message or of a reasoning item, joined; the arguments of a call, as JSON text."""
    name: str = ""
    """Of a called function."""
    call_id: str = ""
    """Of a call; empty if the server gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event of a stream, or a run of equal deltas."""

    type: str
    """As the server names it, without ``response.`` before it."""
    output_index: int | None = None
    """The place of its item in the output; None for an event of the whole response."""
    content_index: int | None = None
    """The place of its part in the item; None for an event of the whole item."""
    text: str = ""
    """The deltas of a run, joined; the text or the arguments that a done event repeats."""
    item: OutputItem | None = None
    """The item that an event adds or ends; None for any other event."""
    count: int = 1
    """Events of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseObject:
    """A response as a whole body has it, or as a stream gave it."""

    status: str = ""
    """``completed``, ``incomplete``, or another; empty if a stream ended without its last event."""
    reason: str = ""
    """Why it is incomplete: ``max_output_tokens``; empty if the server gives no reason."""
    items: tuple[OutputItem, ...] = ()
    """The output of the body, or of a stream's last event."""
    events: tuple[StreamEvent, ...] = ()
    """Those of a stream, in order; empty for a whole body."""
    misnumbered: int = 0
    """Events of the stream whose ``sequence_number`` is missing or not above that of the event before."""
    broken: bool = False
    """Whether the connection broke before the stream's end, while the server went on answering."""
