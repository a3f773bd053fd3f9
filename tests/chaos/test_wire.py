"""What a server may send instead of an answer, byte by byte: malformed, endless, oversized, or somebody else's."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import zlib

import pytest

from pytest_specdec.capture import client as requests
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server import readiness as endpoint
from pytest_specdec.capture.server import readiness as ready
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.engines.protocol import Command, ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import BootError
from pytest_specdec.files import jsonl
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route
from tests.chaos.raw_server import LONGEST_S, RawServer, always, chunk, head, repeatedly, response


def at(port):
    return ServerSetup(model="m", port=port, secrets=Secrets())


DEADLINE_S = 10.0
BODY = {"prompt": "A", "max_tokens": 4}
ENDINGS = {FailureKind.ERROR: "failed", FailureKind.HUNG: "hung", FailureKind.DIED: "died"}


def row(fault, expected, *values, quick=True):
    return pytest.param(*values, id=fault, marks=pytest.mark.chaos(fault, expected=expected, quick=quick))


@pytest.fixture
def served():
    """A raw server for every script given, stopped at the end."""
    running = []

    def _served(script):
        running.append(RawServer(script).running())
        return running[-1].__enter__()

    yield _served
    for one in running:
        one.__exit__(None, None, None)


def asked(server, *, streamed=False, deadline_s=DEADLINE_S, body=BODY):
    client = Client(at(server.port), VllmDialect(), model="m")
    try:
        return client.send(Request(id="a", route=Route.COMPLETIONS, body=body), streamed=streamed, deadline_s=deadline_s)
    finally:
        client.close()


def words(sent):
    """Say what came of a request: its text, or how it failed."""
    if sent.ending is None:
        return f"answered {sent.answer.choice.text!a}" if sent.answer.ok else f"refused with {sent.answer.status}"
    return f"{ENDINGS[sent.ending]}: {sent.answer.error.partition(': ')[0]}"


OUTSIDE = "failed: answered outside the protocol"


def choice(**fields):
    return {"index": 0, "text": "ab", "token_ids": [5, 6], "prompt_token_ids": [1], "finish_reason": "length", **fields}


def whole(*choices, **fields):
    return response(json.dumps({"choices": list(choices) or [choice()], **fields}))


def event(**fields):
    return f"data: {json.dumps(fields)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2})


PAGE = "<!DOCTYPE html>\n<html><head><title> Sign in\n</title></head><body><h1>Hello</h1></body></html>"


def streamed(*events):
    return response(b"".join(events), kind="text/event-stream")


@pytest.mark.parametrize(
    "sent",
    [
        row("200 with an empty object", OUTSIDE, response("{}")),
        row("200 with no choices", OUTSIDE, response('{"choices": []}')),
        row("200 with choices that are no list", OUTSIDE, response('{"choices": "ab"}')),
        row("200 with a choice that is a number", OUTSIDE, response('{"choices": [3]}')),
        row("two choices of the same index", OUTSIDE, whole(choice(), choice())),
        row("one choice of index 1", OUTSIDE, whole(choice(index=1))),
        row("an index that is a word", OUTSIDE, whole(choice(index="0"))),
        row("200 with an error in it", "failed: engine failed", response('{"error": {"message": "engine failed", "code": 500}}')),
        row("an error that is null beside an answer", "answered 'ab'", whole(error=None)),
        row("a token id that is NaN", OUTSIDE, whole(choice(token_ids=[5, float("nan")]))),
        row("a token id that is null", OUTSIDE, whole(choice(token_ids=[5, None]))),
        row("a token id that is a float", OUTSIDE, whole(choice(token_ids=[5, 6.0]))),
        row("a token id that is true", OUTSIDE, whole(choice(token_ids=[5, True]))),
        row("a token id below 0", OUTSIDE, whole(choice(token_ids=[5, -1]))),
        row("a token id of 40 digits", OUTSIDE, whole(choice(token_ids=[5, 10**40]))),
        row("token ids that are a word", OUTSIDE, whole(choice(token_ids="56"))),
        row("a prompt token id that is a float", OUTSIDE, whole(choice(prompt_token_ids=[1.5]))),
        row("usage of half a token", OUTSIDE, whole(usage={"prompt_tokens": 1, "completion_tokens": 0.5})),
        row("usage below 0", OUTSIDE, whole(usage={"prompt_tokens": 1, "completion_tokens": -2})),
        row("a text that is a number", OUTSIDE, whole(choice(text=7))),
        row("a finish reason that is a number", OUTSIDE, whole(choice(finish_reason=7))),
        row("a log-probability beyond every float", OUTSIDE, response('{"choices": [{"logprobs": {"token_logprobs": [-1e999]}}]}')),
        row("200,000 opening brackets", OUTSIDE, response("[" * 200_000)),
        row("a number of 10,000 digits", OUTSIDE, response('{"choices": [{"index": ' + "9" * 10_000 + "}]}")),
        row("no JSON", OUTSIDE, response("<html>")),
        row("200 with a web page", OUTSIDE, response(PAGE, kind="text/html")),
        row("502 with a web page", "failed: a web page titled 'Sign in'", response(PAGE, "502 Bad Gateway", kind="text/html")),
        row("204", OUTSIDE, head("204 No Content")),
        row("a body that is empty", OUTSIDE, response("")),
    ],
)
def test_an_answer_that_is_no_answer_fails_that_request(served, seen, sent):
    seen(words(asked(served(always(sent)))))


@pytest.mark.parametrize(
    "events",
    [
        row("a stream without choices", OUTSIDE, streamed(USAGE, DONE)),
        row("a chunk whose error is null", "answered 'ab'", streamed(event(choices=[choice()], error=None), DONE)),
        row("a chunk with an error", "failed: engine failed", streamed(event(error={"message": "engine failed"}), DONE)),
        row("usage after [DONE]", "answered 'ab'", streamed(event(choices=[choice()]), DONE, USAGE)),
        row("more text after [DONE]", OUTSIDE, streamed(event(choices=[choice()]), DONE, event(choices=[choice()]))),
        row("a web page in place of a stream", OUTSIDE, response(PAGE, kind="text/html")),
        row("no [DONE]", "died: connection lost", streamed(event(choices=[choice()]))),
        row("lines that end in CR alone", "answered 'ab'", streamed(event(choices=[choice()]), DONE).replace(b"}\n\n", b"}\r\r")),
        row("lines that end in CRLF", "answered 'abab'", streamed(*2 * [event(choices=[choice()]).replace(b"\n", b"\r\n")], DONE)),
        row("a byte-order mark before the first event", "answered 'ab'", streamed(b"\xef\xbb\xbf" + event(choices=[choice()]), DONE)),
        row("comments between the events", "answered 'ab'", streamed(b": hello\n\n", event(choices=[choice()]), b":\n\n", DONE)),
        row("a token id in a chunk that is null", OUTSIDE, streamed(event(choices=[choice(token_ids=[None])]), DONE)),
        row("one index twice in a chunk", OUTSIDE, streamed(event(choices=[choice(), choice()]), DONE)),
        row("NaN in a chunk", OUTSIDE, streamed(b'data: {"choices": [{"text": "a", "logprobs": NaN}]}\n\n', DONE)),
        row("200,000 opening brackets in a chunk", OUTSIDE, streamed(b"data: " + b"[" * 200_000 + b"\n\n", DONE)),
        row("bytes that are no UTF-8 in a chunk", OUTSIDE, streamed(b'data: {"choices": [{"text": "\xff"}]}\n\n', DONE)),
        row("an error in place of a stream", "failed: engine failed", response('{"error": {"message": "engine failed"}}')),
    ],
)
def test_a_stream_is_read_or_fails_that_request(served, seen, events):
    seen(words(asked(served(always(events)), streamed=True)))


@pytest.mark.parametrize(
    "fields",
    [
        row("half of a surrogate pair in an answer", "answered '\\ud83d!'", ["\ud83d!"]),
        row("both halves of a surrogate pair in two chunks", "answered '\\U0001f600'", ["\ud83d", "\ude00"]),
    ],
)
def test_odd_text_is_stored_readable_and_read_back(served, seen, fields, tmp_path):
    sent = asked(served(always(streamed(*(event(choices=[choice(text=text)]) for text in fields), DONE))), streamed=True)
    text = sent.answer.choice.text
    jsonl.write(tmp_path / "a.jsonl", "odd", {"title": text}, [text])
    back = jsonl.read(tmp_path / "a.jsonl", "odd")
    assert (back.header["title"], back.rest) == (text, (text,))
    seen(words(sent))


ANSWER = json.dumps({"choices": [choice()]}).encode()
GZIP = "content-encoding: gzip"
CHUNKED = "transfer-encoding: chunked"
STORED_EMPTY = b"\x00\x00\x00\xff\xff"
"""A deflate block that decodes to nothing."""


def drip(data, pause_s=0.05):
    return lambda connection: connection.drip(data, pause_s)


def flood(data, times=5_000):
    return lambda connection: connection.flood(data, times)


def hang(connection):
    connection.hang()


def reset(connection):
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def in_good_time(began_s):
    """Return whether the exchange ended long before the server gave up."""
    return time.monotonic() - began_s < LONGEST_S / 2


@pytest.mark.parametrize(
    "parts",
    [
        row("no byte at all", "hung: no answer within 0.3 s", [b"", hang]),
        row("a stream whose events drip", "hung: no answer within 0.3 s", [head(kind="text/event-stream"), drip(event(choices=[]))]),
        row("a stream that stops in an event", "hung: no answer within 0.3 s", [head(kind="text/event-stream"), b"data: {", hang]),
        row("headers that drip", "hung: no answer within 0.3 s", [b"HTTP/1.1 200 OK\r\n", drip(b"x-one: more\r\n")]),
        row("a status line that drips", "hung: no answer within 0.3 s", [b"HTTP/1.1 200 ", drip(b"O")]),
        row("endless 100 Continue", "hung: no answer within 0.3 s", [b"", drip(b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)]),
        row("a 200 whose body drips", "hung: no answer within 0.3 s", [head(), drip(b" ")]),
        row("a 200 whose body drips in chunks", "hung: no answer within 0.3 s", [head(headers=[CHUNKED]), drip(chunk(b" "))]),
        row("a 500 whose body drips", "hung: no answer within 0.3 s", [head("500 Internal Server Error"), drip(b" ")]),
        row("a 400 whose body drips", "hung: no answer within 0.3 s", [head("400 Bad Request"), drip(b" ")]),
        row("a redirect whose body drips", "hung: no answer within 0.3 s", [head("307 Temporary Redirect", ["location: /"]), drip(b" ")]),
        row(
            "gzip blocks that are empty",
            "hung: no answer within 0.3 s",
            [head(headers=[GZIP]), gzip.compress(b"")[:10], drip(STORED_EMPTY, 0.01)],
        ),
        row("half an answer, then nothing", "hung: no answer within 0.3 s", [head(headers=[CHUNKED]), chunk(ANSWER[:9]), hang]),
    ],
)
def test_an_exchange_is_over_at_its_deadline(served, seen, parts):
    began_s = time.monotonic()
    outcome = words(asked(served(always(*parts)), streamed=b"event-stream" in parts[0], deadline_s=0.3))
    assert in_good_time(began_s)
    seen(outcome)


@pytest.mark.parametrize(
    "body, streamed",
    [
        row(
            "a stream that goes on for ever after max_tokens",
            "hung: no answer within 0.5 s: its stream has no end, N parts came where max_tokens is 4",
            BODY,
            True,
        ),
        row(
            "a stream without max_tokens that goes on for ever",
            "hung: no answer within 0.5 s: it began and has no end, N parts came",
            {"prompt": "A"},
            True,
        ),
        row(
            "a stream for ever, in answer to a request for none",
            "hung: no answer within 0.5 s: it began and has no end, N parts came",
            BODY,
            False,
        ),
    ],
)
def test_an_endless_stream_is_left_at_the_deadline_and_named(served, seen, body, streamed):
    """A token now and then keeps every read within its time: the timer of the whole exchange ends it."""
    token = event(choices=[choice(text="a", token_ids=[5], finish_reason=None)])
    began_s = time.monotonic()
    server = served(always(head(kind="text/event-stream"), drip(token, 0.02)))
    sent = asked(server, streamed=streamed, deadline_s=0.5, body=body)
    assert in_good_time(began_s)
    assert sent.ending is FailureKind.HUNG
    assert server.connections == 1, "a stream that has begun is not asked for again"
    seen("hung: " + re.sub(r"\d+ parts", "N parts", sent.answer.error))


@pytest.mark.parametrize(
    "parts",
    [
        row("an endpoint that says nothing", "no reading", [hang]),
        row("an endpoint whose headers drip", "no reading", [b"HTTP/1.1 200 OK\r\n", drip(b"x-one: more\r\n")]),
        row("an endpoint whose body drips", "no reading", [head(kind="text/plain"), drip(b"a 1\n")]),
        row("an endpoint of 100 MB", "no reading", [head(kind="text/plain"), flood(b"#" * 65_536, 1_600)]),
        row("an endpoint that redirects", "no reading", [response("", "307 Temporary Redirect", ["location: /other"])]),
        row("an endpoint that answers with bytes that are no UTF-8", "read", [response(b"\xff")]),
        row("an endpoint that answers 500", "no reading", [response("", "500 Internal Server Error")]),
    ],
)
def test_an_endpoint_answers_in_time_or_not_at_all(served, seen, parts):
    began_s = time.monotonic()
    server = served(always(*parts))
    page = endpoint.get(at(server.port), "/metrics", seconds=0.3)
    assert in_good_time(began_s)
    assert server.requests == ["/metrics"]
    seen("no reading" if page is None else "read")


@pytest.mark.parametrize(
    "parts",
    [
        row("a body of 3 MB where 1 is the most", OUTSIDE, [head(), flood(b" " * 65_536, 48)]),
        row("a 500 with a body of 3 MB where 1 is the most", OUTSIDE, [head("500 Internal Server Error"), flood(b" " * 65_536, 48)]),
        row("a gzip bomb of 3 MB where 1 is the most", OUTSIDE, [response(gzip.compress(bytes(3_000_000)), headers=[GZIP])]),
        row(
            "a 500 with a gzip bomb of 3 MB where 1 is the most",
            OUTSIDE,
            [response(gzip.compress(bytes(3_000_000)), "500 Internal Server Error", [GZIP])],
        ),
        row("a million bytes of spaces before the answer", "answered 'ab'", [response(b" " * 1_000_000 + ANSWER)]),
    ],
)
def test_no_more_is_read_than_the_most(served, seen, parts, monkeypatch):
    monkeypatch.setattr(requests, "MAX_BYTES", 1024**2)
    seen(words(asked(served(always(*parts)))))


@pytest.mark.parametrize(
    "parts",
    [
        row("the connection closed without a byte", "died: connection lost", []),
        row("the connection reset without a byte", "died: connection lost", [reset]),
        row("the connection closed in the status line", "died: connection lost", [b"HTTP/1.1 2"]),
        row("the connection closed in the body", "died: connection lost", [response(ANSWER)[:-3]]),
        row("the connection reset in the body", "died: connection lost", [response(ANSWER)[:-3], reset]),
        row("half a chunk", "died: connection lost", [head(headers=[CHUNKED]), chunk(ANSWER)[:-9]]),
        row("a length that is too long", "died: connection lost", [head(headers=[f"content-length: {len(ANSWER) + 1}"]), ANSWER]),
        row("a length that is too short", OUTSIDE, [head(headers=[f"content-length: {len(ANSWER) - 1}"]), ANSWER]),
        row("garbage in place of HTTP", "died: connection lost", [b"\x00\x01\x02 what?\r\n\r\n"]),
        row("a TLS alert", "died: connection lost", [b"\x15\x03\x03\x00\x02\x02\x46"]),
        row("a body until the connection ends", "answered 'ab'", [head(), ANSWER]),
        row("a body in chunks of one byte", "answered 'ab'", [head(headers=[CHUNKED]), *(chunk(bytes([b])) for b in ANSWER), chunk(b"")]),
        row("an early 102 before the answer", "answered 'ab'", [b"HTTP/1.1 102 Processing\r\n\r\n", response(ANSWER)]),
        row("gzip, unasked for", "answered 'ab'", [response(gzip.compress(ANSWER), headers=[GZIP])]),
        row("deflate, unasked for", "answered 'ab'", [response(zlib.compress(ANSWER), headers=["content-encoding: deflate"])]),
        row("gzip that is none", OUTSIDE, [response(ANSWER, headers=[GZIP])]),
        row("gzip without its end", OUTSIDE, [response(gzip.compress(ANSWER)[:-9], headers=[GZIP])]),
        row("an encoding that does not exist", OUTSIDE, [response(ANSWER, headers=["content-encoding: pigeon"])]),
        row("a charset that is none, in a 500", "failed: ab", [response("ab", "500 Oops", kind="text/plain; charset=rot13")]),
        row("429", "refused with 429", [response('{"error": {"message": "slow down"}}', "429 Too Many Requests")]),
        row("503", "failed: overloaded", [response('{"error": {"message": "overloaded"}}', "503 Service Unavailable")]),
        row("500 with 200,000 opening brackets", "failed", [response("[" * 200_000, "500 Internal Server Error")]),
        row("201 in place of 200", OUTSIDE, [response(ANSWER, "201 Created")]),
    ],
)
def test_what_breaks_between_us_and_the_server_is_named(served, seen, parts):
    outcome = words(asked(served(always(*parts))))
    seen("failed" if outcome.startswith("failed: [[[") else outcome)


@pytest.mark.chaos("a redirect to another server", expected="failed by name, and the other server is not asked", quick=True)
def test_a_redirect_is_not_followed(served, seen):
    other = served(always(response(ANSWER)))
    there = f"location: http://127.0.0.1:{other.port}/v1/completions"
    sent = asked(served(always(response("", "307 Temporary Redirect", [there]))))
    assert (sent.ending, sent.answer.error.startswith("redirected to http")) == (FailureKind.ERROR, True)
    assert endpoint.get(at(served(always(response("", "301 Moved Permanently", [there]))).port), "/version") is None
    seen("failed by name, and the other server is " + ("asked" if other.requests else "not asked"))


def answers_in_turn(behind):
    """Return a script whose answers count the requests of all connections; ``behind`` follows each."""
    texts = iter("abcdefghijklmnopqrstuvwxyz")

    def script(connection):
        while connection.request() is not None:
            connection.send(whole(choice(text=next(texts))) + behind)

    return script


def texts_of(server, count):
    client = Client(at(server.port), VllmDialect(), model="m")
    request = Request(id="a", route=Route.COMPLETIONS, body=BODY)
    sent = [client.send(request, streamed=False, deadline_s=DEADLINE_S) for _ in range(count)]
    client.close()
    return "".join(one.answer.choice.text or "?" for one in sent)


@pytest.mark.chaos("a second response to one request", expected="every request gets its own answer: abc", quick=True)
def test_a_second_response_answers_nothing(served, seen):
    seen(f"every request gets its own answer: {texts_of(served(answers_in_turn(whole(choice(text='stale')))), 3)}")


@pytest.mark.chaos("a kept connection that the server closes in silence, 20 times", expected="20 answers, no death", quick=True)
def test_a_connection_closed_behind_an_answer_is_no_death(served, seen):
    found = texts_of(served(always(whole(choice(text="x")))), 20)
    seen(f"{found.count('x')} answers, " + ("a death" if "?" in found else "no death"))


LISTENS = """
import socket, sys, time
time.sleep(float(sys.argv[2]))
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listening.bind(("127.0.0.1", int(sys.argv[1])))
listening.listen()
print("listening", flush=True)
time.sleep(60)
"""


@pytest.fixture
def booted(tmp_path):
    """A server process of ours that listens on the port given after so many seconds, and whether it does by now."""
    started = []

    def _booted(number, after_s):
        server = ServerProcess(Command(argv=(sys.executable, "-c", LISTENS, str(number), str(after_s))), tmp_path / "server.log")
        started.append(server)
        return server

    yield _booted
    for server in started:
        server.stop(0.0)


def until_listening(server):
    while "listening" not in server.log_tail():
        assert server.exit_code is None
        time.sleep(0.02)


@pytest.mark.chaos(
    "our port answered by a foreign server while ours boots",
    expected="refused: port is answered by another process than the server",
    quick=True,
)
def test_a_foreign_server_is_not_taken_for_ours(served, seen, booted):
    foreign = served(repeatedly(whole()))
    server = booted(foreign.port, 60)
    setup = at(foreign.port)
    with pytest.raises(BootError) as caught:
        ready.wait(server, setup, VllmDialect(), draft_tokens=0, boot_s=20.0, heartbeat=lambda: None)
    assert f"process {os.getpid()}: " in caught.value.found
    assert foreign.requests == ["/health"]
    seen(f"refused: {caught.value.what.replace(f'port {foreign.port}', 'port')}")


@pytest.mark.chaos(
    "a foreign server that shares our port (SO_REUSEPORT), from later on", expected="ours at first, then refused", quick=True
)
def test_a_foreign_server_that_shares_our_port_is_refused(seen, booted):
    number = ports.free()
    server = booted(number, 0)
    until_listening(server)
    ready.check_port(server, number)
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        foreign.bind((ports.HOST, number))
        foreign.listen()
        with pytest.raises(BootError, match="another process"):
            ready.check_port(server, number)
    seen("ours at first, then refused")


CLIENT = """
import resource, sys
from pytest_specdec.capture.client import Client
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Request, Route

