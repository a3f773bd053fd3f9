"""The router: each request goes to the next rank and its answer comes back as it is, unless a fault is planted in it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.router import Router
from specdec_reference.wrappers import wrap_object

EVENTS = [{"choices": [{"text": str(number)}]} for number in range(8)]


def respond(name, body):
    """A whole answer with the rank's name and what it was asked, or a stream."""
    if b'"stream": true' in body:
        events = [f"data: {json.dumps(event)}\n\n".encode() for event in EVENTS] + [b"data: [DONE]\n\n"]
        chunks = b"".join(f"{len(event):x}\r\n".encode() + event + b"\r\n" for event in events)
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    reply = json.dumps({"rank": name, "asked": json.loads(body or b"null"), "choices": [{"text": '{"a": 1}'}]}).encode()
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(reply)}\r\n\r\n".encode() + reply


@asynccontextmanager
async def rank(name):
    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0)
        writer.write(respond(name, await reader.readexactly(length)))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(router, body):
    """Return the bytes that a client of the router reads."""
    async with await asyncio.start_server(router._answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        data = json.dumps(body).encode()
        writer.write(f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        text = await reader.read()
        writer.close()
        return text


def routed(*bodies, fault="", dead=False):
    async def run():
        async with rank("a") as first, rank("b") as second:
            router = Router([first, "http://127.0.0.1:1" if dead else second])
            wrap_object(FAULTS[fault].wrappers if fault else {}, "router", router)
            return [await ask(router, body) for body in bodies]

    return asyncio.run(run())


def body_of(text):
    return json.loads(text.partition(b"\r\n\r\n")[2])


def texts(stream):
    events = [json.loads(part.partition(b"data: ")[2]) for part in stream.split(b"\n\n") if b"choices" in part]
    return [event["choices"][0].get("text") for event in events]


def test_ranks_answer_in_turn_and_get_the_request_as_it_is():
    answers = [body_of(text) for text in routed({"prompt": 1}, {"prompt": 2}, {"prompt": 3})]
    assert [(answer["rank"], answer["asked"]) for answer in answers] == [("a", {"prompt": 1}), ("b", {"prompt": 2}), ("a", {"prompt": 3})]


def test_a_stream_comes_piece_by_piece_to_its_end():
    (stream,) = routed({"stream": True})
    assert texts(stream) == [str(number) for number in range(8)]
    assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_rank_that_is_gone_is_a_bad_gateway():
    first, second = routed({}, {}, dead=True)
    assert (first[:12], second[:12]) == (b"HTTP/1.1 200", b"HTTP/1.1 502")


@pytest.mark.parametrize("fault, body, seen", [
    ("router-drops-formats", {"prompt": 1, "response_format": {}}, lambda text: body_of(text)["asked"] == {"prompt": 1}),
    ("router-rewrites-json", {"prompt": 1}, lambda text: body_of(text)["choices"][0]["text"] == '{"a": 1'),
    ("router-cuts-streams", {"stream": True}, lambda text: texts(text) == [*map(str, range(6)), None, None]),
])  # fmt: skip
def test_faults_change_what_passes(fault, body, seen):
    (text,) = routed(body, fault=fault)
    assert seen(text)


def test_an_event_keeps_the_line_of_its_type():
    """As the Responses API has it; its text may hold the prefix of a data line."""
    event = b'event: response.output_text.delta\ndata: {"delta": "data: 1"}'
    name, _, data = Router(["http://127.0.0.1:1"])._pass_event(0, event).partition(b"data: ")
    assert (name, json.loads(data)) == (b"event: response.output_text.delta\n", {"delta": "data: 1"})
