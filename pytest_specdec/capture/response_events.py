"""Replies of the Responses API: a response object, whole or pieced together from the typed events of its stream.

What a stream says more than once, in deltas, in done events and in its last event, is kept as often, so that a judge can compare it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.fields import read_count, read_objects, read_string
from pytest_specdec.capture.responses import ChunkSize, ParsedResponse, read_usage
from pytest_specdec.model.response_object import (
    COMPLETED,
    FUNCTION_CALL,
    INCOMPLETE,
    MESSAGE,
    REASONING,
    OutputItem,
    ResponseObject,
    StreamEvent,
)
from pytest_specdec.model.transcript import Choice, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_specdec.model.workload import JSON

_PREFIX = "response."
_TEXT = "output_text.delta"
_REASONING = ("reasoning_text.delta", "reasoning_summary_text.delta")
_ARGUMENTS = "function_call_arguments.delta"
_ENDED = "output_item.done"
_FAILED = "failed"
_CHAT_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
"""Of a response's token counts, those of the chat route."""
_FINISH = {"max_output_tokens": "length"}
"""Reasons of an incomplete response, as finish reasons of the chat route; any other keeps its name."""


def read_failure(data: Mapping[str, JSON]) -> JSON:
    """Return the error in a body or an event, None without one.

    It may be at the top, in an event of type ``error``, or in the response object of a failed one.
    """
    response = _find_response(data)
    if data.get("error"):
        return data["error"]
    if data.get("type") == "error":
        return data.get("message") or "an error event without a message"
    return (response.get("error") or "the response failed") if response.get("status") == _FAILED else None


def parse_body(data: Mapping[str, JSON]) -> ParsedResponse:
    """Return the contents of a whole response.

    Raises ValueError if it has no status, or fields that are not of the protocol.
    """
    response = _read_response(data)
    if not response.status:
        msg = "a body without a status, expected a response object"
        raise ValueError(msg)
    reasoning = "".join(item.text for item in response.items if item.type == REASONING)
    text = "".join(item.text for item in response.items if item.type == MESSAGE)
    choice = Choice(text=text, reasoning=reasoning, tool_calls=_number_calls(response.items), finish_reason=_finish_reason(response))
    return ParsedResponse(choices=(choice,), usage=_read_usage(data.get("usage")), response=response)


def parse_stream(chunks: Sequence[Mapping[str, JSON]], *, broken: bool = False) -> ParsedResponse:
    """Return the contents of a streamed response, joined from its deltas.

    A client puts them together in the same way. Status and usage are the last event's; a stream that was cut off has none. ``broken`` is
    True if the connection broke. Raises ValueError if there are no events, or fields that are not of the protocol.
    """
    if not chunks:
        msg = "a stream without events"
        raise ValueError(msg)
    events = _join_runs(map(_read_event, chunks))
    final = _find_response(chunks[-1])
    status = read_string(final, "status") or ""
    # Any other status is final. An unfinished object has only what there was when the stream began or broke.
    response = replace(
        _read_response(final) if status not in {"", "in_progress", "queued"} else ResponseObject(),
        events=events,
        misnumbered=_count_misnumbered(chunks),
        broken=broken,
    )
    choice = Choice(
        text="".join(event.text for event in events if event.type == _TEXT),
        reasoning="".join(event.text for event in events if event.type in _REASONING),
        tool_calls=_join_calls(events),
        finish_reason=_finish_reason(response),
    )
    return ParsedResponse(choices=(choice,), usage=_read_usage(final.get("usage")), response=response)


def size(chunk: Mapping[str, JSON]) -> ChunkSize:
    """Return the numbers of tokens and characters in one event.

    Only deltas have characters, and no event has token ids. Raises ValueError if the event's fields are not of the protocol.
    """
    event = _read_event(chunk)
    characters = len(event.text) if _is_delta(event) else 0
    return ChunkSize(token_ids=0, characters=characters, content=0 if event.type in _REASONING else characters)


def _is_delta(event: StreamEvent) -> bool:
    return event.type.endswith(".delta")