client = Client(ServerSetup(model="m", port=int(sys.argv[1]), secrets=Secrets()), VllmDialect(), model="m")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sent = client.send(Request(id="a", route=Route.COMPLETIONS, body={"prompt": "A"}), streamed=sys.argv[2] == "True", deadline_s=60.0)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sent.ending.name, (after - before) // 1024, sent.answer.error[:80])
"""
MOST_MIB = 400
"""Of memory that one exchange may take beyond the client's own; the parts and their join are 64 each."""


@pytest.mark.parametrize(
    "is_streamed,parts",
    [
        row("a reply of 300 MB", "failed, memory bounded", False, [head(), flood(b" " * 65_536, 4_800)], quick=False),
        row("a 500 of 300 MB", "failed, memory bounded", False, [head("500 Oops"), flood(b"x" * 65_536, 4_800)], quick=False),
        row("a gzip bomb of 1 GB", "failed, memory bounded", False, [head(headers=[GZIP]), gzip.compress(bytes(2**30))], quick=False),
        row("a stream of 300 MB in comments", "failed, memory bounded", True, [head(), flood(b":\n\n" * 20_000, 5_000)], quick=False),
        row(
            "a stream of 300 MB in empty events",
            "failed, memory bounded",
            True,
            [head(), flood(b"data:{}\n\n" * 8_000, 4_200)],
            quick=False,
        ),
        row("60 MB of empty events", "failed, memory bounded", True, [head(), flood(b"data:{}\n\n" * 8_000, 830)], quick=False),
        row(
            "60 MB of empty lists", "failed, memory bounded", False, [head(), b'{"a":[0', flood(b",[]" * 20_000, 1_000), b"]}"], quick=False
        ),
    ],
)
def test_no_server_fills_the_memory(served, seen, is_streamed, parts):
    server = served(always(*parts))
    run = subprocess.run([sys.executable, "-c", CLIENT, str(server.port), str(is_streamed)], capture_output=True, text=True, check=True)
    ending, mebibytes, error = run.stdout.strip().split(" ", 2)
    seen(
        ("failed" if ending == "ERROR" else f"{ending} {error}")
        + (", memory bounded" if int(mebibytes) < MOST_MIB else f", {mebibytes} MiB")
    )
