"""The doctor on servers that run already: one GET each."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.readiness import Reply
from pytest_specdec.config import load
from pytest_specdec.doctor import attached as attached_servers
from pytest_specdec.doctor.arms import arms
from pytest_specdec.doctor.check import ok
from pytest_specdec.engines.registry import engine_of

CONFIG = """
engine: {{kind: attach, model: big{engine}}}
baseline: {{url: 'http://127.0.0.1:{port}/v1'}}
variants: {{mine: {{url: 'http://localhost:{port}'}}}}
"""


class Models(BaseHTTPRequestHandler):
    names, key = ("big",), ""

    def log_message(self, *_):
        pass

    def do_GET(self):
        known = self.path == "/v1/models"
        allowed = not self.key or self.headers.get("Authorization") == f"Bearer {self.key}"
        data = json.dumps({"data": [{"id": name} for name in self.names]}).encode()
        self.send_response(401 if not allowed else 200 if known else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def attached(capsys):
    """The doctor's word on two addresses of a server."""
    started = []

    def call(engine="", **fields):
        listening = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Models,), fields))
        started.append(listening)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        return said(engine, listening.server_address[1])

    def said(engine, port):
        Path("mine.yaml").write_text(CONFIG.format(engine=engine, port=port))
        code = main(["doctor", "mine.yaml"])
        return code, capsys.readouterr().out

    call.at = said
    yield call
    for listening in started:
        listening.shutdown()
        listening.server_close()


def test_servers_that_are_there_pass_and_nothing_is_said_of_what_a_run_would_start(attached):
    code, out = attached()
    assert code == 0, out
    assert "baseline: http://127.0.0.1" in out
    assert "serves big" in out
    assert "3 visits of attached servers (baseline, mine, control)" in out
    assert not [name for name in ("flags", "models", "port ", "device") if f"  {name}" in out]


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "fields, level, found",
    [
        ({"key": "sesame"}, "FAIL", "asks for a key"),
        ({"key": "sesame", "engine": ", api_key: '${OUR_KEY}'"}, "FAIL", "refuses the key"),
        ({"names": ("small", "tiny")}, "FAIL", "does not serve big"),
        ({"names": ("bigg",)}, "FAIL", "does not serve big; did you mean 'bigg'?"),
        ({"names": ("/models/big",), "engine": ", served_as: /models/big"}, "ok", "serves /models/big"),
    ],
)
def test_what_a_run_would_stumble_over_is_named(fields, level, found, attached, monkeypatch):
    monkeypatch.setenv("OUR_KEY", "open-barley")
    code, out = attached(**fields)
    assert code == (1 if level == "FAIL" else 0), out
    assert any(line.strip().startswith(level) and found in line for line in out.splitlines())
    assert "open-barley" not in out


def test_a_server_that_is_not_there_is_named(attached):
    code, out = attached.at("", ports.free())
    assert code == 1
    assert "nothing answers at" in out


@pytest.mark.parametrize(
    "kind, lines",
    [
        ("vllm", ["baseline: no counters at c:8", "where:    mine.yaml:3  baseline.metrics_url", "found:    404"]),
        ("vllm", ["mine: no counters at d:9/prom", "where:    mine.yaml:4  variants.mine.metrics_url", "expected: a page of counters"]),
        ("tensorrt_llm", ["mine: counters at d:9/prom, not read before a run: a reading resets them"]),
    ],
)
def test_counters_that_cannot_be_read_are_named_by_their_place_without_a_password(kind, lines, monkeypatch):
    monkeypatch.setattr(attached_servers, "_check_server", lambda name, setup: ok("attached", name))
    monkeypatch.setattr(attached_servers, "look", lambda setup, path, seconds: Reply(status=404, text=""))
    text = CONFIG.replace("/v1'", "', metrics_url: 'http://c:8'")
    text = text.replace("{port}'}}}}", "{port}', metrics_url: 'http://u:word@d:9/prom'}}}}")
    Path("mine.yaml").write_text(text.format(engine="", port=1).replace("attach", kind))
    config = load.load(Path("mine.yaml"))
    checks = list(attached_servers.checks(config, engine_of(kind), arms(config, engine_of(kind), {})))
    output = "\n".join(line for check in checks for line in (check.line, *check.details))
    assert all(line in output for line in lines), output
    assert "word" not in output
