"""Follow a capture that another process makes, by what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec import place
from pytest_specdec.errors import RunError
from pytest_specdec.files import records
from pytest_specdec.files.directory import RunDirectory
from pytest_specdec.model.status import State
from pytest_specdec.progress import Ticker, ended
from pytest_specdec.report import plan

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    import pytest

    from pytest_specdec.model.status import Status

__all__ = ["follow", "is_of"]


def is_of(root: Path, session: str) -> bool:
    """Return whether the run in ``root`` is captured by ``session`` and its plan is written."""
    directory = RunDirectory(root)
    return directory.plan.is_file() and records.session(directory) == session


def follow(config: pytest.Config, root: Path, over: threading.Event, *, every_s: float, session: str) -> None:
    """Print the plan and then the progress of the capture in ``root`` until it or ``session`` is over."""
    directory, ticker = RunDirectory.open(root), Ticker(config)
    _break_line(ticker, over)
    for line in plan.lines(records.read_plan(directory), origin=place.shown(root, config), replayed=False):
        ticker.say(line)
    late = over.is_set()
    while _status(directory, session) is None and not over.wait(every_s):
        for step in records.read_progress(directory)[-1:]:
            ticker(step)
    status = _status(directory, session)
    if status is not None:
        if not late:
            _break_line(ticker, over)
        ticker.say(ended(status))


def _break_line(ticker: Ticker, over: threading.Event) -> None:
    """Leave the line of the workers' dots, where there already is one."""
    if over.is_set():
        ticker.say("")


def _status(directory: RunDirectory, session: str) -> Status | None:
    """Return the last word of the capture, None while it runs."""
    if not is_of(directory.root, session):
        return None
    try:
        status = records.read_status(directory)
    except RunError:
        return None
    return None if status.state is State.RUNNING else status
