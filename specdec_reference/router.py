"""A router in front of reference servers: each request goes to the next of them, and its answer comes back as it is."""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from specdec_reference.faults.catalogue import FAULTS, planted_in
from specdec_reference.faults.planted import Place
from specdec_reference.wrappers import wrap_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.workload import JSON

_END: Final = b"\r\n\r\n"
_EVENT: Final = b"data: "
_DONE: Final = b"[DONE]"
_UNREACHED: Final = b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 25\r\n\r\nthe rank does not answer\n"


class Router:
    """Passes requests on to its ranks, the servers behind it, in turn, one connection for each.

    Its methods ``request``, ``reply`` and ``event`` change nothing: faults are planted by wrapping them.
    """

    def __init__(self, ranks: Sequence[str]) -> None:
        """Take the addresses of the ranks."""
        self._ranks = cycle([(url.hostname or "127.0.0.1", url.port or 80) for url in map(urlsplit, ranks)])

    def request(self, body: JSON) -> JSON:
        """Return the body of a request as a rank gets it."""
        return body

    def reply(self, body: JSON) -> JSON:
        """Return the body of an answer as the client gets it."""
        return body

    def event(self, number: int, body: JSON) -> JSON:
        """Return one event of a stream as the client gets it; ``number`` counts from 0."""
        del number
        return body

    async def serve(self, host: str, port: int) -> None:
        """Serve until the process is ended."""
        server = await asyncio.start_server(self._answer, host, port)
        async with server:
            await server.serve_forever()

    async def _answer(self, client: asyncio.StreamReader, reply: asyncio.StreamWriter) -> None:
        """Answer one request from the next rank and close the connection.

        ``client`` is read and ``reply`` is written. The answer is a 502 if the rank cannot be reached.
        """
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head, body = await _read_message(client)
            try:
                from_rank, to_rank = await asyncio.open_connection(*next(self._ranks))
            except OSError:
                reply.write(_UNREACHED)
                await reply.drain()
            else:
                try:
                    to_rank.write(_format_message(head, _change(body, self.request)))
                    await to_rank.drain()
                    await self._pass_on(from_rank, reply)
                finally:
                    to_rank.close()
        reply.close()

    async def _pass_on(self, rank: asyncio.StreamReader, reply: asyncio.StreamWriter) -> None:
        """Pass an answer on, a stream by HTTP's chunks, each of whole events."""
        head = await rank.readuntil(_END)
        if b"transfer-encoding: chunked" not in head.lower():
            reply.write(_format_message(head, _change(await rank.readexactly(_length(head)), self.reply)))
            await reply.drain()
            return
        reply.write(head)
        # A chunk is its length in hexadecimal, a line end, its data and a line end; the last one has length 0.
        number = 0
        while size := int((await rank.readuntil(b"\r\n")).strip(), 16):
            piece = await rank.readexactly(size)
            await rank.readexactly(2)
            events = []
            for event in piece.split(b"\n\n")[:-1]:
                events.append(self._pass_event(number, event))
                number += 1
            changed = b"".join(events)
            reply.write(f"{len(changed):x}\r\n".encode() + changed + b"\r\n" if changed else b"")
            await reply.drain()
        reply.write(b"0\r\n\r\n")
        await reply.drain()

    def _pass_event(self, number: int, event: bytes) -> bytes:
        name, prefix, data = event.partition(_EVENT)  # events of the Responses API begin with a line of their type
        if data != _DONE:
            data = _change(data, lambda body: self.event(number, body))
        return name + prefix + data + b"\n\n"


async def _read_message(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the head and the body of a request."""
    head = await stream.readuntil(_END)
    return head, await stream.readexactly(_length(head))


def _length(head: bytes) -> int:
    """Return the length of a body; 0 without one."""
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in fields if name == b"content-length"), 0)


def _format_message(head: bytes, body: bytes) -> bytes:
    """Return a message with the length of its body, on a connection of its own."""
    first, *fields = head.removesuffix(_END).split(b"\r\n")
    others = [field for field in fields if field.lower().partition(b":")[0] not in {b"content-length", b"connection"}]
    return b"\r\n".join([first, *others, f"content-length: {len(body)}".encode(), b"connection: close"]) + _END + body


def _change(body: bytes, change: object) -> bytes:
    """Return a body after ``change`` has been applied to its JSON.

    A body that is no JSON, or whose JSON stays equal, is returned byte for byte.
    """
    try:
        before = json.loads(body)
    except ValueError:
        return body
    # Parsed a second time, since ``change`` may alter in place what it is given.
    after = change(json.loads(body))  # type: ignore[operator]
    return body if after == before else json.dumps(after).encode()


def main(arguments: Sequence[str] | None = None) -> None:
    """Route until the process is ended; options of servers among ``arguments`` are passed over."""
    parser = argparse.ArgumentParser(prog="python -m specdec_reference.router", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--to", action="append", required=True, metavar="URL", help="a rank; once for each")
    parser.add_argument("--fault", default="", choices=["", *planted_in(Place.STACK)], help="be wrong on purpose")
    options, _ = parser.parse_known_args(arguments)
    router = Router(options.to)
    wrap_object(FAULTS[options.fault].wrappers if options.fault else {}, "router", router)
    with suppress(KeyboardInterrupt):
        asyncio.run(router.serve(options.host, options.port))


if __name__ == "__main__":
    main()
