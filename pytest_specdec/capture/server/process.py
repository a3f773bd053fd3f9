"""A server process: its own session, one log file, a watchdog, and an end that leaves nothing behind.

The watchdog is a second process, which reads lines from a pipe that this program holds open. If the pipe closes before the line ``done``,
it kills the server: this program has died. To collect a process is to wait for it (waitpid), after which its number may be used again. The
marker is a random value in the environment of all processes of the server.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture.server import death, watchdog
from pytest_specdec.errors import CaptureError, EngineError
from pytest_specdec.files.run_directory import writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import BinaryIO

    from pytest_specdec.engines.protocol import Command

_NUMBERS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
"""In the order in which their handlers are restored: an exception in between must not leave out the most common one."""


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGHUP, SIGTERM and SIGINT until after the block.

    The Python handler of the first signal that came is then called, and its exception ends the block. Signals without
    a Python handler are not deferred.

    They are not blocked by a mask, which a process started in the block would inherit. Only the main thread handles
    signals, so that another one has nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _NUMBERS}
    python_handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in python_handlers:
        signal.signal(number, lambda number, _: deferred.append(number))
    try:
        yield
    finally:
        for number, handler in python_handlers.items():
            signal.signal(number, handler)
        if deferred:
            python_handlers[signal.Signals(deferred[0])](deferred[0], None)


_LOG_BYTES = 64_000
"""Bytes of a log's end that are read, however long it is."""
_MAX_LINE = 2_000
"""Characters of a log's line that are shown."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
LOG_TAIL = 20
"""Lines of a server's log that an error shows."""
_KILL_S = 10.0
"""Seconds that the kernel gets to end killed processes, which may hold device memory."""
_ASK_S = 5.0
"""Seconds that docker gets to say whether a container runs."""


