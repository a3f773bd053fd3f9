"""The server: OpenAI's routes over an engine, in vLLM's dialect."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as Path

from pytest_specdec.model.workload import Route
from specdec_reference import openai_request, responses_request
from specdec_reference.openai_response import Stream, error, whole
from specdec_reference.request_fields import Refusal
from specdec_reference.server_events import event_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request as Incoming

    from pytest_specdec.model.workload import JSON
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.sequence import Delta

VERSION = metadata.version("pytest-specdec")
"""Of this package, which comes in the same wheel."""


def application(engine: ReferenceEngine) -> Starlette:
    """Return the ASGI application; its lifespan starts and stops the engine."""
    served = _Served(engine)
    return Starlette(
        routes=[
            Path("/health", served.health),
            Path("/version", served.version),
            Path("/v1/models", served.models),
            Path("/metrics", served.metrics),
            Path("/tokenize", served.tokenize, methods=["POST"]),
            Path("/v1/completions", served.completions, methods=["POST"]),
            Path("/v1/chat/completions", served.chat, methods=["POST"]),
            Path("/v1/responses", served.responses, methods=["POST"]),
            *event_routes(engine),
        ],
        lifespan=served.lifespan,
    )


class _Served:
    """The routes of one engine."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Run the engine while the server is up.

        The deltas of each step cross over to the event loop in one call.
        """
        loop = asyncio.get_running_loop()
        self._engine.start(lambda deltas: _hand_to_event_loop(loop, deltas))
        yield
        await asyncio.to_thread(self._engine.stop)

    async def health(self, _request: Incoming) -> Response:
        """Return 200 while requests are answered, 503 after a failure."""
        return Response(status_code=200 if self._engine.failure is None else 503)

    async def version(self, _request: Incoming) -> Response:
        """Return the version of this package."""
        return JSONResponse({"version": VERSION})

    async def models(self, _request: Incoming) -> Response:
        """List the model and its adapters."""
        card = {"id": self._engine.limits.model, "object": "model", "owned_by": "pytest-specdec", "root": self._engine.settings.model}
        adapted = [card | {"id": name, "parent": card["id"]} for name in self._engine.limits.adapters]
        return JSONResponse({"object": "list", "data": [card | {"max_model_len": self._engine.limits.max_model_len}, *adapted]})

    async def metrics(self, _request: Incoming) -> Response:
        """Return the counters."""
        text = self._engine.counters.prometheus(self._engine.limits.model)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def tokenize(self, incoming: Incoming) -> Response:
        """Return the ids of a prompt."""
        try:
            ids = openai_request.prompt_of(_parse_body(await incoming.body()), self._engine.tokenizer, self._engine.limits)
        except Refusal as refusal:
            return _error_response(refusal.status, refusal.message, refusal.param)
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": self._engine.limits.max_model_len})

    async def completions(self, incoming: Incoming) -> Response:
        """Continue a prompt."""
        return await self._answer(Route.COMPLETIONS, incoming)

    async def chat(self, incoming: Incoming) -> Response:
        """Answer a conversation."""
        return await self._answer(Route.CHAT, incoming)

    async def responses(self, incoming: Incoming) -> Response:
        """Answer a request of the Responses API."""
        engine = self._engine
        try:
            body = _parse_body(await incoming.body())
            request = engine.parse(Route.CHAT, responses_request.chat_body(body))
        except Refusal as refusal:
            return _error_response(refusal.status, refusal.message, refusal.param)
        if engine.failure is not None:
            return _error_response(500, "the engine is dead")
        reply = engine.reply(engine.response(Route.CHAT, request), body if isinstance(body, dict) else {})
        return Stream(reply, engine) if request.stream else await whole(reply, engine, incoming.receive)

    async def _answer(self, route: Route, incoming: Incoming) -> Response:
        """Answer a request of a completions or chat route."""
        engine = self._engine
        try:
            body = _parse_body(await incoming.body())
            request = engine.parse(route, body)
        except Refusal as refusal:
            return _error_response(refusal.status, refusal.message, refusal.param)
        if engine.failure is not None:
            return _error_response(500, "the engine is dead")
        reply = engine.response(route, request)
        return Stream(reply, engine) if request.stream else await whole(reply, engine, incoming.receive)


def _parse_body(raw: bytes) -> JSON:
    """Return the JSON of a body; raises Refusal."""
    try:
        parsed: JSON = json.loads(raw)
    except ValueError as problem:
        raise Refusal(message=f"the body is no JSON: {problem}") from problem
    return parsed


def _error_response(status: int, message: str, param: str | None = None) -> Response:
    return JSONResponse(error(status, message, param), status_code=status)


def _hand_to_event_loop(loop: asyncio.AbstractEventLoop, deltas: list[Delta]) -> None:
    """Hand a step's deltas to the event loop's thread."""
    # The loop is closed when a last step ends after the server did.
    if deltas and not loop.is_closed():
        loop.call_soon_threadsafe(_tell_sequences, deltas)


def _tell_sequences(deltas: list[Delta]) -> None:
    for delta in deltas:
        delta.sequence.tell(delta)
