"""The Responses API of the reference engine: in the openai package's own types, with the answers of the chat route."""

from __future__ import annotations

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pytest_specdec.capture import response_events
from pytest_specdec.capture import responses as chat_replies
from pytest_specdec.model.workload import Route
from pytest_specdec.prompts.responses import conversation_of, pairs
from specdec_reference.request_fields import Refusal
from specdec_reference.responses_request import chat_body

REQUESTS = {request.id: request for request in pairs().requests}
CASES = ("one-call", "limit", "schema", "turns", "result")
EVENT = TypeAdapter(ResponseStreamEvent)


def whole(server, body):
    status, raw = server.ask("/v1/responses", body)
    assert status == 200, raw
    return json.loads(raw)


def events(server, body):
    status, raw = server.ask("/v1/responses", {**body, "stream": True})
    assert status == 200, raw
    blocks = [block.split("\n") for block in raw.decode().split("\n\n") if block]
    data = [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]
    assert [lines[0] for lines in blocks] == [f"event: {one['type']}" for one in data]
    return data


@pytest.mark.examples(2)
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_chat_route_and_of_the_packages_types(probabilistic, name):
    body = REQUESTS[f"{name}/responses"].body
    status, raw = probabilistic.ask("/v1/chat/completions", REQUESTS[f"{name}/chat"].body)
    assert status == 200, raw
    chat = chat_replies.parse_body(json.loads(raw), None)
    one, streamed = whole(probabilistic, body), events(probabilistic, body)
    Response.model_validate(one, strict=False)
    for event in streamed:
        EVENT.validate_python(event)
    for parsed in (response_events.parse_body(one), response_events.parse_stream(streamed)):
        (choice,), (expected,) = parsed.choices, chat.choices
        assert (choice.text, choice.reasoning) == (expected.text, expected.reasoning)
        assert [(c.name, c.arguments) for c in choice.tool_calls] == [(c.name, c.arguments) for c in expected.tool_calls]
        assert choice.finish_reason == expected.finish_reason
        assert (parsed.usage.prompt_tokens, parsed.usage.completion_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    assert response_events.parse_stream(streamed).response.misnumbered == 0


@pytest.mark.parametrize("body, message", [
    ([], "JSON object"),
    ({}, "input must be"),
    ({"input": [3]}, "an input item must be an object"),
    ({"input": [{"type": "item_reference"}]}, "not supported"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "only text parts"),
    ({"input": "x", "background": True}, "background is not supported"),
    ({"input": "x", "max_tokens": 3}, "unknown field max_tokens"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens must be"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused(body, message):
    with pytest.raises(Refusal, match=message):
        chat_body(body)


def test_every_conversation_comes_by_both_routes_in_one_form():
    for request in REQUESTS.values():
        if request.route is Route.RESPONSES:
            chat = {**REQUESTS[f"{conversation_of(request.id)}/chat"].body}
            assert {name: value for name, value in chat_body(dict(request.body)).items() if name != "messages"} == {
                name: value for name, value in chat.items() if name != "messages"
            }
