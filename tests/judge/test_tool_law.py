"""The law of tool calls: one line per way to break it, and nothing for what keeps it."""

from __future__ import annotations

import pytest

from pytest_specdec.judge.tool_rules import ToolFault, compare_answers, find_faults, requested_tools
from pytest_specdec.model.transcript import Choice, ToolCall
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.prompts.tools import TOOLS

GOOD = '{"city": "Köln", "unit": "C"}'
LIGHT = '{"on": true, "dim": 3, "room": "hall"}'


def of(tool_choice="required", *, tools=("weather", "light")):
    body = {"tools": [TOOLS[name] for name in tools], "tool_choice": tool_choice}
    return requested_tools(Request(id="a", route=Route.CHAT, body=body if tools else {}))


def said(*calls, text="", reasoning="", finish="tool_calls"):
    tool_calls = tuple(
        ToolCall(**{"index": i, "id": f"call-{i}", "name": "get_weather", "arguments": GOOD, **call}) for i, call in enumerate(calls)
    )
    return Choice(tool_calls=tool_calls, text=text, reasoning=reasoning, finish_reason=finish)


def test_what_is_asked_is_read_off_the_body():
    assert of(tools=()).choice == "none"
    assert of({"type": "function", "function": {"name": "get_weather"}}).choice == "named"
    assert [of(choice).required for choice in ("none", "auto", "required")] == [False, False, True]
    assert list(of().parameters) == ["get_weather", "set_light"]


@pytest.mark.parametrize("choice", [
    said({}),
    said({}, {"name": "set_light", "arguments": LIGHT}),
    said({}, {"arguments": '{"city": "K'}, finish="length"),
    said(finish="length"),
    said({}, text="I look it up."),
])  # fmt: skip
def test_calls_that_keep_the_law(choice):
    assert find_faults(of(), choice) == []


@pytest.mark.parametrize("choice, broken", [
    (said({"id": ""}), ToolFault.NO_ID),
    (said({"id": "x"}, {"id": "x"}), ToolFault.SAME_ID),
    (said({"index": 1}), ToolFault.INDEX),
    (said({"arguments": GOOD + GOOD}), ToolFault.INDEX),
    (said({"name": "get_weatherget_weather"}), ToolFault.NAME_TWICE),
    (said({"name": "get_time"}), ToolFault.STRANGE),
    (said({"arguments": '{"city'}), ToolFault.INVALID),
    (said({"arguments": ""}), ToolFault.INVALID),
    (said({"arguments": '{"city": "Rome", "unit": "C"}'}), ToolFault.SCHEMA),
    (said(text="<tool_call>\n{}"), ToolFault.AS_TEXT),
    (said(text="It rains.", finish="stop"), ToolFault.NO_CALL),
])  # fmt: skip
def test_a_broken_law_is_named(choice, broken):
    assert [name for name, _ in find_faults(of(), choice)] == [broken]


def test_the_id_of_several_calls_is_the_one_that_is_named():
    assert find_faults(of(), said({"id": "a"}, {"id": "b"}, {"id": "b"})) == [(ToolFault.SAME_ID, 'id "b" in 2 of 3 calls')]


def test_where_no_tool_is_asked_for_everything_is_text():
    assert find_faults(of("none"), said(text="<tool_call>", finish="stop")) == []
    assert find_faults(of("auto"), said(text="It rains.", finish="stop")) == []


@pytest.mark.parametrize("mine, theirs, broken", [
    (said({"arguments": '": "Köln", "unit": "C"}'}), said({}), ToolFault.FIRST_LOST),
    (said({"arguments": GOOD[:-2]}), said({}), ToolFault.END_LOST),
    (said({"arguments": "{}"}), said({}), ToolFault.EMPTY),
    (said({"arguments": '{"city": "Kln", "unit": "C"}'}), said({}), ToolFault.CHARACTERS),
    (said({"arguments": "{" + GOOD}), said({}), ToolFault.INVALID),
    (said({"arguments": '{"unit": "C"}'}), said({}), ToolFault.DIFFER),
    (said({"name": "get_weather" * 2}), said({}), ToolFault.NAME_TWICE),
    (said({"name": "weather"}), said({}), ToolFault.DIFFER),
    (said({}), said({}, {}), ToolFault.CALL_LOST),
    (said({}, {}), said({}), ToolFault.DIFFER),
    (said({}, text='{"name": "a"'), said({}, {}), ToolFault.AS_TEXT),
    (said({"arguments": GOOD + GOOD}), said({}, {}), ToolFault.INDEX),
    (said(reasoning="a", text="bc"), said(reasoning="ab", text="c"), ToolFault.LEAK),
    (said(reasoning="abc"), said(reasoning="ab", text="c"), ToolFault.SWALLOWED),
    (said(reasoning="a", text="b"), said({}, reasoning="ab"), ToolFault.LEAK),
    (said(reasoning="ac"), said(reasoning="abc"), ToolFault.PART),
    (said({}, text="</tool_call>"), said({}), ToolFault.MARKUP),
    (said(text="abc"), said(text="abcd"), ToolFault.TAIL),
    (said(text="abd"), said(text="abcd"), ToolFault.PART),
    (said(text="ababcd"), said(text="abcd"), ToolFault.TWICE),
    (said(text="acbd"), said(text="abcd"), ToolFault.ORDER),
    (said(text="ab"), said(text="aßb"), ToolFault.CHARACTERS),
])  # fmt: skip
def test_answers_of_the_same_tokens_that_differ_are_told_how(mine, theirs, broken):
    assert compare_answers(mine, theirs)[0] is broken


def test_answers_that_say_the_same_are_not_apart():
    assert compare_answers(said({"id": "x"}), said({"id": "y"})) is None
    assert compare_answers(said(text="ab\ufffd"), said(text="ab")) is None
