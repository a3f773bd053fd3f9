"""Replies of the Responses API: the answers of the chat route as output items, whole or as typed events."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Several

    from pytest_specdec.model.workload import JSON
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.openai_response import ResponseOptions
    from specdec_reference.sequence import Delta, RunningSequence
    from specdec_reference.tool_calls import ToolCallReader

_Event: TypeAlias = dict[str, Any]
_Piece: TypeAlias = tuple[str, int | None, dict[str, Any]]
"""What a chunk adds to one item: its type, the index of a call, and the fields of the delta."""
_PREFIX: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
"""Prefixes of an item's id, by the item's type."""
_TEXT: Final = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}
"""Names of an item's text in events and parts, by the item's type."""


class ResponsesReply:
    """The reply to one request, made from what the chat route would answer.

    An output item is a message, a reasoning or one tool call. A piece is what a chunk adds to an item: the item's type, the index of the
    call, and fields. One item is open at a time: a piece of another one ends it.
    """

    done = b""

    def __init__(self, options: ResponseOptions, body: dict[str, JSON]) -> None:
        """Take the form of the chat's answer and the body of the request."""
        self.options = options
        self._body = body
        self._sent = 0
        """Events so far."""
        self._items: list[_Event] = []
        """Output items that have ended."""
        self._open: _Event | None = None  # the item in progress
        self._call: int | None = None
        """The index of the call that the open item is; None for any other item."""
        self._text = ""
        """Of the open item."""
        self._finish_reason: str | None = None

    @property
    def request(self) -> EngineRequest:
        """The engine's request."""
        return self.options.request

    @property
    def chunk_steps(self) -> int:
        """Steps whose tokens share events; 0 for events per token."""
        return self.options.chunk_steps

    def reader(self) -> ToolCallReader | None:
        """Return the reader of the answer's tool calls."""
        return self.options.reader()

    def whole(self, sequences: Several[RunningSequence]) -> _Event:
        """Return the response object of a finished sequence."""
        chat: dict[str, Any] = self.options.whole(sequences)
        (choice,) = chat["choices"]
        self._finish_reason = choice["finish_reason"]
        for piece in _split_into_pieces(choice["message"]):
            self._begin(piece)  # for the items alone: a whole answer has no events
            self._text += _delta_text(piece)
            self._end()
        return self.response(self.status(self._finish_reason), self.usage(chat.get("usage"), sequences))

    def openings(self, sequences: Several[RunningSequence]) -> list[_Event]:  # noqa: ARG002 - as other replies
        """Return the events before any token."""
        return [
            self._number({"type": f"response.{name}", "response": self.response("in_progress", None)})
            for name in ("created", "in_progress")
        ]

    def chunks(self, deltas: Several[Delta], reader: ToolCallReader | None) -> list[_Event]:
        """Return the events of the next deltas."""
        chunks = self.options.chunks(deltas, reader)
        return [self._number(event) for chunk, delta in zip(chunks, deltas, strict=True) for event in self.write(chunk, delta)]

    def write(self, chunk: dict[str, Any], delta: Delta) -> list[_Event]:  # noqa: ARG002 - faults read the step
        """Return the events of one chunk of the chat route, without numbers."""
        (choice,) = chunk["choices"]
        self._finish_reason = choice["finish_reason"] or self._finish_reason
        return [event for piece in _split_into_pieces(choice["delta"], first=self._call) for event in self._write_piece(piece)]

    def _write_piece(self, piece: _Piece) -> Iterator[_Event]:
        """Yield the events of one piece.

        If the piece belongs to another item than the open one, they first end the open item and begin the piece's.
        """
        kind, index, _ = piece
        if self._open is None or self._open["type"] != kind or self._call != index:
            yield from self._end()
            yield from self._begin(piece)
        text = _delta_text(piece)
        self._text += text
        if text:
            yield self._event(f"{_TEXT[kind]}.delta", delta=text, item_id=self._id)

    def closings(self, sequences: Several[RunningSequence]) -> list[_Event]:
        """Return the events after the last token."""
        chat: dict[str, Any] = self.options.closing(sequences)
        usage = self.usage(chat.get("usage"), sequences)
        ended = self._end()
        status = self.status(self._finish_reason)
        final = {"type": f"response.{status}", "response": self.response(status, usage)}
        return [self._number(event) for event in (*ended, final)]

    def status(self, finish_reason: str | None) -> str:
        """Return the status of an answer that has ended."""
        return "incomplete" if finish_reason == "length" else "completed"

    def usage(self, counts: dict[str, Any] | None, sequences: Several[RunningSequence]) -> _Event | None:  # noqa: ARG002 - as of write
        """Return the token counts of the chat route under their own names.

        None where the server reports none.
        """
        if counts is None:
            return None
        details = {name: counts.get(f"{name}_tokens_details") or {} for name in ("prompt", "completion")}
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": details["prompt"].get("cached_tokens", 0), "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": details["completion"].get("reasoning_tokens", 0)},
            "total_tokens": counts["total_tokens"],
        }

    def response(self, status: str, usage: _Event | None) -> _Event:
        """Return the response object as far as it has come."""
        options, body = self.options, self._body
        return {
            "id": f"resp_{options.id}",
            "object": "response",
            "created_at": options.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": options.request.max_tokens,
            "model": options.model,
            "output": [*self._items],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": options.request.temperature,
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": options.request.top_p,
            "text": body.get("text") or {"format": {"type": "text"}},
            "usage": usage,
        }

    @property
    def _id(self) -> str:
        """The id of the open item."""
        return "" if self._open is None else str(self._open["id"])

    def _begin(self, piece: _Piece) -> list[_Event]:
        """Open the item of ``piece`` and return its first events."""
        kind, self._call, fields = piece
        item: _Event = {"type": kind, "id": f"{_PREFIX[kind]}_{uuid.uuid4().hex}", "status": "in_progress"}
        if kind == "function_call":
            item |= {"call_id": fields.get("id") or "", "name": fields["function"].get("name") or "", "arguments": ""}
        else:
            item |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        self._open, self._text = item, ""
        added = self._event("output_item.added", item={**item})
        if kind == "function_call":
            return [added]
        return [added, self._event("content_part.added", item_id=self._id, part=self._part(""))]

    def _end(self) -> list[_Event]:
        """Close the open item and return its last events; empty without one."""
        if self._open is None:
            return []
        item, kind = self._open, str(self._open["type"])
        if kind == "function_call":
            item |= {"arguments": self._text}
            events = [self._event(f"{_TEXT[kind]}.done", item_id=self._id, name=item["name"], arguments=self._text)]
        else:
            item |= {"content": [self._part(self._text)]}
            events = [
                self._event(f"{_TEXT[kind]}.done", item_id=self._id, text=self._text),
                self._event("content_part.done", item_id=self._id, part=self._part(self._text)),
            ]
        item |= {"status": self.status(self._finish_reason)}
        events.append(self._event("output_item.done", item=item))
        self._items.append(item)
        self._open = self._call = None
        return events

    def _part(self, text: str) -> _Event:
        kind = "" if self._open is None else str(self._open["type"])
        return {"type": _TEXT[kind], "text": text} | ({"annotations": [], "logprobs": []} if kind == "message" else {})

    def _event(self, kind: str, **fields: object) -> _Event:
        """Return an event of the open item, with its place in the output."""
        place = {"output_index": len(self._items)}
        is_of_part = self._call is None and not kind.startswith("output_item")  # items and calls have no content_index
        if kind.startswith("output_text"):
            fields["logprobs"] = []
        return {"type": f"response.{kind}", **place, **({"content_index": 0} if is_of_part else {}), **fields}

    def _number(self, event: _Event) -> _Event:
        """Return the event with the next sequence number."""
        self._sent += 1
        return event | {"sequence_number": self._sent - 1}


def _split_into_pieces(message: dict[str, Any], *, first: int | None = None) -> list[_Piece]:
    """Return the pieces of a message or a delta, one for each output item.

    A piece has the item's type, the index of the call that it is, if any, and its fields. ``first`` is the index of the
    call that is the open item, if any: its piece comes before all others, since those end the item. Empty for a message
    without any part.
    """
    calls: list[_Piece] = [("function_call", call.get("index", i), call) for i, call in enumerate(message.get("tool_calls") or [])]
    texts: list[_Piece] = [
        (kind, None, {"text": text}) for kind, name in (("reasoning", "reasoning"), ("message", "content")) if (text := message.get(name))
    ]
    return [*(call for call in calls if call[1] == first), *texts, *(call for call in calls if call[1] != first)]


def _delta_text(piece: _Piece) -> str:
    kind, _, fields = piece
    return str(fields["function"].get("arguments") or "" if kind == "function_call" else fields["text"])