def _find_response(data: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the JSON of the response object in an event or body.

    A body is the response object itself. Returns an empty mapping without one.
    """
    response = data.get("response")
    if isinstance(response, Mapping):
        return response
    return data if data.get("object") == "response" else {}


def _read_response(data: Mapping[str, JSON]) -> ResponseObject:
    """Return the response object of JSON ``data``, without events."""
    details = data.get("incomplete_details")
    return ResponseObject(
        status=read_string(data, "status") or "",
        reason=read_string(details, "reason") or "" if isinstance(details, Mapping) else "",
        items=tuple(map(_read_item, read_objects(data, "output"))),
    )


def _read_item(data: Mapping[str, JSON]) -> OutputItem:
    """Return one output item, with all its text.

    It is the arguments of a call, or the joined parts of a message or of a reasoning, maybe of its summary.
    """
    kind = read_string(data, "type") or ""
    if kind == FUNCTION_CALL:
        text = read_string(data, "arguments") or ""
    else:
        parts = read_objects(data, "content") or read_objects(data, "summary")
        text = "".join(read_string(part, "text") or read_string(part, "refusal") or "" for part in parts)
    return OutputItem(type=kind, text=text, name=read_string(data, "name") or "", call_id=read_string(data, "call_id") or "")


def _read_event(data: Mapping[str, JSON]) -> StreamEvent:
    """Return an event, with the text of its delta, done event or part.

    Each type of event has its text in another field.
    """
    item, part = data.get("item"), data.get("part")
    part_fields = part if isinstance(part, Mapping) else {}
    texts = (*(read_string(data, name) for name in ("delta", "text", "arguments")), read_string(part_fields, "text"))
    return StreamEvent(
        type=(read_string(data, "type") or "").removeprefix(_PREFIX),
        output_index=read_count("output_index", data.get("output_index")),
        content_index=read_count("content_index", data.get("content_index")),
        text=next((text for text in texts if text), ""),
        item=_read_item(item) if isinstance(item, Mapping) else None,
    )


def _join_runs(events: Iterable[StreamEvent]) -> tuple[StreamEvent, ...]:
    """Return the events with consecutive deltas of one part joined.

    A joined event has their text and their number. Deltas are of one part if nothing but their texts differs.
    """
    runs: list[StreamEvent] = []
    for event in events:
        if runs and _is_delta(event) and replace(runs[-1], text="", count=1) == replace(event, text=""):
            runs[-1] = replace(runs[-1], text=runs[-1].text + event.text, count=runs[-1].count + 1)
        else:
            runs.append(event)
    return tuple(runs)


def _count_misnumbered(chunks: Sequence[Mapping[str, JSON]]) -> int:
    """Return how many events have no number above the one before."""
    count, before = 0, -1
    for chunk in chunks:
        number = read_count("sequence_number", chunk.get("sequence_number"))
        count += number is None or number <= before
        before = before if number is None else number
    return count


def _number_calls(items: Iterable[OutputItem]) -> tuple[ToolCall, ...]:
    calls = [item for item in items if item.type == FUNCTION_CALL]
    return tuple(ToolCall(index=i, id=call.call_id, name=call.name, arguments=call.text) for i, call in enumerate(calls))


def _join_calls(events: Sequence[StreamEvent]) -> tuple[ToolCall, ...]:
    """Return the tool calls of a stream, with their deltas' arguments.

    Names and ids are those of the events that add the items. An item without a name there has those of the event that ends it.
    """
    items: dict[int | None, OutputItem] = {}
    ending_events = [event for event in events if event.type == _ENDED]
    # The ending events come once more, at the end: of an item that no event names, theirs counts, in whatever order they came.
    for event in (*events, *ending_events):
        earlier_item = items.get(event.output_index)
        is_named = earlier_item is not None and earlier_item.name
        if event.item is not None and event.item.type == FUNCTION_CALL and not is_named:
            items[event.output_index] = event.item
    arguments = {
        index: "".join(event.text for event in events if event.type == _ARGUMENTS and event.output_index == index) for index in items
    }
    return _number_calls(replace(item, text=arguments[index]) for index, item in items.items())


def _finish_reason(response: ResponseObject) -> str | None:
    """Return the finish reason that the chat route would give.

    An incomplete response has its own reason, under the chat route's name if there is one: ``length`` for the token limit. Any other status
    than completed or incomplete is returned as it is, and None without one.
    """
    if response.status == COMPLETED:
        return "tool_calls" if any(item.type == FUNCTION_CALL for item in response.items) else "stop"
    return _FINISH.get(response.reason, response.reason or INCOMPLETE) if response.status == INCOMPLETE else response.status or None


def _read_usage(value: JSON) -> Usage | None:
    """Return the token counts of a response, which names them differently.

    Returns None without both input and output tokens.
    """
    return read_usage({_CHAT_NAMES.get(name, name): count for name, count in value.items()}) if isinstance(value, Mapping) else None
