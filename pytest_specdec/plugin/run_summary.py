"""The end of one run: its judgements gathered into a Run, its report files, its baseline file.

A judgement is the result of a test: a verdict on a pair, the baseline and a variant that speculates, for a workload and a family of checks.
A baseline file has gates, limits on speed and the like by earlier runs on this machine. A matrix of settings has a run per group of them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

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
from pytest_specdec.plugin import commands, judgements, old_engine, report_files, run_state, waivers
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.report import markdown, table
from pytest_specdec.report.plan import own_prompts
from pytest_specdec.report.plan_summary import summarise
from pytest_specdec.report.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pytest

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.status import Status
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.plugin.report_files import FileFormat
    from pytest_specdec.plugin.run_state import RunState
    from pytest_specdec.report.run import JudgementResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predecessor:
    """The earlier run that a run is to be compared with."""

    path: Path
    obstacle: str
    """Why the two runs cannot be compared, if that is known before reading them; else empty."""


class RunSummary:
    """Gathers what one run of the session has come to, and writes its files; ``_whole`` is the matrix's directory, or its own."""

    def __init__(
        self,
        config: pytest.Config,
        root: Path,
        *,
        matrix_root: Path | None,
        formats: Sequence[FileFormat],
        results: Sequence[JudgementResult],
        left_out: Iterable[judgements.LeftOutJudgement],
        warnings: Sequence[str],
    ) -> None:
        settings = config.stash[SETTINGS]
        self.root = root
        """Its directory."""
        self._config = config
        # A replay of a matrix names the folder of the whole: each group replays its own run.
        self._settings = replace(settings, replay=root) if settings.replay else settings
        self._whole = matrix_root or root
        """Where the session's run is: that of the matrix, where this is one of its groups."""
        self._formats = formats
        self._plan = run_documents.read_plan(RunDirectory.open(root))
        # Results and left-out judgements are the whole session's: those of this run's pairs are taken.
        names = {pair.name for pair in self._plan.pairs}
        self._judgements = [result for result in results if result.pair in names]
        self._left_out = [judgement for judgement in left_out if judgement.pair in names]
        self._warnings = warnings

    def gather(self) -> Run:
        """Return the run with all data for the reports, and its comparison with an earlier one."""
        return self._compare_with_earlier(self._gather_run())

    def _compare_with_earlier(self, run: Run) -> Run:
        """Return the run with its comparison to an earlier run.

        Without an earlier run it stays as it is. If the two cannot be compared, it says why.
        """
        predecessor = self._find_predecessor()
        if predecessor is None:
            return run
        from pytest_specdec.plugin import against  # noqa: PLC0415 - only a comparison pays for it

        path, state = predecessor.path, self._state()
        if predecessor.obstacle:
            return against.without_comparison(run, predecessor.obstacle, self._as_typed(path))
        try:
            changes = against.compare_with_earlier(path, self.root, run, day=self._settings.day, config=state.config if state else None)
        except SpecdecError as error:
            return against.without_comparison(run, str(error), self._as_typed(path))
        return against.with_upgrade(run, changes, self._as_typed(path))

    def _find_predecessor(self) -> _Predecessor | None:
        """Return the run of ``--specdec-against``, or else that of the config's old engine, the one in use.

        A group of a matrix is compared with the earlier group that has most of its cells; an earlier matrix without any is an obstacle.
        Returns None if neither the command line nor the config names an earlier run.
        """
        against = self._settings.against
        if against is None:
            old_run = old_engine.run_directory(self.root)
            return None if old_run is None else _Predecessor(path=old_run, obstacle=old_engine.why_missing(self.root))
        state = self._state()
        if state is None:  # the session's config is invalid, so that no earlier group was chosen
            return _Predecessor(path=against, obstacle="")
        # In a group's settings the earlier group's run has replaced that of the matrix, or None has: no earlier group has its cells.
        if state.settings.against is None:
            return _Predecessor(path=against, obstacle="the earlier run has none of these cells")
        return _Predecessor(path=state.settings.against, obstacle="")

    def _gather_run(self) -> Run:
        """Return the run with all data for the reports but a comparison."""
        directory, settings = RunDirectory.open(self.root), self._settings
        plan, environment = self._plan, _read_or_none(run_documents.read_environment, directory)
        baseline_notes = baseline_file.notes(settings.baselines, plan.config, environment)
        baselines = baseline_file.read_conditions(run_state.baselines_folder(settings), plan.config, environment) if environment else ()
        status = _read_or_none(run_documents.read_status, directory)
        capabilities = _read_or_none(run_documents.read_capabilities, directory) or {}
        saves_benchmarks = report_files.saves_benchmarks(self._config)
        return Run(
            directory=commands.as_typed(self.root, self._config),
            replayed=settings.replay is not None,
            plan=summarise(plan),
            environment=environment,
            baselines=baselines,
            status=status,
            judgements=_sort_results(plan, self._judgements),
            capabilities=capabilities,
            notes=(
                *self._warnings,
                *((*_capture_error(status), *status.warnings, *_missing_old(status)) if status else ()),
                *table.untested_routes(capabilities),
                *own_prompts(plan),
                *judgements.left_out_notes(self._left_out),
                *baseline_notes,
                *self._config_notes(),
            ),
            made_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
            commands=commands.next_steps(self._config, self.root, self._whole),
            timings=tuple(report_files.timings(directory, plan)) if saves_benchmarks else (),
            verbose=self._config.get_verbosity() > 0,
        )

    def _config_notes(self) -> tuple[str, ...]:
        """Return notes on golden floors, published figures, and what of the config was not used."""
        state = self._state()
        if state is None:  # the session's config is invalid, but the stored plan has golden floors
            return self._golden_notes(self._plan)
        # A replay takes golden floors from the config of its command line, if that names one.
        judged_plan = state.plan if self._settings.replay else self._plan
        return (*self._golden_notes(judged_plan), *self._published_notes(state.config), *self._unused_notes(state.config))

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

        A waiver, which excuses a known failure, is unused if its judgement was not made. A gate on the noise of verify steps is unused if
        no test judged greedy answers.
        """
        is_greedy_judged = any(judgement.family is Family.GREEDY for judgement in self._judgements)
        gates = () if is_greedy_judged else (gate for gate in config.gates if gate.figure == VERIFY_NOISE)
        gate_notes = (f"gate not used: {gate}: only greedy judges it, and no test of it was run" for gate in gates)
        return (*waivers.unused_lines(config.waivers, self._judgements), *gate_notes)

    def write_reports(self, run: Run, folder: Path | None) -> tuple[str, ...]:
        """Write the reports; return the lines to print on them.

        Without a ``folder``, as in a replay without --specdec-run-dir, nothing is written but GitHub's step summary. A group of a matrix
        adds nothing to that: the report of the matrix does.
        """
        secrets = self.secrets()
        if self._whole == self.root:
            report_files.append_step_summary(partial(markdown.FORMAT.render, run), secrets)
        if folder is None:
            return ()
        paths = report_files.write(folder, run, self._formats, secrets)
        return tuple(f"{path.stem}: {commands.as_typed(path, self._config)}" for path in paths)

    def secrets(self) -> Secrets:
        """Return the secrets to mask in the reports."""
        state = self._state()
        return variables.secrets_of(state.config.text) if state else Secrets.of(os.environ)

    def _state(self) -> RunState | None:
        """Return the state of this run in the session; None if the session's config is invalid."""
        runs = run_state.runs_or_error(self._config)  # the controller of several processes makes them only now
        return None if isinstance(runs, str) else runs.of(self._plan.pairs[0].name)

    def write_baseline(self, run: Run, folder: Path | None) -> tuple[str, ...]:
        """Update the baseline file, or write a candidate for one into ``folder``.

        Returns the lines to print, also on what is kept out of the file. The file is updated under ``--specdec-update-baselines``.
        Otherwise a candidate is written if there is no baseline file yet. Nothing is written without a folder, or if the run has no stored
        environment, or for attached servers, whose machine is unknown. Unclean variants, with wrong or unjudged answers, are kept out.
        """
        settings, environment = self._settings, run.environment
        if environment is None or folder is None:
            return ()
        plan = self._plan
        if plan.within_one_boot:  # so it is with attached servers alone
            refusal = "baseline not updated: which machine attached servers run on is not known; state gates.speedup in the config"
            return (refusal,) if settings.update_baselines else ()
        results = self._results_for_baseline(run, plan)
        unclean_lines = update.unclean_lines(results)
        if settings.update_baselines:
            updated = update.update(settings.baselines, run.plan.config, environment, results)
            moved_gates = (f"  {move}" for move in updated.moves) if updated else ()
            update_lines = (f"baseline updated: {self._as_typed(updated.path)}", *moved_gates) if updated else ()
            return (*update_lines, *unclean_lines, *update.refusal_lines(results))  # refusals are of single verdicts on clean variants
        baseline_path = baseline_file.path(settings.baselines, run.plan.config, environment)
        if baseline_path.is_file():
            return ()  # nothing is to be written, and so nothing was kept out
        path = update.write_candidate(folder, environment, results)
        if path is None:
            return unclean_lines
        return (
            *unclean_lines,
            f"baseline candidate: {self._as_typed(path)}; to gate on it: {commands.move_command(path, baseline_path, self._config)}",
        )

    def _results_for_baseline(self, run: Run, plan: Plan) -> update.Results:
        """Return what a baseline file needs of the run.

        These are the verdicts, the accepted lengths (tokens per verify step), the user's reason for taking figures that failed, empty
        without one, and for each variant whose tokens are wrong or not judged the reason against taking anything.
        """
        verdicts = tuple(judgement.verdict for judgement in run.judgements if judgement.verdict)
        return update.Results(
            verdicts=verdicts,
            lengths=_read_lengths(RunDirectory.open(self.root), plan, verdicts),
            accepted=self._settings.accept_regression,
            unclean=run.unclean,
        )

    def _as_typed(self, path: Path) -> str:
        return commands.as_typed(path, self._config)


