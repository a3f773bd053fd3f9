"""Capture once for all processes of a session: one claims the run directory, the others follow what it writes.

A capture boots the servers of a plan and stores their answers as a run. A run that is taken up is an earlier session's, to be completed. A
config with two engines is judged on the old one, that in use, first. A matrix has a run for each of its groups.
"""

from __future__ import annotations

import fcntl
import os
import traceback
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import devices, remaining, runner
from pytest_specdec.config import variables
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError, RunError, SpecdecError
from pytest_specdec.files import old_answers, run_documents
from pytest_specdec.files.run_directory import RunDirectory, writable
from pytest_specdec.model.status import State, Status
from pytest_specdec.plugin import commands, handover, marker, old_engine
from pytest_specdec.plugin.follow import plan_lines
from pytest_specdec.plugin.progress import Ticker, last_word

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.status import Progress
    from pytest_specdec.plugin.run_state import Runs, RunState

_LEAST_LEFT_S = 1.0
"""Seconds for the new engine if the old one has used up the deadline: its capture then ends in the error of a deadline."""


def capture(run: RunState, tell: Callable[[Progress], None], *, in_worker: bool) -> Status | None:
    """Capture the session's plan, unless another process already has.

    Returns the run's final status, or None if nothing was left to capture. A capture that an earlier session or a dead worker of this
    one began is resumed. ``tell`` gets every step of progress. ``in_worker`` is True in a worker process of pytest-xdist.
    Errors of the capture are written into the run, where the tests find them. An exception is raised only if the process
    is ended, by an interrupt or, outside a worker, by SIGTERM, and as RunError if the run directory belongs to another
    session or cannot be written at all.
    """
    with claim_directory(run.root):
        directory = RunDirectory(run.root, variables.secrets_of(run.config.text))
        if is_finished(run):
            _follow_plan(run, directory)
            return None
        completes_earlier_session = _is_taken_up(run, directory)
        completes_dead_process = not completes_earlier_session and _is_begun(directory, run.session)
        if completes_dead_process:  # a plan of an earlier session stays unread: --specdec-continue adds requests that it lacks
            _follow_plan(run, directory)
        is_begun = completes_earlier_session or completes_dead_process
        _prepare_directory(directory, run, is_begun=is_begun)
        record = runner.resume if is_begun else runner.record
        try:
            with exit_on_sigterm(), devices.restrict(run.config.limits.devices):
                _check_boots(run, directory)
                left_s = _judge_old_engine(run, directory, tell)
                status = record(run.config, run.plan, directory, deadline_s=left_s, tell=tell)
                status = _ask_open_requests_again(run, directory, status, tell)
                return _require_old_run(run, directory, status)
        except SpecdecError as error:
            return _write_failure(run, directory, str(error), lasting=error.lasting)
        except pytest.exit.Exception as error:
            if not in_worker:
                raise
            run.is_ended = True
            return _write_failure(run, directory, str(error))
        except Exception:  # noqa: BLE001 - out of the wrapper it would be an INTERNALERROR and, in a worker, a hang; the tests report it
            return _write_failure(run, directory, f"internal error in the capture; please report it\n{traceback.format_exc()}")


@contextmanager
def claim_directory(root: Path) -> Iterator[None]:
    """Hold the lock of the run directory, waiting for it.

    One process captures there at a time. The directory is made if needed. The lock is on the directory itself: it leaves no file there,
    and ends with its process.
    """
    with writable(root):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writable(root):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_finished(run: RunState) -> bool:
    """Return True if nothing is left to capture in the run.

    This is so if a process of this session has captured the run, whatever came of it, or if nothing is missing from the run to resume. A
    new run, with no earlier one to resume or continue (``taken_up``), gets its directory here; RunError if that is another session's.
    """
    directory = RunDirectory(run.root)
    is_ours = run_documents.session(directory) == run.session
    if run.settings.taken_up is None and not is_ours:
        RunDirectory.create(run.root)
        return False
    try:
        state = run_documents.read_status(directory).state
        # Not asked of a run to continue: its further requests are still to be sent.
        is_whole = run.settings.resume is not None and state is State.COMPLETE and _is_fully_captured(run, directory)
    except RunError:
        return False
    return is_whole or (is_ours and state is not State.RUNNING)


def _is_fully_captured(run: RunState, directory: RunDirectory) -> bool:
    """Return True if a complete run needs no server again.

    No answer has to be captured anew, as after an unexplained server failure, and the old engine, if there is one, is judged.
    """
    if remaining.has_answers_to_renew(directory, run.plan):
        return False
    return run.config.old is None or old_engine.is_judged(directory.old)


