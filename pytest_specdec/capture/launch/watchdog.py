"""The watchdog: ends a server's processes when the process that started the server is gone, however it went.

Run by path (``python -I -S watchdog.py FD MARKER [COMMAND ...]``) it imports nothing but what the interpreter has loaded anyway. It reads
the pipe ``FD`` of which only the starter holds the other end: ``done`` means that the server was stopped in order, a bare end of file that
the starter died.
"""

from __future__ import annotations

import os
import signal
import sys
import time

MARKER = "PYTEST_SPECDEC_SERVER"
"""The environment variable that every process of a server inherits."""


def members(session: int, marker: str) -> list[int]:
    """Return the living processes of ``session`` and those that carry ``marker``, which finds those that left the session too.

    A process that wrote over its environment (a changed title) is found by its session, one that left the session by its environment.
    """
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs(pid, session, marker)]  # noqa: PTH208 - no pathlib here


def _belongs(pid: int, session: int, marker: str) -> bool:
    state, its_session = _state_and_session(pid)
    if state in {"Z", "X", ""} or pid == os.getpid():
        return False
    return its_session == session or f"{MARKER}={marker}".encode() in _read(f"/proc/{pid}/environ").split(b"\0")


def _state_and_session(pid: int) -> tuple[str, int]:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[3])) if fields else ("", -1)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib would double the start-up time
            return file.read()
    except OSError:
        return b""


def send(number: int, session: int, marker: str) -> None:
    """Send the signal to every member."""
    for pid in members(session, marker):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _watch(pipe: int) -> bytes:
    told = b""
    while part := os.read(pipe, 64):
        told += part
    return told


def _main(pipe: int, marker: str, command: list[str]) -> None:
    told = _watch(pipe).split()
    if told and told[-1] == b"done":
        return
    session = int(told[0]) if told else -1
    # The starter may have died between two forks: what is about to appear is looked for a little longer.
    for _ in range(20):
        send(signal.SIGKILL, session, marker)
        time.sleep(0.05)
        if not members(session, marker) and told:
            break
    if command:
        os.execvp(command[0], command)  # noqa: S606 - the command comes from the starter


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
