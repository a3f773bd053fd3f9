"""A server of several processes: started in order, ended in reverse, and dead as soon as one of them is.

An example is prefill and decode servers behind a proxy. The recipe of a process says how it is started and by what sign it is ready. A
note, a file beside the log, lets a later run end a process that was left behind.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.server import orphans, ports
from pytest_specdec.capture.server.process import LOG_TAIL, ServerProcess, defer_signals
from pytest_specdec.capture.server.readiness import check_build, check_port, get, not_ready_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_specdec.engines.protocol import Command, Dialect, ServerSetup
    from pytest_specdec.engines.stack import ProcessRecipe

_PAUSE_S = 0.05
_LOOK_S = 2.0
"""Seconds for one reply of a process that may be ready."""


class ServerStack:
    """The processes of one server, each with a log and a watchdog."""

    def __init__(self, recipes: Sequence[ProcessRecipe], log: Path) -> None:
        """Take the processes' recipes, and the log of the whole server.

        The recipes are in the order of their start. The log of each process is beside ``log``.
        """
        self._recipes = recipes
        self._log = log
        self._processes: list[tuple[ProcessRecipe, ServerProcess]] = []
        """Those that were started, in that order."""

    def boot(self, setup: ServerSetup, dialect: Dialect, *, boot_s: float, max_s: float, heartbeat: Callable[[], None]) -> None:
        """Start all processes, each once the one before is ready.

        Each has ``boot_s`` seconds for it, and all are ended by their watchdogs after ``max_s``. ``setup`` and ``dialect`` are the
        server's. Raises BootError, with the log of the process that ended or was not ready in time; the others are left to :meth:`stop`.
        """
        for recipe in self._recipes:
            with defer_signals():
                process = ServerProcess(recipe.command, self.log_of(recipe), max_s=max_s)
                self._processes.append((recipe, process))
                orphans.note(process.log.with_suffix(".json"), process)
            self._wait_until_ready(recipe, process, setup, boot_s, heartbeat)
            if recipe.is_engine:  # started by the engine's own command, so that its log shows the build
                check_build(process, dialect)

    def log_of(self, recipe: ProcessRecipe) -> Path:
        """Return the log of a process: the server's with the process's name."""
        return self._log.with_name(f"{self._log.stem}.{recipe.name}.log")

    def _wait_until_ready(
        self, recipe: ProcessRecipe, process: ServerProcess, setup: ServerSetup, boot_s: float, heartbeat: Callable[[], None]
    ) -> None:
        """Wait until a process is ready.

        ``setup`` is the whole server's. ``heartbeat`` is called between two looks. Raises BootError if it takes more than ``boot_s``
        seconds, if any process of the stack ends meanwhile, or if a foreign process listens on the port of any.
        """
        until_s = time.monotonic() + boot_s
        while time.monotonic() < until_s:
            if self.exit_code is not None:
                remedy = "read the log; the same command by hand shows the same"
                raise not_ready_error(self, f"died at boot: {self.ended}", remedy, expected=_describe_sign(recipe))
            if _is_ready(recipe, process, replace(setup, port=recipe.port)):
                self.check_ports()
                return
            heartbeat()
            time.sleep(_PAUSE_S)
        awaited = f"{recipe.ready!r}" if recipe.ready else "its port"
        remedy = "raise `limits.boot_s` in the config if the log shows progress, or correct `ready` of the process"
        what = f"was not ready after {boot_s:g} s: process {recipe.name} of the stack, by {awaited}"
        raise not_ready_error(process, what, remedy, expected=_describe_sign(recipe))

    @property
    def _speaker(self) -> ServerProcess:
        """The process that speaks for the server.

        It is the first, in the order of start, that has ended. While all run it is the one that requests go to, or else the last started.
        """
        ended = next((process for _, process in self._processes if process.exit_code is not None), None)
        front = next((process for recipe, process in self._processes if recipe.is_asked), None)
        return ended or front or self._processes[-1][1]

    @property
    def command(self) -> Command:
        """The command of the process that ended, or of the one asked."""
        return self._speaker.command

    @property
    def log(self) -> Path:
        """The log of the same process as ``command``."""
        return self._speaker.log

    @property
    def members(self) -> dict[int, int]:
        """All living processes of the server, by number, each with its start."""
        return {pid: start for _, process in self._processes for pid, start in process.members.items()}

    @property
    def exit_code(self) -> int | None:
        """The exit code of the first ended process; None while all run."""
        return next((code for _, process in self._processes if (code := process.exit_code) is not None), None)

    @property
    def ended(self) -> str:
        """Which process ended and how, with its log; empty while all run."""
        ends = (f"process {recipe.name}, {end} ({process.log.name})" for recipe, process in self._processes if (end := process.ended))
        return "; ".join(ends)

    @property
    def dead_processes(self) -> tuple[str, ...]:
        """The processes found dead right after a failure, in words.

        The main process of each command is left out, since :attr:`ended` describes its end.
        """
        return tuple(words for _, process in self._processes for words in process.dead_processes)

    def note_processes(self) -> None:
        """Record the titles of all processes, while they work."""
        for _, process in self._processes:
            process.note_processes()

    def note_dead_processes(self) -> None:
        """Record the dead among the processes noted before."""
        for _, process in tuple(self._processes):
            process.note_dead_processes()

    def wait(self, seconds: float) -> bool:
        """Return True if a process ends within ``seconds``."""
        until_s = time.monotonic() + seconds
        while self.exit_code is None and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        return self.exit_code is not None

    def log_tail(self, lines: int = LOG_TAIL) -> tuple[str, ...]:
        """Return the last lines of one process's log.

        It is the first process that has ended, or, while all run, the one that gets the requests. Empty before any was started.
        """
        return self._speaker.log_tail(lines) if self._processes else ()

    def output_text(self) -> str:
        """Return the output of the engine's processes, one after the other."""
        return "\n".join(process.output_text() for recipe, process in self._processes if recipe.is_engine)

    def cause(self) -> str:
        """Return the first exception or abort message in a log.

        The log of the first process that has ended is read first, or that of the one that gets the requests. The others follow in the
        order of their start. Empty if none has any.
        """
        if not self._processes:
            return ""
        processes = (self._speaker, *(process for _, process in self._processes))
        return next((cause for process in processes if (cause := process.cause())), "")

    def check_ports(self) -> None:
        """Raise BootError if a foreign process listens on the stack's ports."""
        for recipe, process in self._processes:
            if recipe.listens and process.exit_code is None:
                check_port(process, recipe.port)

    def stop(self, stop_s: float) -> None:
        """End all processes, the last one first.

        Each has ``stop_s`` seconds before it is killed; with 0 it is killed at once. Raises CaptureError if one survives, after the others
        were ended.
        """
        with ExitStack() as ends:  # calls back in reverse order, and goes on after an error
            for _, process in self._processes:
                ends.callback(_stop_process, process, stop_s)

    def kill(self) -> None:
        """Kill all processes, without waiting."""
        for _, process in reversed(tuple(self._processes)):
            process.kill()


def _stop_process(process: ServerProcess, stop_s: float) -> None:
    process.stop(stop_s)
    process.log.with_suffix(".json").unlink(missing_ok=True)


def _describe_sign(recipe: ProcessRecipe) -> str:
    """Return the sign by which a process is ready, in words, for an error.

    The sign is a 200 from the path ``ready``, else the text ``ready`` in its log. If that is empty, it is that something listens on its
    port, or, for a process without one, that it runs.
    """
    if recipe.ready.startswith("/"):
        return f"process {recipe.name}: 200 from {recipe.ready}"
    if recipe.ready:
        return f"process {recipe.name}: {recipe.ready!r} in its log"
    return f"process {recipe.name}: {'a server on its port' if recipe.listens else 'that it runs'}"


def _is_ready(recipe: ProcessRecipe, process: ServerProcess, setup: ServerSetup) -> bool:
    """Return True if a process shows its sign, that of :func:`_describe_sign`.

    ``setup`` has the process's port.
    """
    if recipe.ready.startswith("/"):
        return get(setup, recipe.ready, seconds=_LOOK_S) is not None
    if recipe.ready:
        return recipe.ready in process.output_text()
    return not recipe.listens or ports.is_listened(recipe.port)
