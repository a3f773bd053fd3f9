"""A server process: its own session, one log file, a watchdog, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture.launch import processes, watchdog
from pytest_specdec.capture.launch.cause import cause
from pytest_specdec.capture.secrets import Secrets
from pytest_specdec.errors import CaptureError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

__all__ = ["LOG_TAIL", "Command", "Server"]

_LOG_BYTES = 64_000
"""How much of a log's end is read."""
LOG_TAIL = 20
"""Lines of a server's log that an error shows."""
_SCRUBBED = ("LLAMA_ARG_", "SGLANG_SIMULATE_", "VLLM_API_KEY", watchdog.MARKER)
"""Variables of our own environment that would set up a server behind the config's back."""
_KILL_S = 10.0
"""Seconds that the kernel gets to end killed processes, which may hold device memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, in which environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment, from which variables that turn speculation on by surprise are removed."""
    stop: tuple[str, ...] = ()
    """A command that ends what signals do not reach, such as a container."""
    kill: tuple[str, ...] = ()
    """The same, at once."""
    secrets: Secrets = field(default_factory=Secrets)

    def __str__(self) -> str:
        return self.secrets.mask(shlex.join(self.argv))


class Server:
    """A started server."""

    def __init__(self, command: Command, log: Path) -> None:
        """Start ``command`` with its output appended to ``log``. Raises EngineError when it cannot be executed."""
        self.command = command
        self.log = log
        self.marker = uuid.uuid4().hex
        log.parent.mkdir(parents=True, exist_ok=True)
        self._watchdog, self._line = _start_watchdog(self.marker, command.kill)
        try:
            with log.open("ab") as file:
                file.write(f"# {command}\n".encode())
                file.flush()
                self._log_start = file.tell()
                self._process = _start(command, self.marker, file)
        except BaseException:
            self._dismiss_watchdog()
            raise
        self.pid = self._process.pid
        self._known: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self._tell(f"{self.pid}\n")

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def ended(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.exit_code
        if code is None:
            return ""
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}, exit code {code}"

    @property
    def lost(self) -> tuple[str, ...]:
        """The processes behind the first one that were found gone first, in words."""
        return tuple(words for pid, words in self._lost.items() if pid != self.pid)

    def look(self) -> None:
        """Take note of the server's processes, while all is well."""
        self._known = processes.titles(self.pid, self.marker)

    def look_again(self) -> None:
        """Find out which of them are gone, as soon as something is wrong: in a moment they all may be."""
        if not self._lost:
            self._lost = processes.gone(self._known, self.pid, self.marker)

    def wait(self, seconds: float) -> bool:
        """Return whether the server ends within ``seconds``."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self, lines: int = LOG_TAIL) -> tuple[str, ...]:
        """Return the last lines that this server wrote, secrets struck out."""
        return tuple(self._written().splitlines()[-lines:])

    def cause(self) -> str:
        """Return the first exception in what this server last wrote, secrets struck out; empty without one."""
        return cause(self._written())

    def _written(self) -> str:
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - _LOG_BYTES))
            return self.command.secrets.mask(file.read().decode(errors="replace"))

    def stop(self, stop_s: float) -> None:
        """End the server and every process of it: SIGTERM, after ``stop_s`` seconds SIGKILL.

        Raises CaptureError when a process survives even that.
        """
        try:
            self._run(self.command.stop, stop_s + _KILL_S)
            self._signal(signal.SIGTERM)
            if not self._gone_within(stop_s):
                self._kill()
        except BaseException:
            self._kill()
            raise
        finally:
            self._dismiss_watchdog()
            self._strike_out_secrets()

    def kill(self) -> None:
        """Kill every process of the server, without waiting; it still has to be stopped."""
        self._signal(signal.SIGKILL)

    def _kill(self) -> None:
        self._run(self.command.kill, _KILL_S)
        self._signal(signal.SIGKILL)
        if not self._gone_within(_KILL_S):
            survivors = ", ".join(map(str, watchdog.members(self.pid, self.marker)))
            what = "a server could not be ended"
            raise CaptureError(
                what,
                where=str(self.command),
                found=f"processes that survive SIGKILL: {survivors}",
                remedy="look at their state in /proc; a device driver may hold them",
            )

    def _signal(self, number: signal.Signals) -> None:
        watchdog.send(number, self.pid, self.marker)

    def _gone_within(self, seconds: float) -> bool:
        end, pause = time.monotonic() + seconds, 0.005
        while self._process.poll() is None or watchdog.members(self.pid, self.marker):
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return True

    def _tell(self, text: str) -> None:
        with suppress(BrokenPipeError):  # a watchdog that somebody killed is missed, not mourned
            os.write(self._line, text.encode())

    def _dismiss_watchdog(self) -> None:
        if self._line < 0:
            return
        self._tell("done\n")
        os.close(self._line)
        self._line = -1
        self._watchdog.wait()

    def _strike_out_secrets(self) -> None:
        text = self.log.read_bytes().decode(errors="surrogateescape")
        masked = self.command.secrets.mask(text)
        if masked != text:
            self.log.write_bytes(masked.encode(errors="surrogateescape"))

    @staticmethod
    def _run(argv: tuple[str, ...], seconds: float) -> None:
        if argv:
            try:
                subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)  # noqa: S603
            except (OSError, subprocess.TimeoutExpired):
                return  # whether anything survived is looked at next


def _start_watchdog(marker: str, kill: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the watchdog before the server, so that there is no moment without one."""
    ear, line = os.pipe()
    try:
        argv = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), str(ear), marker, *kill]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(ear,), start_new_session=True), line  # noqa: S603
    finally:
        os.close(ear)


def _start(command: Command, marker: str, log: BinaryIO) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    env = {**own, **command.env, watchdog.MARKER: marker}
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
