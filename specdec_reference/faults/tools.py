"""Planted faults of tool calls, for suites to detect: a parser that takes a step for a token.

Each wraps the rule or method named by its decorator. Accepted drafts give a step several tokens: in it a call may end and another begin. A
call has its name in its first piece, arguments in this and further ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.model.workload import Family
from specdec_reference import rules
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.faults.streaming import memory_of
from specdec_reference.tool_calls import CLOSING, OPENING, ToolReading

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.sequence import Delta, RunningSequence
    from specdec_reference.tool_calls import ToolCallReader

_LOST: dict[ToolCallReader, frozenset[int]] = {}
"""Indexes of lost calls by answer in progress."""
WHOLE_ANSWERS = {Family.INVARIANTS: "It holds text and finish_reason of every answer against its tokens."}


def _tool_calls_of_chunk(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = chunk["choices"][0].get("delta", {}).get("tool_calls", [])
    return calls


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, tools="the first tool arguments are lost in the stream"),
    mirrors=("vllm-project/vllm#41967",),
)
def tool_arguments_lost(chunk: dict[str, Any]) -> dict[str, Any]:
    """Streams the name of a tool call without the arguments that came in the same step."""
    for call in _tool_calls_of_chunk(chunk):
        if "name" in call["function"]:
            call["function"]["arguments"] = ""
    return chunk


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, tools="the arguments of a tool call are not valid JSON"),
    mirrors=("vllm-project/vllm#39253", "vllm-project/vllm-ascend#7580"),
)
def tool_arguments_doubled(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams tool arguments twice where a step of several tokens ends in a quotation mark."""
    for call in _tool_calls_of_chunk(chunk):
        arguments = call["function"]["arguments"]
        if len(delta.tokens) > 1 and arguments.endswith('"'):
            call["function"]["arguments"] = arguments * 2
    return chunk


@fault(
    after="read_calls",
    expected=in_(Place.REFERENCE, tools="the last tool arguments are lost"),
    mirrors=("vllm-project/vllm-ascend#7580", "vllm-project/vllm#38274"),
)
def tool_arguments_cut(reading: ToolReading, text: str, tokens: int) -> ToolReading:
    """Loses the end of tool arguments where their last brace comes in a step of several tokens."""
    is_cut = tokens > 1 and "}\n" in text
    pieces = tuple(replace(piece, arguments=piece.arguments.removesuffix("}")) if is_cut else piece for piece in reading.pieces)
    return replace(reading, pieces=pieces)


