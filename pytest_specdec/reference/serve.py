"""Serving: from a command line to a listening process, and to its clean end."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Final

from pytest_specdec.errors import EngineError, SpecdecError
from pytest_specdec.reference.settings import parse

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from pytest_specdec.reference.engine import Engine

__all__ = ["main"]

_BROKEN: Final = 1
_WRONG_USAGE: Final = 2
_LIBRARIES: Final = ("httptools", "jinja2", "llguidance", "safetensors", "starlette", "tokenizers", "uvicorn")
_SWITCH_S: Final = 0.0005
_GRACE_S: Final = 1


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes or the engine breaks; return the exit code."""
    began_s = time.monotonic()
    try:
        settings = parse(arguments)
        _refuse_missing()
        from pytest_specdec.reference.engine import Engine  # noqa: PLC0415 - wrong usage is told before numpy is loaded

        engine = Engine(settings)
    except SpecdecError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command talks to its user
        return _WRONG_USAGE
    # With the default of 5 ms a chunk could wait for a whole step of the engine's thread.
    sys.setswitchinterval(_SWITCH_S)
    return _serve(engine, began_s)


def _refuse_missing() -> None:
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineError(
            what="the reference engine is not installed",
            where=sys.executable,
            found=f"no {', '.join(missing)}",
            expected=", ".join(_LIBRARIES),
            remedy='pip install "pytest-specdec[reference]"',
        )


def _serve(engine: Engine, began_s: float) -> int:
    import uvicorn  # noqa: PLC0415 - wrong usage is told before a server is loaded

    from pytest_specdec.reference.server import application  # noqa: PLC0415 - as above

    class Server(uvicorn.Server):
        """Says when it is ready, ends when the engine breaks, and ends what is in flight first."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if engine.failure is not None:
                return
            took_s = time.monotonic() - began_s
            name, host, port = engine.settings.name, engine.settings.host, engine.settings.port
            print(f"ready: {name} on http://{host}:{port} after {took_s:.2f} s", flush=True)  # noqa: T201 - a command talks to its user

        async def on_tick(self, counter: int) -> bool:
            return engine.failure is not None or await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            engine.stop()
            await super().shutdown(sockets)

    # uvicorn raises the signal again when it is done; the default would end the process by it instead of with 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        application(engine),
        host=engine.settings.host,
        port=engine.settings.port,
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    Server(config).run()
    if engine.failure is None:
        return 0
    traceback.print_exception(engine.failure)
    return _BROKEN