def _read_lengths(directory: RunDirectory, plan: Plan, verdicts: Sequence[Verdict]) -> dict[tuple[str, str], CellLengths]:
    """Return the accepted lengths in the transcripts, by variant and workload.

    Only pairs and workloads with a verdict on the acceptance length and a readable transcript are among them. With the lengths goes a
    digest of how the requests were sent: the lengths of two runs are pooled only if it is the same.
    """
    from pytest_specdec.judge.acceptance.stored import lengths  # noqa: PLC0415 - a process that only waits loads no numpy

    by_variant_and_workload: dict[tuple[str, str], CellLengths] = {}
    for verdict in verdicts:
        if not isinstance(verdict.promise, AcceptedLength):  # the promise is what a verdict measured
            continue
        with suppress(RunError):
            transcript = transcripts.read(directory, verdict.pair, verdict.workload)
            workload = plan.workload(verdict.workload)
            if transcript is not None:
                accepted_lengths = CellLengths(digest=workload.traffic_digest, lengths=lengths(transcript, workload))
                by_variant_and_workload[verdict.pair, verdict.workload] = accepted_lengths
    return by_variant_and_workload


def _sort_results(plan: Plan, results: Sequence[JudgementResult]) -> tuple[JudgementResult, ...]:
    """Return the results sorted by pair, family and workload.

    Under xdist they arrive in any order.
    """
    pairs = [pair.name for pair in plan.pairs]
    return tuple(sorted(results, key=lambda result: (pairs.index(result.pair), result.family.value, result.workload)))


def _read_or_none(read: Callable[[RunDirectory], T], directory: RunDirectory) -> T | None:
    """Return the document that ``read`` reads from a run directory, or None.

    An unfinished capture may not have written it.
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
    """Return a line for each arm of the old engine that was not timed.

    () if an error ended the capture, which is reported instead.
    """
    gaps = () if status.error else status.missing_old
    return tuple(f"{gap.arm}: not timed beside the new engine: {next(iter(gap.reason.splitlines()), '')}" for gap in gaps)
