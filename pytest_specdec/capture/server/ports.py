"""Ports of the loopback interface: a free one or the one that a config pins, and what listens there."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import locks
from pytest_specdec.engines.protocol import HOST
from pytest_specdec.errors import BootError, LeaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_specdec.capture.server.process import ServerProcess
    from pytest_specdec.capture.server.stack import ServerStack
    from pytest_specdec.engines.protocol import Command

_LISTEN = "0A"
_HERE = f"{int.from_bytes(socket.inet_aton(HOST), sys.byteorder):08X}"
_EVERYWHERE = {"0" * 8, "0" * 32}
_NEXT_LOOK_S = 0.2
"""Seconds from one look at a port to the next: long enough for a dying server's listener to be gone from the second."""
_LOOK_S = 10.0
"""Seconds that a container gets to list its open files."""
_RELEASE_S = 65.0
"""Seconds for a port's last connections to be gone: Linux keeps one 60 s after both ends have closed it."""


def listener(port: int) -> str:
    """Return the process listening on ``port``, by number and name.

    Returns an empty string if it cannot be found out.
    """
    return _describe_listener(_reached_sockets(port))


def is_listened(port: int) -> bool:
    """Return True if something listens on ``port`` of the loopback interface."""
    return bool(_reached_sockets(port))


def foreign_listener(server: ServerProcess | ServerStack, port: int) -> str:
    """Return a process other than the server's listening on ``port``.

    It is described in words. It counts only if two searches, 0.2 s apart, both find one: a server that dies during
    one search would be taken for a foreign process. Returns an empty string if there is none.
    """
    if not _foreign_listener_now(server, port):
        return ""
    time.sleep(_NEXT_LOOK_S)
    return _foreign_listener_now(server, port)


def _foreign_listener_now(server: ServerProcess | ServerStack, port: int) -> str:
    """Return a foreign process listening on ``port`` at this moment.

    A socket is the server's own if a process of it has it open, and foreign otherwise. Sockets are named ``socket:[INODE]``, those reached
    by connections to the port count. All have to be the server's own: several may share a port (SO_REUSEPORT, which vLLM sets), and get the
    connections in turn. Returns an empty string if all are, or if it cannot be found out.
    """
    server_pids = server.members
    foreign_sockets = _reached_sockets(port) - {file for pid in server_pids for file in _open_files(Path(f"/proc/{pid}"))}
    if not foreign_sockets:
        return ""
    if server.command.look:  # the command that lists the files open in the server's container
        return _describe_outside_listener(foreign_sockets, _container_files(server.command))
    if process := _describe_listener(foreign_sockets):
        return process
    # The holder is hidden. Unless all open files of the server could be read, it may be the server itself.
    return "a process of another user" if all(_is_readable(pid) for pid in server_pids) else ""


def _describe_outside_listener(sockets: set[str], container_files: str) -> str:
    """Return a process outside the container holding one of ``sockets``.

    ``container_files`` names the files open in the container. Returns an empty string if all sockets are among these.
    """
    if "socket:[" not in container_files:
        return ""  # docker has listed nothing, so that the sockets may be the server's own
    outside_sockets = {file for file in sockets if file not in container_files}
    return _describe_listener(outside_sockets) or ("a process outside of the container" if outside_sockets else "")


def _reached_sockets(port: int) -> set[str]:
    """Return the listening sockets reached by connections to ``port``.

    These are the sockets bound to the loopback address, or, if there are none, those bound to all addresses. They are
    named as in ``/proc/PID/fd``: ``socket:[INODE]``.
    """
    rows = [row for table in ("tcp", "tcp6") for row in _listening_sockets(port, table)]
    interface_inodes = {inode for address, inode in rows if address.endswith(_HERE)}  # an IPv6 address may end in an IPv4 one
    return {f"socket:[{inode}]" for inode in interface_inodes or {inode for address, inode in rows if address in _EVERYWHERE}}


