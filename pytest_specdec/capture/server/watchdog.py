"""The watchdog: ends a server's processes when its starter is gone or out of time, and strikes secrets out of its log.

Run by path (``python -I -S watchdog.py FD MARKER [COMMAND ...]``) it imports nothing but what the interpreter has loaded anyway. It reads
the pipe ``FD`` of which only the starter holds the other end, line by line: ``server PID STARTED``, ``log PATH`` and ``secret BYTES`` in
hexadecimal, ``seconds N`` until the server is ended in any case, and ``done`` when the server was stopped in order. A bare end of file says
that the starter died or lost its way: then everything is killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

MARKER = "PYTEST_SPECDEC_SERVER"
"""The environment variable that every process of a server inherits."""
_KILL_ATTEMPTS = 20
"""Times that a server's processes are looked for and killed, 0.05 s apart."""

_BLOCK = 1 << 20
"""Bytes of a log that are searched for secrets at once."""


def stat(pid: int) -> tuple[str, int, int]:
    """Return the state, session and start of a process.

    The state is a letter as in proc_pid_stat(5), the start is in clock ticks since the machine booted. Returns ``("",
    -1, -1)`` without such a process.
    """
    # proc_pid_stat(5) after the name: the state comes first, the session fourth, the start twentieth.
    fields = _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[3]), int(fields[19])) if fields else ("", -1, -1)


def start_of(pid: int) -> int:
    """Return the start of a process, as in :func:`stat`; -1 without it."""
    return stat(pid)[2]


def members(session: int, started: int, marker: str, earlier: dict[int, int] | None = None) -> dict[int, int]:
    """Return the living processes of a server by number.

    The values are their starts, as in :func:`stat`, which tell a process from a later one of the same number. ``earlier`` is an earlier
    result.

    Members are the processes that carry ``marker`` in their environment. They are also those of ``session``, which has the number of the
    server's first process: a process may have written over its environment by changing its title. The system reuses such numbers, so that
    the session counts only if something shows that it is the server's still.
    """
    in_session, marked, has_first_process = {}, {}, False
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208 - no pathlib here
        state, its_session, its_start = stat(pid)
        if pid == session and its_start == started:
            has_first_process = True  # maybe as a zombie, not yet waited for: its number is no other's
        if state in {"Z", "X", ""} or pid == os.getpid():  # dead or gone; no process counts itself
            continue
        if its_session == session:
            in_session[pid] = its_start
        if f"{MARKER}={marker}".encode() in _read_file(f"/proc/{pid}/environ").split(b"\0"):
            marked[pid] = its_start
    has_marked = bool(in_session.keys() & marked.keys())
    has_earlier = bool(in_session.items() & (earlier or {}).items())
    is_servers_session = has_first_process or has_marked or has_earlier
    return marked | (in_session if is_servers_session else {})


def send(number: int, processes: dict[int, int]) -> None:
    """Send signal ``number`` to ``processes``, as returned by :func:`members`.

    A process that has since got one of these process numbers does not get the signal.
    """
    for pid, started in processes.items():
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except OSError:  # forbidden by a sandbox, or a kernel before 5.3
            handle = -1
        try:
            if start_of(pid) == started:
                os.kill(pid, number) if handle < 0 else signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            continue
        finally:
            if handle >= 0:
                os.close(handle)


def strike_out(path: str, secrets: list[bytes]) -> None:
    """Overwrite every one of ``secrets`` in a file with asterisks.

    This happens in place, block by block: neither much memory nor room on the disk is needed. Blocks overlap by the
    longest secret, so that a secret at a boundary is found too.
    """
    longest = max(map(len, secrets), default=0)
    if not longest:
        return
    with open(path, "r+b") as file:  # noqa: PTH123 - pathlib would double the start-up time
        offset, block = 0, file.read(_BLOCK + longest)
        while block:
            for secret in secrets:
                index = block.find(secret)
                while index >= 0:
                    file.seek(offset + index)
                    file.write(b"*" * len(secret))
                    index = block.find(secret, index + len(secret))
            offset += _BLOCK
            file.seek(offset)
            block = file.read(_BLOCK + longest)


