"""Replies of the Responses API as the parts of an answer, whole and streamed."""

from __future__ import annotations

import pytest

from pytest_specdec.capture import response_events, sse
from pytest_specdec.model.response_object import OutputItem
from pytest_specdec.model.transcript import ToolCall, Usage

MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "ab"}, {"type": "output_text", "text": "c"}]}
CALL = {"type": "function_call", "name": "f", "call_id": "c1", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
USAGE = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12, "output_tokens_details": {"reasoning_tokens": 2}}


def body(*output, status="completed", **fields):
    return {"object": "response", "status": status, "output": list(output), "usage": USAGE, **fields}


def event(kind, number, **fields):
    return {"type": f"response.{kind}", "sequence_number": number, **fields}


def stream():
    final = body(THOUGHT, MESSAGE, CALL, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    return [
        event("created", 0, response=body(status="in_progress", usage=None)),
        event("reasoning_text.delta", 1, output_index=0, content_index=0, delta="hm"),
        event("output_text.delta", 2, output_index=1, content_index=0, delta="ab"),
        event("output_text.delta", 3, output_index=1, content_index=0, delta="c"),
        event("output_text.done", 4, output_index=1, content_index=0, text="abc"),
        event("output_item.added", 5, output_index=2, item={**CALL, "arguments": ""}),
        event("function_call_arguments.delta", 6, output_index=2, delta="{"),
        event("function_call_arguments.delta", 6, output_index=2, delta="}"),
        event("incomplete", 7, response=final),
    ]


def test_a_whole_response_has_the_parts_of_a_chat():
    parsed = response_events.parse_body(body(THOUGHT, MESSAGE, CALL))
    (choice,) = parsed.choices
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("hm", "abc", "tool_calls")
    assert choice.tool_calls == (ToolCall(index=0, id="c1", name="f", arguments="{}"),)
    assert parsed.usage == Usage(prompt_tokens=5, completion_tokens=7, reasoning_tokens=2, total_tokens=12)
    assert parsed.response.items[1] == OutputItem(type="message", text="abc")


def test_a_stream_is_put_together_from_its_deltas_and_keeps_what_else_it_says():
    parsed = response_events.parse_stream(stream())
    (choice,) = parsed.choices
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("hm", "abc", "length")
    assert choice.tool_calls == (ToolCall(index=0, id="c1", name="f", arguments="{}"),)
    response = parsed.response
    assert [(e.type, e.text, e.count) for e in response.events][2:4] == [("output_text.delta", "abc", 2), ("output_text.done", "abc", 1)]
    assert (response.status, response.reason, response.misnumbered) == ("incomplete", "max_output_tokens", 1)
    assert sum(arrival.size.characters for arrival in sse.arrivals([(0.0, e) for e in stream()], response_events.size)) == 7


def test_a_stream_without_its_last_event_has_no_status():
    parsed = response_events.parse_stream(stream()[:-1], broken=True)
    assert (parsed.response.status, parsed.response.broken, parsed.usage, parsed.choices[0].finish_reason) == ("", True, None, None)


@pytest.mark.parametrize("data, expected", [
    (body(), None),
    ({"error": {"message": "x"}}, {"message": "x"}),
    ({"type": "error", "message": "x"}, "x"),
    (event("failed", 3, response=body(status="failed", error={"message": "y"})), {"message": "y"}),
])  # fmt: skip
def test_a_failure_is_found_wherever_it_is_said(data, expected):
    assert response_events.read_failure(data) == expected


@pytest.mark.parametrize("data", [{}, {"status": 3}, body(3), body({"type": "message", "content": "x"}), body(usage={"input_tokens": "1"})])
def test_what_is_not_of_the_protocol_is_an_error(data):
    with pytest.raises(ValueError, match="expected"):
        response_events.parse_body(data)
    with pytest.raises(ValueError, match="events"):
        response_events.parse_stream([])


def test_the_event_that_a_broken_connection_cut_is_left_out():
    def parts():
        yield b'data: {"type": "response.created"}\n\ndata: {"ty'
        raise ConnectionResetError

    received = sse.read(parts(), broken_by=(OSError,))
    assert (bool(received.broken), [e.data for e in received.events()]) == (True, ['{"type": "response.created"}'])
    with pytest.raises(ConnectionResetError):
        sse.read(parts())
