"""Orphans: servers of a capture that was killed together with their watchdogs, found by the notes that it left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture.server import watchdog
from pytest_specdec.engines import docker
from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory, atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.capture.server.process import ServerProcess

_NOTES = ("*/servers/*.json", "*/old/servers/*.json", "*/groups/*/servers/*.json")
"""In the folder of the runs: notes of a run, of its old engine's and of the groups of a matrix, each of which has a lock of its own."""
_ATTEMPTS = 40
"""Times that a killed server is looked for, 0.05 s apart."""
_KILL_S = 10.0
"""Seconds that docker gets to kill a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessNamespace:
    """A scope of process numbers, by user, boot and namespace.

    Only within it a noted number names the same process.
    """

    uid: int
    boot: str
    """The machine's boot, by the kernel's random id."""
    namespace: str
    """The namespace of process numbers: a container has its own."""

    @classmethod
    def here(cls) -> _ProcessNamespace:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(uid=os.getuid(), boot=boot, namespace=str(Path("/proc/self/ns/pid").readlink()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orphan:
    """A server that may have been left behind."""

    pid: int
    started: int
    """The start of its first process, as in :func:`watchdog.stat`."""
    marker: str
    """What the variable :data:`watchdog.MARKER` holds in each of its processes."""
    container: str
    """Name of its container; empty for a server that runs in none."""


def note(path: Path, server: ServerProcess) -> None:
    """Write a note for later runs to end this server.

    The note identifies the server, its container, and this process as its owner by number and start, since numbers
    are reused.
    """
    owner = os.getpid()
    document = {
        **asdict(_ProcessNamespace.here()),  # where these process numbers are valid
        "pid": server.pid,
        "started": server.started,
        "marker": server.marker,  # which every process of the server has in its environment
        "owner": owner,
        "owner_started": watchdog.start_of(owner),
        "command": str(server.command),
        "container": server.command.container,
    }
    atomic_write(path, json.dumps(document) + "\n")


def sweep(root: Path, held: Path | None = None) -> tuple[int, ...]:
    """End the noted servers left behind by runs in ``root``.

    Runs inside a run are included: that of an old engine to compare with, and those that make up the run of a matrix. Containers are ended
    too. Returns the numbers of the processes that were killed.

    A note counts only in a run directory that no other capture has locked; ``held`` is the directory that this
    capture has locked itself, if any. It counts only if it is from this user, this boot of the machine and this
    namespace of process numbers. A process is known by its number together with its start, or by the marker in its
    environment, never by its name. A container is known by its random name.
    """
    ended: list[int] = []
    for folder in _list_noted_runs(root):
        with _hold_if_free(folder, held) as is_ours:
            for path in sorted(folder.glob("servers/*.json")) if is_ours else ():
                orphan = _read_orphan(path)
                ended += _kill_orphan(orphan) if orphan else []
                if orphan and orphan.container:
                    _end_container(orphan.container)
    return tuple(ended)


def _list_noted_runs(root: Path) -> list[Path]:
    """Return the run directories with notes in ``root``, sorted.

    Those behind a symbolic link are left out.
    """
    folders, resolved_root = {path.parent.parent for notes in _NOTES for path in root.glob(notes)}, root.resolve()
    return sorted(folder for folder in folders if folder.resolve() == resolved_root / folder.relative_to(root))


@contextmanager
def _hold_if_free(folder: Path, held: Path | None) -> Iterator[bool]:
    """Yield True if a run directory is free, locked until the end.

    It is free if it has a readable plan, belongs to this user, and no other capture has locked it. ``held`` is the
    directory that this capture has locked already, where a second lock would be refused.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        is_free = folder == held or _try_lock(descriptor)
        yield os.fstat(descriptor).st_uid == os.getuid() and is_free and _is_run(folder)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock a run directory, and return True if that succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_run(folder: Path) -> bool:
    """Return True if the folder has a readable plan."""
    try:
        run_documents.read_plan(RunDirectory.open(folder))
    except RunError:
        return False
    return True


def _read_orphan(path: Path) -> _Orphan | None:
    """Return the server named in a note, if its owner ended.

    The owner is the process of the capture that started the server. Returns None while that runs, for a note of
    another user, boot of the machine or process namespace, and for one that cannot be read.
    """
    try:
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
        is_here = all(document[name] == value for name, value in asdict(_ProcessNamespace.here()).items())
        # The start of an ended owner is -1, or that of a later process with its number.
        is_owned = watchdog.start_of(int(document["owner"])) == document["owner_started"]
        name = str(document.get("container", ""))
        orphan = _Orphan(
            pid=int(document["pid"]),
            started=int(document["started"]),
            marker=str(document["marker"]),
            container=name if docker.is_name(name) else "",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # nothing of ours, torn, or written by another version
    return orphan if is_here and not is_owned else None


def _kill_orphan(orphan: _Orphan) -> list[int]:
    """Kill every process of an orphan and return their numbers.

    The search is repeated, at most 40 times, since a process may be forked meanwhile. Processes of other users are left out.
    """
    # The start of each process, by number. One of these that still lives shows the next search which session is the server's.
    ended: dict[int, int] = {}
    for _ in range(_ATTEMPTS):
        alive = {
            pid: start for pid, start in watchdog.members(orphan.pid, orphan.started, orphan.marker, ended).items() if _is_own_process(pid)
        }
        if not alive:
            break
        ended |= alive
        watchdog.send(signal.SIGKILL, alive)
        time.sleep(0.05)
    return list(ended)


def _end_container(name: str) -> None:
    """Kill an orphan's container by its name.

    Docker has to do it, since the processes in a container may belong to root. Nothing is raised if the container is
    gone or docker does not answer.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(docker.kill(name), stdin=subprocess.DEVNULL, capture_output=True, timeout=_KILL_S, check=False)  # noqa: S603


def _is_own_process(pid: int) -> bool:
    """Return True if a process is there and belongs to this user."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:
        return False
