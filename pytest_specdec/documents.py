"""The documents of a run, and its summary on the terminal."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_specdec import baselines, command, place, timings
from pytest_specdec.errors import RunError
from pytest_specdec.files import records
from pytest_specdec.files.directory import RunDirectory, atomic_write, writable
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.status import State
from pytest_specdec.options import SETTINGS
from pytest_specdec.report import markdown, terminal
from pytest_specdec.report.matrix import Tone
from pytest_specdec.report.run import Run, document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pytest

    from pytest_specdec.model.plan import Plan
    from pytest_specdec.report.run import Judgement

__all__ = ["benchmark", "gathered", "is_of", "show", "write"]

T = TypeVar("T")

MARKUP: Mapping[Tone, Mapping[str, bool]] = {
    Tone.GOOD: {"green": True},
    Tone.UNSURE: {"yellow": True},
    Tone.BAD: {"red": True, "bold": True},
    Tone.PLAIN: {},
}


def is_of(config: pytest.Config, root: Path, session: str) -> bool:
    """Return whether the run in ``root`` is this session's, or one that it judges again; another session may have been faster."""
    settings = config.stash[SETTINGS]
    return bool(settings.replay or settings.taken_up) or records.session(RunDirectory(root)) == session


def gathered(config: pytest.Config, root: Path, judgements: Sequence[Judgement], warnings: Sequence[str]) -> Run:
    """Return the run in ``root`` with what was judged of it."""
    directory = RunDirectory.open(root)
    plan, environment = records.read_plan(directory), _or_none(records.read_environment, directory)
    return Run(
        directory=place.shown(root, config),
        replayed=config.stash[SETTINGS].replay is not None,
        plan=plan,
        environment=environment,
        status=_or_none(records.read_status, directory),
        judgements=_in_order(plan, judgements),
        capabilities=_or_none(records.read_capabilities, directory) or {},
        notes=(*warnings, *baselines.notes(config.stash[SETTINGS].baselines, plan.config, environment)),
        made_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
    )


def _in_order(plan: Plan, judgements: Sequence[Judgement]) -> tuple[Judgement, ...]:
    """Sort by pair, family and workload: tests that run in several processes come in any order."""
    pairs = [pair.name for pair in plan.pairs]
    return tuple(sorted(judgements, key=lambda one: (pairs.index(one.pair), one.family.value, one.workload)))


def _or_none(read: Callable[[RunDirectory], T], directory: RunDirectory) -> T | None:
    """Return what an unfinished capture may not have written."""
    try:
        return read(directory)
    except RunError:
        return None


def write(config: pytest.Config, root: Path, run: Run) -> tuple[str, ...]:
    """Write the documents and return a line for each; a replay leaves the stored run alone and writes only where it was told to."""
    settings = config.stash[SETTINGS]
    folder = settings.run_dir if settings.replay else root
    secrets = Secrets.of(os.environ)
    texts = {"run.json": json.dumps(secrets.masked(document(run)), ensure_ascii=False, indent=1) + "\n"}
    if "md" in settings.reports:
        texts["report.md"] = secrets.mask(markdown.render(run))
    _append_step_summary(secrets.mask(markdown.render(run)))
    if folder is None:
        return ()
    for name, text in texts.items():
        atomic_write(folder / name, text)
    lines = tuple(f"{Path(name).stem}: {place.shown(folder / name, config)}" for name in texts)
    return (*lines, *_baseline(config, folder, run))


def benchmark(config: pytest.Config, root: Path, run: Run) -> None:
    """Hand the run's timings to pytest-benchmark, which may save them."""
    timings.add(config, RunDirectory.open(root), run)


def _baseline(config: pytest.Config, folder: Path, run: Run) -> tuple[str, ...]:
    """Update the baseline file where that was asked for; show what it would be where there is none."""
    settings, environment = config.stash[SETTINGS], run.environment
    if environment is None:
        return ()
    verdicts = [judgement.verdict for judgement in run.judgements if judgement.verdict]
    if settings.update_baselines:
        updated = baselines.update(settings.baselines, run.plan.config, environment, verdicts)
        return (f"baseline updated: {place.shown(updated.path, config)}", *(f"  {move}" for move in updated.moves)) if updated else ()
    home = baselines.path(settings.baselines, run.plan.config, environment)
    path = None if home.is_file() else baselines.candidate(folder, environment, verdicts)
    return (
        (f"baseline candidate: {place.shown(path, config)}, for {place.shown(home, config)} (or --specdec-update-baselines)",)
        if path
        else ()
    )


def _append_step_summary(text: str) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with writable(Path(path)), Path(path).open("a", encoding="utf-8", errors="backslashreplace") as summary:
            summary.write(text)


def show(config: pytest.Config, reporter: pytest.TerminalReporter, root: Path, run: Run) -> None:
    """Print the summary of the run in ``root``, write its documents, and say where they are, or why they are not."""
    reporter.write_sep("-", "specdec", bold=True)
    further, verbose = command.again(config, "--specdec-continue", root), config.get_verbosity() > 0
    lines = terminal.lines(run, artifacts=(), remedy=_remedy(config, root, run), further=further, verbose=verbose)
    remedy = len(lines) - run.red
    _print(reporter, lines[:remedy])
    try:
        for artifact in write(config, root, run):
            reporter.write_line(artifact)
    except (RunError, OSError) as error:
        reporter.write_line(f"the documents of the run are not written: {error}", **MARKUP[Tone.BAD])
    _print(reporter, lines[remedy:])


def _print(reporter: pytest.TerminalReporter, lines: Sequence[terminal.Line]) -> None:
    for line in lines:
        for shown in line:
            reporter.write(shown.text, **MARKUP[shown.tone])
        reporter.write_line("")


def _remedy(config: pytest.Config, root: Path, run: Run) -> str:
    if run.status is None or run.status.state is not State.COMPLETE:
        logs = f"the capture is not complete: its servers' logs are in {run.directory}/servers"
        return f"{logs}; take it up again: {command.again(config, '--specdec-resume', root)}"
    return f"judge it again, without a server: {command.replay(config, root)}"