def _follow_plan(run: RunState, directory: RunDirectory) -> None:
    """Use the plan written by the capturing process.

    It replaces this process's own. The two may differ, since a run that ended in between changes the known costs of
    boots. Nothing changes if there is no readable plan.
    """
    with suppress(RunError):
        run.plan = run_documents.read_plan(directory)


def _is_begun(directory: RunDirectory, session: str) -> bool:
    """Return True if this session began a capture here that can be resumed.

    Callers hold the directory's lock and have found the capture unfinished: the process that captured has ended early. It can be resumed
    once status and environment are written.
    """
    try:
        run_documents.read_status(directory)
        run_documents.read_environment(directory)
    except RunError:
        return False
    return run_documents.session(directory) == session


def _is_taken_up(run: RunState, directory: RunDirectory) -> bool:
    """Return True if the capture of an earlier session is to be completed.

    A run that ended before its first boot has nothing to complete, and is captured from the start.
    """
    return run.settings.taken_up is not None and run_documents.has_begun(directory)


def _prepare_directory(directory: RunDirectory, run: RunState, *, is_begun: bool) -> None:
    """Write session, plan and digests of the config's variables into the run directory.

    A run that is resumed (``is_begun``) keeps the digests, by which other values are noticed, and its status becomes ``running`` again. The
    answers of the earlier run of ``--specdec-against`` are copied there: this run's baseline scores their tokens.
    """
    if is_begun:
        with suppress(RunError):
            run_documents.write_status(directory, replace(run_documents.read_status(directory), state=State.RUNNING))
    run_documents.write_session(directory, run.session)
    if not is_begun:
        run_documents.write_variables(directory, variables.digests(run.config.text, os.environ))
    run_documents.write_plan(directory, run.plan)
    if run.settings.against is not None:
        old_answers.copy(run.settings.against, directory, run.plan)


def _check_boots(run: RunState, directory: RunDirectory) -> None:
    """Raise the error of a server that would not boot.

    This is done before anything boots. The documents of every run are written before the error is raised, for the reports of a failed run.
    """
    from pytest_specdec.doctor import boot_checks  # noqa: PLC0415 - only the process that captures pays for it

    try:
        _check_engines(run.config, boot_checks.require)
    except SpecdecError:
        runner.begin(run.config, run.plan, directory)
        raise


def _check_engines(config: Config, check: Callable[[Config], object]) -> None:
    """Call ``check`` with the config of each engine, the old one first.

    If there are two, an EngineError begins with the key of its engine in the config file, ``engines.old`` or ``engines.new``.
    """
    for key, config_of_engine in config.builds.items():
        try:
            check(config_of_engine)
        except EngineError as error:
            if config.old is None:
                raise
            what = f"{key}: {error.what}"
            raise type(error)(what, where=error.where, found=error.found, expected=error.expected, remedy=error.remedy) from None


def _judge_old_engine(run: RunState, directory: RunDirectory, tell: Callable[[Progress], None]) -> float | None:
    """Judge the config's old engine and return the seconds left.

    They are the seconds of ``--specdec-deadline`` left for the new engine; None without a deadline. If the config names no old engine,
    nothing is judged and all of them are left. Raises EngineError if one of the two engines cannot be used.
    """
    total_s = run.capture_s
    if run.config.old is None:
        return total_s
    _check_engines(run.config, lambda config: engine_of(config.engine.kind).check(config))
    runner.begin(run.config, run.plan, directory)  # the documents by which this session can be resumed if it is interrupted from here on
    try:
        took_s = old_engine.judge(run, tell)
    except BaseException as ended:
        _write_failure(run, directory, f"the old engine's session was ended by {type(ended).__name__}: {ended}")
        raise
    old_answers.copy(directory.old, directory, run.plan)  # out of the old engine's run, for this run's servers to score
    return None if total_s is None else max(total_s - took_s, _LEAST_LEFT_S)


def _require_old_run(run: RunState, directory: RunDirectory, status: Status) -> Status:
    """Return the status, made incomplete without an old engine's run.

    This concerns configs with ``engines`` only. A status with an error already stays; a changed one is written into the run.
    """
    reason = old_engine.why_missing(directory.root) if run.config.old else ""
    if not reason or status.error:
        return status
    status = replace(status, state=State.INCOMPLETE, error=directory.secrets.mask(reason))
    run_documents.write_status(directory, status)
    return status


