"""The server as a process: how it says that it is ready, how it refuses to start, how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

DRAFT = '{"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}'
COMMAND = (sys.executable, "-m", "pytest_specdec.reference")


@contextmanager
def running(*options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND, "target", "--port", str(port), *options], stdout=subprocess.PIPE, text=True)
    try:
        process.ready = process.stdout.readline()
        process.url = f"http://127.0.0.1:{port}"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def post(process, body):
    data = json.dumps({"prompt": "def", "ignore_eos": True, **body}).encode()
    return urllib.request.urlopen(f"{process.url}/v1/completions", data, timeout=30)


def test_a_ready_server_says_where_and_answers():
    with running("--served-model-name", "me", "--padded-layers", "6") as process:
        assert process.ready.startswith(f"ready: me on {process.url} after ")
        with post(process, {"model": "me", "max_tokens": 3}) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_ends_it_cleanly_with_requests_in_flight_or_without(number, busy):
    with running("--padded-layers", "24", "--speculative-config", DRAFT) as process:
        if busy:
            stream = post(process, {"max_tokens": 1000, "stream": True})
            assert stream.readline()
        process.send_signal(number)
        assert process.wait(10) == 0
        if busy:
            assert b"[DONE]" in stream.read()
            stream.close()


def test_dying_on_json_ends_the_process_by_sigkill():
    with running("--speculative-config", DRAFT, "--fault", "die-on-json") as process:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            post(process, {"response_format": {"type": "json_object"}})
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    "arguments,told",
    [
        (["targt"], "did you mean 'target'"),
        (["target", "--speculative-config", DRAFT, "--fault", "acept-all"], "did you mean 'accept-all'"),
        (["target", "--fault", "accept-all"], "a server that does not speculate"),
        (["target", "--speculative-config", '{"method": "ngrm"}'], "did you mean 'ngram'"),
    ],
)
def test_wrong_usage_is_one_clear_text_and_exit_code_2(arguments, told):
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout
