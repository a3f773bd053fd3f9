"""Locks: one capture per accelerator, and exclusive use of the machine while speed is measured.

A capture starts servers and sends them requests; several may run on one machine. A lock is held by flock on a file, until its descriptor is
closed. During a wait ``heartbeat`` is called again and again: it may raise, as when the capture's time is used up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import LeaseError
from pytest_specdec.files.run_directory import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

MAX_WAIT_S = 3600.0
"""Seconds to wait for one holder of a lock if no deadline is given."""
_PAUSE_S = 0.05
_SAY_AFTER_S = 5.0
"""Seconds of a wait after which it is reported: passes of captures side by side wait for each other all the time."""
_MOST_CHARACTERS = 200
"""Characters of the command in a lock file."""


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


def _say_nothing(_: str) -> None:
    """Report no wait."""


@contextmanager
def device(name: str, wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None] = _say_nothing) -> Iterator[None]:
    """Hold the accelerator called ``name`` alone while the block runs.

    ``heartbeat`` is called while it is waited for, and ``say`` gets a line about who holds it. Raises LeaseError if one capture holds it
    for ``wait_s`` seconds.
    """
    with _hold(device_lock(name), fcntl.LOCK_EX, wait_s, heartbeat, say):
        yield


@contextmanager
def some_devices(
    names: Sequence[str], count: int, wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None] = _say_nothing
) -> Iterator[tuple[str, ...]]:
    """Hold ``count`` of some accelerators alone while the block runs.

    They are the first free ones of ``names``, and the names of those held are yielded. None is held before there are enough: two captures
    that each hold what the other needs would wait for ever. ``heartbeat`` and ``say`` are as for :func:`device`. Raises LeaseError after
    ``wait_s`` seconds of the same holders.
    """
    descriptors: dict[str, int] = {}

    def take() -> bool:
        descriptors.update(_try_devices(names, count))
        return bool(descriptors)

    try:
        _wait(_DeviceLocks(names=tuple(names), count=count), take, wait_s, heartbeat, say)
        for descriptor in descriptors.values():
            write_holder(descriptor)
        yield tuple(descriptors)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def is_free(name: str) -> bool:
    """Return True if no capture holds the device ``name``, by locking it for a moment."""
    descriptor = try_device(name)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _try_devices(names: Iterable[str], count: int) -> Mapping[str, int]:
    """Return the locked descriptors of ``count`` free devices, by name.

    They are of the devices' lock files. Returns an empty mapping, and leaves nothing locked, if fewer are free.
    """
    descriptors: dict[str, int] = {}
    for name in names:
        if len(descriptors) < count and (descriptor := try_device(name)) is not None:
            descriptors[name] = descriptor
    if len(descriptors) == count:
        return descriptors
    for descriptor in descriptors.values():
        os.close(descriptor)
    return {}


def try_device(name: str) -> int | None:
    """Return the locked descriptor of a device's lock file.

    Returns None if another capture holds the device. The device is held until all copies of the descriptor are closed: by a process that
    inherits it too, even if this one is killed. :func:`write_holder` names its holder to others.
    """
    lock = device_lock(name)
    descriptor = _open_file(lock.path)
    if not _try_lock(descriptor, fcntl.LOCK_EX):
        os.close(descriptor)
        return None
    return descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A file that captures lock, and what it stands for."""

    path: Path
    what: str
    """What it stands for, in words."""

    @property
    def holder(self) -> str:
        """The process that holds it alone, or last did so, in words."""
        return describe_holder(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceLocks:
    """Devices of which some are waited for."""

    names: tuple[str, ...]
    count: int
    """How many of them are needed."""

    @property
    def path(self) -> Path:
        """The folder of their lock files."""
        return folder()

    @property
    def what(self) -> str:
        """What they are, in words."""
        return f"the devices {', '.join(self.names)}, of which {self.count} {'is' if self.count == 1 else 'are'} needed"

    @property
    def holder(self) -> str:
        """The processes that hold those that are not free, in words."""
        return "; ".join(dict.fromkeys(filter(None, (device_lock(name).holder for name in self.names if not is_free(name)))))


def device_lock(name: str) -> Lock:
    """Return the lock of the device called ``name``."""
    return Lock(path=_path(f"device-{name}"), what=f"the device {name}")


def _machine_lock(name: str) -> Lock:
    return Lock(path=_path(name), what="this machine")


def _path(name: str) -> Path:
    return folder() / f"{safe(name)}.lock"


def describe_holder(path: Path) -> str:
    """Return the process that last held a lock alone, in words.

    ``path`` is the lock file, into which that process wrote its number, the time and its command. Time and command may be missing there.
    Returns an empty string if none has held it alone.
    """
    words = path.read_text(encoding="utf-8", errors="replace").strip().split(maxsplit=2)
    if not words or not words[0].isdigit():
        return ""
    since, command = (*words[1:], "", "")[:2]
    return f"process {words[0]}" + (f" since {since}" if since else "") + (f": {command}" if command else "")


def write_holder(descriptor: int) -> None:
    """Write this process into a lock file, as its holder.

    The file gets one line with its number, the time and its command. Nothing is written on a full disk: the lock holds all the same.
    """
    command = shlex.join(sys.argv)[:_MOST_CHARACTERS].replace("\n", " ")
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {datetime.now(tz=UTC):%Y-%m-%dT%H:%M:%SZ} {command}\n".encode(errors="replace"), 0)


@contextmanager
def exclusive(wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None] = _say_nothing) -> Iterator[None]:
    """Hold the machine alone while the block runs, to measure speed.

    No other capture boots or sends meanwhile. Raises LeaseError if one capture holds it for ``wait_s`` seconds.
    """
    with ExitStack() as stack:
        # Every lock of the machine passes the queue first: shared ones that keep coming would starve an exclusive one.
        stack.enter_context(_hold(_machine_lock("machine-queue"), fcntl.LOCK_EX, wait_s, heartbeat, say))
        stack.enter_context(_hold(_machine_lock("machine"), fcntl.LOCK_EX, wait_s, heartbeat, say))
        yield


