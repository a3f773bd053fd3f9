"""Against: a session's run compared with an earlier one, under ``--specdec-against``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.plugin.report_files import read_run
from pytest_specdec.report import comparison
from pytest_specdec.report.run import Upgrade

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.report.comparison import Comparison
    from pytest_specdec.report.run import Run


def compare(old: Path, new: Path, old_run: Run, new_run: Run) -> Comparison:
    """Return what changed between two runs. Raises RunError if a file of theirs is invalid.

    Their baselines are compared if both are run directories with a plan, that is, with transcripts and scores.
    """
    missing = [str(path) for path in (old, new) if not (path / "plan.json").is_file()]
    if missing:
        why = f"no run directory with transcripts and scores: {', '.join(missing)}"
        return comparison.compare(old_run, new_run, not_compared=why)
    return comparison.compare(old_run, new_run, _compare_baselines(old, new))


def compare_with_earlier(earlier: Path, root: Path, judged: Run) -> Comparison:
    """Return the comparison of the run in ``root`` with an earlier one.

    A file that cannot be read is the reason for what is not compared, so that the session's own verdicts are not lost.
    """
    old = read_run(earlier)
    try:
        return compare(earlier, root, old, judged)
    except RunError as error:
        return comparison.compare(old, judged, not_compared=f"{error.where}: {error.what}" if error.where else error.what)


def with_upgrade(judged: Run, changes: Comparison, earlier: str) -> Run:
    """Return the run with the comparison, whose headline is among its notes, which every report shows."""
    upgrade = Upgrade(word=changes.word, earlier=earlier, headline=changes.headline)
    return replace(judged, upgrade=upgrade, notes=(f"UPGRADE from {earlier}: {changes.headline}", *judged.notes))


def _compare_baselines(old: Path, new: Path) -> BaselineChange:
    """Return how the baselines of two run directories relate. Raises RunError if a file of theirs is invalid."""
    from pytest_specdec.files import baseline_record  # noqa: PLC0415 - only a comparison of directories pays for it
    from pytest_specdec.judge import baseline_change  # noqa: PLC0415 - imports numpy

    return baseline_change.compare(*(baseline_record.read(RunDirectory.open(path)) for path in (old, new)))
