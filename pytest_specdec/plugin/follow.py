"""Follow a capture that another process of the session runs: its plan, its progress and its end.

Under pytest-xdist one worker captures, into a run directory with the id of the session, and the controller prints what it reads there. The
old engine of a config with two, that in use, is captured first, by a pytest session of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.capture import environment
from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.status import State
from pytest_specdec.plugin import commands, old_engine
from pytest_specdec.plugin.progress import Ticker, last_word
from pytest_specdec.report import plan

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    import pytest

    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.status import Status

__all__ = ["follow", "is_of", "plan_lines"]

_BUSY = 1.0
"""Load per core from which on a capture has to wait for the processor: other programs use all of it."""


def is_of(root: Path, session: str) -> bool:
    """Return True if ``root`` has a written plan of ``session``."""
    directory = RunDirectory(root)
    return directory.plan.is_file() and run_documents.session(directory) == session


def follow(config: pytest.Config, root: Path, over: threading.Event, *, every_s: float, session: str) -> None:
    """Print the plan, then the progress of another process's capture in ``root``.

    The progress is read anew every ``every_s`` seconds: the last step, or that of the old engine as long as there is none. Returns when the
    capture of ``session`` has ended, or when ``over`` is set at the end of the tests.
    """
    directory, ticker = RunDirectory.open(root), Ticker(config)
    is_late = over.is_set()  # the tests are over already
    if is_late:
        _end_line_of_dots(ticker)
    for line in plan_lines(run_documents.read_plan(directory), config, root, replayed=False):
        ticker.say(line)
    while _final_status(directory, session) is None and not over.wait(every_s):
        for step in run_documents.read_progress(directory)[-1:] or old_engine.read_progress(root):
            ticker(step)
    status = _final_status(directory, session)
    if status is not None:
        if over.is_set() and not is_late:
            _end_line_of_dots(ticker)
        ticker.say(last_word(status))


def plan_lines(planned: Plan, config: pytest.Config, root: Path, *, replayed: bool) -> tuple[str, ...]:
    """Return the lines of a plan, and one more if a busy machine will delay its capture."""
    lines, load = plan.lines(planned, origin=commands.as_typed(root, config), replayed=replayed), environment.load_per_core()
    if replayed or load < _BUSY:
        return lines
    return (*lines, f"  the machine is busy, {load:.1f} processes to a core: the capture takes longer")


def _end_line_of_dots(ticker: Ticker) -> None:
    """End the line in which pytest has printed a dot for each test."""
    ticker.say("")


def _final_status(directory: RunDirectory, session: str) -> Status | None:
    """Return the final status of this session's capture.

    None while it runs, without a readable status, and if the run is another session's.
    """
    if not is_of(directory.root, session):
        return None
    try:
        status = run_documents.read_status(directory)
    except RunError:
        return None
    return None if status.state is State.RUNNING else status
