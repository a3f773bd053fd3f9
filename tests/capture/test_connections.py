"""Connections: kept for the next request, and given up before the server does."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_specdec.capture import requests
from pytest_specdec.capture.engines import engine_of
from pytest_specdec.model.workload import Route

UVICORN_S = 5.0
"""``timeout_keep_alive`` of uvicorn, whose servers vLLM and the reference engine are."""


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


def ask_twice(port):
    client = requests.Client(port=port, model="m", dialect=engine_of("reference").dialect)
    for _ in range(2):
        assert client.exchange(Route.COMPLETIONS, {"prompt": "A"}, streamed=False, deadline_s=10.0).status == 200
    client.close()


def test_a_connection_serves_the_next_request(server):
    port, made = server
    ask_twice(port)
    assert len(made) == 1


def test_an_idle_connection_is_given_up_long_before_a_server_closes_it(server, monkeypatch):
    assert requests._IDLE_S <= UVICORN_S / 2
    monkeypatch.setattr(requests, "_IDLE_S", 0.0)
    port, made = server
    ask_twice(port)
    assert len(made) == 2
