"""Attached servers by https: whose certificates are trusted, and limits that end an encrypted exchange too."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_specdec.capture.client import Client
from pytest_specdec.capture.server import readiness
from pytest_specdec.capture.server.attached import AttachedArm
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import BootError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
ANSWER = b'{"choices": [{"index": 0, "text": " a", "finish_reason": "length"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate of nobody's authority."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]
    made = subprocess.run(["openssl", "req", "-x509", *key, *subject, "-days", "2"], capture_output=True, check=True)
    path.write_bytes(path.read_bytes() + made.stdout)
    return path


def trickle(file):
    """Send a header byte by byte until the client has left, at most 400 bytes of it."""
    file.write(b"HTTP/1.1 200 OK\r\nx-long: ")
    with suppress(OSError):
        for _ in range(400):
            file.write(b"a")
            sent_bytes.append(1)
            time.sleep(0.02)


@pytest.fixture
def setup(certificate):
    """An https server that never answers a prompt with "hang", and sends one byte of a header after the other for "trickle"."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(b'{"data": [{"id": "m"}]}')

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if b"hang" in body:
                released.wait(30.0)
            elif b"trickle" in body:
                trickle(self.wfile)
            else:
                self.answer(ANSWER)

        def answer(self, body):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        yield ServerSetup(model="m", port=0, attached=f"https://127.0.0.1:{port}", secrets=Secrets())
        released.set()
        server.shutdown()


sent_bytes = []
"""One entry for each byte of a header that trickles."""


def asked(setup, prompt, seconds):
    client = Client(setup, VllmDialect(), model="m")
    request = Request(id="a", route=Route.COMPLETIONS, body={"prompt": prompt, "max_tokens": 1})
    sent = client.send(request, streamed=False, deadline_s=seconds)
    client.close()
    return sent


def test_a_server_of_ones_own_authority_answers(setup, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert asked(setup, "A", 20.0).answer.choice.text == " a"
    assert readiness.get(setup, "/v1/models") is not None


def test_a_hanging_exchange_is_ended_by_its_deadline(setup, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert asked(setup, "hang", 0.5).ending is FailureKind.HUNG


def test_a_trickle_of_headers_is_ended_by_its_deadline(setup, certificate, monkeypatch):
    """No byte is late, and nothing of the body has come: only the socket that the timer shuts ends it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    sent_bytes.clear()
    assert asked(setup, "trickle", 1.0).ending is FailureKind.HUNG
    assert len(sent_bytes) < 400


def test_a_certificate_of_nobody_known_is_one_error_at_once(setup, tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    recipe = ServerRecipe(
        dialect=VllmDialect(), setup=setup, command=None, draft_tokens=0, log=tmp_path / "none.log", boot_s=600.0, stop_s=1.0
    )

    def waits():
        pytest.fail("it is waited for")

    with pytest.raises(BootError, match=r"certificate .* is not trusted") as caught:
        AttachedArm(recipe, lambda _: VllmDialect(), waits, lambda: 600.0).start()
    assert "SSL_CERT_FILE" in caught.value.remedy
