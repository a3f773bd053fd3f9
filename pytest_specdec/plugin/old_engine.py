"""The engine in use, of a config with ``engines``: captured and judged by a pytest session of its own, before the new engine.

Its run is a run directory like any other, in the folder ``old`` of this one's. An arm is a server by its role: the baseline, or a variant,
which speculates.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.config.engines import EngineName
from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.pair import old_arm
from pytest_specdec.model.status import State
from pytest_specdec.plugin import child_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_specdec.model.status import Progress
    from pytest_specdec.plugin.run_state import RunState

__all__ = ["arguments", "deadline_s", "is_judged", "judge", "read_progress", "run_directory", "why_missing"]


def deadline_s(total_s: float | None) -> float | None:
    """Return the part of ``--specdec-deadline`` that each engine is planned with, half of it; None without one."""
    return None if total_s is None else total_s / 2


def run_directory(root: Path) -> Path | None:
    """Return the directory of the old engine's run inside ``root``.

    None for a run of one engine, and without a readable plan.
    """
    directory = RunDirectory(root)
    try:
        return directory.old if run_documents.read_plan(directory).old is not None else None
    except RunError:
        return None


def is_judged(old: Path) -> bool:
    """Return True if the old engine's run is complete and has its report."""
    directory = RunDirectory(old)
    try:
        return directory.run.is_file() and run_documents.read_status(directory).state is State.COMPLETE
    except RunError:
        return False


def why_missing(root: Path) -> str:
    """Return the reason for a missing run of the old engine, in the run ``root``.

    It has the last lines of that engine's session. Empty if that session wrote its report: there is a run to compare with.
    """
    directory = RunDirectory(root)
    if RunDirectory(directory.old).run.is_file():
        return ""
    last = child_session.read_last_lines(directory.old_session)
    return f"the old engine's session left no run.json; its output is in {directory.old_session}" + (f":\n{last}" if last else "")


def read_progress(root: Path) -> tuple[Progress, ...]:
    """Return the last step of the old engine's capture, its arms by their names in this run; () before it has begun."""
    return tuple(replace(step, arm=old_arm(step.arm)) for step in run_documents.read_progress(RunDirectory(RunDirectory(root).old))[-1:])


def judge(run: RunState, tell: Callable[[Progress], None]) -> float:
    """Run the old engine's pytest session and return its duration in seconds.

    Returns 0.0, and runs nothing, if the old engine is judged already; a session that was ended before is resumed. ``tell`` gets the
    progress of the old engine's session, whose results are in its run directory and its output beside that. A failure of that session
    raises no error here, see :func:`why_missing`. If this session is interrupted, it interrupts the other and waits until that has stopped
    its servers.

    Raises RunError if the output cannot be written.
    """
    directory = RunDirectory(run.root)
    if is_judged(directory.old):
        return 0.0
    began_s = time.monotonic()
    argv = arguments(run.arguments, directory.old, run.settings.deadline_s)
    process = child_session.start(argv, directory.old_session, folder=run.invoked_in)
    with child_session.end_on_error([process], run.config.limits.stop_s):
        while process.poll() is None:
            for step in read_progress(run.root):
                tell(step)
            with suppress(subprocess.TimeoutExpired):
                process.wait(child_session.EVERY_S)
    return time.monotonic() - began_s


def arguments(inherited: Sequence[str], old: Path, total_s: float | None) -> tuple[str, ...]:
    """Return the command line of the old engine's pytest session.

    It is this session's command line, with the arguments ``inherited``, for the old engine and the run directory ``old``. A run in that
    directory is resumed. Of the ``total_s`` seconds of this session's deadline it gets half.
    """
    target = "--specdec-resume" if RunDirectory(old).plan.is_file() else "--specdec-run-dir"
    part_s = deadline_s(total_s)
    deadline = () if part_s is None else (f"--specdec-deadline={part_s:g}",)
    options = (f"--specdec-engine={EngineName.OLD}", f"{target}={old}", *deadline)
    return child_session.arguments(inherited, *options, without=("--specdec-deadline",))
