"""Deaths of processes in words: their titles, the signal that ended them, the first exception in a log."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

_LOGGED = r"^(?:\([^)]*\) )?(?:(?:ERROR|CRITICAL|FATAL)\b.*?\] )?"
"""What engines write before a line: the process in brackets, then level, time and place."""
_RAISED = re.compile(_LOGGED + r"(?P<what>(?:\w+\.)*(?:Exception|[A-Z]\w*(?:Error|Exception|Interrupt))(?:: .*)?)$")
_ABORTED = re.compile(_LOGGED + r"(?P<what>(?:Segmentation fault|terminate called after|GGML_ASSERT|CUDA error).*)$")
_FRAME = re.compile(r'File "(?:[^"]*/)?(?P<file>[^"/]+)", line (?P<line>\d+), in (?P<function>\S+)')


def cause(log: str) -> str:
    """Return the first exception or abort message in a log.

    An exception counts only after a traceback, whose last frame is added: ``ValueError: text (model.py:12, in
    load)``. An abort is a line such as ``Segmentation fault``. Returns an empty string without either.
    """
    frame = ""
    for line in log.splitlines():
        if match := _FRAME.search(line):
            frame = f"{match['file']}:{match['line']}, in {match['function']}"
        elif match := _ABORTED.match(line):
            return match["what"]
        elif frame and (match := _RAISED.match(line)):
            return f"{match['what']} ({frame})"
    return ""


_MAX_TITLE = 60


def process_titles(living: Iterable[int]) -> dict[int, str]:
    """Return the titles of the ``living`` processes by process number.

    A title is the beginning of a process's command line. Processes without one are left out.
    """
    return {pid: title for pid in living if (title := _process_title(pid))}


def describe_dead(titles: Mapping[int, str], living: Container[int]) -> dict[int, str]:
    """Return a description of each process in ``titles`` now dead.

    ``titles`` has those of the processes that ran before. Titles and descriptions are by process number; ``living`` are the numbers of the
    processes that still run.
    """
    return {pid: f"{title} (process {pid}) {_describe_end(pid)}" for pid, title in titles.items() if pid not in living}


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``.

    Most real-time signals have none: their number is returned.
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _describe_end(pid: int) -> str:
    """Return how a process ended: by a signal, or just gone.

    The signal comes from the exit code, the last field of proc_pid_stat(5), which is there only until the parent has
    waited for the process.
    """
    try:
        code = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[-1])
    except (OSError, IndexError):
        return "is gone"
    return f"was killed by {signal_name(os.WTERMSIG(code))}" if os.WIFSIGNALED(code) else "is gone"


def _process_title(pid: int) -> str:
    """Return the beginning of a process's command line; empty without one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return ""
    return " ".join(words)[:_MAX_TITLE]
