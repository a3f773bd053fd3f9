"""Leases: one capture per accelerator, and nobody else's work while seconds are measured."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LONGEST_S", "device", "folder", "loud", "quiet"]

LONGEST_S = 3600.0
"""Seconds to wait for other captures where no deadline is given."""
_PAUSE_S = 0.05


def folder() -> Path:
    """Return the per-user folder of the lock files, made if need be."""
    path = Path(tempfile.gettempdir()) / f"pytest-specdec-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def device(name: str, wait_s: float, tick: Callable[[], None]) -> Iterator[None]:
    """Hold the accelerator called ``name`` alone. Raises LeaseError after ``wait_s`` seconds."""
    with _held(f"device-{name}", fcntl.LOCK_EX, wait_s, tick, "the device"):
        yield


@contextmanager
def quiet(wait_s: float, tick: Callable[[], None]) -> Iterator[None]:
    """Hold the machine alone to measure seconds: no other capture boots or asks meanwhile. Raises LeaseError."""
    with ExitStack() as held:
        # Whoever wants to make noise passes the gate first, so that a quiet one cannot be starved by a row of loud ones.
        held.enter_context(_held("gate", fcntl.LOCK_EX, wait_s, tick, "the clock"))
        held.enter_context(_held("clock", fcntl.LOCK_EX, wait_s, tick, "the clock"))
        yield


@contextmanager
def loud(wait_s: float, tick: Callable[[], None]) -> Iterator[None]:
    """Say that this machine is at work, which any number of captures may do at once. Raises LeaseError."""
    with ExitStack() as held:
        with _held("gate", fcntl.LOCK_SH, wait_s, tick, "the clock"):
            held.enter_context(_held("clock", fcntl.LOCK_SH, wait_s, tick, "the clock"))
        yield


@contextmanager
def _held(name: str, mode: int, wait_s: float, tick: Callable[[], None], what: str) -> Iterator[None]:
    path = folder() / f"{name}.lock"
    with path.open("a+", encoding="ascii") as file:
        until_s = time.monotonic() + wait_s
        while not _taken(file.fileno(), mode):
            if time.monotonic() >= until_s:
                raise _held_by_another(what, path)
            tick()
            time.sleep(_PAUSE_S)
        if mode == fcntl.LOCK_EX:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def _taken(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held_by_another(what: str, path: Path) -> LeaseError:
    return LeaseError(
        f"another capture holds {what}",
        where=str(path),
        found=f"last held alone by process {path.read_text(encoding='ascii') or 'unknown'}",
        expected="one capture at a time",
        remedy="wait for it, or end it",
    )
