"""A port for a server: a free one, or the one that a config pins."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from pytest_specdec.errors import EngineError

__all__ = ["HOST", "free", "pinned"]

HOST = "127.0.0.1"
_LISTEN = "0A"
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
                found=_holder(port) or str(error),
                expected=f"a port that can be bound on {HOST}",
                remedy="end that process, or remove `port` from args: then a free port is chosen",
            ) from error
    return port


def _holder(port: int) -> str:
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(port, table)}
    for process in Path("/proc").glob("[0-9]*"):
        if inodes & _open_files(process):
            return f"held by process {process.name}: {_command(process)}"
    return ""


def _listening(port: int, table: str) -> set[str]:
    rows = (line.split() for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:])
    return {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}


def _open_files(process: Path) -> set[str]:
    found = set()
    with suppress(OSError):  # another user's process, or one that has just ended
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "unknown"
