"""What a server may send instead of an answer, byte by byte: malformed, endless, oversized, or somebody else's."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.capture.engines import engine_of
from pytest_specdec.capture.requests import Client
from pytest_specdec.files import lines
from pytest_specdec.model.transcript import Ending
from pytest_specdec.model.workload import Request, Route
from tests.chaos.raw_server import RawServer, always, head, response

DEADLINE_S = 10.0
BODY = {"prompt": "A", "max_tokens": 4}
ENDINGS = {Ending.ERROR: "failed", Ending.HUNG: "hung", Ending.DIED: "died"}


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
    client = Client(port=server.port, model="m", dialect=engine_of("vllm").dialect)
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
    return {"index": 0, "text": "ab", "token_ids": [5, 6], "finish_reason": "length", **fields}


def whole(*choices, **fields):
    return response(json.dumps({"choices": list(choices) or [choice()], **fields}))


def event(**fields):
    return f"data: {json.dumps(fields)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2})


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
    lines.write(tmp_path / "a.jsonl", "odd", {"title": text}, [text])
    back = lines.read(tmp_path / "a.jsonl", "odd")
    assert (back.header["title"], back.rest) == (text, (text,))
    seen(words(sent))
