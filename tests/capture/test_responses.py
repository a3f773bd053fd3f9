"""Responses: whole bodies and chunks of streams as the parts of an answer."""

from __future__ import annotations

import pytest

from pytest_specdec.capture import responses
from pytest_specdec.engines.server_counts import VerifySteps
from pytest_specdec.model.transcript import ListedTokens, ToolCall, Usage

COMPLETION = {
    "choices": [
        {
            "index": 0,
            "text": "ab",
            "token_ids": [5, 6],
            "prompt_token_ids": [1, 2],
            "finish_reason": "length",
            "logprobs": {"token_logprobs": [-0.5, -1]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2},
}


CHAT = {
    "choices": [{"message": {"content": "ab"}, "token_ids": [5, 6], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.0}]}}],
    "prompt_token_ids": [1, 2],
}


@pytest.mark.parametrize("data", [COMPLETION, CHAT])
def test_both_routes_say_the_same(data):
    said = responses.parse_body(data, None)
    (choice,) = said.choices
    assert (choice.text, choice.token_ids, choice.logprobs, said.prompt_token_ids) == ("ab", (5, 6), (-0.5, -1.0), (1, 2))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": "x"},
        {"choices": [3]},
        {"choices": [{}, {}]},
        {"choices": [{"index": 1}]},
        {"choices": [{"index": "0"}]},
        {"choices": [{}], "prompt_token_ids": "x"},
        {"choices": [{"token_ids": [1.0]}]},
        {"choices": [{"token_ids": [-1]}]},
        {"choices": [{"token_ids": [True]}]},
        {"choices": [{"token_ids": [None]}]},
        {"choices": [{}], "usage": {"prompt_tokens": 1, "completion_tokens": 1.5}},
    ],
)
def test_what_is_not_of_the_protocol_is_an_error_whole_and_streamed(data):
    with pytest.raises(ValueError, match="expected"):
        responses.parse_body(data, None)
    with pytest.raises(ValueError, match="expected"):
        responses.parse_stream([data], None, 0)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, "x"])
def test_missing_usage_stays_unknown(usage):
    assert responses.parse_body({"choices": [{}], "usage": usage}, None).usage is None


@pytest.mark.parametrize("choice", [{}, {"message": {"content": None}}, {"text": None, "token_ids": None, "logprobs": None, "index": None}])
def test_missing_fields_of_a_choice_leave_it_empty(choice):
    (found,) = responses.parse_body({"choices": [choice]}, None).choices
    assert (found.text, found.token_ids, found.logprobs, found.index) == ("", (), None, 0)


def test_choices_come_in_the_order_of_their_indexes():
    found = responses.parse_body({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}, None).choices
    assert [choice.text for choice in found] == ["a", "b"]


def test_a_log_probability_that_is_null_makes_all_unknown():
    assert responses.parse_body({"choices": [{"logprobs": {"token_logprobs": [None, -1.0]}}]}, None).choices[0].logprobs is None


@pytest.mark.parametrize("logprobs", [{}, {"content": []}, {"content": None}, {"token_logprobs": []}])
def test_an_answer_without_any_log_probability_has_none_whole_and_streamed(logprobs):
    """No value for six tokens is missing for all of them, not for some, as an empty list would be."""
    choice = {"token_ids": [5, 6], "logprobs": logprobs}
    parsed = (responses.parse_body({"choices": [choice]}, None), responses.parse_stream([{"choices": [choice]}] * 2, None, None))
    assert [one.choices[0].logprobs for one in parsed] == [None, None]
    (late,) = responses.parse_stream([{"choices": [choice]}, {"choices": [{"logprobs": {"token_logprobs": [-1]}}]}], None, None).choices
    assert late.logprobs == (-1.0,)


LISTED = (ListedTokens(token="a", tokens=("a",), logprobs=(-0.5,)), ListedTokens(token="b", tokens=("c", "b"), logprobs=(-0.5, -1.0)))


