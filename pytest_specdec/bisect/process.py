"""A command in a process group of its own, which ends with it: pip, a compiler, or pytest with its servers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_specdec.errors import DeadlineError
from pytest_specdec.files.run_directory import read_text, writable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_GRACE_S = 60.0
"""After SIGINT: pytest stops its servers and writes what it has."""


def run(command: Sequence[str], log: Path, variables: Mapping[str, str], *, folder: Path, deadline: float) -> int:
    """Run a command to its end and return its exit code.

    It is started in ``folder``, with ``variables`` added to this process's environment. Its output goes to ``log``;
    ``deadline`` is a time of ``time.monotonic``, or infinite. If the command still runs when this function is left, by the
    deadline or an exception, its process group gets SIGINT, and SIGKILL a minute later. Processes that the command leaves
    running in its group get SIGKILL when it has ended.
    Raises DeadlineError if the deadline passes, RunError if the log cannot be made, and OSError if the command cannot
    be started.
    """
    with writable(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        output = log.open("wb")
    with output:
        process = subprocess.Popen(  # noqa: S603 - the command of the config, or pytest
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            most_s = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())  # None waits without a limit
            return process.wait(most_s)
        except subprocess.TimeoutExpired:
            what = "the time is up"
            raise DeadlineError(what) from None
        finally:
            if process.poll() is None:
                _interrupt(process)
            # The command has ended; this ends what it left running. macOS refuses a group of zombies.
            with suppress(ProcessLookupError, PermissionError):  # no such group: it left nothing
                os.killpg(process.pid, signal.SIGKILL)


def last_lines(log: Path, count: int) -> tuple[str, ...]:
    """Return the last lines of a log, empty lines left out.

    Returns () without a readable log.
    """
    with suppress(OSError, UnicodeDecodeError):
        return tuple(line for line in read_text(log).splitlines() if line.strip())[-count:]
    return ()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to a command's process group, and wait for the command.

    SIGINT lets pytest stop its servers and write its results. The group is killed if that takes more than a minute, or at a second
    interrupt.
    """
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
