"""Orphans: servers of a capture that was killed together with their watchdogs, found by the notes it left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture.launch import watchdog

if TYPE_CHECKING:
    from pytest_specdec.capture.launch.process import Server

__all__ = ["note", "sweep"]


def note(path: Path, server: Server) -> None:
    """Write down which server this process started, so that a later run can end it."""
    owner = os.getpid()
    text = json.dumps(
        {
            "pid": server.pid,
            "started": started(server.pid),
            "marker": server.marker,
            "owner": owner,
            "owner_started": started(owner),
            "command": str(server.command),
        }
    )
    path.write_text(text + "\n", encoding="utf-8")


def sweep(root: Path) -> tuple[int, ...]:
    """End the servers noted in run directories under ``root`` whose owners are gone; return the processes that were ended.

    A process is known by its start time or by the marker in its environment, never by its name.
    """
    ended: list[int] = []
    for path in sorted(root.glob("*/servers/*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            ended += _end(found)
        except (OSError, ValueError, KeyError):
            continue  # a note that was being written when its writer was killed
    return tuple(ended)


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine booted; None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19])


def _end(found: dict[str, int | str]) -> list[int]:
    owner, pid = int(found["owner"]), int(found["pid"])
    if started(owner) is not None and started(owner) == found["owner_started"]:
        return []
    # Another session may bear the number by now; the marker is unique in any case.
    session = pid if started(pid) == found["started"] else -1
    alive = watchdog.members(session, str(found["marker"]))
    watchdog.send(signal.SIGKILL, session, str(found["marker"]))
    return alive