@pytest.mark.parametrize(
    "logprobs, listed",
    [
        ({"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0], "top_logprobs": [{"a": -0.5, "x": None}, {"c": -0.5, "b": -1}]}, LISTED),
        ({"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0], "top_logprobs": [{}, None]}, None),
        (
            {
                "content": [
                    {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}, {"token": "x", "logprob": "low"}, 3]},
                    {"token": "b", "logprob": -1.0, "top_logprobs": [{"token": "c", "logprob": -0.5}, {"token": "b", "logprob": -1}]},
                ]
            },
            LISTED,
        ),
        ({"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}]}, None),
    ],
)
def test_both_routes_list_the_same_tokens_and_no_list_is_none(logprobs, listed):
    """A list's value that is no number is left out, and never makes the answer unreadable."""
    (choice,) = responses.parse_body({"choices": [{"logprobs": logprobs}]}, None).choices
    assert choice.listed == listed


def chunks(*lengths, **last):
    ids = iter(range(100))
    parts = [{"choices": [{"text": "x" * n, "token_ids": [next(ids) for _ in range(n)]}], "prompt_token_ids": [7]} for n in lengths]
    return [
        {"choices": [{"delta": {"role": "assistant"}}]},
        *parts,
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}, **last},
    ]


def test_a_stream_adds_up():
    said = responses.parse_stream(chunks(1, 3, 2), None, draft_tokens=3)
    (choice,) = said.choices
    assert (choice.text, choice.token_ids, choice.windows) == ("xxxxxx", tuple(range(6)), (1, 3, 2))
    assert (said.prompt_token_ids, said.usage) == ((7,), Usage(prompt_tokens=1, completion_tokens=9))


@pytest.mark.parametrize(
    "lengths,draft_tokens,windows",
    [
        ((1, 4, 4), 3, (1, 4, 4)),
        ((1, 5), 3, None),
        ((2, 3), 3, None),
        ((1, 1), 0, (1, 1)),
        ((1, 2), 0, None),
        ((), 3, None),
        ((1, 1, 1), None, None),
    ],
    ids=["whole steps", "merged chunks", "merged prefill", "no drafting", "merged without drafting", "nothing", "a chunk per token"],
)
def test_chunks_are_windows_only_if_they_can_be(lengths, draft_tokens, windows):
    said = responses.parse_stream(chunks(*lengths), None, draft_tokens)
    assert said.choices[0].windows == windows


def test_steps_beat_chunks_unless_they_fall_short():
    steps = VerifySteps(accepted=(3, 0), drafted=(3, 3))
    assert responses.parse_stream(chunks(1, 2, 2), steps, 3).choices[0].windows == (1, 4, 1)
    assert responses.parse_stream(chunks(1, 4, 4), steps, 3).choices[0].windows == (1, 4, 4)
    assert responses.parse_body({"choices": [{"token_ids": list(range(7))}]}, steps).choices[0].windows is None


@pytest.mark.parametrize("tokens", [1, 5])
def test_an_answer_without_a_draft_is_a_step_per_token(tokens):
    choice = responses.parse_body({"choices": [{"token_ids": list(range(tokens))}]}, VerifySteps(accepted=(), drafted=())).choices[0]
    assert (choice.windows, choice.drafted) == ((1,) * tokens, (0,) * (tokens - 1))


def test_several_choices_have_no_windows_of_the_request():
    told = {"choices": [{"index": 1, "token_ids": [1]}, {"index": 0, "token_ids": [2]}]}
    assert [choice.windows for choice in responses.parse_body(told, VerifySteps(accepted=(1,), drafted=(1,))).choices] == [None, None]


def test_only_text_or_tokens_are_content():
    sizes = [responses.size(chunk) for chunk in chunks(1, 2)]
    assert [bool(size.token_ids or size.characters) for size in sizes] == [False, True, True, False]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_either_name_beside_the_text(name):
    (whole,) = responses.parse_body({"choices": [{"message": {"content": "yes", name: "because"}}]}, None).choices
    deltas = [{name: "bec"}, {name: "ause", "content": None}, {"content": "y"}, {"content": "es", name: None}]
    (streamed,) = responses.parse_stream([{"choices": [{"delta": delta}]} for delta in deltas], None, 0).choices
    for choice in (whole, streamed):
        assert (choice.reasoning, choice.text, choice.written) == ("because", "yes", "becauseyes")


def test_reasoning_under_both_names_counts_once():
    (choice,) = responses.parse_body(
        {"choices": [{"message": {"reasoning_content": "a", "reasoning": "a", "content": None}}]}, None
    ).choices
    assert (choice.reasoning, choice.text) == ("a", "")


def test_reasoning_that_is_no_text_is_an_error():
    with pytest.raises(ValueError, match="`reasoning` has"):
        responses.parse_body({"choices": [{"message": {"content": "", "reasoning": {"text": "a"}}}]}, None)


@pytest.mark.parametrize(
    "more, tokens",
    [
        ({"completion_tokens_details": {"reasoning_tokens": 4}}, 4),
        ({"reasoning_tokens": 4}, 4),
        ({"completion_tokens_details": {"reasoning_tokens": None}, "reasoning_tokens": 4}, None),
        ({"completion_tokens_details": None}, None),
        ({"completion_tokens_details": {}}, None),
        ({}, None),
    ],
)
def test_reasoning_tokens_are_counted_where_the_server_counts_them(more, tokens):
    usage = responses.parse_body({"choices": [{}], "usage": {"prompt_tokens": 1, "completion_tokens": 9, **more}}, None).usage
    assert (usage.completion_tokens, usage.reasoning_tokens) == (9, tokens)


@pytest.mark.parametrize(
    "details, cached",
    [
        ({}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 48}}, 48),
    ],
)
def test_cached_tokens_are_read_where_openai_has_them(details, cached):
    usage = {"prompt_tokens": 50, "completion_tokens": 2, **details}
    assert responses.parse_body({"choices": [{"text": "a"}], "usage": usage}, None).usage.cached_tokens == cached