def _ask_open_requests_again(run: RunState, directory: RunDirectory, status: Status, tell: Callable[[Progress], None]) -> Status:
    """Send the requests behind suspicious counts of wrong tokens again; return the last status, see :func:`repeats.ask_again`."""
    from pytest_specdec.plugin import repeats  # noqa: PLC0415 - only the process that captures pays for the judges

    return repeats.ask_again(run, status, lambda: runner.resume(run.config, run.plan, directory, deadline_s=None, tell=tell))


def write_lost(run: RunState, error: str, *, is_claimed: bool = False) -> None:
    """Write into a run why another process left its capture unfinished; nothing if it is finished.

    ``error`` is the reason. The run's directory is claimed for it, unless ``is_claimed`` says that the caller has done so. If the reason
    cannot be written, as on a full disk, it becomes ``run.refusal``, which the run's tests report, together with the error of writing.
    """
    directory = RunDirectory(run.root, variables.secrets_of(run.config.text))
    try:
        with nullcontext() if is_claimed else claim_directory(run.root):
            if is_finished(run):
                return
            if not _is_begun(directory, run.session):
                # The other process wrote nothing. Reports need the documents of a run also if it failed; an earlier session's run has them.
                has_documents = _is_taken_up(run, directory)
                _prepare_directory(directory, run, is_begun=has_documents)
                if not has_documents:
                    runner.begin(run.config, run.plan, directory)
            run_documents.write_status(directory, _failed_status(directory, error))
    except RunError as unwritten:
        run.refusal = directory.secrets.mask(f"{error}\n{unwritten}")


def _write_failure(run: RunState, directory: RunDirectory, error: str, *, lasting: bool = False) -> Status:
    """Write the reason for a missing or incomplete capture.

    The tests read the reason in the run's status, which is returned. For ``lasting`` see :func:`_failed_status`. If the status cannot be
    written, the reason becomes ``run.refusal``, from which this process's tests read it.
    """
    status = _failed_status(directory, error, lasting=lasting)
    try:
        run_documents.write_status(directory, status)
    except RunError:
        run.refusal = directory.secrets.mask(error)
    return status


def _failed_status(directory: RunDirectory, error: str, *, lasting: bool = False) -> Status:
    """Return the run's status, made incomplete by ``error``; a ``lasting`` one comes back until the config or the machine is changed."""
    try:
        status = run_documents.read_status(directory)
    except RunError:
        status = Status(state=State.INCOMPLETE)
    return replace(status, state=State.INCOMPLETE, error=error, lasting=lasting)


def exit_on_sigterm() -> AbstractContextManager[None]:
    """Return a context in which SIGTERM ends the pytest session."""
    end = pytest.exit.Exception("ended by SIGTERM; complete results of the capture are kept", runner.TERMINATED)
    return runner.raise_on_sigterm(end)


def register(config: pytest.Config, runs: Runs, selected: Sequence[RunState], workloads: Mapping[str, str]) -> None:
    """Register the plugins that capture and, where tests will run, summarise.

    ``runs`` are all of the session, ``selected`` those that have tests, and ``workloads`` the digests of these tests' workloads, by name.
    There is no summary in a worker, whose controller prints it, nor under --collect-only and --setup-plan. The session of one group of a
    matrix, known by what it was handed over, runs no tests and has no summary either: the session that started it judges.
    """
    config.pluginmanager.register(CaptureLoop(config, selected, workloads), "specdec_loop")
    if handover.GROUP in handover.handed_over(config):
        config.pluginmanager.register(NoTests(), "specdec_no_tests")
    elif not (hasattr(config, "workerinput") or config.option.collectonly or config.option.setupplan):
        from pytest_specdec.plugin import summary  # noqa: PLC0415 - a worker has no summary

        summary.register(config, runs.root, session=runs.states[0].session, warnings={run.root: run.warnings for run in selected})


class NoTests:
    """Registered in the session of a group: the session that started it judges."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        """Run no test, in place of pytest's own loop."""
        return True


