"""The transport: every HTTP exchange has a connection of its own, a time limit for it, and a limit on what is read from it.

A timeout of a client counts from byte to byte, so that a slow trickle of bytes never reaches it. Here one timer runs
from the first byte sent to the last one received and shuts the socket, whatever is done with it. A connection is not
kept for the next exchange: anything a server sends after an answer would answer the next request, and a server that
closes an idle connection would pass for a dead one.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import openai

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextvars import Token
    from typing import Self

HTTPX = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
"""What this version of openai stands on: httpx, or what came after it."""
MAX_BYTES = 64 * 1024**2
"""Bytes of a body, decoded; a thousand times what an answer takes."""
MAX_PARTS = 2**20
"""Chunks, each of which takes memory of its own; a token takes at most one."""
_PART_BYTES = 65_536
"""Bytes decoded at once."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""Has the kernel reset the connection when it is closed: a server in the middle of sending learns then that the client has left."""
_CONNECTED = {"connection.connect_tcp.complete", "connection.start_tls.complete"}
"""httpx's events that return a connection."""
_COMPRESSED = {"gzip", "x-gzip", "deflate"}
_EITHER_HEADER = zlib.MAX_WBITS | 32
"""Lets zlib find out whether gzip's header or its own comes first."""


class ExchangeLimits:
    """The limits of one exchange: seconds, and bytes of its body.

    They hold while the block runs.
    """

    def __init__(self, *, seconds: float, max_bytes: int = MAX_BYTES) -> None:
        """Take the limits of one exchange, in seconds and bytes."""
        self.overdue = False
        """Whether the time was used up and the socket shut."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self.parts = 0
        """Pieces of the body that came."""
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._expire)
        self._timer.daemon = True
        self._token: Token[ExchangeLimits] | None = None

    def __enter__(self) -> Self:
        self._token = _current_limits.set(self)
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self.release()
        if self._token is not None:
            _current_limits.reset(self._token)

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Store the exchange's socket as soon as it is connected.

        The timer shuts it later; if the time is already used up, it is shut at once. TLS takes the connection over into a socket of its
        own, which then replaces it. This is the ``trace`` extension of httpx's requests, called with every event.
        """
        if event in _CONNECTED:
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.overdue:
                    self._shut_socket()

    def release(self) -> None:
        """Forget the socket, and so keep the timer from it.

        Once a socket is closed, its number may be that of another connection.
        """
        with self._lock:
            self._socket = None

    def count(self, part: bytes) -> None:
        """Count one received part of the body, and its bytes.

        Raises ValueError beyond the limits, and httpx's ReadTimeout once the time is used up: data received before the socket was shut
        would still be handed on, piece by piece.
        """
        if self.overdue:
            raise HTTPX.ReadTimeout(_OVERDUE)
        self._bytes += len(part)
        self.parts += 1
        if self._bytes > self._max_bytes or self.parts > MAX_PARTS:
            msg = f"a body of more than {self._max_bytes:,} bytes, or {MAX_PARTS:,} parts"
            raise ValueError(msg)

    def _expire(self) -> None:
        """Shut the socket when the time is used up."""
        with self._lock:
            self.overdue = True
            self._shut_socket()

    def _shut_socket(self) -> None:
        """Shut the socket; its close then resets the connection."""
        if self._socket is not None:
            with suppress(OSError):  # closed a moment ago, or never quite open
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                # Not the method of an SSLSocket, which first gives up TLS: a thread writing meanwhile would go on in plain text.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class BusyTime:
    """Measures the time with requests in flight to one server.

    ``seconds`` is the time with at least one request in flight; ``wall_s`` goes from the making of this object to the last answer.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin to measure by the clock ``now_s``, in seconds."""
        self._now_s = now_s
        self.began_s = now_s()
        self.until_s = self.began_s
        """When the last answer ended."""
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._in_flight = 0
        self._since_s = 0.0

    @property
    def wall_s(self) -> float:
        """Seconds from the beginning to the last answer."""
        return self.until_s - self.began_s

    @contextmanager
    def count_request(self) -> Iterator[None]:
        """Count one request as in flight while the block runs.

        When the last of several overlapping requests ends, the time since the first of these began is added to the busy seconds, so that
        overlaps count once. Every end also moves the end of the wall time: busy seconds by wall time is reported as how busy the server
        was.
        """
        with self._lock:
            if not self._in_flight:
                self._since_s = self._now_s()
            self._in_flight += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1
                self.until_s = self._now_s()
                if not self._in_flight:
                    self.seconds += self.until_s - self._since_s


_current_limits: ContextVar[ExchangeLimits] = ContextVar("limits")
"""The limits of the block that this thread is in."""


def _trust_store() -> ssl.SSLContext | bool:
    """Return the certificate authorities to trust, True for httpx's default.

    They are those of SSL_CERT_FILE or SSL_CERT_DIR if one of these is set.

    https://docs.openssl.org/master/man7/openssl-env/
    """
    return ssl.create_default_context() if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") else True