def deltas(*calls):
    return [{"choices": [{"index": 0, "delta": {"tool_calls": list(pieces)}}]} for pieces in calls]


def test_tool_calls_are_put_together_by_their_index():
    chunks = deltas(
        [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"x": "\ud83d'}}, {"index": 1, "id": "b", "function": {"name": "g"}}],
        [{"index": 0, "id": "other", "function": {"arguments": '\ude00"}'}}, {"index": 1, "function": {"arguments": "{}"}}],
    )
    (choice,) = responses.parse_stream(chunks, None, None).choices
    assert choice.tool_calls == (
        ToolCall(index=0, id="a", name="f", arguments='{"x": "\U0001f600"}'),
        ToolCall(index=1, id="b", name="g", arguments="{}"),
    )
    sizes = [responses.size(chunk) for chunk in chunks]
    assert [(size.characters, size.content) for size in sizes] == [(1, 1), (9, 9), (5, 5)]


def test_tool_calls_of_a_whole_answer_are_numbered_as_they_stand():
    calls = [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}, {"function": None}]
    (choice,) = responses.parse_body({"choices": [{"message": {"content": None, "tool_calls": calls}}]}, None).choices
    assert choice.tool_calls == (ToolCall(index=0, id="a", name="f", arguments='{"x": 1}'), ToolCall(index=1))


@pytest.mark.parametrize("index", [0, -1], ids=["the place of the tool", "a tool that is not there"])
def test_an_index_of_another_meaning_in_a_whole_answer_joins_no_calls(index):
    calls = [{"id": name, "index": index, "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    (choice,) = responses.parse_body({"choices": [{"message": {"content": None, "tool_calls": calls}}]}, None).choices
    assert choice.tool_calls == tuple(ToolCall(index=place, id=name, name="f", arguments="{}") for place, name in enumerate("ab"))


@pytest.mark.parametrize("calls", ["x", [1], [{"id": 5}], [{"function": {"name": 3}}], [{"function": {"arguments": [1]}}]])
def test_tool_calls_of_another_form_are_an_error(calls):
    with pytest.raises(ValueError, match="expected"):
        responses.parse_body({"choices": [{"message": {"tool_calls": calls}}]}, None)
