"""Echoes: the lists of an answer that begins with its prompt fall in two where the prompt ends."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.capture import echoes, responses

VALUES = [None, -1.0, -2.0, -0.5, -0.25]
LISTS = {
    "tokens": ["a", "b", "c", "d", "e"],
    "token_logprobs": VALUES,
    "top_logprobs": [None, {"b": -1.0}, {"c": -2.0}, {"d": -0.5}, {"e": -0.25}],
    "text_offset": [0, 1, 2, 3, 4],
}


def test_the_prompt_takes_as_many_entries_as_it_has_tokens():
    echo = echoes.read({"logprobs": LISTS}, 3)
    assert echo.logprobs == (-1.0, -2.0)
    assert echo.answer_lists == {
        "tokens": ["d", "e"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"d": -0.5}, {"e": -0.25}],
        "text_offset": [3, 4],
    }


@pytest.mark.parametrize("value", [None, math.nan, -math.inf, True, "-1", pytest.param(-(10**400), id="huge")])
def test_a_value_that_is_no_number_leaves_the_prompt_without(value):
    assert echoes.read({"logprobs": {"token_logprobs": [None, value, -1.0]}}, 2).logprobs is None


@pytest.mark.parametrize("choice, tokens", [
    ({"logprobs": LISTS}, 0),
    ({"logprobs": {**LISTS, "token_logprobs": VALUES[1:]}}, 3),
    ({"logprobs": {"token_logprobs": []}}, 3),
    ({"logprobs": {"content": []}}, 3),
    ({"logprobs": None}, 3),
    ({}, 3),
])  # fmt: skip
def test_what_does_not_begin_with_null_is_no_echo(choice, tokens):
    assert echoes.read(choice, tokens) is None


@pytest.mark.parametrize("where", ["ids", "usage"])
def test_an_answer_keeps_both_parts_apart(where):
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}} if where == "usage" else {"prompt_token_ids": [1, 2, 3]}
    parsed = responses.parse_body({"choices": [{"index": 0, "text": "abcde", "token_ids": [4, 5], "logprobs": LISTS}], **usage}, None)
    assert parsed.prompt_logprobs == (-1.0, -2.0)
    assert (parsed.choices[0].logprobs, parsed.choices[0].text) == ((-0.5, -0.25), "abcde")
    assert [one.token for one in parsed.choices[0].listed] == ["d", "e"]
