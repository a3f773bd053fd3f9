"""The stamper: a program that sends requests as they are given to it and stamps every read of the answers.

Usage: python -I -S stamper.py < job > report. It needs the standard library alone. One thread, non-blocking sockets;
while bytes arrive it reads them, stamps them, and does nothing else: a client that parses while it receives falls
behind a server of many streams, and by more where chunks are smaller, which is the baseline's side. A connection is
opened before its request is due and left after its answer. After a failure of the server, or once the time is up, no
further request is sent.

The job is a JSON line with ``host``, an address in numbers, ``port``, ``concurrency``, ``sizes`` (bytes of each
request), ``deadlines_s`` (of each, from its sending) and ``until_s`` (when all sending and reading ends, by the
monotonic clock, or null), followed by the requests' bytes. The report is a JSON line
with ``exchanges``, one for each request (when it was sent and ended, how it ended, stamp and size of each read), the
process's own ``cpu_ns``, ``wall_ns`` and ``delayed_ns``, and ``drains_ns``, the time that each wake-up took. All
bytes received follow it. Stamps are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import gc
import json
import os
import re
import selectors
import socket
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 1 << 16
_MOST = 64 * 1024**2
"""Bytes of one answer, as everywhere else."""
_MOST_READS = 1 << 20
"""Reads of one answer: each takes memory of its own."""
_TICK_NS = 100_000_000
"""Nanoseconds between two checks of the deadlines."""
_SHORT = 4
"""Bytes of a read so short that it may be the rest of an ending that an earlier read began."""
_TAIL = 4096
_ERROR = b'"error"'
"""Seldom in an answer without an error: inside a longer text the quotes are escaped."""
_LAST_CHUNK = re.compile(rb"\r\n0+(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n\Z")
"""The end of a chunked body (RFC 9112, section 7.1), trailers included."""
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
"""A line may end in a line feed alone (RFC 9112, section 2.2)."""
_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d\b")
"""100 Continue, 103 Early Hints and their like come before the response (RFC 9110, section 15.2)."""
_ANSWERED = re.compile(rb"HTTP/1\.\d (?:2\d\d|(4\d\d|501))\b")
"""The status line of an answer or a refusal, a refusal's status as group 1; any other status is a failure of the server."""
_BODILESS = re.compile(rb"HTTP/1\.\d (?:204|304)\b")
_MOST_HEAD = 1 << 18
"""Bytes before the body."""
_MOST_DIGITS = 12
"""Of a length that can be: a longer one is more than the most, whatever it is."""


def find_head(received: bytes) -> tuple[int, int, int] | None:
    """Return the bounds of a response's head, and its body's beginning.

    All three are indices in ``received``. Interim responses (1xx) are skipped. Returns None until the whole head has come.
    """
    start = 0
    while blank := _HEAD_END.search(received, start):
        if not _INTERIM.match(received, start):
            return start, blank.start(), blank.end()
        start = blank.end()
    return None


