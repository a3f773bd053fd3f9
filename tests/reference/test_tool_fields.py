"""Tools in requests: what the model is told, what it is bound to, and what is refused."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from pytest_specdec.prompts import tools
from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served

WEATHER, NOTE = tools.TOOLS["weather"], tools.TOOLS["note"]
NAMED = {"type": "function", "function": {"name": "save_note"}}
ASKED = [{"role": "user", "content": "What is the weather in Tromsø?"}]
CASES = {request.id: request.body for request in tools.twins().requests if not request.stream}


@pytest.fixture(scope="module", params=[None, PROBABILISTIC, NGRAM], ids=["baseline", "draft", "ngram"])
def server(request):
    with served(request.param, reasoning_end='":') as client:
        yield client


def whole(client, body):
    status, raw = client.ask("/v1/chat/completions", {**body, "return_token_ids": True})
    assert status == 200, raw
    return json.loads(raw)["choices"][0]


def streamed(client, body):
    """Return content, reasoning, calls and finish_reason of a stream, put together."""
    said, calls, reason = {"content": "", "reasoning": ""}, {}, None
    for chunk in client.stream("/v1/chat/completions", body):
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            for name in said:
                said[name] += choice["delta"].get(name) or ""
            for piece in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(piece["index"], {"ids": [], "names": [], "arguments": ""})
                call["ids"] += [piece["id"]] if "id" in piece else []
                call["names"] += [piece["function"]["name"]] if "name" in piece["function"] else []
                call["arguments"] += piece["function"]["arguments"]
    assert list(calls) == list(range(len(calls)))
    assert all(len(call["ids"]) == len(call["names"]) == 1 for call in calls.values())
    return said, [(call["names"][0], call["arguments"]) for call in calls.values()], reason


@pytest.mark.examples(2)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("case", ["parallel", "named-nested", "escapes", "second-turn", "plain"])
def test_a_stream_and_a_whole_answer_hold_the_same_and_calls_fit_their_tools(server, case, thinking):
    body = {**CASES[case], "max_tokens": 300, "chat_template_kwargs": {"enable_thinking": thinking}}
    choice = whole(server, body)
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    said, pieces, reason = streamed(server, body)
    assert (said["content"], said["reasoning"], pieces) == (message["content"], message.get("reasoning", ""), calls)
    assert reason == choice["finish_reason"]
    if case != "plain" and reason != "length":
        parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
        assert reason == "tool_calls"
        for name, arguments in calls:
            Draft202012Validator(parameters[name]).validate(json.loads(arguments))
        assert len({call["id"] for call in message["tool_calls"]}) == len(calls)


def test_a_required_call_comes_and_content_stays_empty(server):
    body = {"messages": ASKED, "tools": [WEATHER, NOTE], "tool_choice": NAMED, "temperature": 0, "max_tokens": 300}
    message = whole(server, body | {"chat_template_kwargs": {"enable_thinking": False}})["message"]
    assert (message["content"], [call["function"]["name"] for call in message["tool_calls"]]) == ("", ["save_note"])


def test_the_model_is_told_of_the_tools_and_of_what_they_answered(baseline):
    plain, told = ({"messages": ASKED}, {"messages": ASKED, "tools": [WEATHER]})
    answered = {"messages": [*ASKED, *CASES["tool-result"]["messages"][1:]]}
    prompts = [json.loads(baseline.ask("/tokenize", body)[1])["count"] for body in (plain, told, answered)]
    assert prompts[1] > prompts[0] + 100
    assert prompts[2] > prompts[0] + 40


@pytest.mark.parametrize("field, body", [
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": "always"}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": NAMED}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "function"}}),
    ("tools", {"tools": "weather"}),
    ("tools", {"tools": ["weather"]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": ""}}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]}),
    (
        "tools",
        {
            "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "objecx"}}}],
            "tool_choice": "required",
        },
    ),
    ("parallel_tool_calls", {"tools": [WEATHER], "parallel_tool_calls": "no"}),
    ("messages", {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}),
    ("messages", {"messages": [{"role": "assistant", "content": 5, "tool_calls": [{"function": {"name": "a"}}]}]}),
    ("messages", {"messages": [{"role": "assistant", "content": "", "tool_calls": 3}]}),
    (
        "messages",
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
    ),
])  # fmt: skip
def test_what_is_no_tool_is_refused(baseline, field, body):
    status, error = baseline.refused({"messages": ASKED, **body}, "/v1/chat/completions")
    assert (status, error["param"]) == (400, field)


def test_without_a_choice_nothing_is_parsed_and_nothing_binds(baseline):
    body = {"messages": ASKED, "tools": [WEATHER], "tool_choice": "none", "temperature": 0, "max_tokens": 8}
    assert "tool_calls" not in whole(baseline, body)["message"]
