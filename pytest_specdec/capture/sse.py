"""Server-sent events: a streamed response read as bytes with time stamps, and the events and timing worked out from these afterwards.

Everything but the stamps is worked out after the last byte. Parsing while receiving would cost more per chunk than many servers take per
step, and slow the arm with the smaller chunks (measured: a true 1.81x read as 2.07x). Only the public ``iter_bytes`` of the openai
package is used.

The first burst of a stream is what was there to be read when the client read its first token. Where cores are scarce, the server's own
processes keep the client from reading. What the client finds then came earlier than its stamp, the first token most of all: a real server
of 260 tokens a second was once measured at 2,382.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NoReturn

from pytest_specdec.capture import responses
from pytest_specdec.capture.transport import HTTPX
from pytest_specdec.engines import json_reply
from pytest_specdec.model.timing import WAITED_S, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.model.transcript import Usage
    from pytest_specdec.model.workload import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Chunks that were read in one go."""

    at_s: float
    """When the first of them was read."""
    token_ids: int
    """Number of token ids in the chunks; 0 if the server reports none."""
    text_fraction: float
    """The chunks' fraction of the characters of the whole answer, 0..1."""

    def tokens(self, usage: Usage | None) -> int | None:
        """Return the number of tokens in the burst, at least 1.

        ``usage`` has the server's token counts for the whole answer. If the chunks have no token ids to count, the number is estimated as
        the burst's share of the answer's text. Returns None without ids and usage.
        """
        if self.token_ids:
            return self.token_ids  # their number
        return max(1, round(self.text_fraction * usage.completion_tokens)) if usage else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One chunk that brings text, reasoning or tokens."""

    at_s: float
    """When its last byte came, on the monotonic clock."""
    size: responses.ChunkSize


def arrivals(
    stamped: Sequence[tuple[float, Mapping[str, JSON]]], measure: Callable[[Mapping[str, JSON]], responses.ChunkSize] = responses.size
) -> tuple[Arrival, ...]:
    """Return the chunks of a stream with content, in order.

    Content is tokens or characters, those of the reasoning included. ``stamped`` are the stream's chunks with their times, and ``measure``
    returns the size of one.
    """
    sizes = ((at_s, measure(chunk)) for at_s, chunk in stamped)
    return tuple(Arrival(at_s=at_s, size=size) for at_s, size in sizes if size.token_ids or size.characters)


def timing(sized: Sequence[Arrival], usage: Usage | None, *, sent_s: float, done_s: float) -> Timing:
    """Return the timing of an answer from its stamped chunks.

    ``sized`` are the chunks with content, empty for an answer that was not streamed: then only the times of sending and end are known.
    """
    burst = first_burst(sized)
    if burst is None:
        return Timing(sent_s=sent_s, first_s=None, done_s=done_s)
    arrivals_us = [round((arrival.at_s - burst.at_s) * 1e6) for arrival in sized]
    return Timing(
        sent_s=sent_s,
        first_s=burst.at_s,
        done_s=done_s,
        first_tokens=burst.tokens(usage),
        content_s=next((arrival.at_s for arrival in sized if arrival.size.content), None),
        last_s=sized[-1].at_s,
        gaps_us=tuple(later_us - earlier_us for earlier_us, later_us in pairwise(arrivals_us)),
    )


def first_burst(sized: Sequence[Arrival]) -> Burst | None:
    """Return the first burst of a stream's chunks, None without chunks.

    The burst is what had arrived when the client read the first chunk. It ends at the first gap so long that the client must have waited
    for the next chunk. Its tokens are their number of ids, or are estimated later from its share of the answer's characters.
    """
    if not sized:
        return None
    burst_ends = (i for i in range(1, len(sized)) if sized[i].at_s - sized[i - 1].at_s > WAITED_S)
    burst = [arrival.size for arrival in sized[: next(burst_ends, len(sized))]]
    all_characters = sum(arrival.size.characters for arrival in sized)
    return Burst(
        at_s=sized[0].at_s,
        token_ids=sum(size.token_ids for size in burst),
        text_fraction=sum(size.characters for size in burst) / all_characters if all_characters else 1.0,
    )


_END = rb"(?:\r\n|\n|\r(?!\n))"
"""A line ends in one of three ways (https://html.spec.whatwg.org/multipage/server-sent-events.html), in a mixture too."""
_BLANK = re.compile(_END + _END)
_MAX_EVENTS = 2**19
"""Several times what the longest answers take; some hundred bytes of memory each, however short they are."""
_ORDER_MARK = b"\xef\xbb\xbf"
DONE = "[DONE]"
"""The data of the last event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event."""

    at_s: float
    """When its last byte came, on the monotonic clock."""
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedResponse:
    """The parts of a response as they came."""

    stamps_s: tuple[float, ...]
    """When each part came, on the monotonic clock."""
    parts: tuple[bytes, ...]
    left: bool = False
    """Whether the client left before the end."""
    broken: str = ""
    """How the connection broke before the end; empty if it did not."""

    @property
    def body(self) -> bytes:
        """All bytes."""
        return b"".join(self.parts)

    def json(self) -> Mapping[str, JSON]:
        """Return the whole body as one JSON object.

        Raises ValueError if it is not one.
        """
        return parse_object(self.body)

    def events(self) -> tuple[Event, ...]:
        """Return the response's events, each stamped with its last byte's arrival.

        Comments are left out. Raises ValueError if there are more events than any answer has, their text is not UTF-8, or the body is a
        web page.
        """
        if page := web_page(self.body):
            msg = f"expected server-sent events, found {page}"
            raise ValueError(msg)
        body, part_ends = self.body, list(accumulate(map(len, self.parts)))
        events, start = [], 0
        for blank in _BLANK.finditer(body):
            if data := _event_data(body[start : blank.start()]):
                # The index is that of the part with the event's last byte.
                events.append(Event(at_s=self.stamps_s[bisect_right(part_ends, blank.start() - 1)], data=data))
            start = blank.end()
            if len(events) > _MAX_EVENTS:
                msg = f"more than {_MAX_EVENTS:,} events"
                raise ValueError(msg)
        if not self.broken and (data := _event_data(body[start:])):  # else an event that was cut off
            events.append(Event(at_s=self.stamps_s[-1], data=data))
        return tuple(events)


def read(parts: Iterable[bytes], *, max_events: int | None = None, broken_by: tuple[type[Exception], ...] = ()) -> ReceivedResponse:
    """Return all ``parts`` of a response, each stamped on its arrival.

    With ``max_events``, reading ends after so many events, and the response is marked as left by the client, unless ``[DONE]`` has come
    by then. An error of ``broken_by`` after the first part ends reading too, and the response is marked as broken; a timeout is raised.
    """
    stamps: list[float] = []
    received: list[bytes] = []
    counter = _EventCounter()
    clock = time.monotonic
    try:
        for part in parts:
            stamps.append(clock())
            received.append(part)
            if max_events is not None and counter.count(part) >= max_events and not counter.is_done:
                return ReceivedResponse(stamps_s=tuple(stamps), parts=tuple(received), left=True)
    except broken_by as error:
        if not received or isinstance(error, HTTPX.TimeoutException):
            raise
        return ReceivedResponse(stamps_s=tuple(stamps), parts=tuple(received), broken=str(error) or repr(error))
    return ReceivedResponse(stamps_s=tuple(stamps), parts=tuple(received))


class _EventCounter:
    """Counts the events of a stream, searching each byte once.

    A search of the whole text for every part would outlast any deadline.
    """

    def __init__(self) -> None:
        self.is_done = False
        """Whether the last event has come."""
        self._events = 0
        self._rest = b""

    def count(self, part: bytes) -> int:
        """Return how many events have ended, the next part included.

        The last bytes are searched again with the next part, since parts may divide the end of an event or ``[DONE]``.
        """
        text = self._rest + part
        self.is_done = self.is_done or DONE.encode() in text
        start = 0
        for blank in _BLANK.finditer(text, 0, len(text) - text.endswith(b"\r")):  # a line feed may follow in the next part
            self._events += 1
            start = blank.end()
        self._rest = text[max(start, len(text) - len(DONE)) :]
        return self._events


def objects(events: Iterable[Event]) -> Iterator[tuple[float, Mapping[str, JSON]]]:
    """Yield each event's stamp and JSON object, except the closing ``[DONE]``.

    Raises ValueError if an event's data is not a JSON object.
    """
    for event in events:
        if event.data != DONE:
            yield event.at_s, parse_object(event.data)


def expect_no_text_after_the_end(events: Sequence[Event]) -> None:
    """Raise ValueError if part of the answer follows its end.

    The end is ``[DONE]``, which has to be among ``events``. A client may stop reading there and would miss that part.
    """
    done = next(number for number, event in enumerate(events) if event.data == DONE)
    if any(chunk.get("choices") for _, chunk in objects(events[done:])):
        msg = f"choices after {DONE}"
        raise ValueError(msg)


def _event_data(block: bytes) -> str:
    """Return the data of one event; empty for a comment."""
    lines = block.removeprefix(_ORDER_MARK).splitlines()
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:")).decode()


def parse_object(text: str | bytes) -> Mapping[str, JSON]:
    """Return the JSON object in the text of a server's reply.

    Raises ValueError if it is not one, or has NaN or an infinity in it, which JSON lacks.
    """
    if page := web_page(text):
        msg = f"expected a JSON object, found {page}"
        raise ValueError(msg)
    data = json_reply.load(text, parse_constant=_reject_constant)
    if not isinstance(data, dict):
        msg = f"expected a JSON object, found {str(text)[:100]!r}"
        raise ValueError(msg)  # noqa: TRY004 - malformed content, not a wrong argument
    return data


_PAGE = re.compile(r"\ufeff?\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_TITLE = re.compile(r"<(title|h1)\b[^>]*>\s*([^<]*[^<\s])", re.IGNORECASE)
_PAGE_HEAD, _MAX_TITLE = 8192, 80


def web_page(text: str | bytes) -> str:
    """Return a description of a web page, such as its title.

    Proxies and wrong addresses answer with such pages. Returns an empty string for any other text.
    """
    beginning = text[:_PAGE_HEAD]
    page = beginning.decode(errors="replace") if isinstance(beginning, bytes) else beginning
    if not _PAGE.match(page):
        return ""
    title = _TITLE.search(page)
    return f"a web page titled {title[2][:_MAX_TITLE]!r}" if title else "a web page (HTML)"


def _reject_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN or an infinity."""
    msg = f"{name} is no JSON"
    raise ValueError(msg)