class StampedExchange:
    """One request and what came back."""

    __slots__ = (
        "end",
        "ended_ns",
        "ends_with_connection",
        "expires_ns",
        "is_answered",
        "is_refused",
        "left",
        "missing",
        "number",
        "parts",
        "received",
        "sent_ns",
        "socket",
        "stamps",
    )

    def __init__(self, number: int, request: bytes) -> None:
        """Take the request's bytes, and its index in the job."""
        self.number = number
        self.left = memoryview(request)
        """Bytes of the request that are not sent yet."""
        self.socket: socket.socket | None = None
        # When its first byte was sent, when it ended, and when it ends if no answer comes; 0 before that is known.
        self.sent_ns = 0
        self.ended_ns = 0
        self.expires_ns = 0
        # Of each read its time and its bytes; and the bytes of all reads together.
        self.stamps: list[int] = []
        self.parts: list[bytes] = []
        self.received = 0
        self.missing: int | None = None
        """Bytes of a body of known length that are still to come; -1 if the head has not come whole, None if the body marks its own end."""
        self.ends_with_connection = False
        """Whether the body's only end is that of its connection."""
        self.is_answered = False
        """Whether the status is that of an answer or a refusal; False before the head has come."""
        self.is_refused = False
        self.end = "not sent"

    @property
    def has_failed(self) -> bool:
        """True if it brought no whole answer or refusal.

        An answer with an error inside counts as failed too; a refusal is expected to have one.
        """
        is_whole = self.end == "whole" or (self.end == "closed" and self.ends_with_connection)
        return not (self.is_answered and is_whole) or (not self.is_refused and self._has_error())

    def _has_error(self) -> bool:
        """Return True if an error object is seen in the last bytes.

        It is looked for line by line, so that an event or a whole reply shows it. One in a compressed body, or in an event that chunks
        divide, is not seen here: the answer's reader finds it after the pass.
        """
        tail = self.read_tail()
        return _ERROR in tail and any(_holds_error(line) for line in tail.splitlines() if _ERROR in line)

    def read_tail(self) -> bytes:
        """Return the last bytes that came, at least :data:`_TAIL`.

        Whole reads are joined. Returns all bytes if fewer came.
        """
        tail, index = b"", len(self.parts)
        while index and len(tail) < _TAIL:
            index -= 1
            tail = self.parts[index] + tail
        return tail


def _body_length(digits: bytes) -> int:
    """Return a stated length of a body, in bytes.

    A number too long for one counts as the most: such an answer ends as too much.
    """
    significant = digits.lstrip(b"0")
    return int(significant or b"0") if len(significant) <= _MOST_DIGITS else _MOST