class ServerProcess:
    """A server started here, with all processes that it starts.

    Its first process is not waited for before all others are gone: until then the kernel gives its number, which is
    also that of the session, to no other process. The watchdog is dismissed only after that. If this program fails
    before, the watchdog ends the server.
    """

    def __init__(self, command: Command, log: Path, *, max_s: float = float("inf")) -> None:
        """Start ``command`` with its output appended to ``log``.

        A watchdog process ends the server after ``max_s`` seconds even if this program hangs, and at once if it dies.

        Raises EngineError if it cannot be executed, RunError if the log cannot be written.
        """
        self.command = command
        self.log = log
        self.marker = uuid.uuid4().hex
        self._collecting = threading.Lock()
        """Held to collect a process, so that no other thread uses its number meanwhile."""
        self._titles: dict[int, str] = {}
        """Titles of the server's processes, by number, noted while it worked."""
        self._dead: dict[int, str] = {}
        """How those ended that were found dead first, by number."""
        self._children: list[subprocess.Popen[bytes]] = []
        """The watchdog, then the server's first process; shorter before these are started."""
        self._pipe = -1
        """Writing end of the pipe to the watchdog; -1 without one."""
        try:
            with defer_signals():  # an interrupt waits until the server and its watchdog are both there or both gone
                with writable(log):
                    file = _open_log(log)
                    file.write(f"# {command}\n".encode())
                    file.flush()
                    self._log_start = file.tell()
                with file:
                    self._launch(file, max_s)
        except BaseException:
            self._dismiss_watchdog(is_gone=False)  # it kills whatever was started
            raise

    def _launch(self, file: BinaryIO, max_s: float) -> None:
        """Start the watchdog, then the server.

        The watchdog comes first, so that the server is never without one. Before the server runs it gets the log's path and the secrets,
        which it will strike out of the log when the server has ended.
        """
        child, self._pipe = _start_watchdog(self.marker, self.command.kill)
        self._children.append(child)
        self._announce_log(max_s)
        try:
            self._children.append(_start_server(self.command, self.marker, file))
        except EngineError:
            self._dismiss_watchdog(is_gone=True)  # no server was started: there is nothing to kill
            raise
        self.pid = self._children[-1].pid
        self.started = watchdog.start_of(self.pid)  # with its start, the number cannot be taken for a later process's
        self._send_to_watchdog(f"server {self.pid} {self.started}\n")

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs.

        It is read without collecting the process, so that its number stays reserved (see the class).
        """
        process = self._children[-1]
        with self._collecting:
            if process.returncode is not None:
                return process.returncode
            try:
                exit_info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # somebody else has waited for it
                return process.poll()
        if exit_info is None:
            return None
        return exit_info.si_status if exit_info.si_code == os.CLD_EXITED else -exit_info.si_status

    @property
    def ended(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.exit_code
        if code is None:
            return ""
        return f"exit code {code}" if code >= 0 else f"killed by {death.signal_name(-code)}, exit code {code}"

    @property
    def dead_processes(self) -> tuple[str, ...]:
        """The processes found dead right after a failure, in words.

        The main process, started here, is left out, since ``ended`` describes its end.
        """
        return tuple(words for pid, words in self._dead.items() if pid != self.pid)

    @property
    def members(self) -> dict[int, int]:
        """The server's living processes by number, each with its start.

        Starts, in clock ticks since the machine booted, tell a process from a later one of the same number. It is empty once the server was
        stopped and collected, since its session's number may then be another's.
        """
        main_process = self._children[-1]  # the child before it is the watchdog
        with self._collecting:
            is_collected = main_process.returncode is not None
            return {} if is_collected else watchdog.members(self.pid, self.started, self.marker)

    def note_processes(self) -> None:
        """Record the titles of the server's processes, while it works."""
        self._titles = death.process_titles(self.members)

    def note_dead_processes(self) -> None:
        """Record the dead among the processes noted before.

        To be called as soon as something is wrong: in a moment all of them may be gone. Later calls then change nothing.
        """
        if not self._dead:
            self._dead = death.describe_dead(self._titles, self.members)

    def wait(self, seconds: float) -> bool:
        """Return True if the server ends within ``seconds``."""
        return _holds_within(seconds, lambda: self.exit_code is not None)

    def log_tail(self, lines: int = LOG_TAIL) -> tuple[str, ...]:
        """Return the last lines of the server's output, secrets struck out."""
        return tuple(line[:_MAX_LINE] for line in self._read_log_end().splitlines()[-lines:])

    def cause(self) -> str:
        """Return the first exception or abort message at the log's end.

        It is the likely cause of a death or of a failed start: the exception of a traceback with the frame that raised it, or a line like
        ``Segmentation fault``. Secrets are struck out. Empty if the last 64,000 characters of this server's output have neither.
        """
        return death.cause(self._read_log_end())[:_MAX_LINE]

    def output_text(self) -> str:
        """Return the server's whole output, as written.

        Secrets are not struck out: it is for counts, not to be shown.
        """
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def _read_log_end(self) -> str:
        """Return the end of the log, secrets struck out.

        More is read than returned, so that no part of a secret is left at the cut.
        """
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - 2 * _LOG_BYTES))
            return self.command.secrets.mask(file.read(2 * _LOG_BYTES).decode(errors="replace"))[-_LOG_BYTES:]

    def stop(self, stop_s: float) -> None:
        """End the server and every process of it.

        The server gets SIGTERM, and SIGKILL after ``stop_s`` seconds; with 0 it gets SIGKILL at once. Raises
        CaptureError if a process survives even that.
        """
        try:
            if stop_s <= 0 or not self._stops_within(stop_s):
                self._kill_and_wait()
        finally:
            # If something is left, since an interrupt, maybe a second one, came before its end, the watchdog ends it.
            with defer_signals():
                self._dismiss_watchdog(is_gone=self._is_gone())

    def kill(self) -> None:
        """Kill every process of the server, without waiting.

        :meth:`stop` is still needed afterwards.
        """
        self._send_signal(signal.SIGKILL)

    def _stops_within(self, stop_s: float) -> bool:
        """Ask the server and its container to stop; return True if they do in time."""
        self._run_command(self.command.stop, stop_s + _KILL_S)
        self._send_signal(signal.SIGTERM)
        return _holds_within(stop_s, self._is_gone)

    def _kill_and_wait(self) -> None:
        """Kill the server, its container too, and wait for the end.

        Raises CaptureError if a process survives for 10 s.
        """
        self._run_command(self.command.kill, _KILL_S)
        self._send_signal(signal.SIGKILL)
        if not _holds_within(_KILL_S, self._is_gone):
            raise self._survival_error()

    def _survival_error(self) -> CaptureError:
        """Return the error for a server surviving all attempts at ending it.

        It names the processes that survive SIGKILL, or else the container.
        """
        what, where = "a server could not be ended", str(self.command)
        if survivors := ", ".join(map(str, self.members)):
            remedy = "look at their state in /proc; a device driver may hold them"
            return CaptureError(what, where=where, found=f"processes that survive SIGKILL: {survivors}", remedy=remedy)
        state, expected = f"the container {self.command.container} still runs, or docker does not answer", "a container that is gone"
        return CaptureError(what, where=where, found=state, expected=expected, remedy=f"{shlex.join(self.command.kill)}, and see docker ps")

    def _send_signal(self, number: signal.Signals) -> None:
        watchdog.send(number, self.members)

    def _is_gone(self) -> bool:
        return self.exit_code is not None and not self.members and not self._container_may_run()

    def _container_may_run(self) -> bool:
        """Return True if the server's container runs, or may run.

        The end of the docker client that started the container says nothing about it. A docker that does not answer
        counts as a running container. Returns False for a server in none.
        """
        return bool(self.command.running) and self._run_command(self.command.running, _ASK_S) != ""

    def _announce_log(self, max_s: float) -> None:
        """Send the watchdog the log's path, the secrets and ``max_s``.

        The watchdog strikes the secrets, in every encoding of them, out of the log, and ends the server after ``max_s`` seconds unless that
        is infinite. It divides lines at spaces, so that paths and secrets are sent in hexadecimal.
        """
        spellings = self.command.secrets.spellings
        self._send_to_watchdog(
            f"log {os.fsencode(self.log.absolute()).hex()}\n" + "".join(f"secret {text.encode().hex()}\n" for text in spellings)
        )
        if math.isfinite(max_s):
            self._send_to_watchdog(f"seconds {max_s}\n")

    def _send_to_watchdog(self, text: str) -> None:
        with suppress(BrokenPipeError):  # somebody killed the watchdog: the server is ended without it
            os.write(self._pipe, text.encode())

    def _dismiss_watchdog(self, *, is_gone: bool) -> None:
        """Let the watchdog end, then wait for it and the server.

        If ``is_gone``, no process of the server is left, and the watchdog ends at once; else it kills the rest first. If the watchdog, the
        first child, failed, secrets are struck out of the log here.
        """
        with defer_signals():
            if self._pipe >= 0:
                self._send_to_watchdog("done\n" if is_gone else "")
                os.close(self._pipe)
                self._pipe = -1
            for child in self._children:
                with self._collecting:
                    self._collect(child)
            if self._children and self._children[0].returncode != 0:
                watchdog.strike_out(str(self.log), [text.encode() for text in self.command.secrets.spellings])

    def _collect(self, child: subprocess.Popen[bytes]) -> None:
        """Wait for a child's end, so that no zombie stays.

        A child that does not end in time is left running. Only the watchdog of a container's server is killed then: at its end it executes
        docker in its place, to kill the container, and a docker that hangs must not stay as a process.
        """
        watchdog_process = self._children[0]
        try:
            child.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            if child is watchdog_process and self.command.kill:
                child.kill()
                child.wait()

    @staticmethod
    def _run_command(argv: tuple[str, ...], seconds: float) -> str | None:
        """Return the output of a docker command; None if it failed.

        It stops, kills or looks for the server's container; no reason is returned, since :meth:`_is_gone` shows what came of it. ``argv``
        is empty for a server in no container: then nothing is run.
        """
        if not argv:
            return None
        try:
            result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.decode(errors="replace").strip() if result.returncode == 0 else None


