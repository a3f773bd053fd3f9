"""Timed requests: the stamper's job, and its report on each exchange and on the client itself.

The stamper is a separate process that sends requests as bytes and stamps each read of their answers: it notes its time by the monotonic
clock. An exchange is one request and the bytes that came back. The client is the stamper, whose own delays must not pass for the server's.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pytest_specdec.capture.sse import ReceivedResponse
from pytest_specdec.capture.timed.stamper import find_head
from pytest_specdec.capture.transport import MAX_BYTES, MAX_PARTS, decompressor, inflate
from pytest_specdec.errors import CaptureError
from pytest_specdec.model.timing import ClientLoad

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PROGRAM: Final = Path(__file__).with_name("stamper.py")
WHOLE, CLOSED, OVERDUE, TOO_MUCH, NOT_SENT = "whole", "closed", "overdue", "too much", "not sent"
"""How an exchange ends."""
_CONNECT_S: Final = 5.0
_GRACE_S: Final = 30.0
"""Seconds beyond the sum of the deadlines, or the time left, after which the stamper must have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """One HTTP/1.1 request as bytes."""

    content: bytes
    deadline_s: float
    """Seconds from its sending to the last byte of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedResponse:
    """The response to one request, stamped on the monotonic clock."""

    sent_s: float
    """When its first byte was written; 0 if it was not."""
    done_s: float
    """When the last byte came, or what ended it."""
    end: str
    """WHOLE, CLOSED by the server, OVERDUE, TOO_MUCH, NOT_SENT as nothing was tried, or how the connection was lost."""
    whole: bool
    """Whether nothing of the body is missing."""
    status: int | None
    """None if no head came."""
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    received: ReceivedResponse
    """The body, its transfer coding removed."""
    malformed: str = ""
    """Why it is no response of HTTP/1.1; empty if it is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSamples:
    """Measurements of the client's own work, by wake-up and read.

    Samples of several runs add up.
    """

    cpu_s: float = 0.0
    """Processor time of the stamping."""
    wall_s: float = 0.0
    drains_s: tuple[float, ...] = ()
    """Seconds that each wake-up took to read what had come."""
    gaps_s: tuple[float, ...] = ()
    """Seconds between two reads of one answer."""
    reads: int = 0
    """Reads without the first and the last of each answer, which bring frames in addition to tokens."""
    coalesced: int = 0
    """Of them, those that brought more than one event."""
    delayed_s: float | None = 0.0
    """Seconds that the stamper was ready to run and had no core; None if the system does not report it."""

    def __add__(self, other: LoadSamples) -> LoadSamples:
        """Return the samples of both runs together.

        ``delayed_s`` is None if either run lacks it.
        """
        return LoadSamples(
            cpu_s=self.cpu_s + other.cpu_s,
            wall_s=self.wall_s + other.wall_s,
            drains_s=self.drains_s + other.drains_s,
            gaps_s=self.gaps_s + other.gaps_s,
            reads=self.reads + other.reads,
            coalesced=self.coalesced + other.coalesced,
            delayed_s=None if self.delayed_s is None or other.delayed_s is None else self.delayed_s + other.delayed_s,
        )

    @property
    def load(self) -> ClientLoad:
        """The samples in figures, by which a slow client shows.

        Of the wall time they are the shares with a core and ready without one (``delayed``, None if not reported); of the reads the share
        with more than one event. A drain is a wake-up's time to read what had come, a gap the time between two reads of an answer.
        """
        drains = sorted(self.drains_s)
        return ClientLoad(
            cpu_share=self.cpu_s / self.wall_s if self.wall_s else 0.0,
            delayed=None if self.delayed_s is None else (self.delayed_s / self.wall_s if self.wall_s else 0.0),
            drain_p99_s=drains[min(len(drains) - 1, int(0.99 * len(drains)))] if drains else 0.0,
            step_gap_s=median(self.gaps_s) if self.gaps_s else 0.0,
            coalesced=self.coalesced / self.reads if self.reads else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """A whole run of the stamper."""

    responses: tuple[StampedResponse, ...]
    """In the order of the requests."""
    samples: LoadSamples


def send(host: str, port: int, requests: Sequence[RawRequest], *, concurrency: int, until_s: float = math.inf) -> Stamped:
    """Send ``requests`` by a separate process and return the responses.

    They are sent in their order to ``host``, ``concurrency`` at a time, and the responses come in the same order. After a failure of the
    server no further request is sent, and at ``until_s``, by the monotonic clock, all end. Measurements of the sending process are returned
    too, since a slow client would make a server look slow. Raises CaptureError, with the end of its error output, if that process fails.
    """
    job = {
        "host": _numeric_address(host, port),
        "port": port,
        "concurrency": concurrency,
        "sizes": [len(request.content) for request in requests],
        "deadlines_s": [request.deadline_s for request in requests],
        "until_s": until_s if math.isfinite(until_s) else None,
    }
    argv = (sys.executable, "-I", "-S", str(_PROGRAM))
    job_bytes = b"".join((json.dumps(job).encode(), b"\n", *(request.content for request in requests)))
    # At most until_s, or all requests one after the other; and half a minute for the rest.
    seconds = min(until_s - time.monotonic(), sum(request.deadline_s for request in requests)) + _GRACE_S
    try:
        process = subprocess.run(argv, input=job_bytes, capture_output=True, check=True, timeout=seconds)  # noqa: S603 - our own program
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last_words = (error.stderr or b"").decode(errors="replace")[-500:].strip()
        raise CaptureError(
            what="the process that stamps timed answers failed",
            where=f"{host}:{port}",
            found=last_words or str(error),
            expected="a report of every request",
            remedy="run again with --specdec-resume; if it fails again, report these lines",
        ) from None
    line, _, content = process.stdout.partition(b"\n")
    return _read_report(json.loads(line), memoryview(content))


def _numeric_address(host: str, port: int) -> str:
    """Return the numeric address of ``host``.

    The stamper resolves no names. Of several addresses the first to accept a connection is returned, and ``host``
    itself if none does.
    """
    with suppress(OSError):
        addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if len(addresses) == 1:
            return addresses[0]
        with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
            return str(connection.getpeername()[0])
    return host


def _read_report(report: dict[str, Any], content: memoryview) -> Stamped:
    """Return the responses and samples in the stamper's report.

    ``content`` holds the bytes of all reads, one after the other. The samples measure the client: gaps between two reads of one answer,
    drains (how long each wake-up took to read what had come), the delay (time ready to run without a core), and reads that were coalesced:
    they brought more than one event.
    """
    responses, gaps, offset, coalesced, reads = [], [], 0, 0, 0
    for exchange in report["exchanges"]:
        stamps, sizes = exchange["stamps_ns"], exchange["sizes"]
        parts = [bytes(content[start:end]) for start, end in pairwise(accumulate(sizes, initial=offset))]
        offset += sum(sizes)
        gaps += [(later_ns - earlier_ns) / 1e9 for earlier_ns, later_ns in pairwise(stamps)]
        inner_parts = parts[1:-1]  # the first and the last read bring a head, usage or the end in addition to tokens
        coalesced += sum(part.count(b"data:") > 1 for part in inner_parts)  # every event begins with ``data:``
        reads += len(inner_parts)
        responses.append(_read_response(exchange, parts))
    samples = LoadSamples(
        cpu_s=report["cpu_ns"] / 1e9,
        wall_s=report["wall_ns"] / 1e9,
        drains_s=tuple(drain / 1e9 for drain in report["drains_ns"]),
        gaps_s=tuple(gaps),
        reads=reads,
        coalesced=coalesced,
        delayed_s=None if report["delayed_ns"] is None else report["delayed_ns"] / 1e9,
    )
    return Stamped(responses=tuple(responses), samples=samples)


def _read_response(exchange: dict[str, Any], parts: Sequence[bytes]) -> StampedResponse:
    """Return an exchange of the report as a response.

    ``parts`` are the bytes of each read. It is empty and marked as malformed if they are no response of HTTP/1.1.
    """
    sent_ns, ended_ns, end = exchange["sent_ns"], exchange["ended_ns"], exchange["end"]
    try:
        return response(sent_ns, ended_ns, end, exchange["stamps_ns"], parts)
    except ValueError as error:
        return replace(response(sent_ns, ended_ns, "", (), ()), end=end, malformed=str(error))


def response(sent_ns: int, ended_ns: int, end: str, stamps_ns: Sequence[int], parts: Sequence[bytes]) -> StampedResponse:
    """Return stamped reads of a connection as a response (RFC 9112).

    ``parts`` are the bytes of each read, ``stamps_ns`` its time, ``end`` how the exchange ended: WHOLE, CLOSED by the server, or how it
    failed. Each piece of the body has the stamp of the read that brought it. Without a head, as of a server that closed at once, the
    response has no status. Raises ValueError if the reads are not a response.
    """
    received = b"".join(parts)
    bounds = find_head(received)
    if bounds is None:
        # Only a deadline or a lost connection explains half a head: the server itself ended this exchange with something else.
        if received and end in {WHOLE, CLOSED}:
            msg = f"no head of a response: {received[:100]!r}"
            raise ValueError(msg)
        no_body = ReceivedResponse(stamps_s=(), parts=())
        return StampedResponse(sent_s=sent_ns / 1e9, done_s=ended_ns / 1e9, end=end, whole=False, status=None, headers=(), received=no_body)
    head_start, head_stop, body_start = bounds  # interim responses (1xx) may come before the head
    status, headers = _parse_head(received[head_start:head_stop])
    fields = dict(headers)
    chunked = "chunked" in fields.get("transfer-encoding", "").lower()
    ends_itself = chunked or "content-length" in fields
    whole = end == WHOLE or (end == CLOSED and not ends_itself)  # a body without a length or chunks ends with its connection
    done_ns = stamps_ns[-1] if end in {WHOLE, CLOSED} else ended_ns  # the last byte's time, or that of the failure
    pieces = _chunk_bounds(received, body_start) if chunked else ((body_start, len(received)),)
    body = _stamp_body(received, pieces, list(accumulate(map(len, parts))), stamps_ns)
    return StampedResponse(
        sent_s=sent_ns / 1e9,
        done_s=done_ns / 1e9,
        end=end,
        whole=whole,
        status=status,
        headers=headers,
        received=_decode_body(body, fields.get("content-encoding", "").lower(), whole=whole),
    )


def _stamp_body(received: bytes, pieces: Iterable[tuple[int, int]], ends: Sequence[int], stamps_ns: Sequence[int]) -> ReceivedResponse:
    """Return a body cut at read boundaries, each part with its stamp.

    ``pieces`` are the bounds of the body's bytes in ``received``, one pair per chunk. ``ends`` has for each read the
    index after its last byte. Raises ValueError if there are more parts than any answer has.
    """
    stamps_s, parts = [], []
    for start, stop in pieces:
        for low, high, read_number in _split_by_read(ends, start, stop):
            stamps_s.append(stamps_ns[read_number] / 1e9)
            parts.append(received[low:high])
        if len(parts) > MAX_PARTS:
            msg = f"a body of more than {MAX_PARTS:,} parts"
            raise ValueError(msg)
    return ReceivedResponse(stamps_s=tuple(stamps_s), parts=tuple(parts))


def _decode_body(body: ReceivedResponse, encoding: str, *, whole: bool) -> ReceivedResponse:
    """Return the body decompressed, each part with its stamp.

    ``encoding`` is its Content-Encoding: some servers compress a body unasked. If it is ``whole``, its compressed data must have an end.
    Raises ValueError if it cannot be decoded, or is larger than any answer.
    """
    if encoding in {"", "identity"}:
        return body
    decoder, stamps_s, decoded_parts, size = decompressor(encoding), [], [], 0
    for at_s, part in zip(body.stamps_s, body.parts, strict=True):
        for decoded in inflate(decoder, part):
            size += len(decoded)
            if size > MAX_BYTES:
                msg = f"a body of more than {MAX_BYTES:,} bytes"
                raise ValueError(msg)
            stamps_s.append(at_s)
            decoded_parts.append(decoded)
    if whole and not decoder.eof:
        msg = f"a truncated {encoding} body"
        raise ValueError(msg)
    return ReceivedResponse(stamps_s=tuple(stamps_s), parts=tuple(decoded_parts))


def _parse_head(head: bytes) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Return the status and header fields of a head.

    Raises ValueError if it does not begin with a status line.
    """
    first, *lines = (line.removesuffix("\r") for line in head.decode("latin-1").split("\n"))
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isdecimal():
        msg = f"no status line of HTTP/1.1: {first[:100]!r}"
        raise ValueError(msg)
    fields = (line.partition(":") for line in lines)
    return int(code), tuple((name.strip().lower(), value.strip()) for name, _, value in fields)


def _chunk_bounds(body: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each chunk's data.

    The first chunk begins at the index ``at``. If the body was cut off, the last chunk ends with it. Raises
    ValueError if the size of a chunk is no hexadecimal number.
    """
    while (end := body.find(b"\r\n", at)) >= 0:
        size = body[at:end].partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            msg = f"no size of a chunk: {size[:40]!r}"
            raise ValueError(msg) from None
        if not length:
            return
        start = end + 2
        yield start, min(start + length, len(body))
        at = start + length + 2


def _split_by_read(ends: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of a range of bytes, one per read.

    The range is from ``start`` to ``stop``; ``ends`` has for each read the index after its last byte. A part is its
    start, its stop, and the number of the read that brought it.
    """
    while start < stop:
        read_number = bisect_right(ends, start)
        high = min(stop, ends[read_number])
        yield start, high, read_number
        start = high