def _holds_error(line: bytes) -> bool:
    """Return True if a line of a body holds an error object.

    The line is a JSON object with ``error``, or an event with one as its data.
    """
    try:
        reply = json.loads(line.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return False
    return isinstance(reply, dict) and bool(reply.get("error"))


class Stamper:
    """Sends requests in their order, ``concurrency`` of them at a time."""

    def __init__(
        self, host: str, port: int, concurrency: int, exchanges: list[StampedExchange], deadlines_ns: list[int], *, until_ns: int
    ) -> None:
        """Take the address, and the requests with their deadlines.

        ``host`` is an address in numbers. A deadline is the nanoseconds from a request's sending to the end of its
        answer. At ``until_ns``, by the monotonic clock, all requests end.
        """
        self._address = (host, port)
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._selector = selectors.DefaultSelector()
        self._waiting = exchanges[::-1]  # so that pop takes the next
        self._deadlines_ns = deadlines_ns
        self._until_ns = until_ns
        self._concurrency = concurrency
        self._open: dict[int, StampedExchange] = {}  # by number
        self._parent = os.getppid()  # another one once the starter is gone
        self.drains_ns: list[int] = []
        """How long each wake-up took to read all that was there."""

    def run(self) -> None:
        """Send the requests and read every answer to its end.

        No request is sent after a failure of the server or at the end of the time. How long each wake-up took to read what had come, its
        drain, is recorded: it delays the stamps of later reads. Deadlines, and whether the starter is still there, are checked only every
        tenth of a second, between reads. The process exits if the starter is gone.
        """
        clock, select, drains = time.monotonic_ns, self._selector.select, self.drains_ns  # looked up once: the loop has to be fast
        checked_ns = clock()
        self._open_connections()
        while self._open:
            ready = select(_TICK_NS / 1e9)
            woke_ns, reading = clock(), False
            for key, events in ready:
                exchange = key.data
                if events & selectors.EVENT_READ:
                    reading = True
                    self._read(exchange, clock)
                else:
                    self._write(exchange)
            if reading:
                drains.append(clock() - woke_ns)
            if woke_ns - checked_ns >= _TICK_NS:
                checked_ns = woke_ns
                self._expire(woke_ns)
                if os.getppid() != self._parent:
                    sys.exit("its starter is gone")
            self._open_connections()

    def _open_connections(self) -> None:
        """Open connections for the next requests, up to the concurrency.

        No call waits for a connection: its socket becomes writable once it is established.
        """
        if time.monotonic_ns() >= self._until_ns:
            self._waiting.clear()
        while self._waiting and len(self._open) < self._concurrency:
            exchange = self._waiting.pop()
            connection = socket.socket(self._family, socket.SOCK_STREAM)
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            exchange.socket, exchange.expires_ns = connection, self._expiry_ns(exchange, time.monotonic_ns())
            connection.connect_ex(self._address)
            self._open[exchange.number] = exchange
            self._selector.register(connection, selectors.EVENT_WRITE, exchange)

    def _expiry_ns(self, exchange: StampedExchange, now_ns: int) -> int:
        return min(now_ns + self._deadlines_ns[exchange.number], self._until_ns)

    def _write(self, exchange: StampedExchange) -> None:
        """Send as much of a request as the socket takes.

        The first call comes once the connection is established or has failed. The deadline runs from the first byte sent. A failed
        connection ends the exchange.
        """
        connection = exchange.socket
        assert connection is not None
        error_number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error_number:
            self._finish(exchange, os.strerror(error_number))
            return
        if not exchange.sent_ns:
            exchange.sent_ns = time.monotonic_ns()
            exchange.expires_ns = self._expiry_ns(exchange, exchange.sent_ns)
            exchange.missing = -1  # the head has not come
        try:
            exchange.left = exchange.left[connection.send(exchange.left) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(exchange, error.strerror or str(error))
            return
        if not exchange.left:
            self._selector.modify(connection, selectors.EVENT_READ, exchange)

    def _read(self, exchange: StampedExchange, clock: Callable[[], int]) -> None:
        """Stamp and keep one read of an answer.

        In most reads of a chunked body (``missing`` None) nothing else is done, since time spent here delays the next
        stamp. Of these only a read that is short, or ends like a last chunk, is examined for the end of the answer.
        """
        try:
            part = exchange.socket.recv(_READ)  # type: ignore[union-attr]  # it is open while it is registered
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(exchange, error.strerror or str(error))
            return
        exchange.stamps.append(clock())
        exchange.parts.append(part)
        exchange.received += len(part)
        if exchange.missing is None and part[-4:] != b"\r\n\r\n" and len(part) > _SHORT and not self._is_too_much(exchange):
            return
        self._look_for_the_end(exchange, part)

    def _look_for_the_end(self, exchange: StampedExchange, part: bytes) -> None:
        """Finish the exchange if ``part``, the read that has just come, ends its answer.

        ``missing`` says how far the answer is: below 0 its head has not come whole, None stands for a chunked body, and any other number
        is the bytes of the body that are still to come. An answer of too many bytes or reads is finished too.
        """
        if not part:  # the server has closed the connection; this read brought nothing, so that its stamp is none of an answer
            exchange.stamps.pop()
            exchange.parts.pop()
            self._finish(exchange, "closed")
        elif self._is_too_much(exchange):
            self._finish(exchange, "too much")
        elif exchange.missing is None:
            self._finish_after_last_chunk(exchange)
        elif exchange.missing < 0:
            self._read_head(exchange)
        else:
            exchange.missing -= len(part)
            if exchange.missing <= 0:
                self._finish(exchange, "whole")

    @staticmethod
    def _is_too_much(exchange: StampedExchange) -> bool:
        return exchange.received >= _MOST or len(exchange.stamps) >= _MOST_READS

    def _read_head(self, exchange: StampedExchange) -> None:
        """Set ``exchange.missing`` from the head's statement on the body.

        It is the number of bytes still to come, or None for a chunked body, which marks its own end. Nothing is changed until the whole
        head has come. A head that is too long finishes the exchange, and so does one whose body has come whole with it.
        """
        received = b"".join(exchange.parts)
        bounds = find_head(received)
        if bounds is None:
            if exchange.received > _MOST_HEAD:
                self._finish(exchange, "no end of its head")
            return
        start, end, body_start = bounds
        head = received[start:end]
        answered = _ANSWERED.match(head)  # its group 1 is the status of a refusal; no match: the server failed
        exchange.is_answered, exchange.is_refused = answered is not None, answered is not None and answered[1] is not None
        length, is_bodiless = _LENGTH.search(head), _BODILESS.match(head) is not None
        if _CHUNKED.search(head):
            exchange.missing = None
            self._finish_after_last_chunk(exchange)
        elif length or is_bodiless:  # a status without a body may state a length all the same
            body_bytes = _body_length(length[1]) if length and not is_bodiless else 0
            exchange.missing = body_bytes - (len(received) - body_start)
            if exchange.missing <= 0:
                self._finish(exchange, "whole")
        else:
            # Only the end of the connection ends this body. Bytes are counted from the most, since an answer of so many ends as too much.
            exchange.missing, exchange.ends_with_connection = _MOST, True

    def _finish_after_last_chunk(self, exchange: StampedExchange) -> None:
        """Finish the exchange if its last chunk has come.

        The last chunk of a body, with a size of 0, may be spread over several reads, so that the last reads are joined before the search.
        """
        if _LAST_CHUNK.search(exchange.read_tail()[-_TAIL:]):
            self._finish(exchange, "whole")

    def _expire(self, now_ns: int) -> None:
        for exchange in [overdue for overdue in self._open.values() if overdue.expires_ns <= now_ns]:
            self._finish(exchange, "overdue")

    def _finish(self, exchange: StampedExchange, end: str) -> None:
        """Record how and when an exchange ended; close its connection.

        If the server failed it, no further request is sent.
        """
        exchange.end, exchange.ended_ns = end, time.monotonic_ns()
        if exchange.socket is not None:
            self._selector.unregister(exchange.socket)
            exchange.socket.close()
        del self._open[exchange.number]
        if self._waiting and exchange.has_failed:
            self._waiting.clear()


def delayed_ns() -> int | None:
    """Return this process's total time ready without a core, in nanoseconds.

    Returns None if the system does not report it.

    https://docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat
    """
    try:
        with open("/proc/self/schedstat") as statistics:  # noqa: PTH123 - nothing but what the stamper needs
            return int(statistics.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def main() -> None:
    """Read a job from stdin, do it, write the report to stdout.

    Both begin with a line of JSON; the job's requests, and the report's received bytes, follow it. ``until_s`` is a time of the monotonic
    clock, and ``sizes`` are in bytes. Garbage collection is off meanwhile, so that it delays no stamp.
    """
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    job = json.loads(source.readline())
    exchanges = [StampedExchange(number, source.read(size)) for number, size in enumerate(job["sizes"])]
    deadlines_ns = [int(seconds * 1e9) for seconds in job["deadlines_s"]]
    gc.disable()
    gc.freeze()
    until_ns = sys.maxsize if job["until_s"] is None else int(job["until_s"] * 1e9)
    stamper = Stamper(job["host"], job["port"], job["concurrency"], exchanges, deadlines_ns, until_ns=until_ns)
    began_ns, used_ns, delay_before_ns = time.monotonic_ns(), time.process_time_ns(), delayed_ns()
    stamper.run()
    wall_ns, cpu_ns, delay_after_ns = time.monotonic_ns() - began_ns, time.process_time_ns() - used_ns, delayed_ns()
    exchange_reports = [
        {
            "sent_ns": exchange.sent_ns,
            "ended_ns": exchange.ended_ns,
            "end": exchange.end,
            "stamps_ns": exchange.stamps,
            "sizes": [len(part) for part in exchange.parts],
        }
        for exchange in exchanges
    ]
    run_delay_ns = None if delay_before_ns is None or delay_after_ns is None else delay_after_ns - delay_before_ns
    report = {
        "exchanges": exchange_reports,
        "wall_ns": wall_ns,
        "cpu_ns": cpu_ns,
        "delayed_ns": run_delay_ns,  # this process was ready to run and had no core
        "drains_ns": stamper.drains_ns,  # how long each wake-up took to read what had come
    }
    sink.write(json.dumps(report).encode() + b"\n")
    for exchange in exchanges:
        sink.writelines(exchange.parts)


if __name__ == "__main__":
    main()
