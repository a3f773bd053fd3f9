"""Routes that pause a server, put it to sleep, load its weights again, or save and restore its cache, as vLLM and llama.cpp have them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from specdec_reference.openai_response import error

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request as Incoming

    from specdec_reference.engine import ReferenceEngine

_LEVELS = ("1", "2")
_MODES = ("abort", "keep")


def event_routes(engine: ReferenceEngine) -> list[Path]:
    """Return the routes of one engine's events."""
    served = _Events(engine)
    posts = {
        "/sleep": served.sleep,
        "/wake_up": served.wake_up,
        "/pause": served.pause,
        "/resume": served.resume,
        "/reset_prefix_cache": served.reset_prefix_cache,
        "/collective_rpc": served.collective_rpc,
        "/slots/{slot:int}": served.slot,
    }
    return [
        *(Path(path, handler, methods=["POST"]) for path, handler in posts.items()),
        Path("/is_sleeping", served.is_sleeping),
        Path("/is_paused", served.is_paused),
    ]


class _Events:
    """The handlers of one engine's events; each waits until the engine's thread has done it."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine

    async def sleep(self, incoming: Incoming) -> Response:
        """Put the server to sleep; requests wait until it is awake."""
        level, mode = incoming.query_params.get("level", "1"), incoming.query_params.get("mode", "abort")
        if level not in _LEVELS or mode not in _MODES:
            return _refuse(f"level must be one of {', '.join(_LEVELS)}, mode one of {', '.join(_MODES)}")
        await self._do(lambda: self._engine.sleep(int(level), mode))
        return JSONResponse({"status": "sleeping", "level": int(level)})

    async def wake_up(self, incoming: Incoming) -> Response:
        """Wake the server, or the parts of it that are named."""
        tags = incoming.query_params.getlist("tags")
        await self._do(lambda: self._engine.wake_up(tags))
        return JSONResponse({"status": "sleeping" if self._engine.memory.asleep else "awake", "tags": tags or None})

    async def is_sleeping(self, _incoming: Incoming) -> Response:
        """Say whether any part of the server is asleep."""
        return JSONResponse({"is_sleeping": self._engine.memory.asleep})

    async def pause(self, incoming: Incoming) -> Response:
        """Answer nothing from now on; requests wait."""
        mode = incoming.query_params.get("mode", "abort")
        if mode not in _MODES:
            return _refuse(f"mode must be one of {', '.join(_MODES)}")
        await self._do(lambda: self._engine.pause(mode))
        return JSONResponse({"status": "paused"})

    async def resume(self, _incoming: Incoming) -> Response:
        """Go on answering."""
        await self._do(self._engine.resume)
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, _incoming: Incoming) -> Response:
        """Say whether requests wait."""
        return JSONResponse({"is_paused": self._engine.paused})

    async def reset_prefix_cache(self, _incoming: Incoming) -> Response:
        """Drop every block of the prefix cache."""
        await self._do(self._engine.memory.empty_prefixes)
        return JSONResponse({"success": True})

    async def collective_rpc(self, incoming: Incoming) -> Response:
        """Load the weights again, the one method that is served."""
        method = await _read_field(incoming, "method")
        if method != "reload_weights":
            return _refuse(f"no method {method!r}: reload_weights is served")
        await self._do(self._engine.memory.reload_weights)
        return JSONResponse({"results": [None]})

    async def slot(self, incoming: Incoming) -> Response:
        """Save, erase or restore the prefix cache, as llama.cpp does a slot.

        Sequences share one cache here, so that slot 0 is all of it.
        """
        slot, action, memory = incoming.path_params["slot"], incoming.query_params.get("action", ""), self._engine.memory
        name = await _read_field(incoming, "filename")
        if slot:
            return _refuse("invalid slot ID: there is slot 0")
        if action == "erase":
            await self._do(memory.empty_prefixes)
            return JSONResponse({"id_slot": slot})
        if action not in {"save", "restore"} or not name:
            return _refuse("action must be save, restore or erase, the first two with a filename")
        try:
            blocks = await self._do(lambda: memory.save_slot(name) if action == "save" else memory.restore_slot(name))
        except KeyError:
            return _refuse(f"unable to restore slot, no file {name}")
        return JSONResponse({"id_slot": slot, "filename": name, f"n_{action}d": blocks})

    async def _do(self, order: Callable[[], object]) -> object:
        """Wait until the engine's thread has followed an order between two steps."""
        return await asyncio.wrap_future(self._engine.follow(order))


async def _read_field(incoming: Incoming, name: str) -> str:
    """Return a text of the request's JSON body; empty without one."""
    try:
        body = json.loads(await incoming.body() or b"{}")
    except ValueError:
        return ""
    value = body.get(name) if isinstance(body, dict) else None
    return value if isinstance(value, str) else ""


def _refuse(message: str) -> Response:
    return JSONResponse(error(400, message, None), status_code=400)