@contextmanager
def shared(
    wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None] = _say_nothing, *, skip_queue: bool = False
) -> Iterator[None]:
    """Hold the machine together with captures measuring no speed.

    Any number of captures may share it. A capture that waits to hold it alone holds the queue meanwhile, and those that come later wait
    until it is done: else it might wait for ever. ``skip_queue`` is for work that a holder of the machine waits for: that work would wait
    for the capture in the queue, which waits for the holder. Raises LeaseError if a capture that measures speed holds the machine for
    ``wait_s`` seconds.
    """
    queue = nullcontext() if skip_queue else _hold(_machine_lock("machine-queue"), fcntl.LOCK_SH, wait_s, heartbeat, say)
    with ExitStack() as stack:
        with queue:  # left once the machine is held
            stack.enter_context(_hold(_machine_lock("machine"), fcntl.LOCK_SH, wait_s, heartbeat, say))
        yield


@contextmanager
def _hold(lock: Lock, mode: int, wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None]) -> Iterator[None]:
    """Hold ``lock`` while the block runs.

    ``mode`` is LOCK_EX or LOCK_SH. An exclusive holder writes itself into the file, for others that wait. Raises LeaseError after
    ``wait_s`` seconds of one holder.
    """
    descriptor = _open_file(lock.path)
    try:
        _wait(lock, lambda: _try_lock(descriptor, mode), wait_s, heartbeat, say)
        if mode == fcntl.LOCK_EX:
            write_holder(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait(
    lock: Lock | _DeviceLocks, take: Callable[[], bool], wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Call ``take`` until it returns True, with a pause between.

    ``take`` tries to take ``lock`` once. ``heartbeat`` is called before each pause, and ``say`` gets a line about a holder that has been
    waited for some seconds. The wait begins anew with each holder of ``lock``: captures side by side measure speed in turn. Raises
    LeaseError after ``wait_s`` seconds of one holder.
    """
    holder, began_s, is_reported = lock.holder, time.monotonic(), False
    while not take():
        earlier_holder, holder = holder, lock.holder
        if holder != earlier_holder:
            began_s, is_reported = time.monotonic(), False
        waited_s = time.monotonic() - began_s
        if waited_s >= wait_s:
            raise _busy_error(lock)
        if waited_s >= _SAY_AFTER_S and not is_reported:
            is_reported = True
            say(f"waiting for {lock.what}, {_last_held(holder)}")
        heartbeat()
        time.sleep(_PAUSE_S)


def _last_held(holder: str) -> str:
    return f"last held alone by {holder or 'an unknown process'}"


def _open_file(path: Path) -> int:
    """Return the descriptor of a lock file, opened without following links.

    The file is written over, so that a link to another file would destroy that file. Raises LeaseError for a symbolic link, for a file with
    a second hard link, or for anything but a plain file.
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


def _busy_error(lock: Lock | _DeviceLocks) -> LeaseError:
    """Return the error for a lock held by another capture."""
    return LeaseError(
        f"another capture holds {lock.what}",
        where=str(lock.path),
        found=_last_held(lock.holder),
        expected="one capture at a time",
        remedy="wait for it, or end it",
    )
