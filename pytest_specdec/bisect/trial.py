"""One run of a release: the pytest command, and the answer in its exit code and run.json.

A bisect searches an engine's releases for the first one with a fault. A trial is one run of the tests at a release, with its answer: good,
bad, OPEN (undecided) or UNTESTABLE. ``targets`` are the ids of the tests that the fault turned red at the bad end of the search, the
release that the user calls bad. If there are none yet, all tests count. A judgement is one test's result, mostly with a verdict.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.bisect import process
from pytest_specdec.bisect.record import Trial
from pytest_specdec.bisect.search import Answer
from pytest_specdec.errors import RunError
from pytest_specdec.files.run_directory import safe
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.plugin import stored_run
from pytest_specdec.plugin.report_files import read_run
from pytest_specdec.plugin.verdicts import UNSETTLED
from pytest_specdec.report.run import PytestOutcome, RunClass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.bisect.record import Question, Record
    from pytest_specdec.report.causes import Cause
    from pytest_specdec.report.run import JudgementResult, Run

_RUN_CODES = frozenset(run_class.exit_code for run_class in RunClass)
"""Exit codes of pytest under ``--specdec-exit-codes`` after a run that has a result."""
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

        ``variables`` are the environment variables by which the config knows the release. ``earlier`` are the trials of
        the same release. If the run of the last one can be continued (:meth:`_find_continued`), it is: this does not
        raise the false-alarm rate. Otherwise a new run is made. Raises DeadlineError if the time is up, and RunError if
        pytest cannot be started or its log cannot be written.
        """
        began = time.monotonic()
        continued_run = self._find_continued(earlier[-1]) if earlier else None
        run = continued_run or self._next_run_directory(release)
        command = pytest_command(self.question, run, continues=continued_run is not None)
        log = run.with_name(f"{run.name}.log")
        try:
            code = process.run(command, log, variables, folder=self.start, deadline=self.deadline)
        except OSError as error:
            what, remedy = "pytest cannot be started", "restore the Python environment and the folder that bisect was started in"
            cause = f"{error.filename or command[0]}: {error.strerror or error}"
            raise RunError(what, where=str(self.start), found=cause, expected="a program that starts", remedy=remedy) from error
        stored, seconds = _read(run, code), time.monotonic() - began
        place = str(run.relative_to(self.start) if run.is_relative_to(self.start) else run)
        if stored is None:
            answer = _answer_without_result(code, continues=continued_run is not None)
            reason = " ".join(line.strip() for line in process.last_lines(log, _ERRORS)) or f"no output; exit code {code}"
            return Trial(release=release, answer=answer, seconds=seconds, run=place, exit_code=code, headline=reason)
        return read_trial(release, stored, targets, run_directory=place, exit_code=code, seconds=seconds)

    def judge_again(self, record: Record) -> Record:
        """Return a record with its good and bad runs judged by its targets.

        The targets get fewer once an older fault shows at the good end, since the tests that it turns red do not count. Undecided trials
        stay as they are: a later trial may have continued such a run, whose files have the later answer. So do trials whose run cannot be
        read.
        """
        return replace(record, trials=tuple(self._judge_again(trial, record.targets) for trial in record.trials))

    def _judge_again(self, trial: Trial, targets: frozenset[str]) -> Trial:
        """Return a good or bad trial judged again, by ``targets``.

        Any other trial is returned unchanged, and so is one whose run cannot be read.
        """
        stored = _read(self.start / trial.run, trial.exit_code) if trial.answer in {Answer.GOOD, Answer.BAD} else None
        if stored is None:
            return trial
        place, code = trial.run, trial.exit_code
        return read_trial(trial.release, stored, targets, run_directory=place, exit_code=code, seconds=trial.seconds)

    def _find_continued(self, trial: Trial) -> Path | None:
        """Return the run directory of a trial that can be continued, else None.

        The trial has to be undecided by its evidence: it has an exit code of a run with a result (``_RUN_CODES``). After a
        failure of the infrastructure a new run is made, which asks for the missing answers too.
        """
        run = self.start / trial.run
        is_undecided = trial.answer is Answer.OPEN and trial.exit_code in _RUN_CODES - {RunClass.INFRASTRUCTURE.exit_code}
        return run if is_undecided and stored_run.can_continue(run) else None

    def _next_run_directory(self, release: str) -> Path:
        """Return the path of a new run directory for ``release``.

        Directories that an interrupt has left stay as they are.
        """
        number = 1
        while (path := self.root / f"{safe(release)}-{number}").exists():
            number += 1
        return path


def _answer_without_result(code: int, *, continues: bool) -> Answer:
    """Return the answer of a run that left no readable run.json.

    ``continues`` is True if an earlier run was continued: pytest could begin it before, so that another try may succeed.
    """
    return Answer.UNTESTABLE if code in _HOPELESS and not continues else Answer.OPEN