class CaptureLoop:
    """Plugin to capture the session's runs before its first test: one run, or one for each group of a matrix."""

    def __init__(self, config: pytest.Config, runs: Sequence[RunState], workloads: Mapping[str, str]) -> None:
        self._config = config
        self._runs = runs
        self._workloads = workloads

    def pytest_report_collectionfinish(self) -> list[str]:
        """Return the lines of the plan, printed before anything boots."""
        first = self._runs[0]
        is_replayed = first.settings.replay is not None
        if first.matrix_root is None:
            return [*plan_lines(first.plan, self._config, first.root, replayed=is_replayed), *self._warning_lines()]
        from pytest_specdec.report import matrix_plan  # noqa: PLC0415 - only a matrix pays for it

        plans, origin = {run.root.name: run.plan for run in self._runs}, commands.as_typed(first.matrix_root, self._config)
        lines = matrix_plan.lines(plans, name=first.matrix_name, origin=origin, replayed=is_replayed, cells=first.cells)
        return [*lines, *self._warning_lines()]

    def _warning_lines(self) -> list[str]:
        return [f"  warning: {warning}" for warning in dict.fromkeys(warning for run in self._runs for warning in run.warnings)]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Capture before the first test, when no test's clock or timeout runs yet.

        What other processes did not capture is captured here, one run after another. A RunError of one group of a matrix ends no
        other; without groups it is a usage error.
        """
        if self._should_capture(session):
            self._capture_in_other_processes()
            for run in self._runs_to_capture():
                try:
                    ticker = self._announce(run)
                    status = capture(run, ticker, in_worker=hasattr(self._config, "workerinput"))
                except RunError as error:
                    if not self._has_groups:
                        self._refuse((run,), str(error))
                    run.refusal = str(error)
                else:
                    if status is not None:
                        ticker.say(last_word(status))
        return (yield)

    @property
    def _has_groups(self) -> bool:
        """True in the session of a matrix, but not in one of a group that it starts."""
        return self._runs[0].matrix_root is not None and handover.GROUP not in handover.handed_over(self._config)

    def _runs_to_capture(self) -> Iterator[RunState]:
        """Yield the runs until one of their captures was ended; the others are refused then.

        Runs that other processes could not capture, as for a full disk, are refused already and left out.
        """
        for run in (run for run in self._runs if not run.refusal):
            if any(earlier.is_ended for earlier in self._runs):
                run.refusal = "not captured: the session was ended during the capture of another group"
            else:
                yield run

    def _announce(self, run: RunState) -> Ticker:
        """Return the ticker, which prints a run's progress; print the name of a group to be captured."""
        ticker = Ticker(self._config)
        if run.matrix_root is None:
            return ticker
        with claim_directory(run.root):  # another worker may be writing its first file there
            is_open = not is_finished(run)
        if is_open:
            ticker.say(f"specdec: {run.root.name}")
        return ticker

    def _capture_in_other_processes(self) -> None:
        """Capture on a cluster, or the groups of a matrix side by side.

        Before, the matrix is written into its directory, with the cells (pairs) that this session runs. The caller captures in turn what is
        not finished then: all, if devices do not suffice for two groups. An error, as in another session's directory, refuses all runs.
        """
        first = self._runs[0]
        if handover.GROUP in handover.handed_over(self._config):
            return  # this is such a process, started for one group: it captures that itself
        if first.matrix_root is None and not first.settings.cluster:
            return
        from pytest_specdec.plugin import cluster_sessions, group_sessions, matrix_session  # noqa: PLC0415 - only these sessions pay

        try:
            if first.matrix_root is not None:
                matrix_session.write(self._runs, self._config, self._workloads)
            if first.settings.cluster:
                cluster_sessions.capture_on_cluster(self._runs, self._config, first.settings.cluster)
            else:
                group_sessions.capture_side_by_side(self._runs, self._config)
        except SpecdecError as error:
            self._refuse(self._runs, str(error))

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Fail a ``specdec`` test with an unchecked verdict.

        Such a test would be green whatever the verdict is.
        """
        result = yield
        if marker.is_ours(pyfuncitem):
            from pytest_specdec.plugin import verdicts  # noqa: PLC0415 - only tests of ours pay for it

            verdicts.require_check(pyfuncitem)
        return result

    def _should_capture(self, session: pytest.Session) -> bool:
        """Return True if this session will run tests on answers of its own.

        A replay has its answers stored; with --collect-only, --setup-plan or errors of collection no test runs.
        """
        option = session.config.option
        has_collection_errors = session.testsfailed and not option.continue_on_collection_errors
        return not (has_collection_errors or option.collectonly or option.setupplan or self._runs[0].settings.replay)

    def _refuse(self, runs: Iterable[RunState], error: str) -> None:
        """Forbid this session to judge run directories, with ``error`` as the reason.

        Raises UsageError; a worker hands the error to its controller instead, which raises it.
        """
        from pytest_specdec.plugin import xdist  # noqa: PLC0415 - only a session that cannot capture pays for it

        for run in runs:
            run.refusal = error
        if not xdist.hand_over(self._config, error):
            raise pytest.UsageError(error) from None
