"""``python -m specdec_reference`` as a process: ready, refused, broken, ended by a signal."""

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
COMMAND = (sys.executable, "-m", "specdec_reference")
PLANT = """
import sys
from specdec_reference import engine, rules, scheduler
from specdec_reference.cli import main
right, calls = {where}, []
def broken(*arguments):
    calls.append(arguments)
    if len(calls) > {spared}:
        raise {error}("planted")
    return right(*arguments)
{where} = broken
sys.exit(main(sys.argv[1:]))
"""


def planted(where, spared=0, error="RuntimeError"):
    """Return the command of a server whose engine breaks in ``where``, after ``spared`` calls."""
    return (sys.executable, "-c", PLANT.format(where=where, spared=spared, error=error))


@contextmanager
def running(*options, command=COMMAND, **files):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, "target", "--port", str(port), *options], stdout=subprocess.PIPE, text=True, **files)
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


@pytest.mark.examples(2)
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


def traceback_ends(log):
    return "Traceback (most recent call last)" in log and log.splitlines()[-1].endswith("planted")


@pytest.mark.examples(2)
@pytest.mark.parametrize("where", ["scheduler.Batch._prefill", "engine.ReferenceEngine._empty_queues", "scheduler.Batch._free_slots"])
@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit", "BaseException"])
def test_an_engine_that_breaks_on_a_request_answers_500_and_ends_the_server_with_its_traceback(where, error):
    spared = 1 if where.endswith("_empty_queues") else 0
    with running(command=planted(where, spared, error), stderr=subprocess.STDOUT) as process:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            post(process, {"max_tokens": 3})
        assert process.wait(10) == 1
        assert traceback_ends(process.stdout.read())


def test_an_engine_that_breaks_before_any_request_ends_the_server():
    with running(command=planted("engine.ReferenceEngine._empty_queues"), stderr=subprocess.STDOUT) as process:
        assert process.wait(30) == 1
        assert traceback_ends(process.ready + process.stdout.read())


def test_an_engine_that_breaks_in_a_stream_gives_up_what_is_in_flight():
    with running("--speculative-config", DRAFT, command=planted("rules.windows", 4), stderr=subprocess.STDOUT) as process:
        with post(process, {"max_tokens": 100, "stream": True}) as stream:
            events = stream.read()
        assert b"the engine gave this request up" in events
        assert process.wait(10) == 1
        assert traceback_ends(process.stdout.read())


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "arguments,words",
    [
        (["targt"], "did you mean 'target'"),
        (["target", "--speculative-config", DRAFT, "--fault", "acept-all"], "did you mean 'accept-all'"),
        (["target", "--fault", "accept-all"], "a server that does not speculate"),
        (["target", "--speculative-config", '{"method": "ngrm"}'], "did you mean 'ngram'"),
    ],
)
def test_wrong_usage_is_one_clear_text_and_exit_code_2(arguments, words):
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout
