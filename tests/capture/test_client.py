"""The client: connections, busy time, and answers outside the protocol."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_specdec.capture.client import Client, Exchange
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.sse import ReceivedResponse
from pytest_specdec.capture.transport import BusyTime
from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.engines.protocol import COMPLETIONS, ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route


def at(port):
    return ServerSetup(model="m", port=port, secrets=Secrets())


class Clock:
    """Seconds that stand still until they are set."""

    def __init__(self):
        self.at_s = 0.0

    def __call__(self):
        return self.at_s

    def to(self, seconds):
        self.at_s = seconds


@pytest.fixture
def clock():
    return Clock()


def test_flights_that_overlap_count_once_and_gaps_not_at_all(clock):
    server = BusyTime(clock)
    clock.to(1)
    with server.count_request():
        clock.to(2)
        with server.count_request():
            clock.to(4)
        clock.to(5)
    clock.to(8)
    with server.count_request():
        clock.to(10)
    clock.to(50)
    assert (server.seconds, server.wall_s) == (6.0, 10.0)


def test_a_failed_request_is_a_flight_too(clock):
    server = BusyTime(clock)

    def cut():
        with server.count_request():
            clock.to(3)
            raise OSError(errno.ECONNRESET, "cut")

    with pytest.raises(OSError, match="cut"):
        cut()
    assert server.seconds == 3.0


def test_a_server_that_answered_nothing_has_no_time(clock):
    server = BusyTime(clock)
    clock.to(9)
    assert (server.seconds, server.wall_s) == (0.0, 0.0)


@pytest.fixture
def server():
    """A server that counts the connections made to it."""
    made = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            made.append(self.client_address)
            super().setup()

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening.server_address[1], made
        listening.shutdown()


def test_every_request_has_a_connection_of_its_own(server):
    port, made = server
    client = Client(at(port), VllmDialect(), model="m")
    for _ in range(2):
        assert client.exchange(COMPLETIONS, {"prompt": "A"}, deadline_s=10.0).status == 200
    client.close()
    assert len(made) == 2


@pytest.fixture
def busy_gateway():
    """Returns the port of a server that answers with one token, after as many 429s as are asked for, each with the given headers."""
    opened = []

    def served(refusals, headers):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                asked.append(self.path)
                late = len(asked) <= refusals
                body = (
                    b'{"error": {"message": "slow down"}}'
                    if late
                    else b'{"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]}'
                )
                self.send_response(429 if late else 200)
                for name, value in headers.items() if late else ():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        opened.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=opened[-1].serve_forever, daemon=True).start()
        return opened[-1].server_address[1]

    yield served
    for each in opened:
        each.shutdown()
        each.server_close()


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "refusals, headers, status, limited, waited",
    [
        (0, {}, 200, 0, []),
        (2, {}, 200, 2, [0.5, 1.0]),
        (1, {"Retry-After": "3"}, 200, 1, [3.0]),
        (1, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 200, 1, [0.5]),
        (1, {"Retry-After": "60"}, 429, 0, []),
        (99, {}, 429, 5, [0.5, 1.0, 2.0, 4.0, 8.0]),
    ],
)
def test_a_request_that_comes_too_soon_is_sent_again_while_it_has_time(
    busy_gateway, monkeypatch, refusals, headers, status, limited, waited
):
    """A gateway's 429 is no refusal of what is asked: https://www.rfc-editor.org/rfc/rfc6585#section-4."""
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    client = Client(at(busy_gateway(refusals, headers)), VllmDialect(), model="m")
    sent = client.send(Request(id="a", route=Route.COMPLETIONS, body={"prompt": "A", "max_tokens": 1}), streamed=False, deadline_s=20.0)
    client.close()
    assert (sent.answer.status, sent.limited, pauses) == (status, limited, waited)
    assert sent.ending is None


@pytest.fixture
def arm(recipe, config):
    opened = []

    def _arm(**args):
        opened.append(ArmServer(recipe(config, **args), lambda: None))
        return opened[-1].__enter__()

    yield _arm
    for one in opened:
        one.__exit__(None, None, None)


def ask(arm, prompt, *, streamed):
    return arm.client.send(
        Request(id="a", route=Route.COMPLETIONS, body={"prompt": prompt, "max_tokens": 3}), streamed=streamed, deadline_s=20.0
    )


def test_answers_outside_the_protocol_are_failures(arm):
    server = arm(garble_on="garble", cut_on="cut", fail_stream_on="fail")
    whole, streamed = ask(server, "garble", streamed=False), ask(server, "garble", streamed=True)
    assert (whole.ending, whole.answer.status) == (FailureKind.ERROR, None)
    assert whole.answer.error.startswith("answered outside the protocol")
    assert (streamed.ending, streamed.answer.error) == (
        FailureKind.ERROR,
        whole.answer.error.replace("a JSON object", "server-sent events"),
    )
    cut, failed = ask(server, "cut", streamed=True), ask(server, "fail", streamed=True)
    assert (cut.ending, cut.answer.error) == (FailureKind.DIED, "connection lost: the stream has no end")
    assert (failed.ending, "engine failed" in failed.answer.error) == (FailureKind.ERROR, True)
    good = ask(server, "good", streamed=True)
    assert (good.ending, good.answer.ok, good.tokens) == (None, True, 3)


