"""Secrets and hostile text: no spelling of a key reaches an artifact, and no server's text commands a terminal or a CI runner."""

from __future__ import annotations

import base64
import json
import os
import random
import shlex
import string
import sys
from dataclasses import replace
from urllib.parse import quote

import pytest

from pytest_specdec.capture import runner
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.server import attached, readiness
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.config.variables import fill
from pytest_specdec.engines import registry
from pytest_specdec.engines.protocol import Command, ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.report.escape import printable
from tests.capture.conftest import FakeEngine
from tests.capture.test_remaining import planned
from tests.chaos.raw_server import RawServer, always, response

KEY = 'it\'s a "key"/of+mine'
SPELLINGS = {
    "as it is": KEY,
    "quoted for a shell": shlex.quote(KEY),
    "JSON": json.dumps({"key": KEY}),
    "JSON in JSON": json.dumps(json.dumps({"key": KEY})),
    "JSON in a shell": shlex.quote(json.dumps({"key": KEY})),
    "in a URL": "http://x/?key=" + quote(KEY, safe=""),
    "in base64": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "repr": repr(KEY),
}


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.chaos("a server prints its key in another spelling, and its error is stored", expected="in no file", quick=True)
def test_no_spelling_reaches_a_file(tmp_path, how, seen):
    secrets = Secrets(values=(KEY,))
    directory = RunDirectory.create(tmp_path / "run")
    argv = (sys.executable, "-S", "-c", "import os; print(os.environ['TEXT'])", f"--key={KEY}")
    server = ServerProcess(Command(argv=argv, env={"TEXT": SPELLINGS[how]}, secrets=secrets), directory.server_log(0, "v"))
    assert server.wait(30.0)
    server.stop(0.0)
    run_documents.write_status(replace(directory, secrets=secrets), Status(state=State.INCOMPLETE, error=SPELLINGS[how]))
    text = "".join(path.read_text() for path in directory.root.rglob("*") if path.is_file())
    recoded = base64.b64encode(KEY.encode()).decode()[2:-6]
    kept = [part for part in ('a "key"', "key%22", 'key\\"/', "of+mine", "of%2Bmine", recoded) if part in text]
    seen("in no file" if not kept and "***" in text else f"{kept} in {text}")


@pytest.mark.parametrize("variable", ["MY_PAT", "GITHUB_AUTH", "PGPASSWORD", "HF_TOKEN", "OTHER_API_KEY"])
@pytest.mark.chaos("${MY_PAT} and its like in arguments, and the server dies printing them", expected="in no file", quick=True)
def test_a_variable_that_is_named_like_a_secret_is_struck_out(tmp_path, monkeypatch, variable, seen):
    monkeypatch.setenv(variable, "sesame-open-now")
    monkeypatch.setitem(registry.LOADED, FakeEngine.kind, FakeEngine())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config, plan = planned(tmp_path, **{"no-such-flag": f"${{{variable}}}"})
    directory = RunDirectory.create(tmp_path / "runs" / "now")
    runner.record(fill(config, os.environ), plan, directory, deadline_s=None, tell=lambda _: None)
    text = "".join(path.read_text() for path in directory.root.rglob("*") if path.is_file())
    assert "no-such-flag ***" in text
    seen("in no file" if "sesame" not in text else "stored")


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "a\u202eb", "::error file=x::gone", "  ::stop-commands::x", "x ##[error]y", "a\rb"])
@pytest.mark.chaos("ANSI, bidi controls and CI commands in a server's text", expected="neutralised", quick=True)
def test_hostile_text_commands_nothing(hostile, seen):
    shown = printable(hostile)
    harmless = shown.isprintable() and not shown.lstrip().startswith("::") and "##[" not in shown
    seen("neutralised" if harmless else repr(shown))


TOKEN = "".join(random.Random(7).choices(string.ascii_letters + string.digits + "-_.", k=1_282))
REFUSALS = {
    "a refusal in JSON": response(json.dumps({"error": {"message": f"no such token {TOKEN}"}}), "403 Forbidden"),
    "a refusal in text": response(f"no such token {TOKEN}", "403 Forbidden", kind="text/plain"),
    "a web page that has it in its title": response(f"<html><head><title>{TOKEN}</title></head></html>", "403 Forbidden", kind="text/html"),
}
ANSWERS = {
    "a text where JSON should be": response(json.dumps(TOKEN)),
    "a field of another type": response(json.dumps({"choices": [{"index": 0, "token_ids": TOKEN}]})),
    "an error that echoes it": response(json.dumps({"error": {"message": TOKEN}}), "500 Internal Server Error"),
    "a web page": REFUSALS["a web page that has it in its title"],
}


def pieces(text):
    return [TOKEN[start : start + 8] for start in range(len(TOKEN) - 7) if TOKEN[start : start + 8] in text]


@pytest.mark.parametrize("how", REFUSALS)
@pytest.mark.chaos("a gateway refuses the key and quotes it, 1,282 characters", expected="no piece of it", quick=True)
def test_no_piece_of_a_refused_key_is_shown(how, seen):
    with RawServer(always(REFUSALS[how])).running() as server:
        setup = ServerSetup(model="m", port=server.port, secrets=Secrets(values=(TOKEN,)), headers={"X-Gate": TOKEN})
        error = attached.refusal_error(setup, readiness.look(setup, "/v1/models", seconds=5.0))
    assert "refuses the key" in str(error)
    seen(f"{pieces(str(error))}" if pieces(str(error)) else "no piece of it")


@pytest.mark.parametrize("how", ANSWERS)
@pytest.mark.chaos("a server quotes the key where its answer should be", expected="no piece of it", quick=True)
def test_no_piece_of_a_quoted_key_is_stored(how, seen):
    with RawServer(always(ANSWERS[how])).running() as server:
        client = Client(ServerSetup(model="m", port=server.port, secrets=Secrets(values=(TOKEN,))), VllmDialect(), model="m")
        sent = client.send(Request(id="a", route=Route.COMPLETIONS, body={"prompt": "A"}), streamed=False, deadline_s=5.0)
        client.close()
    assert sent.answer.error
    seen(f"{pieces(sent.answer.error)}" if pieces(sent.answer.error) else "no piece of it")
