"""Timed answers: the process that stamps them, what its reads are as a response, and what is made of servers that fail."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.capture.client import Client
from pytest_specdec.capture.timed import requests, sending
from pytest_specdec.capture.timed.requests import LoadSamples, RawRequest
from pytest_specdec.capture.timed.sending import TimedRequest
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import CaptureError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.timing import ClientLoad
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route

REQUEST = Request(id="r", route=Route.CHAT, body={"messages": [{"role": "user", "content": "Say é."}], "max_tokens": 9, "top_k": 3})
EVENTS = [
    json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})
    for text, finish in (("a", None), ("b", "stop"))
]
LAST = b"0\r\n\r\n"


def chunk(data):
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = HEAD + b"".join(map(chunk, [*EVENTS, "[DONE]"])) + LAST
REFUSED = b'{"error": {"message": "top_k is unknown here"}}'


def whole(status, body, further=b""):
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), further, body)


def request_from(connection):
    """Return a request whose body is a JSON object; empty where the connection is closed before."""
    content = b""
    while not content.partition(b"\r\n\r\n")[2].endswith(b"}"):
        if not (part := connection.recv(65536)):
            return b""
        content += part
    return content


@contextmanager
def serving(reply, *, pause_s=0.0, connections=1, hold=False):
    """A server that gives each connection ``reply``, bytes or pieces of them, and keeps what it was sent."""
    received, gate = [], threading.Event()

    def serve(connection):
        with connection:
            if not (content := request_from(connection)):
                return
            received.append(content)
            for piece in [reply] if isinstance(reply, bytes) else reply:
                connection.sendall(piece)
                time.sleep(pause_s)  # so that pieces are read one by one
            if hold:
                gate.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads = []

        def accept():
            for _ in range(connections):
                threads.append(threading.Thread(target=serve, args=(listening.accept()[0],)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listening.getsockname()[1], received
        gate.set()
        accepting.join(10)
        for thread in threads:
            thread.join(10)


def client_at(port):
    return Client(ServerSetup(model="m", port=port, secrets=Secrets()), VllmDialect(), model="m")


def answered(port, *, count=1, concurrency=1, deadline_s=10.0):
    client = client_at(port)
    try:
        several = [TimedRequest(request=REQUEST, pass_index=n, deadline_s=deadline_s) for n in range(count)]
        return sending.answers(client, several, concurrency=concurrency)
    finally:
        client.close()


def test_a_stream_is_read_as_by_the_other_client():
    with serving(STREAM, connections=2) as (port, received):
        client = client_at(port)
        (timed,), load = sending.answers(client, [TimedRequest(request=REQUEST, pass_index=0, deadline_s=10.0)], concurrency=1)
        other = client.send(REQUEST, streamed=True, deadline_s=10.0)
        client.close()
    assert timed.answer.choices == other.answer.choices
    assert timed.answer.choice.text == "ab"
    assert timed.answer.timing.sent_s < timed.answer.timing.first_s <= timed.answer.timing.done_s <= time.monotonic()
    assert received[0] == received[1], "byte for byte what the openai package sends"
    assert load.load.cpu_share > 0


def event(**delta):
    return chunk(json.dumps({"choices": [{"index": 0, "delta": delta}]}))


FRAMED = [
    HEAD + event(role="assistant", content=""),
    event(reasoning_content="hm"),
    event(reasoning="hm"),
    event(content="a"),
    event(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}]),
    chunk(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})),
    chunk('{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}'),
    chunk("[DONE]") + LAST,
]
"""Of eight pieces four bring tokens, and the third of these is the first that is no reasoning."""


def test_both_clients_keep_when_tokens_came_and_leave_out_the_frame_around_them():
    with serving(FRAMED, pause_s=0.01, connections=2) as (port, _):
        client = client_at(port)
        (timed,), _ = sending.answers(client, [TimedRequest(request=REQUEST, pass_index=0, deadline_s=10.0)], concurrency=1)
        other = client.send(REQUEST, streamed=True, deadline_s=10.0)
        client.close()
    for timing in (timed.answer.timing, other.answer.timing):
        assert len(timing.gaps_us) == 3
        assert sum(timing.gaps_us) == pytest.approx((timing.last_s - timing.first_s) * 1e6, abs=1.0)
        assert timing.content_s == pytest.approx(timing.first_s + sum(timing.gaps_us[:2]) / 1e6, abs=1e-6)
        assert timing.sent_s < timing.first_s <= timing.content_s <= timing.last_s <= timing.done_s


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_end_is_seen_however_the_bytes_come(size):
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    with serving(pieces, pause_s=0.0005, hold=True) as (port, _):
        (timed,), _ = answered(port)
    assert timed.answer.choice.text == "ab"


@pytest.mark.parametrize(
    "reply, ending, says",
    [
        (whole(b"400 Bad Request", REFUSED), None, "top_k is unknown here"),
        (whole(b"500 Internal Server Error", b"out of memory"), FailureKind.ERROR, "out of memory"),
        (whole(b"307 Temporary Redirect", b"", b"location: http://elsewhere/\r\n"), FailureKind.ERROR, "redirected to http://elsewhere/"),
        (whole(b"200 OK", b"<!doctype html><title>Sign in</title>"), FailureKind.ERROR, "a web page titled 'Sign in'"),
        (HEAD + chunk(EVENTS[0]), FailureKind.DIED, "connection lost"),
        (b"", FailureKind.DIED, "connection lost"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", FailureKind.ERROR, "no status line of HTTP/1.1"),
        (HEAD + b"zz\r\n\r\n" + LAST, FailureKind.ERROR, "no size of a chunk"),
    ],
    ids=["refused", "5xx", "redirect", "web page", "broken off", "nothing", "another protocol", "no size"],
)
def test_what_a_server_does_wrong_is_told_as_by_the_other_client(reply, ending, says):
    with serving(reply) as (port, _):
        (timed,), _ = answered(port)
    assert timed.ending is ending
    assert says in timed.answer.error


def test_a_body_that_the_closed_connection_ends_is_whole():
    body = b"".join(f"data: {data}\n\n".encode() for data in [*EVENTS, "[DONE]"])
    with serving(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body) as (port, _):
        (timed,), _ = answered(port)
    assert timed.answer.choice.text == "ab"


def test_an_answer_that_does_not_come_in_time_is_a_hang():
    with serving(HEAD + chunk(EVENTS[0]), hold=True) as (port, _):
        (timed,), _ = answered(port, deadline_s=0.3)
    assert timed.ending is FailureKind.HUNG
    assert "no answer within 0.3 s: it began and has no end" in timed.answer.error


def test_a_port_that_nobody_listens_at_is_a_death():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    (timed,), _ = answered(port)
    assert (timed.ending, timed.answer.error) == (FailureKind.DIED, "connection lost: Connection refused")


def test_requests_go_out_so_many_at_a_time_and_in_their_order():
    with serving(STREAM, pause_s=0.05, connections=6) as (port, _):
        told, _ = answered(port, count=6, concurrency=2)
    times = [(sent.answer.timing.sent_s, sent.answer.timing.done_s) for sent in told]
    assert [sent.answer.pass_index for sent in told] == list(range(6))
    assert [sent for sent, _ in times] == sorted(sent for sent, _ in times)
    assert max(sum(other <= sent < done for other, done in times) for sent, _ in times) <= 2


def first_alone(port):
    """The first of three requests, one at a time, that a server is asked; None for those that were not tried."""
    first, *others = answered(port, count=3)[0]
    assert others == [None, None]
    return first


@pytest.mark.parametrize("reply", [HEAD + chunk(EVENTS[0]), b"", whole(b"500 Internal Server Error", b"no"), b"SSH-2.0\r\n\r\n"])
def test_after_a_failure_no_further_request_is_sent(reply):
    with serving(reply, connections=1) as (port, received):
        assert first_alone(port).ending is not None
    assert len(received) == 1


ERROR = '{"error": {"message": "out of memory", "code": 500}}'
FAILED_STREAM = HEAD + chunk(EVENTS[0]) + chunk(ERROR) + chunk("[DONE]") + LAST
CLOSED_STREAM = f"HTTP/1.0 200 OK\r\n\r\ndata: {EVENTS[0]}\n\nevent: error\ndata: {ERROR}\n\n".encode()


@pytest.mark.parametrize("reply", [FAILED_STREAM, [*map(bytes, zip(FAILED_STREAM))], CLOSED_STREAM, whole(b"200 OK", ERROR.encode())])
def test_after_an_error_inside_an_answer_no_further_request_is_sent(reply):
    """In the last events of a stream, or in place of one; the pieces are single bytes too."""
    with serving(reply, connections=1) as (port, received):
        first = first_alone(port)
    assert (first.ending, first.answer.error, len(received)) == (FailureKind.ERROR, "out of memory", 1)


def test_after_an_answer_about_errors_the_others_are_sent():
    text = json.dumps({"choices": [{"index": 0, "delta": {"content": ERROR}}], "error": None})
    with serving(HEAD + b"".join(map(chunk, [text, *EVENTS, "[DONE]"])) + LAST, connections=3) as (port, received):
        answers, _ = answered(port, count=3)
    assert ([sent.answer.choice.text for sent in answers], len(received)) == ([f"{ERROR}ab"] * 3, 3)


def test_after_a_refusal_and_after_a_body_that_its_connection_ends_the_others_are_sent():
    for reply in (whole(b"400 Bad Request", REFUSED), b"HTTP/1.0 200 OK\r\n\r\ndata: [DONE]\n\n"):
        with serving(reply, connections=3) as (port, received):
            answered(port, count=3)
        assert len(received) == 3


def test_a_request_that_finds_no_server_is_unsent_and_of_the_time_when_it_did():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    first = first_alone(port)
    assert (first.ending, first.unsent) == (FailureKind.DIED, True)
    assert first.answer.timing.sent_s == first.answer.timing.done_s > 0


def test_at_the_end_of_the_time_what_is_in_flight_ends_and_nothing_more_is_sent():
    with serving(HEAD + chunk(EVENTS[0]), hold=True) as (port, received):
        client = client_at(port)
        three = [TimedRequest(request=REQUEST, pass_index=n, deadline_s=20.0) for n in range(3)]
        (first, *others), _ = sending.answers(client, three, concurrency=1, until_s=time.monotonic() + 0.8)
        client.close()
    assert (first.ending, others, len(received)) == (FailureKind.HUNG, [None, None], 1)


def test_a_name_is_asked_at_the_address_that_listens():
    with serving(STREAM, connections=1 + (len(socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)) > 1)) as (port, _):
        found = requests.send("localhost", port, [RawRequest(content=b"POST / HTTP/1.1\r\n\r\n{}", deadline_s=5.0)], concurrency=1)
    assert (found.responses[0].status, found.responses[0].whole) == (200, True)


@given(st.lists(st.integers(1, len(STREAM)), max_size=12))
def test_each_piece_of_the_body_has_the_stamp_of_the_read_that_brought_it(cuts):
    edges = sorted({0, *cuts, len(STREAM)})
    parts = [STREAM[low:high] for low, high in itertools.pairwise(edges)]
    found = requests.response(1, 10**12, requests.WHOLE, [1000 * (n + 1) for n in range(len(parts))], parts)
    assert found.received.body == b"".join(f"data: {data}\n\n".encode() for data in [*EVENTS, "[DONE]"])
    at = {stamp: n for n, stamp in enumerate(1e-6 * (n + 1) for n in range(len(parts)))}
    for stamp, piece in zip(found.received.stamps_s, found.received.parts, strict=True):
        number = min(at.values(), key=lambda n: abs(1e-6 * (n + 1) - stamp))
        assert piece in parts[number]
    assert list(found.received.stamps_s) == sorted(found.received.stamps_s)


@pytest.mark.parametrize(
    "figures, says",
    [
        ({}, ""),
        ({"cpu_share": 0.6}, "60% of a core"),
        ({"drain_p99_s": 0.0011}, "1.10 ms of the 10.00 ms between two steps"),
        ({"coalesced": 0.2}, "20.0% of reads found several events"),
        ({"coalesced": 0.2, "delayed": 0.1, "cpu_share": 0.004}, "20.0% of reads found several events"),
        ({"coalesced": 0.2, "delayed": 0.01, "cpu_share": 0.004}, ""),
    ],
)
def test_a_client_that_is_too_slow_says_so(figures, says):
    load = ClientLoad(**{"cpu_share": 0.2, "drain_p99_s": 0.0005, "step_gap_s": 0.01, "coalesced": 0.01, **figures})
    assert (says in load.limited) if says else load.limited == ""


def test_samples_of_several_passes_are_one_distribution():
    one = LoadSamples(cpu_s=0.1, wall_s=1.0, drains_s=(0.001,) * 99 + (0.5,), gaps_s=(0.01,), reads=99, coalesced=1, delayed_s=0.3)
    assert one.load == ClientLoad(cpu_share=0.1, drain_p99_s=0.5, step_gap_s=0.01, coalesced=1 / 99, delayed=0.3)
    several = one + LoadSamples(wall_s=1.0, drains_s=(0.002,) * 100, gaps_s=(0.02, 0.03), reads=99)
    assert several.load == ClientLoad(cpu_share=0.05, drain_p99_s=0.002, step_gap_s=0.02, coalesced=1 / 198, delayed=0.15)
    assert (several + LoadSamples(delayed_s=None)).load.delayed is None
    assert LoadSamples().load == ClientLoad(cpu_share=0.0, drain_p99_s=0.0, step_gap_s=0.0, coalesced=0.0, delayed=0.0)


def test_the_program_says_how_it_failed():
    with pytest.raises(
        CaptureError,
        match=r"the process that stamps timed answers failed\n  where: +no host.*\n  found: +(.*\n)*  expected: .*\n  remedy: ",
    ):
        requests.send("no host of this name.invalid", 1, [RawRequest(content=b"x", deadline_s=1.0)], concurrency=1)


class Native(VllmDialect):
    """Asks on a route of its own."""

    def path(self, request):
        return "/native"


def test_a_request_on_a_route_of_the_engine_is_recorded_and_not_sent():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        port = listening.getsockname()[1]
        client = Client(ServerSetup(model="m", port=port, secrets=Secrets()), Native(), model="m")
        assert client.content(REQUEST, deadline_s=1.0).startswith(b"POST /native HTTP/1.1\r\n")
        client.close()
        with pytest.raises(TimeoutError):
            listening.accept()


def test_a_request_is_told_whole():
    client = client_at(9)
    content = client.content(REQUEST, deadline_s=5.0)
    client.close()
    head, _, body = content.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"accept-encoding: identity" in head.lower()
    assert json.loads(body)["messages"] == REQUEST.body["messages"]