class Open(VllmDialect):
    """Of an engine whose streams end without [DONE]."""

    closing_event = False


@pytest.mark.parametrize("dialect, ending", [(VllmDialect(), FailureKind.DIED), (Open(), None)])
def test_a_stream_without_done_is_whole_where_the_engine_sends_none_and_every_choice_is_finished(arm, dialect, ending):
    client = Client(at(arm(cut_on="cut").recipe.setup.port), dialect, model="m")
    request = Request(id="a", route=Route.COMPLETIONS, body={"prompt": "cut", "max_tokens": 3})
    sent = client.send(request, streamed=True, deadline_s=20.0)
    client.close()
    assert sent.ending is ending


def test_tokens_are_counted_by_the_server_where_it_tells_no_ids(arm):
    assert ask(arm(no_token_ids=True), "good", streamed=False).tokens == 3


def test_a_connection_that_is_refused_is_a_death():
    client = Client(at(ports.free()), VllmDialect(), model="m")
    sent = client.send(Request(id="a", route=Route.CHAT, body={"messages": []}), streamed=True, deadline_s=5.0)
    assert (sent.ending, sent.answer.status, sent.tokens) == (FailureKind.DIED, None, 0)
    assert "connection lost" in sent.answer.error
    client.close()


@pytest.fixture
def breaking_server():
    """Serve streams of the Responses API that break off after an event, with a health that a test states."""
    servers = []

    def serve(health):
        class Breaking(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(health)
                self.end_headers()

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                event = b'data: {"type": "response.created", "sequence_number": 0}\n\ndata: {"ty'
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))

            def log_message(self, *_):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Breaking))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1].server_port

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("route", [Route.CHAT, Route.RESPONSES])
def test_a_whole_body_in_answer_to_a_request_for_a_stream_is_outside_the_protocol(route):
    client = Client(at(ports.free()), VllmDialect(), model="m")
    body = b'{"object": "response", "status": "completed", "output": [], "choices": []}'
    received = ReceivedResponse(stamps_s=(1.0,), parts=(body,))
    exchange = Exchange(sent_s=0.0, done_s=1.0, status=200, received=received)
    with pytest.raises(ValueError, match="a body without events in answer to a request for a stream"):
        client._parse_answer(Request(id="a", route=route, body={}), exchange, streamed=True, pass_index=0)
    client.close()


@pytest.mark.parametrize("health, ending", [(200, None), (503, FailureKind.DIED)])
def test_a_broken_stream_of_the_responses_api_is_an_answer_as_long_as_the_server_is_healthy(breaking_server, health, ending):
    client = Client(at(breaking_server(health)), VllmDialect(), model="m")
    request = Request(id="a", route=Route.RESPONSES, body={"input": "Hi"})
    sent, whole = (client.send(request, streamed=streamed, deadline_s=5.0) for streamed in (True, False))
    client.close()
    assert (sent.ending, whole.ending) == (ending, FailureKind.DIED)
    assert sent.answer.response is None or [event.type for event in sent.answer.response.events] == ["created"]
    assert ending or sent.answer.response.broken


def test_the_last_event_of_a_response_says_what_was_drafted_for_it():
    """``llama-server`` has its timings beside the event's response; a whole one has none."""
    timings = '"timings": {"predicted_n": 9, "draft_n": 6, "draft_n_accepted": 4}'
    events = (
        b'event: response.created\ndata: {"type": "response.created", "response": {}}\n\n',
        f'event: response.completed\ndata: {{"type": "response.completed", "response": {{"status": "completed"}}, {timings}}}\n\n'.encode(),
    )
    client = Client(at(ports.free()), LlamaCppDialect(), model="m")
    request = Request(id="a", route=Route.RESPONSES, body={})
    exchange = Exchange(sent_s=0.0, done_s=1.0, status=200, received=ReceivedResponse(stamps_s=(1.0, 2.0), parts=events))
    streamed = client._parse_answer(request, exchange, streamed=True, pass_index=0)
    body = b'{"object": "response", "status": "completed", "output": []}'
    whole = client._parse_answer(
        request, replace(exchange, received=ReceivedResponse(stamps_s=(1.0,), parts=(body,))), streamed=False, pass_index=0
    )
    client.close()
    assert (streamed.counters, whole.counters) == (SpecCounters(drafts=4, draft_tokens=6, accepted_tokens=4), None)
