"""Connections: one for every request, and how much is read of it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_specdec.capture import client as requests
from pytest_specdec.capture import transport
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.model.workload import Route


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


def test_every_request_has_a_connection_of_its_own(server):
    port, made = server
    client = requests.Client(port=port, model="m", dialect=engine_of("reference").dialect)
    for _ in range(2):
        assert client.exchange(Route.COMPLETIONS, {"prompt": "A"}, streamed=False, deadline_s=10.0).status == 200
    client.close()
    assert len(made) == 2


def test_a_scored_prompt_of_many_tokens_may_take_more_than_an_answer():
    few, many = ({"prompt": [1] * tokens, "prompt_logprobs": 20} for tokens in (1_000, 100_000))
    assert requests._max_bytes(few) == requests._max_bytes({"prompt": "a" * 10**6}) == transport.MAX_BYTES
    assert requests._max_bytes(many) == 100_000 * 21 * 256
