"""A port for a server: a free one, or the one that a config pins."""

from __future__ import annotations

import socket

from pytest_specdec.capture.engines.command import HOST
from pytest_specdec.capture.launch import listeners
from pytest_specdec.errors import EngineError

__all__ = ["free", "pinned"]

_GIVEN: set[int] = set()


def free() -> int:
    """Return a port that is free on the loopback interface, chosen by binding it, and never the same twice: servers boot side by side."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def pinned(port: int) -> int:
    """Return ``port`` if it can be bound. Raises EngineError naming who holds it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            what = f"port {port} is taken"
            raise EngineError(
                what,
                where="engine.args.port",
                found=f"held by {who}" if (who := listeners.holder(port)) else str(error),
                expected=f"a port that can be bound on {HOST}",
                remedy="end that process, or remove `port` from args: then a free port is chosen",
            ) from error
    return port