class Transport(HTTPX.BaseTransport):  # type: ignore[misc, name-defined]  # which module it is comes out at run time
    """httpx's own transport under the limits of the surrounding :class:`ExchangeLimits` block; thread-safe."""

    def __init__(self, url: str = "") -> None:
        """Take the server's address."""
        # A server that we start listens on the loopback interface: checking certificates there is useless and costs 90 ms.
        pool_limits = HTTPX.Limits(max_keepalive_connections=0)
        self._inner = HTTPX.HTTPTransport(verify=url.startswith("https:") and _trust_store(), trust_env=False, limits=pool_limits)

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401 - the types of that module
        """Return the response to ``request``, within the exchange's limits.

        An uncompressed body is requested; it is decoded and counted as it is read. A transport error after the time limit is raised as a
        timeout.
        """
        limits = _current_limits.get()
        request.extensions = {**request.extensions, "trace": limits.trace}
        request.headers["accept-encoding"] = "identity"
        try:
            response = self._inner.handle_request(request)
        except HTTPX.TransportError as error:
            raise _timeout_if_overdue(limits, error) from error
        encoding = response.headers.pop("content-encoding", "")
        response.headers["content-type"] = response.headers.get("content-type", "").partition(";")[0]  # all is UTF-8, whatever it says
        return HTTPX.Response(
            response.status_code,
            headers=response.headers,
            stream=_Body(response.stream, encoding.strip().lower(), limits),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close all open connections."""
        self._inner.close()


class Recorder(HTTPX.BaseTransport):  # type: ignore[misc, name-defined]  # as above
    """A transport that keeps the request's bytes and sends nothing."""

    content = b""

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401 - the types of that module
        """Return an empty response, and store ``request`` as HTTP/1.1 bytes.

        Another process sends these later.
        """
        request.headers["accept-encoding"] = "identity"
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b" % (name, value) for name, value in request.headers.raw]
        self.content = b"\r\n".join([*lines, b"", request.read()])
        return HTTPX.Response(200, headers={"content-type": "text/event-stream"}, content=b"")


class _Body(HTTPX.SyncByteStream):  # type: ignore[misc, name-defined]  # as above
    """A response's body, decoded and counted within its limits.

    It ends with an error once its time is used up.
    """

    def __init__(self, stream: Any, encoding: str, limits: ExchangeLimits) -> None:  # noqa: ANN401 - as above
        self._stream = stream
        self._encoding = encoding
        self._limits = limits

    def __iter__(self) -> Iterator[bytes]:
        """Yield the decoded parts of the body, within its limits.

        Raises httpx's ReadTimeout once the time is used up.
        """
        try:
            yield from self._decode() if self._encoding not in {"", "identity"} else self._count_bytes()
        except HTTPX.TransportError as error:  # the socket was shut by the timer, or the server cut the body off
            raise _timeout_if_overdue(self._limits, error) from error
        if self._limits.overdue:  # a body without a length ends with its connection: the socket shut by the timer looks like its end
            raise HTTPX.ReadTimeout(_OVERDUE)

    def close(self) -> None:
        self._limits.release()
        self._stream.close()

    def _count_bytes(self) -> Iterator[bytes]:
        """Yield the parts of an uncompressed body, each counted first."""
        for part in self._stream:
            self._limits.count(part)
            yield part

    def _decode(self) -> Iterator[bytes]:
        """Yield the decoded parts of a body compressed unasked.

        Bytes after the end of the compressed data are left out. Raises ValueError if the body cannot be decoded, or is truncated.
        """
        decoder = decompressor(self._encoding)
        for part in self._stream:
            for decoded in inflate(decoder, part):
                self._limits.count(decoded)
                yield decoded
            if decoder.eof:
                return
        if not self._limits.overdue:
            msg = f"a truncated {self._encoding} body"
            raise ValueError(msg)


def decompressor(encoding: str) -> Any:  # noqa: ANN401 - zlib does not name its class
    """Return a decoder for the body of a response compressed unasked.

    Raises ValueError for an encoding that has no decoder here.
    """
    if encoding not in _COMPRESSED:
        msg = f"content-encoding {encoding!r}, expected identity"
        raise ValueError(msg)
    return zlib.decompressobj(_EITHER_HEADER)


def inflate(decoder: Any, part: bytes) -> Iterator[bytes]:  # noqa: ANN401 - zlib does not name its class
    """Yield ``part`` decoded, in pieces of at most 64 KiB.

    The decoded data may be a thousand times as long. Raises ValueError if it cannot be decoded.
    """
    try:
        while decoded := decoder.decompress(part, _PART_BYTES):
            yield decoded
            part = decoder.unconsumed_tail
    except zlib.error as error:
        raise ValueError(str(error)) from error


_OVERDUE = "the response was not over in time"


def _timeout_if_overdue(limits: ExchangeLimits, error: Exception) -> Exception:
    """Return a timeout if the timer shut the socket, else ``error``.

    The error of a socket shut by the timer would look like a connection lost by the server.
    """
    return HTTPX.ReadTimeout(_OVERDUE) if limits.overdue else error


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds stated in the ``retry-after`` header.

    Returns 0 without it, or if it holds a date.
    """
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() else 0.0
