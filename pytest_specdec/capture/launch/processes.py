"""Processes: what a server consists of, by the titles that its processes give themselves, so that an error can name the one that died."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

__all__ = ["gone", "signal_name", "titles"]

_LONGEST = 60


def titles(living: Iterable[int]) -> dict[int, str]:
    """Return the ``living`` processes of a server, each with its title or, where it has none, the beginning of its command line."""
    return {pid: title for pid in living if (title := _title(pid))}


def gone(known: Mapping[int, str], living: Container[int]) -> dict[int, str]:
    """Return those of ``known`` that are not ``living`` any more, each in words with its end, as far as nobody has collected it yet."""
    return {pid: f"{title} (process {pid}) {_end(pid)}" for pid, title in known.items() if pid not in living}


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` and its like; a real-time signal, of which most have no name, is a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(pid: int) -> str:
    """Read the exit code of a process that its parent has not waited for: the last field of proc_pid_stat(5)."""
    try:
        code = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[-1])
    except (OSError, IndexError):
        return "is gone"
    return f"was killed by {signal_name(os.WTERMSIG(code))}" if os.WIFSIGNALED(code) else "is gone"


def _title(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return ""
    return " ".join(words)[:_LONGEST]
