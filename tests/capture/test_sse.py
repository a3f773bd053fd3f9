"""Streams: events, stamps, and the tokens of the first burst, by made-up stamps."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.capture import responses, sse
from pytest_specdec.model.transcript import Usage

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


@given(st.binary(max_size=60))
def test_no_bytes_from_a_server_crash_the_reader(body):
    try:
        list(sse.objects(received(body, set()).events())) if body else None
        responses.parse_body(received(body or b"{}", set()).json(), None)
    except (ValueError, json.JSONDecodeError):
        pass


STEP_S, READ_S = 0.004, 9e-6


def chunk(tokens=1, text="ab", *, ids=True):
    return {"choices": [{"index": 0, "text": text, **({"token_ids": [7] * tokens} if ids else {})}]}


def stream(*, steps=80, late=0, tokens=1, **said):
    """Stamps of a server that makes a step every 4 ms and of a client that first looks after ``late`` of them; then it keeps up."""
    there = [(100.0 + (late - 0.5) * STEP_S + i * READ_S, chunk(tokens, **said)) for i in range(late)]
    return there + [(100.0 + i * STEP_S + 2e-4, chunk(tokens, **said)) for i in range(late, steps)]


@pytest.mark.parametrize("late, tokens", [(0, 1), (1, 1), (30, 30), (80, 80)])
def test_all_that_waited_belongs_to_the_first_burst(late, tokens):
    burst = sse.first_burst(sse.arrivals(stream(late=late)))
    assert burst.tokens(None) == tokens
    assert burst.at_s == stream(late=late)[0][0]


def test_a_stall_later_on_changes_nothing():
    """Only the first stamp is used: what piles up after it is counted when it comes, and it comes before the end."""
    stamped = stream()
    piled = [*stamped[:20], *((stamped[60][0] + i * READ_S, part) for i, (_, part) in enumerate(stamped[20:60])), *stamped[61:]]
    assert sse.first_burst(sse.arrivals(piled)).tokens(None) == 1


def test_tokens_that_the_server_put_into_one_chunk_came_together():
    assert sse.first_burst(sse.arrivals(stream(tokens=4))).tokens(None) == 4
    assert sse.first_burst(sse.arrivals(stream(tokens=4, late=3))).tokens(None) == 12


@pytest.mark.parametrize("late, tokens", [(0, 1), (20, 20), (80, 80)])
def test_without_ids_the_share_of_the_text_says_how_many(late, tokens):
    burst = sse.first_burst(sse.arrivals(stream(late=late, ids=False)))
    assert burst.tokens(Usage(prompt_tokens=5, completion_tokens=80)) == tokens
    assert burst.tokens(None) is None


def test_chunks_that_bring_nothing_are_not_first():
    role, usage = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}, {"choices": []}
    stamped = [(99.0, role), *stream(steps=2), (101.0, usage)]
    assert sse.first_burst(sse.arrivals(stamped)).at_s == stamped[1][0]
    assert sse.first_burst(sse.arrivals([(99.0, role), (101.0, usage)])) is None


def test_an_answer_of_tokens_without_text_is_counted_by_its_ids():
    assert sse.first_burst(sse.arrivals(stream(text=""))).tokens(None) == 1


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_content_to_the_first_stamp_and_to_shares(name):
    """Four characters of reasoning in half a second, then four of text."""
    deltas = [{"role": "assistant", "content": ""}, *[{name: "a"}] * 4, *[{"content": "b"}] * 4]
    stamped = [(i * 0.1, {"choices": [{"index": 0, "delta": delta}]}) for i, delta in enumerate(deltas)]
    burst = sse.first_burst(sse.arrivals(stamped))
    assert (burst.at_s, burst.text_fraction) == (0.1, 1 / 8)
    assert burst.tokens(Usage(prompt_tokens=1, completion_tokens=8)) == 1


ROLE, USAGE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, {"choices": []}


def delta(**said):
    return {"choices": [{"index": 0, "delta": said}]}


def call(**function):
    return delta(tool_calls=[{"index": 0, "function": function}])


def timing_of(*chunks, step_s=0.1):
    """Stamps of chunks that come every ``step_s`` from 100 s on; the request was sent 1 s before, the last byte comes 1 s later."""
    stamped = [(100.0 + i * step_s, said) for i, said in enumerate(chunks)]
    return sse.timing(sse.arrivals(stamped), None, sent_s=99.0, done_s=stamped[-1][0] + 1.0)


@pytest.mark.parametrize(
    "chunks, first_s, content_s, last_s, gaps_us",
    [
        ((ROLE, delta(content="a"), delta(content="b"), delta(content="c"), USAGE), 100.1, 100.1, 100.3, (100_000, 100_000)),
        ((ROLE, delta(reasoning_content="a"), delta(reasoning="b"), delta(content="c"), USAGE), 100.1, 100.3, 100.3, (100_000, 100_000)),
        ((delta(reasoning="a"), call(name="f"), ROLE, call(arguments="{}"), USAGE, USAGE), 100.0, 100.1, 100.3, (100_000, 200_000)),
        ((ROLE, delta(reasoning="a"), delta(reasoning="b"), USAGE), 100.1, None, 100.2, (100_000,)),
        ((chunk(text=""), chunk(), USAGE), 100.0, 100.1, 100.1, (100_000,)),
        ((ROLE, delta(content="a"), USAGE), 100.1, 100.1, 100.1, ()),
    ],
)
def test_tokens_arrive_as_text_reasoning_or_tool_calls_and_not_as_frames(chunks, first_s, content_s, last_s, gaps_us):
    found = timing_of(*chunks)
    assert (found.first_s, found.content_s, found.last_s) == tuple(s and pytest.approx(s) for s in (first_s, content_s, last_s))
    assert found.gaps_us == gaps_us
    assert found.last_s < found.done_s


def test_gaps_add_up_to_the_time_between_the_first_and_the_last_chunk():
    """Each is a difference of rounded times, so that a thousand roundings do not add up."""
    found = timing_of(*[delta(content="a")] * 1_001, step_s=0.0123456789)
    assert sum(found.gaps_us) == 12_345_679
    assert found.last_s - found.first_s == pytest.approx(12.3456789)


def test_an_answer_without_tokens_or_stream_has_the_stamps_of_its_ends_alone():
    found = timing_of(ROLE, USAGE)
    assert (found.sent_s, found.done_s) == (99.0, 101.1)
    assert (found.first_s, found.content_s, found.last_s, found.gaps_us) == (None, None, None, ())


@pytest.mark.parametrize("events, parts, left", [(1, 1, True), (2, 2, True), (3, 3, True), (4, 4, False), (None, 4, False)])
def test_a_reader_leaves_behind_so_many_events_unless_that_is_the_end(events, parts, left):
    stream = [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n", b"data: [DONE]\n\n"]
    found = sse.read(iter(stream), max_events=events)
    assert (len(found.parts), found.left) == (parts, left)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("<!DOCTYPE html><html><title>Sign in</title>", "a web page titled 'Sign in'"),
        (b"\n <HTML><body><H1 class='x'>502 Bad\xff</H1>", "a web page titled '502 Bad\ufffd'"),
        ('<?xml version="1.0"?>\n<html xmlns="x"><body>', "a web page (HTML)"),
        ("<html>" + "<title>" + "x" * 200 + "</title>", f"a web page titled {'x' * 80!r}"),
        ('{"choices": []}', ""),
        ("<think>a thought</think>", ""),
        ("", ""),
    ],
)
def test_a_web_page_is_shown_by_its_title(text, shown):
    assert sse.web_page(text) == shown


@pytest.mark.parametrize("reading", [sse.parse_object, lambda body: received(body, set()).events()])
def test_a_web_page_is_no_answer(reading):
    with pytest.raises(ValueError, match="found a web page titled 'Sign in'"):
        reading(b"<html><title>Sign in</title></html>")