def _read_file(path: str) -> bytes:
    """Return a file's bytes; empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib would double the start-up time
            return file.read()
    except OSError:
        return b""


class _Watch:
    """The watchdog's state: what the starter has sent so far."""

    def __init__(self, pipe: int, marker: str) -> None:
        """Take the pipe's reading end, and the marker of the server's processes."""
        self._pipe = pipe
        self._marker = marker
        self._rest = b""
        """The beginning of a line of which the rest has not come."""
        self._leader_fd = -1
        """Descriptor that shows when the server's first process ends; -1 without one."""
        self._until_s = float("inf")
        self.session, self.started = -1, -1
        """Number and start of the server's first process; -1 before the starter sends them. The session that it leads has its number."""
        self.members_at_end: dict[int, int] = {}
        """The server's processes when the first of them ended: their starts, in clock ticks since boot, by number. Empty before."""
        self.log = ""
        self.secrets: list[bytes] = []
        self.is_done = False

    def listen(self) -> None:
        """Read the starter's lines until ``done``, or until time is up.

        It returns too when the starter closes the pipe. When the server's first process, the leader of its session, ends, the server's
        members are recorded at once: later its number may belong to another session. ``_leader_fd``, a pidfd, is readable from that end on.
        """
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while not self.is_done:
            left_s = self._until_s - time.monotonic()
            ready = [fd for fd, _ in poll.poll(None if left_s == float("inf") else max(0, int(left_s * 1000) + 1))]
            if not ready:
                return
            if self._leader_fd in ready:
                # The starter has not collected the leader yet, so that its number still shows which session is ours.
                self.members_at_end = members(self.session, self.started, self._marker)
                poll.unregister(self._leader_fd)
                self._leader_fd = -1  # its end is seen only once
            if self._pipe in ready and not self._read_lines():
                return
            if self._leader_fd >= 0:  # a line has named the server; to register it again changes nothing
                poll.register(self._leader_fd, select.POLLIN)

    def _read_lines(self) -> bool:
        """Apply the lines in the pipe; return False at its end."""
        part = os.read(self._pipe, 4096)
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._apply_line(line.split())
        return bool(part)

    def _apply_line(self, words: list[bytes]) -> None:
        """Apply one line from the starter.

        Unknown lines are ignored; the module describes the known ones.
        """
        if words[0] == b"server":
            first_pid, self.started = int(words[1]), int(words[2])
            self.session = first_pid  # it leads a session, which has its number
            try:
                self._leader_fd = os.pidfd_open(first_pid)  # shows when it ends
            except OSError:  # gone already, or forbidden by a sandbox: its end is not seen
                self._leader_fd = -1
        elif words[0] == b"log":
            self.log = bytes.fromhex(words[1].decode()).decode(errors="surrogateescape")
        elif words[0] == b"secret":
            self.secrets.append(bytes.fromhex(words[1].decode()))
        elif words[0] == b"seconds":
            self._until_s = time.monotonic() + float(words[1])
        elif words[0] == b"done":
            self.is_done = True


def _kill_server(watch: _Watch, marker: str) -> None:
    """Kill every process of the server.

    The search is repeated for a second at most, since a process may be forked meanwhile. It ends early once none is left, unless the
    starter has not sent the server's session: the server may then be starting.
    """
    seen = watch.members_at_end  # by these the server's session is still known after its first process is gone
    for _ in range(_KILL_ATTEMPTS):
        alive = members(watch.session, watch.started, marker, seen)
        if not alive and watch.session >= 0:
            return
        seen |= alive
        send(signal.SIGKILL, alive)
        time.sleep(0.05)


def _main(pipe: int, marker: str, command: list[str]) -> None:
    """Watch until the starter is done or gone, then clean up.

    Secrets are struck out of the log in any case. Unless the server was stopped in order, it is killed, and this
    process becomes ``command``, if any, which kills a container.
    """
    watch = _Watch(pipe, marker)
    watch.listen()
    if not watch.is_done:
        _kill_server(watch, marker)
    try:
        if watch.log:
            strike_out(watch.log, watch.secrets)
    finally:
        if command and not watch.is_done:
            os.execvp(command[0], command)  # noqa: S606 - the command comes from the starter


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
