"""Events of the reference engine: as before after sleep, reload, reset and a restored slot; requests wait while it sleeps."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.reference.asgi_client import GREEDY, served

PROMPT = {
    "prompt": "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n",
    "max_tokens": 12,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def client():
    with served(GREEDY, spec_decode_metrics="detailed", tells_cached=True) as running:
        yield running


def ask(client):
    """The text, the accepted drafts and the cached tokens of one prompt."""
    reply = client.complete(PROMPT)
    details = reply["usage"].get("prompt_tokens_details") or {}
    drafting = reply["metrics"]["speculative_decoding"]
    return reply["choices"][0]["text"], drafting["num_accepted_draft_tokens"], details.get("cached_tokens", 0)


def post(client, path, **body):
    status, raw = client.ask(path, body)
    assert status == 200, raw
    return json.loads(raw)


SLEEPS = {
    "1": ("/sleep?level=1", "/wake_up"),
    "2": ("/sleep?level=2", "/wake_up?tags=weights", ("/collective_rpc", "reload_weights"), "/wake_up?tags=kv_cache"),
}


@pytest.mark.parametrize("level", SLEEPS)
def test_a_server_is_as_before_after_sleep_and_has_an_empty_cache(client, level):
    text, accepted, _ = ask(client)
    for step in SLEEPS[level]:
        path, body = (step, {}) if isinstance(step, str) else (step[0], {"method": step[1]})
        post(client, path, **body)
    assert ask(client)[:2] == (text, accepted)
    assert ask(client)[2] > 0, "asked again it is cached"


def test_weights_that_sleep_dropped_are_zero_until_they_are_loaded_again(client):
    text, *_ = ask(client)
    post(client, "/sleep?level=2")
    assert post(client, "/wake_up")["status"] == "awake"
    assert ask(client)[0] != text
    post(client, "/collective_rpc", method="reload_weights")
    assert ask(client)[0] == text


def test_requests_wait_while_the_server_sleeps_or_is_paused(client):
    for begin, end in (("/sleep", "/wake_up"), ("/pause", "/resume"), ("/pause?mode=keep", "/resume")):
        post(client, begin)
        waiting = asyncio.run_coroutine_threadsafe(client._ask("/v1/completions", PROMPT, None), client.loop)
        assert json.loads(client.get("/is_sleeping")[1])["is_sleeping"] is (begin == "/sleep")
        assert not waiting.done()
        post(client, end)
        assert waiting.result(30)[0] == 200


def test_a_reset_empties_the_prefix_cache_and_a_restored_slot_fills_it(client):
    text, accepted, _ = ask(client)
    assert ask(client)[2] > 0
    post(client, "/slots/0?action=save", filename="a.bin")
    assert post(client, "/reset_prefix_cache") == {"success": True}
    post(client, "/slots/0?action=restore", filename="a.bin")
    again = ask(client)
    assert again[:2] == (text, accepted)
    assert again[2] > 0
    post(client, "/slots/0?action=erase")
    assert ask(client)[2] == 0


@pytest.mark.parametrize(
    "path, body",
    [
        ("/sleep?level=3", {}),
        ("/pause?mode=wait", {}),
        ("/collective_rpc", {"method": "shutdown"}),
        ("/slots/1?action=save", {"filename": "a"}),
        ("/slots/0?action=save", {}),
        ("/slots/0?action=restore", {"filename": "never saved"}),
    ],
)
def test_what_is_not_served_is_refused(client, path, body):
    assert client.ask(path, body)[0] == 400
