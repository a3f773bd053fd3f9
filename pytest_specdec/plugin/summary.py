"""The end of a session: gather the judgements into a run, print its summary, write its reports, set the exit code."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_specdec.config import variables
from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.gates import baseline_file, update
from pytest_specdec.gates.accepted_lengths import CellLengths
from pytest_specdec.model.baseline import VERIFY_NOISE
from pytest_specdec.model.promise import AcceptedLength
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import commands, judgements, old_engine, report_files, run_state, traces, waivers
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.report import table, terminal
from pytest_specdec.report.plan import own_prompts
from pytest_specdec.report.plan_summary import summarise
from pytest_specdec.report.run import JudgementResult, Run, RunClass
from pytest_specdec.report.table import Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.status import Status
    from pytest_specdec.model.verdict import Verdict

T = TypeVar("T")

MARKUP: Mapping[Tone, Mapping[str, bool]] = {
    Tone.GOOD: {"green": True},
    Tone.UNSURE: {"yellow": True},
    Tone.BAD: {"red": True, "bold": True},
    Tone.PLAIN: {},
}


def register(config: pytest.Config, root: Path, *, session: str, warnings: Sequence[str] = ()) -> None:
    """Register the summary of a run, and its traces if the environment asks for them."""
    summary = SummaryPlugin(config, root, session=session, warnings=warnings)
    config.pluginmanager.register(summary, "specdec_summary")
    if traces.is_enabled(os.environ):
        config.pluginmanager.register(traces.TracesPlugin(summary, root, os.environ), "specdec_traces")


class SummaryPlugin:
    """Registered where ``specdec`` tests will run: in the only process, or in the controller of several."""

    def __init__(self, config: pytest.Config, root: Path, *, session: str, warnings: Sequence[str] = ()) -> None:
        self._config = config
        self._root = root
        self._session = session
        self._warnings = tuple(warnings)
        self._formats = report_files.file_formats(config.stash[SETTINGS].reports)
        self._judgements: list[JudgementResult] = []
        self._left_out: set[tuple[str, str]] = set()
        """Reason and name."""
        self._failed: dict[str, pytest.TestReport] = {}
        """By node id."""
        self._repeated: dict[str, str] = {}
        """The kind of each test's error, by node id, if another test has shown it in full; else empty."""
        self.run: Run | None = None
        """The session's run, gathered at its end."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the judgements of a test and remove them from its report.

        This is done before other plugins see the report, since the judgements are JSON for this plugin only.
        """
        if report.failed:
            self._failed[report.nodeid] = report
        carried = judgements.detach(report)
        if carried:
            self._repeated[report.nodeid] = judgements.repeated_error(carried)
            self._judgements += judgements.judgements(report, carried)
            self._left_out |= judgements.left_out(carried)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
        """Return the status of an error already shown by another test.

        Such an error is counted under its kind, such as ``invalid``, so that pytest does not print it again. None, for pytest's own
        status, for any other report and with ``-v``.
        """
        kind = self._repeated.get(report.nodeid, "")
        is_listed = report.when == "setup" and report.failed and bool(kind) and not self._config.get_verbosity() > 0
        return (kind, "E", kind.upper()) if is_listed else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Gather the run's judgements before pytest-benchmark saves its benchmarks.

        The run's timings can then be added to them. Nothing is done if there is no run of this session.
        """
        if (self._root / "plan.json").is_file() and self._is_own():
            self._finish(session, exitstatus)
        yield

    def _is_own(self) -> bool:
        """Return True if this session captured or judged the run in the directory.

        A session that began at the same time may have claimed the directory first.
        """
        settings = self._config.stash[SETTINGS]
        return bool(settings.replay or settings.taken_up) or run_documents.session(RunDirectory(self._root)) == self._session

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Gather the run and set the session's exit status.

        A session whose tests passed still fails if its capture ended in an error, if nothing was judged, if a variant refused everything
        that it was asked, or if the run is worse than the earlier run that it is compared with. Under ``--specdec-exit-codes`` the code of
        the run's class replaces the exit statuses 0 and 1; but 1 stays if the class is clean, since a test that is no judgement failed.
        """
        self.run = self._compare_with_earlier(self._gather_run())
        if self._config.pluginmanager.getplugin("terminalreporter") is None:
            self._write_files(self.run)
        report_files.add_benchmarks(self._config, self.run)
        report_files.withhold_speeds(self._config, self.run)
        report_files.point_to_leaders(self._config, self.run)
        report_files.describe_run(self._config, self.run)
        if not self.run.verbose:
            report_files.shorten_followers(self._failed, self.run)
        if exitstatus == pytest.ExitCode.OK and (self.run.red or (self.run.status and self.run.status.error)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        run_class = self.run.run_class
        replaced = {pytest.ExitCode.OK} if run_class is RunClass.CLEAN else {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if self._config.stash[SETTINGS].exit_codes and session.exitstatus in replaced:
            session.exitstatus = run_class.exit_code

    def _compare_with_earlier(self, run: Run) -> Run:
        """Return the run with its comparison to an earlier run.

        The earlier run is that of ``--specdec-against``, or else that of the config's old engine; without one the run stays as it is. If
        the two cannot be compared, the run says why.
        """
        settings = self._config.stash[SETTINGS]
        earlier = settings.against or old_engine.earlier(self._root)
        if earlier is None:
            return run
        from pytest_specdec.plugin import against  # noqa: PLC0415 - only a comparison pays for it

        typed = self._as_typed(earlier)
        if settings.against is None and (reason := old_engine.why_missing(self._root)):
            return against.without_comparison(run, reason, typed)
        state = run_state.state_or_error(self._config)
        config = None if isinstance(state, str) else state.config
        try:
            changes = against.compare_with_earlier(earlier, self._root, run, day=settings.day, config=config)
        except SpecdecError as error:
            return against.without_comparison(run, str(error), typed)
        return against.with_upgrade(run, changes, typed)

    def _gather_run(self) -> Run:
        """Return the run with all data for the reports."""
        directory, settings = RunDirectory.open(self._root), self._config.stash[SETTINGS]
        plan, environment = run_documents.read_plan(directory), _read_or_none(run_documents.read_environment, directory)
        baseline_notes = baseline_file.notes(settings.baselines, plan.config, environment)
        baselines = baseline_file.read_conditions(run_state.baselines_folder(settings), plan.config, environment) if environment else ()
        status = _read_or_none(run_documents.read_status, directory)
        status_notes = (*_capture_error(status), *status.warnings, *_missing_old(status)) if status else ()
        capabilities = _read_or_none(run_documents.read_capabilities, directory) or {}
        untested_notes = table.untested_routes(capabilities)
        state = run_state.state_or_error(self._config)  # the controller of several processes has none yet
        unused_notes = () if isinstance(state, str) else self._unused_notes(state.config)
        published_notes = () if isinstance(state, str) else self._published_notes(state.config)
        notes = (
            *self._warnings,
            *status_notes,
            *untested_notes,
            *own_prompts(plan),
            *judgements.notes(self._left_out),
            *baseline_notes,
            *self._golden_notes(state.plan if settings.replay and not isinstance(state, str) else plan),
            *published_notes,
            *unused_notes,
        )
        saves_benchmarks = report_files.saves_benchmarks(self._config)
        return Run(
            directory=commands.as_typed(self._root, self._config),
            replayed=settings.replay is not None,
            plan=summarise(plan),
            environment=environment,
            baselines=baselines,
            status=status,
            judgements=_sort_results(plan, self._judgements),
            capabilities=capabilities,
            notes=notes,
            made_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
            commands=commands.next_steps(self._config, self._root),
            timings=tuple(report_files.timings(directory, plan)) if saves_benchmarks else (),
            verbose=self._config.get_verbosity() > 0,
        )

    def _published_notes(self, config: Config) -> tuple[str, ...]:
        """Return the config's published figures of others; () unless speed was judged."""
        return tuple(map(str, config.published)) if any(judgement.family is Family.SPEED for judgement in self._judgements) else ()

    def _golden_notes(self, plan: Plan) -> tuple[str, ...]:
        """Return a note for each missing or unused golden floor.

        A golden floor is the least acceptance length that a published file asks of a variant. It is missing if the file asks nothing of
        the variant, and unused if no test judged speed. () unless the config names a golden file.
        """
        is_speed_judged = any(judgement.family is Family.SPEED for judgement in self._judgements)
        unused = () if is_speed_judged else plan.golden_gates
        return (
            *(str(floor) for floor in plan.golden if floor.at_least is None),
            *(f"gate not used: {gate}: only speed judges it, and no test of it was run" for gate in unused),
        )

    def _unused_notes(self, config: Config) -> tuple[str, ...]:
        """Return a note for each unused waiver and noise gate.

        A waiver is unused if its judgement was not made, a gate on the noise of verify steps if no test judged greedy answers.
        """
        is_greedy_judged = any(judgement.family is Family.GREEDY for judgement in self._judgements)
        gates = () if is_greedy_judged else (gate for gate in config.gates if gate.figure == VERIFY_NOISE)
        gate_notes = (f"gate not used: {gate}: only greedy judges it, and no test of it was run" for gate in gates)
        return (*waivers.unused_lines(config.waivers, self._judgements), *gate_notes)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary, write the report files, and print the next command.

        The summary is printed first, so that the verdicts are not lost if the disk is full.
        """
        run = self.run
        if run is None:
            return
        terminalreporter.write_sep("-", "specdec", bold=True)
        _print(terminalreporter, terminal.FORMAT.render(run))
        try:
            for line in self._write_files(run):
                terminalreporter.write_line(line)
        except (RunError, OSError) as error:
            terminalreporter.write_line(f"reports not written: {error}", **MARKUP[Tone.BAD])
        for line in terminal.upgrade_lines(run):
            terminalreporter.write_line(line)
        _print(terminalreporter, (*terminal.next_steps(run), terminal.result(run)))

    def _write_files(self, run: Run) -> tuple[str, ...]:
        """Write reports and baseline files.

        Returns the lines to print on them. A replay leaves its run unchanged and writes into --specdec-run-dir only;
        without that it writes no file but the step summary.
        """
        settings = self._config.stash[SETTINGS]
        folder = settings.run_dir if settings.replay else self._root
        secrets = self.secrets()
        report_files.append_step_summary(run, secrets)
        if folder is None:
            return ()
        paths = report_files.write(folder, run, self._formats, secrets)
        lines = tuple(f"{path.stem}: {commands.as_typed(path, self._config)}" for path in paths)
        return (*lines, *self._write_baseline(folder, run))

    def secrets(self) -> Secrets:
        """Return the secrets to mask in the reports."""
        state = run_state.state_or_error(self._config)
        return Secrets.of(os.environ) if isinstance(state, str) else variables.secrets_of(state.config.text)

    def _write_baseline(self, folder: Path, run: Run) -> tuple[str, ...]:
        """Update the baseline file, or write a candidate for one.

        Returns the lines to print. The file is updated under ``--specdec-update-baselines``. Otherwise a candidate is
        written if there is no baseline file yet. Nothing is written for attached servers, whose machine is unknown.
        """
        settings, environment = self._config.stash[SETTINGS], run.environment
        if environment is None:
            return ()
        plan = run_documents.read_plan(RunDirectory.open(self._root))
        if plan.within_one_boot:
            refusal = "baseline not updated: which machine attached servers run on is not known; state gates.speedup in the config"
            return (refusal,) if settings.update_baselines else ()
        results = self._baseline_results(run, plan)
        unclean_lines = update.not_clean(results)
        if settings.update_baselines:
            updated = update.update(settings.baselines, run.plan.config, environment, results)
            update_lines = (
                (f"baseline updated: {self._as_typed(updated.path)}", *(f"  {move}" for move in updated.moves)) if updated else ()
            )
            return (*update_lines, *unclean_lines, *update.refusal_lines(results))
        baseline_path = baseline_file.path(settings.baselines, run.plan.config, environment)
        if baseline_path.is_file():
            return ()
        path = update.candidate(folder, environment, results)
        if path is None:
            return unclean_lines
        return (
            *unclean_lines,
            f"baseline candidate: {self._as_typed(path)}; to gate on it: {commands.move_command(path, baseline_path, self._config)}",
        )

    def _baseline_results(self, run: Run, plan: Plan) -> update.Results:
        """Return the run's verdicts and accepted lengths, as a baseline file needs them."""
        verdicts = tuple(judgement.verdict for judgement in run.judgements if judgement.verdict)
        return update.Results(
            verdicts=verdicts,
            lengths=_read_lengths(RunDirectory.open(self._root), plan, verdicts),
            accepted=self._config.stash[SETTINGS].accept_regression,
            unclean=run.unclean,
        )

    def _as_typed(self, path: Path) -> str:
        return commands.as_typed(path, self._config)


def _read_lengths(directory: RunDirectory, plan: Plan, verdicts: Sequence[Verdict]) -> dict[tuple[str, str], CellLengths]:
    """Return the accepted lengths in the transcripts, by variant and workload.

    Only pairs and workloads with a verdict on the acceptance length and a readable transcript are among them.
    """
    from pytest_specdec.judge.acceptance.stored import lengths  # noqa: PLC0415 - a process that only waits loads no numpy

    by_cell: dict[tuple[str, str], CellLengths] = {}
    for verdict in verdicts:
        if isinstance(verdict.promise, AcceptedLength):
            with suppress(RunError):
                transcript = transcripts.read(directory, verdict.pair, verdict.workload)
                workload = plan.workload(verdict.workload)
                if transcript is not None:
                    cell = CellLengths(digest=workload.traffic_digest, lengths=lengths(transcript, workload))
                    by_cell[verdict.pair, verdict.workload] = cell
    return by_cell


def _sort_results(plan: Plan, results: Sequence[JudgementResult]) -> tuple[JudgementResult, ...]:
    """Return the results sorted by pair, family and workload.

    Under xdist they arrive in any order.
    """
    pairs = [pair.name for pair in plan.pairs]
    return tuple(sorted(results, key=lambda result: (pairs.index(result.pair), result.family.value, result.workload)))


def _read_or_none(read: Callable[[RunDirectory], T], directory: RunDirectory) -> T | None:
    """Return the result of ``read``, or None.

    An unfinished capture may not have written the file.
    """
    try:
        return read(directory)
    except RunError:
        return None


def _capture_error(status: Status) -> tuple[str, ...]:
    """Return the error that ended a capture, as one line.

    () without an error. It is left out if answers are missing, since their tests report it then.
    """
    lines = [line.strip() for line in status.error.splitlines()]
    return (f"THE CAPTURE ENDED IN AN ERROR: {'; '.join(lines)}",) if lines and not status.missing else ()


def _missing_old(status: Status) -> tuple[str, ...]:
    """Return a line for each arm of the engine in use that was not timed, of a capture that came to its end."""
    gaps = () if status.error else status.missing_old
    return tuple(f"{gap.arm}: not timed beside the new engine: {next(iter(gap.reason.splitlines()), '')}" for gap in gaps)


def _print(reporter: pytest.TerminalReporter, lines: Sequence[terminal.Line]) -> None:
    """Write lines to the terminal, coloured by tone."""
    for line in lines:
        for piece in line:
            reporter.write(piece.text, **MARKUP[piece.tone])
        reporter.write_line("")
