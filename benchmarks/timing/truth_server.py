"""A server that streams by the clock and writes into each chunk when it was sent: ``python -m benchmarks.timing.truth_server``.

It needs the standard library alone. One thread: at each due time it writes the chunks that are due, one HTTP chunk an event, with
TCP_NODELAY; the nanoseconds of the monotonic clock, taken just before the write, stand in the chunk's content. A request says what it
wants in ``metadata``: ``ttft_ms``, ``step_ms``, ``chunks``, ``tokens`` (of a chunk), and ``common``: 1 has all streams step together, as
the rows of a batch do. Prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import heapq
import json
import re
import selectors
import socket
import sys
import time

_LENGTH = re.compile(rb"content-length:[ \t]*(\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = (
    '{"id":"chatcmpl-truth","object":"chat.completion.chunk","created":1700000000,"model":"truth","choices":[{"index":0,"delta":'
    '{"content":"%s"},"logprobs":null,"finish_reason":null}]}'
)


class Stream:
    """One answer under way."""

    def __init__(self, connection: socket.socket, asked: dict[str, float], now_ns: int) -> None:
        self.connection = connection
        self.step_ns = int(asked["step_ms"] * 1e6)
        self.left = int(asked["chunks"])
        self.tokens = int(asked.get("tokens", 1)) * self.left
        self.due_ns = now_ns + int(asked["ttft_ms"] * 1e6)
        if asked.get("common"):
            self.due_ns += -self.due_ns % self.step_ns


class Server:
    """Listens, reads requests, and writes what is due."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listening.settimeout(0.0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._begun: dict[socket.socket, bytes] = {}
        self._due: list[tuple[int, int, Stream]] = []
        self._number = 0

    @property
    def port(self) -> int:
        """Of the loopback interface."""
        port: int = self._listening.getsockname()[1]
        return port

    def serve(self) -> None:
        """Serve until standard input closes."""
        while True:
            pause_s = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else 1.0
            for key, _ in self._selector.select(max(0.0, pause_s)):
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)
            self._write_what_is_due()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)
        self._begun[connection] = b""

    def _read(self, connection: socket.socket) -> None:
        asked = _received(connection, self._begun)
        if asked is not None:
            connection.sendall(_HEAD)
            self._schedule(Stream(connection, asked, time.monotonic_ns()))
        elif connection not in self._begun:
            self._selector.unregister(connection)
            connection.close()

    def _schedule(self, stream: Stream) -> None:
        heapq.heappush(self._due, (stream.due_ns, self._number, stream))
        self._number += 1

    def _write_what_is_due(self) -> None:
        now_ns = time.monotonic_ns()
        while self._due and self._due[0][0] <= now_ns:
            _, _, stream = heapq.heappop(self._due)
            if _said(stream):
                stream.due_ns += stream.step_ns
                self._schedule(stream)


def main() -> None:
    """Serve on a port that is printed."""
    server = Server()
    print(server.port, flush=True)
    server.serve()


def _received(connection: socket.socket, begun: dict[socket.socket, bytes]) -> dict[str, float] | None:
    """Return what a request asks for once it is whole; a connection that was closed is no longer begun."""
    part = connection.recv(65536)
    if not part:
        begun.pop(connection, None)
        return None
    begun[connection] += part
    head, blank, body = begun[connection].partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not blank or length is None or len(body) < int(length[1]):
        return None
    begun[connection] = b""
    return {name: float(value) for name, value in json.loads(body)["metadata"].items()}


def _said(stream: Stream) -> bool:
    """Write the next chunk; return whether there is another."""
    stream.left -= 1
    try:
        if stream.left >= 0:
            _write(stream.connection, _CHUNK % f"{time.monotonic_ns():020d}")
            return True
        usage = {"prompt_tokens": 1, "completion_tokens": stream.tokens, "total_tokens": 1 + stream.tokens}
        last = {"id": "chatcmpl-truth", "object": "chat.completion.chunk", "created": 1700000000, "model": "truth"}
        _write(stream.connection, json.dumps({**last, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        _write(stream.connection, json.dumps({**last, "choices": [], "usage": usage}))
        _write(stream.connection, "[DONE]")
        stream.connection.sendall(b"0\r\n\r\n")
    except OSError:
        return False  # the client has gone
    return False


def _write(connection: socket.socket, data: str) -> None:
    event = b"data: " + data.encode() + b"\n\n"
    connection.sendall(b"%x\r\n%b\r\n" % (len(event), event))


if __name__ == "__main__":
    main()