def pytest_command(question: Question, run: Path, *, continues: bool) -> tuple[str, ...]:
    """Return the pytest command for one run of the selected tests.

    ``run`` is the run directory: a new one, or with ``continues`` that of a run to go on with.
    """
    directory_option = "--specdec-continue" if continues else "--specdec-run-dir"
    options = (
        f"--specdec-config={question.config}",
        f"--specdec-depth={question.depth}",
        f"{directory_option}={run}",
        "--specdec-exit-codes",
    )
    return (sys.executable, "-m", "pytest", *question.tests, *options)


def read_trial(release: str, run: Run, targets: frozenset[str], *, run_directory: str, exit_code: int, seconds: float) -> Trial:
    """Return the trial in a stored run of a release.

    The config's waivers, which excuse known faults, are lifted before: the fault that is searched for may be one of them.
    A cause is a group of failures by one fault; its leader is the failure that names the fault. The last three arguments
    are noted as they are.
    """
    run = replace(run, judgements=tuple(map(_lift_waiver, run.judgements)))
    # Of all tests, since the targets themselves are chosen from the faults at both ends.
    faults = tuple(judgement.nodeid for judgement in run.judgements if judgement.has_fault)
    answer, cause = answer_of(run, targets), _find_cause(run, targets)
    leader = cause.leader if cause else None
    # It says why there is no answer, if there is no failure to name.
    first_not_green = next((judgement for judgement in _select(run, targets) if not _is_green(judgement)), None)
    return Trial(
        release=release,
        answer=answer,
        seconds=seconds,
        run=run_directory,
        exit_code=exit_code,
        engine=run.environment.engine_version if run.environment else "",
        faults=faults,
        name=cause.name if cause else "",
        headline=_describe(leader or first_not_green, run) if answer is not Answer.GOOD else "",
        replay=leader.replay if leader else "",
    )


def answer_of(run: Run, targets: frozenset[str]) -> Answer:
    """Return a run's answer on the target tests.

    It is BAD if one of them has a fault. It is GOOD if all targets were run and ruled their faults out. Without targets
    it is GOOD if the run as a whole is clean and has no verdict in ``UNSETTLED``, those that more answers would settle.
    Otherwise it is UNTESTABLE if the engine refused what a target asks, or if the setup is invalid: another run would
    end alike. In any other case it is OPEN.
    """
    selected = _select(run, targets)
    if any(judgement.has_fault for judgement in selected):
        return Answer.BAD
    outcomes = {judgement.verdict.outcome for judgement in selected if judgement.verdict}
    if targets:
        is_green = len(selected) >= len(targets) and all(map(_is_green, selected))
    else:
        is_green = run.run_class is RunClass.CLEAN and not outcomes & UNSETTLED
    if is_green:
        return Answer.GOOD
    refused = bool(targets) and Outcome.REFUSED in outcomes
    return Answer.UNTESTABLE if refused or run.run_class is RunClass.SETUP_INVALID else Answer.OPEN


def _select(run: Run, targets: frozenset[str]) -> list[JudgementResult]:
    return [judgement for judgement in run.judgements if not targets or judgement.nodeid in targets]


def _is_green(judgement: JudgementResult) -> bool:
    """Return True if a test passed and ruled its fault out.

    A test without a verdict, such as a user's own, only has to pass.
    """
    return judgement.result is PytestOutcome.PASSED and (judgement.verdict is None or judgement.verdict.outcome is Outcome.PASS)


def _lift_waiver(judgement: JudgementResult) -> JudgementResult:
    """Return a judgement as it is without a waiver.

    A waiver is an entry of the config that expects a test to fail. A failure that it expected is a failure again. A test
    that failed because its waiver is no longer needed has passed.
    """
    if judgement.result is PytestOutcome.WAIVED:
        return replace(judgement, result=PytestOutcome.FAILED, waiver="")
    is_healed = judgement.verdict is not None and judgement.verdict.outcome is Outcome.PASS
    if judgement.waiver and judgement.result is PytestOutcome.FAILED and is_healed:
        return replace(judgement, result=PytestOutcome.PASSED, waiver="")
    return judgement


def _find_cause(run: Run, targets: frozenset[str]) -> Cause | None:
    """Return the first cause of a target's failure; None without one.

    A cause is a group of failures by one fault; a run has them by variant. Without targets any test's failure counts.
    """
    causes = [cause for of_pair in run.causes.values() for cause in of_pair]
    return next((cause for cause in causes if not targets or targets & {failure.nodeid for failure in cause.failures}), None)


def _describe(judgement: JudgementResult | None, run: Run) -> str:
    """Return a judgement's headline on one line, or its error without a verdict.

    Without a judgement it is the error of the run's capture. If that text is missing, the line says so.
    """
    if judgement is None:
        text = run.status.error if run.status else "no test has a result"
    else:
        text = judgement.verdict.headline if judgement.verdict else judgement.error
    return " ".join((text or "no verdict").split())


def _read(run: Path, code: int) -> Run | None:
    """Return the run written by pytest; None without one.

    There is none if the exit code is not one of a run (:class:`RunClass`), or if its file cannot be read.
    """
    try:
        return read_run(run) if code in _RUN_CODES else None
    except RunError:
        return None
