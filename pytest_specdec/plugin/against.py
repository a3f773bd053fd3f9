"""Against: a session's run compared with an earlier one, under ``--specdec-against``, as before and after an engine's upgrade.

A run is servers' answers, captured once, and the verdicts on them. Its run directory has transcripts and scores (log-probabilities of the
answers' tokens); its report is ``run.json`` there. The baseline is the server that does not speculate: its answers show what
changed in the engine itself. Gates are the limits that a config sets.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.config import load
from pytest_specdec.errors import ConfigError, RunError, SpecdecError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.baseline import BOOT_SD, stated_boot_sd
from pytest_specdec.model.upgrade_gates import UpgradeGates
from pytest_specdec.plugin.report_files import read_run
from pytest_specdec.report import comparison
from pytest_specdec.report.environment import list_flags
from pytest_specdec.report.upgrade import Upgrade, UpgradeWord

if TYPE_CHECKING:
    from datetime import date
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.judge.compared_speed import ComparedSpeed
    from pytest_specdec.report.comparison import Comparison
    from pytest_specdec.report.run import Run


def compare(old: Path, new: Path, old_run: Run, new_run: Run, *, day: date, config: Config | None = None) -> Comparison:
    """Return the changes between an old and a new run.

    ``old`` and ``new`` are their paths, ``old_run`` and ``new_run`` their reports. Baselines and speeds are compared if both paths are run
    directories with a plan, that is, with transcripts and scores. ``config`` says what is tolerated; without one it is the stored config of
    the new run. Servers' flags are compared only if both runs have some that can be read. Changes that the config accepts until some day
    must not have expired on ``day``. Raises RunError if a file of theirs is invalid, or if both are the same run, and ConfigError for an
    invalid config.
    """
    _check_two_runs(old, new)
    gating_config = config or _read_config(new)
    gates = UpgradeGates() if gating_config is None else gating_config.upgrade
    missing = [name for name, path in (("the old run", old), ("the new run", new)) if not (path / "plan.json").is_file()]
    if missing:
        why = f"no run directory with transcripts and scores: {', '.join(missing)}"
        return comparison.compare(old_run, new_run, not_compared=why, gates=gates, day=day)
    flags = [_list_flags(path) for path in (old, new)]
    return comparison.compare(
        old_run,
        new_run,
        _compare_baselines(old, new),
        speed=_compare_speeds(old, new, gating_config, gates),
        gates=gates,
        day=day,
        old_flags=flags[0] if all(flags) else {},
        new_flags=flags[1] if all(flags) else {},
    )


def compare_with_earlier(earlier: Path, root: Path, judged: Run, *, day: date, config: Config | None) -> Comparison:
    """Return the comparison of the run in ``root`` with an earlier one.

    ``judged`` is the report of the run in ``root``, ``earlier`` the path of the other. ``config`` tolerates changes and accepts some until
    a date; those whose date is before ``day``, usually today, have expired.
    If a file of either run cannot be read, or both are one run, only the two reports are compared, and the comparison has the reason:
    the session's own verdicts are not lost. Raises RunError if the earlier run's report itself cannot be read.
    """
    old = read_run(earlier)
    try:
        return compare(earlier, root, old, judged, day=day, config=config)
    except SpecdecError as error:
        reason = f"{error.where}: {error.what}" if error.where else error.what
        gates = UpgradeGates() if config is None else config.upgrade
        return comparison.compare(old, judged, not_compared=reason, gates=gates, day=day)


def with_upgrade(judged: Run, changes: Comparison, earlier: str) -> Run:
    """Return the run with the comparison, and with its headline as the first note."""
    upgrade = comparison.upgrade(changes, earlier)
    return replace(judged, upgrade=upgrade, notes=(upgrade.note, *judged.notes))


def without_comparison(judged: Run, reason: str, earlier: str) -> Run:
    """Return the run with the reason against comparing it.

    The upgrade, whether the new engine is as good as the old one, is then not judged. The ``reason``, put on one line, is the first of the
    run's notes. ``earlier`` names the run to compare with.
    """
    why = "; ".join(line.strip() for line in reason.splitlines())
    upgrade = Upgrade(word=UpgradeWord.UNKNOWN, earlier=earlier, headline=f"NOT JUDGED: {why}")
    return replace(judged, upgrade=upgrade, notes=(f"UPGRADE not judged: {why}", *judged.notes))


def _check_two_runs(old: Path, new: Path) -> None:
    """Raise RunError if both paths are the same run.

    They are if they are one place, or two copies of one capture, which have the same session, the id of the pytest run that captured.
    Without a stored session no copy is recognised; a path to a run.json has none.
    """
    documents = [(path / "run.json" if path.is_dir() else path).resolve() for path in (old, new)]
    sessions = [run_documents.session(RunDirectory(path)) if path.is_dir() else "" for path in (old, new)]
    is_one_place = documents[0] == documents[1]
    are_copies = bool(sessions[0]) and sessions[0] == sessions[1]
    if not (is_one_place or are_copies):
        return
    what, remedy = "a run is given as its own predecessor", "name the run of the build before the upgrade first, then that of the new build"
    paths = f"{old} and {new}" if old != new else str(old)
    raise RunError(what, where=str(new), found=paths, expected="two runs, the earlier one first", remedy=remedy)


def _read_config(new: Path) -> Config | None:
    """Return the config that a run was captured with; None where it is not stored."""
    path = RunDirectory(new).config
    return load.load(path) if path.is_file() else None


def _list_flags(path: Path) -> dict[str, str]:
    """Return the flags of a run's servers by name.

    They come from the stored config. Empty if there is none, or if this release cannot read it.
    """
    with suppress(ConfigError):
        config = _read_config(path)
        return list_flags(config) if config is not None else {}
    return {}


def _compare_baselines(old: Path, new: Path) -> BaselineChange:
    """Return how the baselines of two run directories relate.

    Raises RunError if a file of theirs is invalid.
    """
    from pytest_specdec.files import baseline_record  # noqa: PLC0415 - only a comparison of directories pays for it
    from pytest_specdec.judge import baseline_change  # noqa: PLC0415 - imports numpy

    return baseline_change.compare(*(baseline_record.read(RunDirectory.open(path)) for path in (old, new)))


def _compare_speeds(old: Path, new: Path, config: Config | None, gates: UpgradeGates) -> ComparedSpeed:
    """Return how the speeds of two run directories relate.

    ``gates`` say what the upgrade may change. ``boot_sd``, by how much a server's speed varies from boot to boot, is that of a gate on the
    speedup in ``config``, or the default of the package. Raises RunError if a file of the two directories is invalid.
    """
    from pytest_specdec.files import speed_record  # noqa: PLC0415 - only a comparison of directories pays for it
    from pytest_specdec.judge import speed_change  # noqa: PLC0415 - imports numpy

    boot_sd = BOOT_SD if config is None else stated_boot_sd(config.gates)
    before_directory, directory = RunDirectory.open(old), RunDirectory.open(new)
    # The new run may hold answers of the old engine, timed in turn with its own: they are preferred.
    before, after = speed_record.read_predecessor(before_directory, directory), speed_record.read(directory)
    return speed_change.compare(before, after, gates, boot_sd=boot_sd)
