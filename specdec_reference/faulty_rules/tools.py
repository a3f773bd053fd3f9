"""Rules with a fault of tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.tool_calls import CLOSING, OPENING, ToolReading

if TYPE_CHECKING:
    from specdec_reference.emission import StreamState
    from specdec_reference.sequence import Delta
    from specdec_reference.tool_calls import ToolCallReader


def _calls(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = chunk["choices"][0].get("delta", {}).get("tool_calls", [])
    return calls


@instead_of("send")
def tool_arguments_lost(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send a name with no arguments."""
    for call in _calls(chunk):
        if "name" in call["function"]:
            call["function"]["arguments"] = ""
    return [chunk]


@instead_of("send")
def tool_arguments_doubled(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send arguments of several tokens twice."""
    for call in _calls(chunk):
        arguments = call["function"]["arguments"]
        if len(delta.tokens) > 1 and arguments.endswith('"'):
            call["function"]["arguments"] = arguments * 2
    return [chunk]


@instead_of("read_calls")
def tool_arguments_cut(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Leave out the last brace of arguments."""
    reading = reader.take(text, ended=ended)
    cut = tokens > 1 and "}\n" in text
    pieces = tuple(replace(piece, arguments=piece.arguments.removesuffix("}")) if cut else piece for piece in reading.pieces)
    return replace(reading, pieces=pieces)


@instead_of("read_calls")
def tool_arguments_empty(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Give whole answers empty arguments."""
    reading = reader.take(text, ended=ended)
    return reading if tokens else replace(reading, pieces=tuple(replace(piece, arguments="{}") for piece in reading.pieces))


@instead_of("send")
def tool_name_twice(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send each name again."""
    for call in _calls(chunk):
        name = call["function"].get("name") or state.memory.pop(str(call["index"]), None)
        if "name" in call["function"]:
            state.memory[str(call["index"])] = name
        elif name:
            call["function"]["name"] = name
    return [chunk]


@instead_of("read_calls")
def tool_second_call_lost(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Leave out a later call, all of it, where its name came with other tokens."""
    reading = reader.take(text, ended=ended)
    lost = {piece.index for piece in reading.pieces if piece.name and piece.index and tokens > 1}
    _LOST[reader] = _LOST.get(reader, frozenset()) | lost
    kept = replace(reading, pieces=tuple(piece for piece in reading.pieces if piece.index not in _LOST[reader]))
    if ended:
        del _LOST[reader]
    return kept


_LOST: dict[ToolCallReader, frozenset[int]] = {}
"""Indexes of lost calls by answer in progress."""


@instead_of("send")
def tool_index_stuck(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Give every call the number 0."""
    for call in _calls(chunk):
        call["index"] = 0
    return [chunk]


@instead_of("send")
def tool_id_missing(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send no id with a name of several tokens."""
    for call in _calls(chunk):
        if len(delta.tokens) > 1:
            call.pop("id", None)
    return [chunk]


@instead_of("send")
def tool_id_repeated(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send the first id with every name."""
    for call in _calls(chunk):
        if "id" in call:
            call["id"] = state.memory.setdefault("id", call["id"])
    return [chunk]


@instead_of("read_calls")
def tool_close_swallows(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Cut the text of a step behind a closing tag."""
    at = text.find(CLOSING) if tokens > 1 else -1
    return reader.take(text if at < 0 else text[: at + len(CLOSING)], ended=ended)


@instead_of("read_calls")
def tool_call_as_text(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Pass a step by the reader in which a tag has company."""
    if tokens > 1 and OPENING in text:
        return ToolReading(content=text)
    return reader.take(text, ended=ended)


@instead_of("finish")
def tool_finish_stop(reason: str | None, calls: int, *, stream: bool) -> str | None:
    """Say of streamed calls what is said of text."""
    return reason if stream else rules.finish(reason, calls, stream=stream)


@instead_of("read_calls")
def tool_brace_doubled(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Double the first brace of arguments."""
    reading = reader.take(text, ended=ended)
    doubled = (replace(piece, arguments="{" + piece.arguments) if piece.name and tokens > 1 else piece for piece in reading.pieces)
    return replace(reading, pieces=tuple(doubled))