def _listening_sockets(port: int, table: str) -> list[tuple[str, str]]:
    """Return local address and inode of sockets listening on ``port``.

    They are read from ``table``, ``tcp`` or ``tcp6``, of ``/proc/net`` (proc_net_tcp(5)), which has addresses in
    hexadecimal. Returns an empty list if the kernel does not show it.
    """
    try:
        rows = [line.split() for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return []
    # Columns: 1 is the local address and port, 3 the state, 9 the inode.
    return [(row[1].partition(":")[0], row[9]) for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]


def _describe_listener(sockets: Iterable[str]) -> str:
    """Return a process holding one of ``sockets``, in words.

    They are named as links in ``/proc/PID/fd``: ``socket:[INODE]``. Returns an empty string if none is found.
    """
    wanted_sockets = set(sockets)
    for process in Path("/proc").glob("[0-9]*") if wanted_sockets else ():
        if wanted_sockets & _open_files(process):
            return f"process {process.name}: {_program_name(process)}"
    return ""


def _container_files(command: Command) -> str:
    """Return the open files of a container's processes, as text.

    The text is empty if the command fails in the container.

    Raises BootError if docker does not answer: the owner of the port would be unknown for the rest of the run.
    """
    try:
        result = subprocess.run(command.look, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        what, expected = "docker does not say what a container has open", f"an answer within {_LOOK_S:.0f} s"
        remedy = f"run it by hand: docker exec {command.container} true; restart the daemon if that hangs too"
        reason = error.strerror if isinstance(error, OSError) else "no answer"
        raise BootError(what, where=shlex.join(command.look), found=str(reason), expected=expected, remedy=remedy) from None
    return result.stdout.decode(errors="replace")


def _open_files(process: Path) -> set[str]:
    """Return the open files of a process, as named in ``/proc``.

    Returns an empty set for a process of another user, or one that has ended.
    """
    files = set()
    with suppress(OSError):  # another user's process, or one that has just ended
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                files.add(str(entry.readlink()))
    return files


def _is_readable(pid: int) -> bool:
    """Return True unless the open files of a process are forbidden.

    A process that has ended counts as readable: it has no files.
    """
    try:
        next(Path(f"/proc/{pid}/fd").iterdir(), None)
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _program_name(process: Path) -> str:
    """Return the program name of a process in ``/proc``.

    Its arguments are left out, since they may contain a key. Returns ``unknown`` if the name cannot be read.
    """
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "unknown"


_CHOSEN_PORTS: set[int] = set()
_FIRST_PORT = 20_000
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_KERNEL_PORT = 32_768
"""Of Linux, where that file cannot be read."""
_FEWEST_PORTS = 1_000
"""Ports below the kernel's own from which one is chosen; where there are fewer, it is one of the kernel's."""
_RANDOM = random.SystemRandom()


def free() -> int:
    """Return a free port of the loopback interface, never the same twice.

    The server binds it only seconds later. Meanwhile no other program should get it: it lies below the ports that the
    kernel hands out to clients and to servers that ask for any port, unless fewer than 1,000 lie there, and is
    reserved among this user's sessions until this process ends.
    """
    port = next(port for port in _candidates() if port not in _CHOSEN_PORTS and _is_free(port) and _reserve(port))
    _CHOSEN_PORTS.add(port)
    return port


def _candidates() -> Iterator[int]:
    """Yield ports to try, without end.

    Each is a random one below the kernel's own range. If fewer than 1,000 ports lie there, each is one that the
    kernel hands out.
    """
    below_kernel = range(_FIRST_PORT, _first_kernel_port())
    while True:
        if len(below_kernel) >= _FEWEST_PORTS:
            yield _RANDOM.choice(below_kernel)
            continue
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        yield port


def _first_kernel_port() -> int:
    """Return the lowest port that the kernel itself hands out."""
    try:
        return int(_KERNEL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST_KERNEL_PORT


def is_held(port: int) -> bool:
    """Return True if connections of an ended server hold ``port``.

    They do if it cannot be bound although nothing listens there. Their closing takes a minute (TIME_WAIT). Meanwhile a server that binds
    the port without SO_REUSEADDR does not get it, as trtllm-serve does not (TensorRT-LLM#17915).
    """
    return not _is_free(port, reuses=False) and not is_listened(port)


def await_release(port: int, heartbeat: Callable[[], None], left_s: float) -> bool:
    """Wait until no ended server's connections hold ``port``; return True.

    The kernel keeps such connections for up to a minute. Returns False if a process listens there, or if ``port`` is still held after
    ``left_s`` seconds, or 65 if that is less. ``heartbeat`` is called while it waits.
    """
    until_s = time.monotonic() + min(_RELEASE_S, left_s)
    while is_held(port) and time.monotonic() < until_s:
        heartbeat()
        time.sleep(_NEXT_LOOK_S)
    # The wait also ends if a process listens there. Free is a port for a server without SO_REUSEADDR, the stricter kind.
    return _is_free(port, reuses=False)


def _is_free(port: int, *, reuses: bool = True) -> bool:
    """Return True if ``port`` can be bound on the loopback interface.

    With ``reuses`` it is tried as by a server that sets SO_REUSEADDR, without it as by one that does not.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Reserve ``port`` among this user's sessions, and return True.

    A reservation is a lock on the byte numbered ``port`` of a shared file. Returns False if another session has it. Returns True, without a
    reservation, if that file cannot be locked or opened for any other reason.
    """
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except LeaseError:
        return True
    except OSError as error:
        return error.errno not in {errno.EACCES, errno.EAGAIN}
    return True


@lru_cache
def _reservations() -> int:
    """Return the descriptor of the file of reserved ports.

    A lock on its byte N reserves port N. It is never closed, since closing would release all of them.
    """
    return os.open(locks.folder() / "ports.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def require_port(port: int) -> int:
    """Return ``port`` once it can be bound.

    Connections of an ended server are waited for. Raises BootError with the process that holds it, if that can be found out.
    """
    if not _is_free(port):
        await_release(port, heartbeat=lambda: None, left_s=_RELEASE_S)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            what = f"port {port} is taken"
            raise BootError(
                what,
                where="engine.args.port",
                found=f"held by {process}" if (process := listener(port)) else str(error),
                expected=f"a port that can be bound on {HOST}",
                remedy="end that process, or remove `port` from args: then a free port is chosen",
            ) from error
    return port
