"""A session of pytest that this session starts: for the engine in use, or for a group of a matrix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.files.run_directory import writable
from pytest_specdec.plugin import commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["arguments", "end_on_error", "environment", "last_lines", "start"]

EVERY_S = 0.5
"""Seconds between two looks at a session's progress."""
_END_S = 60.0
"""Seconds that an interrupted session gets to stop its servers, besides the config's ``limits.stop_s``."""
_BENCHMARKS = ("--benchmark-json", "--benchmark-save", "--benchmark-compare-fail")
"""pytest-benchmark opens its JSON file with the session: both would write to one, over each other."""
_FILES = ("--junitxml", "--junit-xml", "--log-file", "--report-log", "--html", *_BENCHMARKS)
"""Options with a file that a session writes from its start."""
_VALUED = (*commands.RUN_OPTIONS, "--specdec-accept-regression", *_FILES)
"""Options with a value that a child gets anew, or not at all."""
_SWITCHES = ("--specdec-update-baselines", "--benchmark-autosave")
"""The baseline file and the saved benchmarks are those of the session itself."""
_WITHHELD = ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY")
"""Variables of the environment that are not passed on; neither are those of pytest-xdist's workers."""
_LAST_LINES = 5


def arguments(inherited: Sequence[str], *more: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command line of a child session.

    It has this session's arguments ``inherited``, without the options that concern this session alone (``_VALUED``, each with its value,
    and ``_SWITCHES``) and the options with a value in ``without``, then ``more``. The arguments of the ini file (``addopts``) and the
    environment are among ``inherited``, so that the child must not read them again.
    """
    repeated = [argument for argument in commands.without_options(inherited, (*_VALUED, *without)) if argument not in _SWITCHES]
    return (sys.executable, "-m", "pytest", *repeated, "--override-ini=addopts=", *more)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that a child gets."""
    return {name: value for name, value in environ.items() if name not in _WITHHELD and not name.startswith("PYTEST_XDIST_")}


def start(
    argv: Sequence[str], output: Path, *, folder: Path, more: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a child session in ``folder`` and return its process.

    ``argv`` is its command line. Its output is added to the end of the file ``output``. It gets the variables ``more`` besides those of
    this session, and inherits ``descriptors``. Raises RunError if the output cannot be written.
    """
    with writable(output), output.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 - the very command line of this session
            argv,
            cwd=folder,
            env={**environment(os.environ), **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(descriptors),
            # Ctrl-C reaches this session alone, which passes on one signal: two would disturb the end of the servers.
            start_new_session=True,
        )


@contextmanager
def end_on_error(processes: Sequence[subprocess.Popen[bytes]], stop_s: float) -> Iterator[None]:
    """End the children that still run if the block raises an exception.

    They get SIGTERM if this session was terminated, else SIGINT. They are then waited for, a minute and ``stop_s`` seconds (those that
    their servers may take to stop) for all together, and killed if they still run. The exception is raised again. Children may be added to
    ``processes`` within the block.
    """
    try:
        yield
    except BaseException as error:
        # SIGTERM raises pytest's exit exception, see ``capture.exit_on_sigterm``.
        is_terminated = isinstance(error, pytest.exit.Exception | SystemExit)
        for process in processes:
            process.send_signal(signal.SIGTERM if is_terminated else signal.SIGINT)
        end_s = time.monotonic() + _END_S + stop_s
        for process in processes:
            try:
                process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        raise


def read_last_lines(output: Path) -> str:
    """Return the last lines of a file with a child's output; empty if there are none."""
    try:
        return last_lines(output.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def last_lines(text: str) -> str:
    """Return the last lines of a text; empty if there are none."""
    return "\n".join(text.strip().splitlines()[-_LAST_LINES:])
