"""The same bytes on the untimed and the timed path: one table, so that neither blames an engine that the other one understands."""

from __future__ import annotations

import gzip
import time
import zlib
from dataclasses import replace

import pytest

from pytest_specdec.capture import sse
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.timed import requests, sending
from pytest_specdec.capture.timed.sending import TimedRequest
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.model.workload import Request, Route
from tests.chaos.raw_server import RawServer, always, chunk, head, response
from tests.chaos.test_wire import BODY, DONE, OUTSIDE, at, choice, event, row, words

ANSWER = event(choices=[choice()]) + DONE
STREAM = head(kind="text/event-stream")
CHUNKED = head(headers=["transfer-encoding: chunked"], kind="text/event-stream")
GZIP = head(headers=["content-encoding: gzip"], kind="text/event-stream")
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWERED = "answered 'ab'"
REQUEST = Request(id="a", route=Route.COMPLETIONS, body=BODY)


def sized(length):
    return head(headers=[f"content-length: {length}"], kind="text/event-stream")


def in_lines(data):
    """Return a response whose head has line feeds alone."""
    start, _, body = data.partition(b"\r\n\r\n")
    return start.replace(b"\r\n", b"\n") + b"\n\n" + body


def by_chunks(data, size):
    return b"".join(chunk(data[start : start + size]) for start in range(0, len(data), size)) + chunk(b"")


TABLE = [
    row("a body up to the end of the connection", ANSWERED, STREAM + ANSWER),
    row("a body of known length", ANSWERED, sized(len(ANSWER)) + ANSWER),
    row("a length with zeros before it", ANSWERED, sized(f"000{len(ANSWER)}") + ANSWER),
    row("chunks", ANSWERED, CHUNKED + by_chunks(ANSWER, 40)),
    row("chunks of one byte", ANSWERED, CHUNKED + by_chunks(ANSWER, 1)),
    row("100 Continue before the response", ANSWERED, CONTINUE + STREAM + ANSWER),
    row("103 Early Hints before the response", ANSWERED, EARLY + STREAM + ANSWER),
    row("both, twice", ANSWERED, 2 * (CONTINUE + EARLY) + CHUNKED + by_chunks(ANSWER, 40)),
    row("a head with line feeds alone", ANSWERED, in_lines(STREAM + ANSWER)),
    row("a head with line feeds alone, and a length", ANSWERED, in_lines(sized(len(ANSWER)) + ANSWER)),
    row("a head with line feeds alone, and chunks", ANSWERED, in_lines(CHUNKED + by_chunks(ANSWER, 40))),
    row("gzip, unasked for", ANSWERED, GZIP + gzip.compress(ANSWER)),
    row(
        "gzip in chunks",
        ANSWERED,
        GZIP.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + by_chunks(gzip.compress(ANSWER), 7),
    ),
    row("deflate, unasked for", ANSWERED, GZIP.replace(b"gzip", b"deflate") + zlib.compress(ANSWER)),
    row("gzip that is none", OUTSIDE, GZIP + ANSWER),
    row("gzip without its end", OUTSIDE, GZIP + gzip.compress(ANSWER)[:-9]),
    row("an encoding that does not exist", OUTSIDE, GZIP.replace(b"gzip", b"pigeon") + ANSWER),
    row("204", OUTSIDE, head("204 No Content")),
    row("a length that is too long", "died: connection lost", sized(len(ANSWER) + 1) + ANSWER),
    row("a chunk that breaks off", "died: connection lost", CHUNKED + by_chunks(ANSWER, 40)[:-20]),
    row("a refusal", "refused with 400", response('{"error": {"message": "no"}}', "400 Bad Request")),
    row("a refusal after 103", "refused with 400", EARLY + response('{"error": {"message": "no"}}', "400 Bad Request")),
    row("a content-length of 5,000 digits", "died: connection lost", sized("9" * 5_000) + ANSWER),
]


@pytest.mark.parametrize("data", TABLE)
def test_both_paths_understand_the_same(seen, data):
    request = TimedRequest(request=REQUEST, pass_index=0, deadline_s=5.0)
    with RawServer(always(data)).running() as server:
        client = Client(at(server.port), VllmDialect(), model="m")
        untimed = words(client.send(REQUEST, streamed=True, deadline_s=5.0))
        (timed,), _ = sending.answers(client, [request], concurrency=1)
        client.close()
    seen(untimed if untimed == words(timed) else f"untimed {untimed}; timed {words(timed)}")


@pytest.mark.chaos("a stream in a million parts, left after the last event but one", expected="each byte looked at once", quick=True)
def test_leaving_a_stream_early_takes_time_by_its_length_alone(seen):
    """Twice as many parts may not take four times as long: counted are the bytes that are searched, since no test looks at a clock."""
    searched = []

    class Counted(bytes):
        def __radd__(self, other):
            searched.append(len(other) + len(self))
            return bytes(other) + bytes(self)

    sse.read((Counted(b"x") for _ in range(20_000)), max_events=2)
    seen("each byte looked at once" if len(searched) == 20_000 and sum(searched) < 10 * 20_000 else f"{sum(searched):,} bytes")


EVENTS = b"data: 1\r\n\r\ndata: 2\n\ndata: 3\r\rdata: 4\n\r\ndata: 5\n\ndata: 6"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.chaos("events whose ends fall between two parts", expected="left where the event ends", quick=True)
def test_a_stream_is_left_behind_its_events_however_it_is_cut(seen, size):
    parts = [EVENTS[start : start + size] for start in range(0, len(EVENTS), size)]
    ends = {count: len(sse.read(parts, max_events=count).body) for count in (1, 2, 3, 4, 5)}
    whole = {count: [match.end() for match in sse._BLANK.finditer(EVENTS)][count - 1] for count in ends}
    fits = all(whole[count] <= ends[count] <= whole[count] + size for count in ends)
    seen("left where the event ends" if fits else f"{ends}, expected {whole}")


@pytest.mark.chaos("a timed answer in chunks of one byte, beyond what memory has for them", expected="outside the protocol", quick=True)
def test_a_timed_answer_of_too_many_parts_is_none(monkeypatch, seen):
    monkeypatch.setattr(requests, "MAX_PARTS", 1_000)
    data = CHUNKED + by_chunks(b"x" * 2_000, 1)
    with pytest.raises(ValueError, match="more than 1,000 parts"):
        requests.response(0, 1, requests.WHOLE, (1,), (data,))
    seen("outside the protocol")


@pytest.mark.chaos("a stream of small parts that had arrived at the deadline", expected="hung: no answer within 0.3 s", quick=True)
def test_what_came_before_the_deadline_is_not_read_beyond_it(seen, monkeypatch):
    """The client is slower than the server here: what lies in its buffers when the time is over is not handed on."""
    counted, calls = sse._EventCounter.count, []

    def slow(self, part):
        calls.append(part)
        time.sleep(0.05)
        return counted(self, part)

    monkeypatch.setattr(sse._EventCounter, "count", slow)
    with RawServer(always(CHUNKED + by_chunks(b": ping\n" * 100, 7))).running() as server:
        client = Client(at(server.port), VllmDialect(), model="m")
        sent = client.send(replace(REQUEST, abort_after=500), streamed=True, deadline_s=0.3)
        client.close()
    seen(words(sent) if len(calls) < 50 else f"{len(calls)} parts read")