@fault(
    after="read_calls",
    expected=in_(Place.REFERENCE, tools="the arguments of a tool call are empty"),
    mirrors=("vllm-project/vllm#56077",),
)
def tool_arguments_empty(reading: ToolReading, tokens: int) -> ToolReading:
    """Gives a tool call the arguments {} in whole answers."""
    return reading if tokens else replace(reading, pieces=tuple(replace(piece, arguments="{}") for piece in reading.pieces))


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, tools="the name of a tool call is sent more than once"),
    mirrors=("vllm-project/vllm#56077",),
)
def tool_name_twice(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams the name of a tool again with the first arguments that follow it."""
    for call in _tool_calls_of_chunk(chunk):
        name = call["function"].get("name") or memory_of(delta.sequence).pop(str(call["index"]), None)
        if "name" in call["function"]:  # the call's first piece: its name is remembered for the next
            memory_of(delta.sequence)[str(call["index"])] = name
        elif name:
            call["function"]["name"] = name
    return chunk


@fault(
    after="read_calls",
    expected=in_(Place.REFERENCE, tools="a tool call is lost"),
    mirrors=("vllm-project/vllm#41967", "alibaba/rtp-llm#694"),
)
def tool_second_call_lost(reading: ToolReading, reader: ToolCallReader, *, ended: bool, tokens: int) -> ToolReading:
    """Loses a parallel tool call whose name comes in a step of several tokens."""
    lost_indexes = {piece.index for piece in reading.pieces if piece.name and piece.index and tokens > 1}
    return _drop_calls(reading, reader, lost_indexes, ended=ended)


def _drop_calls(reading: ToolReading, reader: ToolCallReader, lost_indexes: set[int], *, ended: bool) -> ToolReading:
    """Return the reading without the lost calls of an answer.

    ``lost_indexes`` are lost with all their pieces: they are remembered until the answer has ``ended``.
    """
    _LOST[reader] = _LOST.get(reader, frozenset()) | lost_indexes
    remaining = replace(reading, pieces=tuple(piece for piece in reading.pieces if piece.index not in _LOST[reader]))
    if ended:
        del _LOST[reader]
    return remaining


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, tools="tool calls are put together under a wrong index"),
    mirrors=("vllm-project/vllm#41967",),
)
def tool_index_stuck(chunk: dict[str, Any]) -> dict[str, Any]:
    """Streams every parallel tool call under the index 0."""
    for call in _tool_calls_of_chunk(chunk):
        call["index"] = 0
    return chunk


@fault(after="response.chunk", expected=in_(Place.REFERENCE, tools="a tool call has no id"), mirrors=("vllm-project/vllm-ascend#11788",))
def tool_id_missing(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams a tool call without its id where its name comes in a step of several tokens."""
    for call in _tool_calls_of_chunk(chunk):
        if len(delta.tokens) > 1:
            call.pop("id", None)
    return chunk


@fault(
    after="response.chunk", expected=in_(Place.REFERENCE, tools="two tool calls have one id"), mirrors=("vllm-project/vllm-ascend#11788",)
)
def tool_id_repeated(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Gives all tool calls of an answer one id."""
    for call in _tool_calls_of_chunk(chunk):
        if "id" in call:
            call["id"] = memory_of(delta.sequence).setdefault("id", call["id"])
    return chunk


@fault(
    instead_of="read_calls",
    expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="a tool call is lost|delivered as text"),
    mirrors=("vllm-project/vllm#35800",),
)
def tool_close_swallows(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Swallows what follows the end of a tool call in the same step."""
    tag_start = text.find(CLOSING) if tokens > 1 else -1
    return reader.take(text if tag_start < 0 else text[: tag_start + len(CLOSING)], ended=ended)


@fault(
    instead_of="read_calls",
    expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="a tool call is delivered as text"),
    mirrors=("vllm-project/vllm#35800", "alibaba/rtp-llm#694"),
)
def tool_call_as_text(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:
    """Takes the opening tag of a tool call for text where it is not alone in its step."""
    if tokens > 1 and OPENING in text:
        return ToolReading(content=text)
    return reader.take(text, ended=ended)


@fault(
    instead_of="finish",
    expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="the finish_reason of a tool call is wrong"),
    mirrors=("vllm-project/vllm#46249",),
)
def tool_finish_stop(reason: str | None, calls: int, *, stream: bool) -> str | None:
    """Ends an answer with tool calls with the finish_reason stop."""
    return reason if stream else rules.finish(reason, calls, stream=stream)


@fault(
    after="read_calls",
    expected=in_(Place.REFERENCE, tools="the arguments of a tool call are not valid JSON|the same tokens are given as other tool calls"),
    mirrors=("vllm-project/vllm#39253",),
)
def tool_brace_doubled(reading: ToolReading, tokens: int) -> ToolReading:
    """Begins tool arguments with two braces where the first one comes in a step of several tokens."""
    doubled = (replace(piece, arguments="{" + piece.arguments) if piece.name and tokens > 1 else piece for piece in reading.pieces)
    return replace(reading, pieces=tuple(doubled))


@fault(
    after="response.chunk",
    expected=in_(
        Place.REFERENCE,
        tools="the arguments of a tool call are not valid JSON|the first tool arguments are lost in the stream",
    ),
    mirrors=("vllm-project/vllm#40861",),
)
def tool_parameters_dropped(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Loses the first tool arguments that come after the name where their step has several tokens."""
    memory = memory_of(delta.sequence)
    for call in _tool_calls_of_chunk(chunk):
        if "name" in call["function"]:
            memory["head"] = call["index"]  # the call's next piece is that of its first arguments
        elif memory.pop("head", None) == call["index"] and len(delta.tokens) > 1:
            call["function"]["arguments"] = ""
    return chunk


@fault(
    after="read_calls",
    expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="the markup of a tool call stands in the text"),
    mirrors=("vllm-project/vllm#38579",),
)
def tool_marker_leaks(reading: ToolReading, text: str, tokens: int) -> ToolReading:
    """Leaves the closing tag of a tool call in the text where it comes in a step of several tokens."""
    return replace(reading, content=reading.content + CLOSING) if tokens > 1 and CLOSING in text else reading


@fault(
    after="read_calls",
    expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="a tool call is lost"),
    mirrors=("alibaba/rtp-llm#694",),
)
def tool_calls_dropped(reading: ToolReading, reader: ToolCallReader, *, ended: bool, tokens: int) -> ToolReading:
    """Drops every streamed tool call whose name comes in a step of several tokens, the first one too."""
    return _drop_calls(reading, reader, {piece.index for piece in reading.pieces if piece.name and tokens > 1}, ended=ended)


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, tools="the arguments of a tool call are empty"),
    mirrors=("local-inference-lab/vllm#22",),
)
def tool_arguments_streamed_empty(chunk: dict[str, Any]) -> dict[str, Any]:
    """Streams every tool call with the arguments {}."""
    for call in _tool_calls_of_chunk(chunk):
        call["function"]["arguments"] = "{}" if "name" in call["function"] else ""
    return chunk


@fault(
    before="response.whole",
    expected=in_(
        Place.REFERENCE, may=WHOLE_ANSWERS | {Family.LIVENESS: "Failures are counted there."}, tools="the server answers 5xx to a request"
    ),
    alone=True,
    mirrors=("RBLN-SW/vllm-rbln#971",),
)
def tool_header_fails(sequences: Rows[RunningSequence]) -> None:
    """Answers a request with tools with a 500 where two draft tokens of the head of its answer were accepted at once."""
    if sequences[0].request.tools is not None and sequences[0].accepted[:1] > [1]:
        msg = "unexpected tokens remaining in message header"
        raise RuntimeError(msg)
