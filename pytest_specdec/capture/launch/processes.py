"""Processes: what a server consists of, by the titles that its processes give themselves, so that an error can name the one that died."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pytest_specdec.capture.launch import watchdog

__all__ = ["gone", "titles"]

_LONGEST = 60


def titles(session: int, marker: str) -> dict[int, str]:
    """Return the living processes of a server, each with its title or, where it has none, the beginning of its command line."""
    return {pid: title for pid in watchdog.members(session, marker) if (title := _title(pid))}


def gone(known: dict[int, str], session: int, marker: str) -> dict[int, str]:
    """Return those of ``known`` that do not live any more, each in words with its end, as far as nobody has collected it yet."""
    living = set(watchdog.members(session, marker))
    return {pid: f"{title} (process {pid}) {_end(pid)}" for pid, title in known.items() if pid not in living}


def _end(pid: int) -> str:
    """Read the exit code of a process that its parent has not waited for: the last field of proc_pid_stat(5)."""
    try:
        code = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[-1])
    except (OSError, IndexError):
        return "is gone"
    return f"was killed by {signal.Signals(os.WTERMSIG(code)).name}" if os.WIFSIGNALED(code) else "is gone"


def _title(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return ""
    return " ".join(words)[:_LONGEST]
