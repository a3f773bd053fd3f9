"""Secrets and hostile text: no spelling of a key reaches an artifact, and no server's text commands a terminal or a CI runner."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from dataclasses import replace
from urllib.parse import quote

import pytest

from pytest_specdec.capture import runner
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.config.variables import filled
from pytest_specdec.engines import registry
from pytest_specdec.engines.protocol import Command
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.status import State, Status
from pytest_specdec.report.escape import printable
from tests.capture.conftest import FakeEngine
from tests.capture.test_remaining import planned

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
    runner.record(filled(config, os.environ), plan, directory, deadline_s=None, tell=lambda _: None)
    text = "".join(path.read_text() for path in directory.root.rglob("*") if path.is_file())
    assert "no-such-flag ***" in text
    seen("in no file" if "sesame" not in text else "stored")


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "a\u202eb", "::error file=x::gone", "  ::stop-commands::x", "x ##[error]y", "a\rb"])
@pytest.mark.chaos("ANSI, bidi controls and CI commands in a server's text", expected="neutralised", quick=True)
def test_hostile_text_commands_nothing(hostile, seen):
    shown = printable(hostile)
    harmless = shown.isprintable() and not shown.lstrip().startswith("::") and "##[" not in shown
    seen("neutralised" if harmless else repr(shown))
