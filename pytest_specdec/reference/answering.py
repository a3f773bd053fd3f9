"""Answering: from an engine's deltas to an HTTP answer, whole or streamed with one chunk a step."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse, Response

from pytest_specdec.reference.replies import error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.reference.engine import Engine
    from pytest_specdec.reference.replies import Reply
    from pytest_specdec.reference.sequence import Delta

__all__ = ["Stream", "whole"]

_GIVEN_UP: Final = "the engine gave this request up"
_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


async def whole(reply: Reply, engine: Engine, receive: Receive) -> Response:
    """Return the answer once every sequence has ended; a client that hangs up ends them."""
    ended: asyncio.Queue[Delta] = asyncio.Queue()

    def tell(delta: Delta) -> None:
        if delta.finish_reason is not None:
            ended.put_nowait(delta)

    sequences = engine.sequences(reply.request, tell)
    watch = asyncio.create_task(_watch(receive, ended, sequences[0].give_up()))
    engine.submit(sequences)
    try:
        last = [await ended.get() for _ in sequences]
        if any(delta.finish_reason == "abort" for delta in last):
            engine.drop(sequences)
            return JSONResponse(error(500, _GIVEN_UP), status_code=500)
        return JSONResponse(reply.whole(sequences))
    finally:
        watch.cancel()


class Stream(Response):
    """Server-sent events: one chunk a step and sequence, sent as the step ends."""

    def __init__(self, reply: Reply, engine: Engine) -> None:
        super().__init__()
        self._reply = reply
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Send the whole stream."""
        deltas: asyncio.Queue[Delta] = asyncio.Queue()
        sequences = self._engine.sequences(self._reply.request, deltas.put_nowait)
        watch = asyncio.create_task(_watch(receive, deltas, sequences[0].give_up()))
        self._engine.submit(sequences)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            for sequence in sequences:
                await _event(send, self._reply.opening(sequence))
            if not await self._chunks(send, deltas, len(sequences)):
                self._engine.drop(sequences)
                await _event(send, error(500, _GIVEN_UP))
            elif self._reply.request.include_usage:
                await _event(send, self._reply.closing(sequences))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        finally:
            watch.cancel()

    async def _chunks(self, send: Send, deltas: asyncio.Queue[Delta], running: int) -> bool:
        """Send chunks until every sequence has ended; return whether none was given up."""
        while running:
            delta = await deltas.get()
            if delta.finish_reason == "abort":
                return False
            await _event(send, self._reply.chunk(delta))
            running -= delta.finish_reason is not None
        return True


async def _event(send: Send, body: dict[str, JSON] | None) -> None:
    if body is not None:
        data = b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _watch(receive: Receive, deltas: asyncio.Queue[Delta], give_up: Delta) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    deltas.put_nowait(give_up)
