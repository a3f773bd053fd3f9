"""Locks: one capture per accelerator, and exclusive use of the machine while speed is measured."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import LeaseError
from pytest_specdec.files.run_directory import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_WAIT_S = 3600.0
"""Seconds to wait for other captures if no deadline is given."""
_PAUSE_S = 0.05


def folder() -> Path:
    """Return the folder of this user's lock files, made if missing.

    Raises LeaseError if it belongs to another user, or if others may write to it: they could then replace the locks.
    """
    path = Path(tempfile.gettempdir()) / f"pytest-specdec-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise _unsafe_error(path, error.strerror or str(error)) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise _unsafe_error(path, f"something of user {status.st_uid}" if status.st_uid != os.getuid() else "no folder")
    if status.st_mode & 0o022:
        raise _unsafe_error(path, "a folder that others may write to")
    return path


@contextmanager
def device(name: str, wait_s: float, heartbeat: Callable[[], None]) -> Iterator[None]:
    """Hold the accelerator called ``name`` alone while the block runs.

    ``heartbeat`` is called while it is waited for. Raises LeaseError after ``wait_s`` seconds.
    """
    with _hold(f"device-{name}", fcntl.LOCK_EX, wait_s, heartbeat, "the device"):
        yield


@contextmanager
def exclusive(wait_s: float, heartbeat: Callable[[], None]) -> Iterator[None]:
    """Hold the machine alone while the block runs, to measure speed.

    No other capture boots or sends meanwhile. Raises LeaseError if other captures hold it for ``wait_s`` seconds.
    """
    with ExitStack() as stack:
        # Every lock of the machine passes the queue first: shared ones that keep coming would starve an exclusive one.
        stack.enter_context(_hold("machine-queue", fcntl.LOCK_EX, wait_s, heartbeat, "this machine"))
        stack.enter_context(_hold("machine", fcntl.LOCK_EX, wait_s, heartbeat, "this machine"))
        yield


@contextmanager
def shared(wait_s: float, heartbeat: Callable[[], None]) -> Iterator[None]:
    """Hold the machine together with captures measuring no speed.

    Any number of captures may share it. Raises LeaseError if one that measures speed holds it for ``wait_s`` seconds.
    """
    with ExitStack() as stack:
        with _hold("machine-queue", fcntl.LOCK_SH, wait_s, heartbeat, "this machine"):
            stack.enter_context(_hold("machine", fcntl.LOCK_SH, wait_s, heartbeat, "this machine"))
        yield


@contextmanager
def _hold(name: str, mode: int, wait_s: float, heartbeat: Callable[[], None], what: str) -> Iterator[None]:
    """Hold the lock file ``name`` while the block runs.

    ``mode`` is LOCK_EX or LOCK_SH. An exclusive holder writes its process number into the file, for the error of others that wait. Raises
    LeaseError after ``wait_s`` seconds; ``what`` names in its text the thing locked.
    """
    path = folder() / f"{safe(name)}.lock"
    descriptor = _open_file(path)
    try:
        until_s = time.monotonic() + wait_s
        while not _try_lock(descriptor, mode):
            if time.monotonic() >= until_s:
                raise _busy_error(what, path)
            heartbeat()
            time.sleep(_PAUSE_S)
        if mode == fcntl.LOCK_EX:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_file(path: Path) -> int:
    """Return the descriptor of a lock file, opened without following links.

    The file is written over, so that a link to another file would destroy that file. Raises LeaseError for a link, or for anything but a
    plain file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise _unsafe_error(path, "a link" if error.errno == errno.ELOOP else error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.fstat(descriptor).st_nlink != 1:
        os.close(descriptor)
        raise _unsafe_error(path, "no plain file of its own")
    return descriptor


def _unsafe_error(path: Path, found: str) -> LeaseError:
    """Return the error for an untrusted lock file or folder."""
    return LeaseError(
        "the locks of captures on this machine cannot be trusted",
        where=str(path),
        found=found,
        expected="a folder of this user that no one else may write to, and plain files in it",
        remedy="remove it, or set TMPDIR to a folder of your own",
    )


def _try_lock(descriptor: int, mode: int) -> bool:
    """Return True after locking, False if another holder prevents it."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy_error(what: str, path: Path) -> LeaseError:
    """Return the error for a lock held by another capture."""
    return LeaseError(
        f"another capture holds {what}",
        where=str(path),
        found=f"last held alone by process {path.read_text(encoding='ascii') or 'unknown'}",
        expected="one capture at a time",
        remedy="wait for it, or end it",
    )
