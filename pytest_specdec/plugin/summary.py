"""The end of a session: gather its judgements into runs, print the summary, write reports, set the exit code.

A judgement is the result of a test that judges a speculative server's answers; a due one is expected of a selected test. A session has one
run, or one for each group of a matrix of settings. A Run has the data of one run for its reports.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.plugin import judgements, report_files, traces
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.plugin.run_summary import RunSummary
from pytest_specdec.report import matrix_terminal, terminal
from pytest_specdec.report.run import JudgementResult, Run, RunClass
from pytest_specdec.report.table import Tone

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.model.matrix_run import MatrixRun
    from pytest_specdec.report.matrix import MatrixReport

MARKUP: Mapping[Tone, Mapping[str, bool]] = {
    Tone.GOOD: {"green": True},
    Tone.UNSURE: {"yellow": True},
    Tone.BAD: {"red": True, "bold": True},
    Tone.PLAIN: {},
}


def register(config: pytest.Config, root: Path, *, session: str, warnings: Mapping[Path, Sequence[str]] | None = None) -> None:
    """Register the summary of the runs in ``root``, and their traces if the environment asks for them.

    ``warnings`` are those of the pair lint, by run directory.
    """
    summary = SummaryPlugin(config, root, session=session, warnings=warnings)
    config.pluginmanager.register(summary, "specdec_summary")
    if traces.is_enabled(os.environ):
        config.pluginmanager.register(traces.TracesPlugin(summary, os.environ), "specdec_traces")


class SummaryPlugin:
    """Plugin of the session's only process, or of the controller of several, to collect judgements and report on them."""

    def __init__(self, config: pytest.Config, root: Path, *, session: str, warnings: Mapping[Path, Sequence[str]] | None) -> None:
        self._config = config
        self._root = root
        self._session = session
        self._warnings = warnings or {}
        self._formats = report_files.file_formats(config.stash[SETTINGS].reports)
        self._judgements: list[JudgementResult] = []
        self._left_out: set[judgements.LeftOutJudgement] = set()
        self._due: dict[str, judgements.DueJudgement] = {}
        """By node id, the judgements that the selected tests have to come to."""
        self._skipped: set[str] = set()
        """The node ids of skipped tests."""
        self._failed: dict[str, pytest.TestReport] = {}
        """By node id."""
        self._kinds_of_repeated_errors: dict[str, str] = {}
        """By node id, the kind of a test's error, such as ``invalid``, if another test has shown the same error in full; else empty."""
        self.runs: dict[Path, Run] = {}
        """By directory, the runs that the session judged, gathered at its end: one, or one for each group of a matrix."""
        self._summaries: dict[Path, RunSummary] = {}
        self._matrix: MatrixReport | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the judgements of a test and remove them from its report.

        This is done before other plugins see the report, since the judgements are JSON for this plugin only.
        """
        if report.failed:
            self._failed[report.nodeid] = report
        elif report.skipped and not judgements.is_of_subtest(report):
            self._skipped.add(report.nodeid)
        carried = judgements.detach(report)
        if not carried:
            return
        self._kinds_of_repeated_errors[report.nodeid] = judgements.repeated_error(carried)
        results = judgements.judgements(report, carried)
        if results and report.when == "teardown":  # it has all judgements of the test, which replace those from its call
            self._judgements = [earlier for earlier in self._judgements if earlier.nodeid != report.nodeid]
        self._judgements += results
        self._left_out |= judgements.left_out_judgements(carried)
        self._due |= judgements.due_judgements(carried)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
        """Return the status of an error already shown by another test.

        Such an error is counted under its kind, such as ``invalid``, so that pytest does not print it again. Returns None for any other
        report and with ``-v``: pytest's own status then stays.
        """
        kind = self._kinds_of_repeated_errors.get(report.nodeid, "")
        is_listed = report.when == "setup" and report.failed and bool(kind) and not self._config.get_verbosity() > 0
        return (kind, "E", kind.upper()) if is_listed else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Gather the run's judgements before pytest-benchmark saves its benchmarks.

        The run's timings can then be added to them. The session's exit status is set by the judgements. Nothing is done after a usage
        error, nor if this session neither captured nor judged a run.
        """
        if exitstatus == pytest.ExitCode.USAGE_ERROR:  # such as for a run that cannot be resumed: it keeps the reports that it has
            yield
            return
        matrix = matrix_run.read_or_none(self._root)
        roots = [*matrix_run.directories(self._root, matrix).values()] if matrix else [self._root]
        own_roots = [root for root in roots if (root / "plan.json").is_file() and self._is_of_session(root)]
        if own_roots:
            self._gather(own_roots, matrix)
            self._set_exit_status(session, exitstatus)
        yield

    def _is_of_session(self, root: Path) -> bool:
        """Return True if this session captured or judged the run in a directory.

        A session that began at the same time may have claimed the directory first.
        """
        settings = self._config.stash[SETTINGS]
        return bool(settings.replay or settings.taken_up) or run_documents.session(RunDirectory(root)) == self._session

    def _gather(self, roots: Sequence[Path], matrix: MatrixRun | None) -> None:
        """Gather the runs in ``roots``, and add them to the session's benchmarks and JUnit file.

        ``matrix`` is the matrix that they are groups of; None for one run without a matrix. A failure that follows from another one points
        to that one in the JUnit file and, in place of its text unless the run is verbose, in pytest's output. The report files are written
        here only in a session without a terminal reporter, which has no summary.
        """
        self._judgements += self._errors_for_missing_judgements()
        for root in roots:
            self._summaries[root] = summary = self._summarise(root, is_group=matrix is not None)
            self.runs[root] = run = summary.gather()
            group = root.name if matrix else ""
            report_files.add_benchmarks(self._config, run, group)
            report_files.withhold_speeds(self._config, run)  # only after the last test all variants with wrong tokens are known
            report_files.point_to_leaders(self._config, run)
            report_files.describe_run(self._config, run, group)
            if not run.verbose:
                report_files.shorten_followers(self._failed, run)
        if matrix is not None:
            from pytest_specdec.plugin import matrix_session  # noqa: PLC0415 - only a matrix pays for it

            self._matrix = matrix_session.report(self._root, matrix, self.runs, self._config)
            report_files.describe_matrix(self._config, self._matrix.run_class)
        if self._config.pluginmanager.getplugin("terminalreporter") is None:
            self._write_files()

    def _set_exit_status(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the session's exit status by the gathered runs.

        A session whose tests passed still fails if a capture ended in an error, if nothing was judged, if a variant refused everything
        that it was asked, or if the run is worse than the earlier run that it is compared with. Under ``--specdec-exit-codes`` the code of
        the run's class replaces the exit statuses 0 and 1; but 1 stays if the class is clean, since a test that is no judgement failed.
        The class of a matrix is the worst of its runs'.
        """
        is_red = self._matrix.red if self._matrix else any(run.red or (run.status and run.status.error) for run in self.runs.values())
        if exitstatus == pytest.ExitCode.OK and is_red:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        run_class = self._matrix.run_class if self._matrix else next(iter(self.runs.values())).run_class
        replaceable = {pytest.ExitCode.OK} if run_class is RunClass.CLEAN else {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if self._config.stash[SETTINGS].exit_codes and session.exitstatus in replaceable:
            session.exitstatus = run_class.exit_code

    def _errors_for_missing_judgements(self) -> list[JudgementResult]:
        """Return an error for each selected test that neither came to a judgement nor was skipped.

        A run that lacks a planned judgement would else be called clean.
        """
        ended = self._skipped.union(judgement.nodeid for judgement in self._judgements)
        missing = {nodeid: due for nodeid, due in self._due.items() if nodeid not in ended}
        return [judgements.missing_judgement(nodeid, due, self._failed.get(nodeid)) for nodeid, due in missing.items()]

    def _summarise(self, root: Path, *, is_group: bool) -> RunSummary:
        """Return the summary of the run in ``root``, a group's or the only one."""
        return RunSummary(
            self._config,
            root,
            matrix_root=self._root if is_group else None,
            formats=self._formats,
            results=self._judgements,
            left_out=self._left_out,
            warnings=self._warnings.get(root, ()),
        )

    def secrets(self) -> Secrets:
        """Return the secrets to mask in what leaves the session: those of all of its runs."""
        return Secrets.union(summary.secrets() for summary in self._summaries.values())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary, write the report files, and print the next command.

        The summary is printed first, so that the verdicts are not lost if the disk is full. Of a matrix it is the table of its cells: the
        reports of its groups have the rest.
        """
        if not self.runs:
            return
        terminalreporter.write_sep("-", "specdec", bold=True)
        if self._matrix is not None:
            _print(terminalreporter, matrix_terminal.lines(self._matrix, verbose=self._config.get_verbosity() > 0))
            self._print_files(terminalreporter)
            _print(terminalreporter, (*matrix_terminal.next_steps(self._matrix), matrix_terminal.result(self._matrix)))
            return
        (run,) = self.runs.values()
        _print(terminalreporter, terminal.FORMAT.render(run))
        self._print_files(terminalreporter)
        for line in terminal.upgrade_lines(run):
            terminalreporter.write_line(line)
        _print(terminalreporter, (*terminal.next_steps(run), terminal.result(run)))

    def _print_files(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the report files and print their names, or why they could not be written."""
        try:
            for line in self._write_files():
                terminalreporter.write_line(line)
        except (RunError, OSError) as error:
            terminalreporter.write_line(f"reports not written: {error}", **MARKUP[Tone.BAD])

    def _write_files(self) -> tuple[str, ...]:
        """Write all reports; return the lines to print on them.

        A replay leaves its runs unchanged and writes into --specdec-run-dir only. Of a matrix only its own report is printed, which links
        to those of its runs, and what --specdec-update-baselines did or refused.
        """
        settings = self._config.stash[SETTINGS]
        folder = settings.run_dir if settings.replay else self._root
        if self._matrix is None:
            (root,) = self.runs
            summary, run = self._summaries[root], self.runs[root]
            return (*summary.write_reports(run, folder), *summary.write_baseline(run, folder))
        from pytest_specdec.plugin import matrix_session  # noqa: PLC0415 - only a matrix pays for it

        lines: list[str] = []
        for root, run in self.runs.items():
            own_folder = folder and matrix_run.group_directory(folder, root.name)
            self._summaries[root].write_reports(run, own_folder)
            lines += (f"{root.name}: {line}" for line in self._summaries[root].write_baseline(run, own_folder))
        report_lines = matrix_session.write_report(self._config, folder, self._matrix, self.secrets())
        return (*report_lines, *(lines if settings.update_baselines else ()))


def _print(reporter: pytest.TerminalReporter, lines: Sequence[terminal.Line]) -> None:
    """Write lines to the terminal, coloured by tone."""
    for line in lines:
        for piece in line:
            reporter.write(piece.text, **MARKUP[piece.tone])
        reporter.write_line("")
