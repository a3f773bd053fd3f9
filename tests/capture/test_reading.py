"""What servers send, read: counters, streams, replies, windows, distributions."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.capture import responses, sse
from pytest_specdec.engines import vllm
from pytest_specdec.engines.protocol import VerifySteps
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import RequestError
from pytest_specdec.model.transcript import SpecCounters, Usage
from pytest_specdec.model.workload import Request, Route

PAGE = """
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="tiny"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 45.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} 1.2e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="tiny",position="0"} 1.0
vllm:generation_tokens_total{engine="0"} 99.0
"""


def test_counters_are_summed_over_engines():
    assert vllm.parse(PAGE) == SpecCounters(drafts=15, draft_tokens=45, accepted_tokens=12, accepted_per_position=(8, 4))


@pytest.mark.parametrize("page", ["", "vllm:generation_tokens_total 3\n", "# vllm:spec_decode_num_drafts_total 3\n"])
def test_a_page_without_the_series_has_no_counters(page):
    assert vllm.parse(page) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "many"])
def test_counters_that_are_no_counts_are_a_page_without(value):
    assert vllm.parse(f'{PAGE}vllm:spec_decode_num_drafts_total{{engine="2"}} {value}\n') is None


STREAM = b'data: {"choices": [{"text": "a"}]}\n\n: a comment\n\ndata: {"choices":\ndata: []}\n\r\ndata: [DONE]\n\n'


def received(body, cuts):
    edges = [0, *sorted(cuts), len(body)]
    parts = tuple(body[a:b] for a, b in pairwise(edges))
    return sse.ReceivedResponse(stamps_s=tuple(float(edge) for edge in edges[1:]), parts=parts)


@given(cuts=st.sets(st.integers(1, len(STREAM) - 1)))
def test_however_a_stream_is_cut_its_events_are_the_same_and_stamped_by_their_last_byte(cuts):
    events = received(STREAM, cuts).events()
    assert [event.data for event in events] == ['{"choices": [{"text": "a"}]}', '{"choices":\n[]}', "[DONE]"]
    ends = [STREAM.index(b"\n\n"), STREAM.index(b"\n\r\n"), len(STREAM) - 2]
    edges = sorted({*cuts, len(STREAM)})
    assert [event.at_s for event in events] == [min(edge for edge in edges if edge >= end) for end in ends]
    assert [chunk for _, chunk in sse.objects(events)] == [{"choices": [{"text": "a"}]}, {"choices": []}]


def test_an_event_without_a_blank_line_at_the_very_end_counts():
    assert [event.data for event in received(b"data: 1\n\ndata: [DONE]", set()).events()] == ["1", "[DONE]"]


def test_an_event_that_is_no_object_is_an_error():
    with pytest.raises(ValueError, match="expected a JSON object, found '3'"):
        list(sse.objects([sse.Event(at_s=0.0, data="3")]))


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
    said = responses.of_whole(data, None)
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
        responses.of_whole(data, None)
    with pytest.raises(ValueError, match="expected"):
        responses.of_stream([data], None, 0)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, "x"])
def test_missing_usage_stays_unknown(usage):
    assert responses.of_whole({"choices": [{}], "usage": usage}, None).usage is None


@pytest.mark.parametrize("choice", [{}, {"message": {"content": None}}, {"text": None, "token_ids": None, "logprobs": None, "index": None}])
def test_missing_fields_of_a_choice_leave_it_empty(choice):
    (found,) = responses.of_whole({"choices": [choice]}, None).choices
    assert (found.text, found.token_ids, found.logprobs, found.index) == ("", (), None, 0)


def test_choices_come_in_the_order_of_their_indexes():
    found = responses.of_whole({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}, None).choices
    assert [choice.text for choice in found] == ["a", "b"]


def test_a_log_probability_that_is_null_makes_all_unknown():
    assert responses.of_whole({"choices": [{"logprobs": {"token_logprobs": [None, -1.0]}}]}, None).choices[0].logprobs is None


def chunks(*lengths, **last):
    ids = iter(range(100))
    parts = [{"choices": [{"text": "x" * n, "token_ids": [next(ids) for _ in range(n)]}], "prompt_token_ids": [7]} for n in lengths]
    return [
        {"choices": [{"delta": {"role": "assistant"}}]},
        *parts,
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}, **last},
    ]


def test_a_stream_adds_up():
    said = responses.of_stream(chunks(1, 3, 2), None, draft_tokens=3)
    (choice,) = said.choices
    assert (choice.text, choice.token_ids, choice.windows) == ("xxxxxx", tuple(range(6)), (1, 3, 2))
    assert (said.prompt_token_ids, said.usage) == ((7,), Usage(prompt_tokens=1, completion_tokens=9))


@pytest.mark.parametrize(
    "lengths,draft_tokens,windows",
    [((1, 4, 4), 3, (1, 4, 4)), ((1, 5), 3, None), ((2, 3), 3, None), ((1, 1), 0, (1, 1)), ((1, 2), 0, None), ((), 3, None)],
    ids=["whole steps", "merged chunks", "merged prefill", "no drafting", "merged without drafting", "nothing"],
)
def test_chunks_are_windows_only_if_they_can_be(lengths, draft_tokens, windows):
    said = responses.of_stream(chunks(*lengths), None, draft_tokens)
    assert said.choices[0].windows == windows


def test_steps_beat_chunks_unless_they_fall_short():
    steps = VerifySteps(accepted=(3, 0), drafted=(3, 3))
    assert responses.of_stream(chunks(1, 2, 2), steps, 3).choices[0].windows == (1, 4, 1)
    assert responses.of_stream(chunks(1, 4, 4), steps, 3).choices[0].windows == (1, 4, 4)
    assert responses.of_whole({"choices": [{"token_ids": list(range(7))}]}, steps).choices[0].windows is None


def test_several_choices_have_no_windows_of_the_request():
    told = {"choices": [{"index": 1, "token_ids": [1]}, {"index": 0, "token_ids": [2]}]}
    assert [choice.windows for choice in responses.of_whole(told, VerifySteps(accepted=(1,), drafted=(1,))).choices] == [None, None]


def test_only_text_or_tokens_are_content():
    sizes = [responses.size(chunk) for chunk in chunks(1, 2)]
    assert [bool(size.token_ids or size.characters) for size in sizes] == [False, True, True, False]


def test_steps_are_counted_as_the_server_counts_them():
    steps = VerifySteps(accepted=(3, 0, 1, 0), drafted=(3, 3, 2, 0))
    assert steps.windows == (1, 4, 1, 2, 1)
    assert steps.counters == SpecCounters(drafts=3, draft_tokens=8, accepted_tokens=4, accepted_per_position=(2, 1, 1))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"metrics": None},
        {"metrics": {"speculative_decoding": None}},
        {"metrics": {"speculative_decoding": {"per_step_accepted": "12"}}},
    ],
)
def test_without_detailed_metrics_there_are_no_steps(data):
    assert VllmDialect().steps(data) is None


def test_streams_ask_for_usage_and_keep_what_was_asked():
    request = Request(id="a", route=Route.CHAT, body={"stream_options": {"continuous_usage_stats": True}})
    added = VllmDialect().added(request, stream=True)
    assert added == {"return_token_ids": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    assert VllmDialect().added(request, stream=False) == {"return_token_ids": True}


def distribution(**entries):
    return {key.lstrip("t"): {"logprob": logprob, "rank": rank} for key, (logprob, rank) in entries.items()}


def test_the_distribution_is_the_top_tokens_by_falling_probability_and_the_token_itself():
    told = {"choices": [{"prompt_logprobs": [None, distribution(t9=(-1.0, 1)), distribution(t4=(-3.0, 2), t8=(-0.1, 1), t7=(-9.0, 30))]}]}
    (position,) = VllmDialect().positions(told, [7], top_tokens=2)
    assert (position.token_id, position.logprob) == (7, -9.0)
    assert (position.top_ids, position.top_logprobs) == ((8, 4), (-0.1, -3.0))


def test_a_distribution_without_a_number_is_impossible():
    told = {"choices": [{"prompt_logprobs": [{"7": {"logprob": None, "rank": 3}}]}]}
    assert VllmDialect().positions(told, [7], top_tokens=1)[0].logprob == -math.inf


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"prompt_logprobs": []}]},
        {"choices": [{"prompt_logprobs": [{"3": {"logprob": -1}}]}]},
        {"choices": [{"prompt_logprobs": [None]}]},
    ],
)
def test_a_reply_without_the_distribution_is_an_error(told):
    with pytest.raises(RequestError):
        VllmDialect().positions(told, [7], top_tokens=1)


@pytest.mark.parametrize("logprob", [0.5, math.inf, True, "0"])
def test_a_distribution_of_no_log_probabilities_is_an_error(logprob):
    told = {"choices": [{"prompt_logprobs": [{"7": {"logprob": logprob, "rank": 1}}]}]}
    with pytest.raises(RequestError, match="log-probability"):
        VllmDialect().positions(told, [7], top_tokens=1)


@pytest.mark.parametrize("steps", [[1, None], [1.0], [-1], [True]])
def test_verify_steps_that_are_no_counts_are_an_error(steps):
    told = {"metrics": {"speculative_decoding": {"per_step_accepted": steps, "per_step_drafted": [3, 3]}}}
    with pytest.raises(ValueError, match="verify steps"):
        VllmDialect().steps(told)


@given(st.binary(max_size=60))
def test_no_bytes_from_a_server_crash_the_reader(body):
    try:
        list(sse.objects(received(body, set()).events())) if body else None
        responses.of_whole(received(body or b"{}", set()).json(), None)
    except (ValueError, json.JSONDecodeError):
        pass