def _holds_within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Return True if ``holds`` becomes true within ``seconds``.

    The pauses between two checks grow from 5 ms to 0.1 s.
    """
    end_s, pause_s = time.monotonic() + seconds, 0.005
    while not holds():
        if time.monotonic() >= end_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)
    return True


def _open_log(log: Path) -> BinaryIO:
    """Open a log readable only by its owner.

    A server may print secrets, which are struck out only when it has ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.fdopen(os.open(log, _APPEND, 0o600), "ab")


def _start_watchdog(marker: str, kill: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    """Return the watchdog's process and the write end of its pipe.

    ``kill`` is the command that kills the server's container, empty without one. The watchdog is started before the
    server, so that the server never runs without it.
    """
    read_end, write_end = os.pipe()
    try:
        argv = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), str(read_end), marker, *kill]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(read_end,), start_new_session=True), write_end  # noqa: S603
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)


def _make_folders(folders: Iterable[str]) -> None:
    """Make folders as this user.

    If a container's mount made them, they would belong to root. Raises EngineError if one cannot be made.
    """
    for folder in folders:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what, remedy = "a folder that the server needs cannot be made", "make it, or name another one under `env:` of the config"
            raise EngineError(what, found=f"{folder}: {error.strerror}", expected="a folder of this user", remedy=remedy) from error


def _write_files(files: Mapping[str, str]) -> None:
    """Write the files needed by the server."""
    for name, text in files.items():
        with writable(Path(name)):
            Path(name).write_text(text, encoding="utf-8")


def _start_server(command: Command, marker: str, log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the server's first process, in a session of its own.

    Every process of the server inherits the marker in its environment, by which the watchdog finds it. Variables that
    would configure the server unnoticed are removed. Raises EngineError if the command cannot be executed.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith((*command.scrubbed, watchdog.MARKER))}
    env = {**inherited, **command.env, watchdog.MARKER: marker}
    _make_folders(command.folders)
    _write_files(command.files)
    try:
        return subprocess.Popen(  # noqa: S603 - running the configured server is what we are here for
            command.argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        what = f"the server cannot be started: {error.strerror or error}"
        raise EngineError(
            what,
            found=str(command),
            expected="a command that can be executed",
            remedy="check executable, venv or image under `engine:` of the config",
        ) from error
