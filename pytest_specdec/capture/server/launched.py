"""What an arm needs of a server at work: a process, a stack of processes, or a server of somebody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class LaunchedServer(Protocol):
    """A server at work, or one that has ended."""

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs.

        It is 1 for a server of somebody else that is gone.
        """

    @property
    def ended(self) -> str:
        """How it ended, in words; empty while it runs."""

    @property
    def members(self) -> Mapping[int, int]:
        """Its living processes by number, each with its start.

        Empty if they are not on this machine.
        """

    @property
    def dead_processes(self) -> tuple[str, ...]:
        """The first processes found dead after a failure, in words.

        The server's first process is left out, since ``ended`` describes its end.
        """

    def note_processes(self) -> None:
        """Record the processes, while the server works."""

    def note_dead_processes(self) -> None:
        """Record the dead among the noted processes."""

    def wait(self, seconds: float) -> bool:
        """Return True if the server ends within ``seconds``."""

    def log_tail(self) -> tuple[str, ...]:
        """Return its last lines."""

    def output_text(self) -> str:
        """Return its output since its start."""

    def cause(self) -> str:
        """Return the first exception in its output."""

    def stop(self, stop_s: float) -> None:
        """End it, and kill it after ``stop_s`` seconds.

        A server of somebody else is left alone.
        """

    def kill(self) -> None:
        """Kill it, without waiting; a server of somebody else is left alone."""
