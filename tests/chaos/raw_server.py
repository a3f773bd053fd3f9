"""A server in a thread of the test, which sends the very bytes it is told to: whole responses, drips, floods, and silence."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress

LONGEST_S = 20.0
"""After so many seconds every script gives up, whatever it was sending."""
MOST_CONNECTIONS = 500


class Connection:
    """One accepted connection: the requests that come in by it, and bytes for its other end."""

    def __init__(self, accepted, stopping):
        self._socket = accepted
        self._stopping = stopping
        self._until_s = time.monotonic() + LONGEST_S
        self._unread = b""

    def request(self):
        """Return the next request as method, path and body; None where the other end has gone."""
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
        lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        return method, path, self._take(int(lengths[0]) if lengths else 0)

    def send(self, data):
        self._socket.sendall(data)

    def drip(self, data, pause_s=0.05):
        """Send ``data`` over and over, with a pause after each."""
        while self._goes_on():
            self.send(data)
            self._stopping.wait(pause_s)

    def flood(self, data, times):
        for _ in range(times):
            if not self._goes_on():
                return
            self.send(data)

    def hang(self):
        """Send nothing more and keep the connection open until the other end has enough."""
        while self._goes_on():
            self._socket.settimeout(0.05)
            with suppress(TimeoutError):
                if not self._socket.recv(65_536):
                    return

    def _goes_on(self):
        return not self._stopping.is_set() and time.monotonic() < self._until_s

    def _until(self, mark):
        while mark not in self._unread:
            if not self._receive():
                return None
        head, _, self._unread = self._unread.partition(mark)
        return head

    def _take(self, length):
        while len(self._unread) < length and self._receive():
            pass
        body, self._unread = self._unread[:length], self._unread[length:]
        return body

    def _receive(self):
        part = self._socket.recv(65_536)
        self._unread += part
        return bool(part)


class RawServer:
    """Runs ``script`` on every connection that is made to ``port``, each in a thread of its own."""

    def __init__(self, script):
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._stopping = threading.Event()
        self._threads = []
        self.connections = 0
        self.requests = []
        """The paths that were asked for."""

    @contextmanager
    def running(self):
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            self._stopping.set()
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            for thread in (accepting, *self._threads):
                thread.join(5.0)

    def _accept(self):
        for _ in range(MOST_CONNECTIONS):
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, accepted):
        with accepted, suppress(OSError):
            self._script(_Recorded(Connection(accepted, self._stopping), self.requests))


class _Recorded:
    """A connection whose requests are written down."""

    def __init__(self, connection, paths):
        self._connection = connection
        self._paths = paths

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def request(self):
        request = self._connection.request()
        if request is not None:
            self._paths.append(request[1])
        return request


def response(body, status="200 OK", headers=(), kind="application/json"):
    """Return a whole response with the length of its body."""
    data = body if isinstance(body, bytes) else body.encode()
    return head(status, [f"content-length: {len(data)}", *headers], kind) + data


def head(status="200 OK", headers=(), kind="application/json"):
    """Return the head of a response; without a length or chunks its body goes on until the connection ends."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", *headers, "", ""]).encode()


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def always(*parts):
    """Return a script that answers every request of a connection with ``parts``: bytes, or functions of the connection."""

    def script(connection):
        while connection.request() is not None:
            for part in parts:
                if isinstance(part, bytes):
                    connection.send(part)
                else:
                    part(connection)
            return

    return script


def repeatedly(data):
    """Return a script that answers with ``data`` and keeps the connection for the next request."""

    def script(connection):
        while connection.request() is not None:
            connection.send(data)

    return script
