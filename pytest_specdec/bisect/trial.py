"""One run of a release: the pytest command, and the answer in its exit code and run.json."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.bisect import process
from pytest_specdec.bisect.record import Trial
from pytest_specdec.bisect.search import Answer
from pytest_specdec.errors import RunError
from pytest_specdec.files.run_directory import safe
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.plugin.report_files import read_run
from pytest_specdec.report.run import PytestOutcome, RunClass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.bisect.record import Question
    from pytest_specdec.report.causes import Cause
    from pytest_specdec.report.run import JudgementResult, Run

_CLASSES = frozenset(one.exit_code for one in RunClass)
_HOPELESS = frozenset({4, 5})
"""Exit codes of pytest after which the same command ends alike: wrong usage, and no test collected."""
_ERRORS = 3
"""Lines of a log that stand for a run without a run.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The question, and where its runs are written."""

    question: Question
    root: Path
    """The folder of the runs."""
    start: Path
    """The folder that pytest is started in."""
    deadline: float
    """Of ``time.monotonic``; infinite without one."""

    def run(self, release: str, variables: Mapping[str, str], earlier: Sequence[Trial], targets: frozenset[str]) -> Trial:
        """Run the tests against a release and return the trial.

        ``earlier`` are the trials of the same release. If the last of them is undecided, its run is continued with more answers, which does
        not raise the false-alarm rate; else a new run is made. ``targets`` are the ids of the tests that the fault turned red at the bad
        release; if empty, all tests count. Raises DeadlineError.
        """
        began = time.monotonic()
        undecided = [trial.run for trial in earlier[-1:] if trial.exit_code == RunClass.UNDECIDED.exit_code]
        run = self.start / undecided[0] if undecided else self._next_run_directory(release)
        command = pytest_command(self.question, run, continues=bool(undecided))
        log = run.with_name(f"{run.name}.log")
        code = process.run(command, log, variables, folder=self.start, deadline=self.deadline)
        stored, seconds = _read(run, code), time.monotonic() - began
        place = str(run.relative_to(self.start) if run.is_relative_to(self.start) else run)
        if stored is None:
            answer = Answer.UNTESTABLE if code in _HOPELESS else Answer.OPEN
            reason = " ".join(line.strip() for line in process.last_lines(log, _ERRORS)) or f"no output; exit code {code}"
            return Trial(release=release, answer=answer, seconds=seconds, run=place, exit_code=code, headline=reason)
        return read_trial(release, stored, targets, run_directory=place, exit_code=code, seconds=seconds)

    def _next_run_directory(self, release: str) -> Path:
        """Return a run directory that is not there: what an interrupt has left stays."""
        number = 1
        while (path := self.root / f"{safe(release)}-{number}").exists():
            number += 1
        return path


def pytest_command(question: Question, run: Path, *, continues: bool) -> tuple[str, ...]:
    """Return the command that runs the selected tests."""
    where = "--specdec-continue" if continues else "--specdec-run-dir"
    options = (f"--specdec-config={question.config}", f"--specdec-depth={question.depth}", f"{where}={run}", "--specdec-exit-codes")
    return (sys.executable, "-m", "pytest", *question.tests, *options)


def read_trial(release: str, run: Run, targets: frozenset[str], *, run_directory: str, exit_code: int, seconds: float) -> Trial:
    """Return what a stored run says of a release.

    It is bad if one of the ``targets`` has a fault, or any test where there are none, and good if all of them passed.
    """
    faults = tuple(judgement.nodeid for judgement in run.judgements if judgement.has_fault)
    answer, cause = answer_of(run, targets), _find_cause(run, targets)
    leader = cause.leader if cause else None
    unanswered = next((judgement for judgement in _select(run, targets) if not _is_green(judgement)), None)
    return Trial(
        release=release,
        answer=answer,
        seconds=seconds,
        run=run_directory,
        exit_code=exit_code,
        engine=run.environment.engine_version if run.environment else "",
        faults=faults,
        name=cause.name if cause else "",
        headline=_describe(leader or unanswered, run) if answer is not Answer.GOOD else "",
        replay=leader.replay if leader else "",
    )


def answer_of(run: Run, targets: frozenset[str]) -> Answer:
    """Return what a run says of the targets; without any, of all its tests."""
    selected = _select(run, targets)
    if any(judgement.has_fault for judgement in selected):
        return Answer.BAD
    is_green = len(selected) >= len(targets) and all(map(_is_green, selected)) if targets else run.run_class is RunClass.CLEAN
    if is_green:
        return Answer.GOOD
    refused = any(judgement.verdict and judgement.verdict.outcome is Outcome.REFUSED for judgement in selected)
    return Answer.UNTESTABLE if refused or run.run_class is RunClass.SETUP_INVALID else Answer.OPEN


def _select(run: Run, targets: frozenset[str]) -> list[JudgementResult]:
    return [judgement for judgement in run.judgements if not targets or judgement.nodeid in targets]


def _is_green(judgement: JudgementResult) -> bool:
    """Return True if a test has ruled its fault out."""
    return judgement.result is PytestOutcome.PASSED and (judgement.verdict is None or judgement.verdict.outcome is Outcome.PASS)


def _find_cause(run: Run, targets: frozenset[str]) -> Cause | None:
    """Return the first cause of a target's failure."""
    causes = [cause for of_pair in run.causes.values() for cause in of_pair]
    return next((cause for cause in causes if not targets or targets & {failure.nodeid for failure in cause.failures}), None)


def _describe(judgement: JudgementResult | None, run: Run) -> str:
    """Return a judgement's headline or error on one line; without a judgement the error of the run's capture."""
    error = run.status.error if run.status else "no test has a result"
    text = error if judgement is None else judgement.verdict.headline if judgement.verdict else judgement.error
    return " ".join((text or "no verdict").split())


def _read(run: Path, code: int) -> Run | None:
    """Return the run that pytest has written; None if its exit code is none of a run, or there is no file."""
    try:
        return read_run(run) if code in _CLASSES else None
    except RunError:
        return None
