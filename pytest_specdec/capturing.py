"""Capture once for all processes of a session: one claims the run directory, the others wait for it."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import traceback
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_specdec import following
from pytest_specdec.capture import kept, record
from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import records
from pytest_specdec.files.directory import RunDirectory
from pytest_specdec.model.status import State, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_specdec.bench import Bench
    from pytest_specdec.model.status import Progress

__all__ = ["capture"]

TERMINATED = 128 + signal.SIGTERM


def capture(bench: Bench, tell: Callable[[Progress], None], *, in_worker: bool) -> Status | None:
    """Capture the bench's plan, unless another process of the session has; return its status, None when another did it.

    What goes wrong is written into the run, where the tests find it. Only the end of the process itself gets out: an interrupt, or SIGTERM
    outside a worker.
    """
    with _claimed(bench.root):
        if _finished(bench):
            return None
        return _recorded(bench, _prepared(bench), tell, in_worker=in_worker)


@contextmanager
def _claimed(root: Path) -> Iterator[None]:
    """Hold the directory itself: a lock on it leaves no file behind and goes with the process that dies."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _finished(bench: Bench) -> bool:
    """Return whether there is nothing to do; of a run that is taken up, only its end or another process of this session can say so."""
    try:
        directory = RunDirectory.open(bench.root)
        state = records.read_status(directory).state
        is_whole = bench.settings.resume is not None and state is State.COMPLETE and not kept.has_harmed(directory, bench.plan)
    except RunError:
        return False
    is_over = bench.settings.taken_up is None or is_whole or following.is_of(directory.status, bench.began_ns)
    return state is not State.RUNNING and is_over


def _prepared(bench: Bench) -> RunDirectory:
    """Make the run directory, or take over that of a worker which died over it."""
    begun = any(bench.root.iterdir())
    directory = RunDirectory.open(bench.root) if begun else RunDirectory.create(bench.root)
    records.write_plan(directory, bench.plan)
    return directory


def _recorded(bench: Bench, directory: RunDirectory, tell: Callable[[Progress], None], *, in_worker: bool) -> Status:
    try:
        with _sigterm_ends_cleanly():
            capture = record.record if bench.settings.taken_up is None else record.resume
            return capture(bench.config, bench.plan, directory, deadline_s=bench.settings.deadline_s, tell=tell)
    except SpecdecError as error:
        return _broken(directory, str(error))
    except pytest.exit.Exception as error:
        if not in_worker:
            raise
        return _broken(directory, str(error))
    except Exception:  # noqa: BLE001 - out of the wrapper it would be an INTERNALERROR and, in a worker, a hang; the tests report it instead
        return _broken(directory, f"the capture itself is broken\n{traceback.format_exc()}")


def _broken(directory: RunDirectory, error: str) -> Status:
    """Write why there is no capture, or no whole one, where the tests find it."""
    status = Status(state=State.INCOMPLETE, error=error)
    with suppress(RunError):
        status = replace(records.read_status(directory), state=State.INCOMPLETE, error=error)
    records.write_status(directory, status)
    return status


@contextmanager
def _sigterm_ends_cleanly() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that servers are stopped on the way out; signals reach the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_signal: int, _frame: object) -> None:
    pytest.exit("the capture was ended by SIGTERM; what it has is kept", returncode=TERMINATED)
