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

from pytest_specdec import variables
from pytest_specdec.capture import kept, record
from pytest_specdec.config import credentials
from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import records
from pytest_specdec.files.directory import RunDirectory, writable
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

    What goes wrong is written into the run, where the tests find it. Only the end of the process itself gets out, an interrupt or SIGTERM
    outside a worker, and a RunError when the run directory is another session's or cannot be written at all.
    """
    with _claimed(bench.root):
        if _is_finished(bench):
            return None
        directory = RunDirectory(bench.root, credentials.of(bench.config.text))
        is_begun = bench.settings.taken_up is not None or _is_begun(directory, bench.session)
        _prepare(directory, bench, is_begun=is_begun)
        return _recorded(bench, directory, tell, in_worker=in_worker, is_begun=is_begun)


@contextmanager
def _claimed(root: Path) -> Iterator[None]:
    """Hold the directory itself: a lock on it leaves no file behind and goes with the process that dies."""
    with writable(root):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writable(root):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_finished(bench: Bench) -> bool:
    """Return whether there is nothing to do: this session has done it, or the run that it takes up is whole.

    Raises RunError when the run is another session's.
    """
    directory = RunDirectory(bench.root)
    is_ours = records.session(directory) == bench.session
    if bench.settings.taken_up is None and not is_ours:
        RunDirectory.create(bench.root)
        return False
    try:
        state = records.read_status(directory).state
        is_whole = bench.settings.resume is not None and state is State.COMPLETE and not kept.has_harmed(directory, bench.plan)
    except RunError:
        return False
    return state is not State.RUNNING and (is_ours or is_whole)


def _is_begun(directory: RunDirectory, session: str) -> bool:
    """Return whether a worker of this session died over a capture that has something to keep."""
    try:
        records.read_status(directory)
        records.read_environment(directory)
    except RunError:
        return False
    return records.session(directory) == session


def _prepare(directory: RunDirectory, bench: Bench, *, is_begun: bool) -> None:
    """Make the run directory this session's; what an earlier one said of its end counts no more."""
    if is_begun:
        with suppress(RunError):
            records.write_status(directory, replace(records.read_status(directory), state=State.RUNNING))
    records.write_session(directory, bench.session)
    if not is_begun:
        records.write_variables(directory, variables.of(bench.config.text, os.environ))
    records.write_plan(directory, bench.plan)


def _recorded(bench: Bench, directory: RunDirectory, tell: Callable[[Progress], None], *, in_worker: bool, is_begun: bool) -> Status:
    try:
        with _sigterm_ends_cleanly():
            capture = record.resume if is_begun else record.record
            return capture(bench.config, bench.plan, directory, deadline_s=bench.settings.deadline_s, tell=tell)
    except SpecdecError as error:
        return _broken(bench, directory, str(error))
    except pytest.exit.Exception as error:
        if not in_worker:
            raise
        return _broken(bench, directory, str(error))
    except Exception:  # noqa: BLE001 - out of the wrapper it would be an INTERNALERROR and, in a worker, a hang; the tests report it instead
        return _broken(bench, directory, f"the capture itself is broken\n{traceback.format_exc()}")


def _broken(bench: Bench, directory: RunDirectory, error: str) -> Status:
    """Write why there is no capture, or no whole one, where the tests find it; keep it in mind where nothing can be written."""
    status = Status(state=State.INCOMPLETE, error=error)
    with suppress(RunError):
        status = replace(records.read_status(directory), state=State.INCOMPLETE, error=error)
    try:
        records.write_status(directory, status)
    except RunError:
        bench.refusal = directory.secrets.mask(error)
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
