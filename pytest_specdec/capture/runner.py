"""The runner: carries out a plan and leaves a run directory, whatever happens on the way.

A plan is a list of boots: starts of servers, or visits to attached ones, which run already and belong to somebody else. In each boot an
arm, the baseline or a variant, answers workloads, or a server scores answers. A run may be resumed later, and keeps its whole results then.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.capture import devices, environment, estimate, locks, remaining
from pytest_specdec.capture.completeness import Completeness
from pytest_specdec.capture.progress import Reporter
from pytest_specdec.capture.server import orphans
from pytest_specdec.config import variables
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import CaptureError, EngineError, RunError
from pytest_specdec.files import matrix_run, old_answers, run_documents
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.pair import OLD_BASELINE
from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.model.status import Progress, State, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from pytest_specdec.capture.remaining import ReusableResults
    from pytest_specdec.config.config import Config
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process ended by SIGTERM."""


def record(
    config: Config,
    plan: Plan,
    directory: RunDirectory,
    *,
    deadline_s: float | None,
    tell: Callable[[Progress], None],
    reusable: ReusableResults | None = None,
) -> Status:
    """Carry out ``plan`` in ``directory``, and return the capture's status.

    Everything in the plan is booted, answered, scored and written, except for the ``reusable`` results already there, None for a first
    capture. ``tell`` gets every report of progress. ``deadline_s`` are the seconds that the capture may take, None for no limit.

    Servers left by killed captures are ended, and the accelerators that the servers take are locked against other captures. Errors of an
    engine, a lock or the deadline are in the status, with the results missing because of these. ConfigError is raised before anything
    boots. An interrupt is raised again after the servers are stopped and the status is written.
    """
    # A process that only waits for another's capture does not have to import openai.
    from pytest_specdec.capture import attachment, parallel, sequential  # noqa: PLC0415 - as above
    from pytest_specdec.capture.server_recipes import ServerRecipes  # noqa: PLC0415

    directory = replace(directory, secrets=variables.secrets_of(config.text))
    boots = plan.boots if reusable is None else reusable.remaining(plan)
    completeness = _begin_completeness(config, plan, directory, reusable)
    steps = estimate.steps(boots, plan.workloads, plan.rates, route=plan.route)
    reporter = Reporter(steps, len(plan.boots), deadline_s, _progress_writer(directory, tell))
    recipes = ServerRecipes(config=config, plan=plan, directory=directory)
    _write_first_documents(config, plan, directory)
    with _write_status_at_end(directory, completeness, reporter), raise_on_sigterm(), ExitStack() as device_locks:
        boots_to_start = [boot for boot in boots if not boot.attached]
        _check_engines(config, boots_to_start)
        recipes.check()  # raises ConfigError for a variable that is named in the config and not set
        # Ends servers that killed captures left behind, in this run and in those beside it: they may still hold accelerators.
        orphans.sweep(matrix_run.runs_folder(directory.root), held=directory.root)
        if boots_to_start:
            wait_s = min(reporter.left_s, locks.MAX_WAIT_S)
            device_locks.enter_context(devices.hold(config, wait_s, reporter.check, partial(_say_before_boots, plan, tell)))
        if any(boot.attached for boot in boots):
            refused = attachment.check(recipes, reporter)  # errors by variant, of those that cannot be compared with the baseline
            boots = _drop_refused_boots(boots, refused, completeness)
        placement = parallel if plan.placement is Placement.SIDE_BY_SIDE else sequential
        placement.run(boots, recipes, reporter, completeness)
    return run_documents.read_status(directory)


def _check_engines(config: Config, boots_to_start: Sequence[Boot]) -> None:
    """Raise EngineError if an engine needed here cannot serve the config.

    An engine's program is only needed for servers that are started with it: those of the config, of the old engine, of the scorer.
    """
    if any(boot.role is not Role.SCORER for boot in boots_to_start):
        engine_of(config.engine.kind).check(config)
    if config.old and any(boot.role.is_old for boot in boots_to_start):
        engine_of(config.old.kind).check(config.old_engine_config())
    if config.scorer and any(boot.role is Role.SCORER for boot in boots_to_start):
        engine_of(config.scorer.kind).check(config.scorer_config())


def _say_before_boots(plan: Plan, tell: Callable[[Progress], None], text: str) -> None:
    """Report ``text`` before the first boot has begun."""
    tell(Progress(at_s=0.0, boot=0, boots=len(plan.boots), arm=plan.boots[0].arm, doing=text))


def _drop_refused_boots(boots: Sequence[Boot], refused: Mapping[str, EngineError], completeness: Completeness) -> tuple[Boot, ...]:
    """Return the boots without those of the ``refused`` variants.

    Their attached servers cannot be compared with the baseline's. ``refused`` has the reasons by arm: why their results will be missing.
    """
    for boot in boots:
        if boot.arm in refused:
            completeness.record_error(boot, refused[boot.arm])
    return tuple(boot for boot in boots if boot.arm not in refused)


def resume(config: Config, plan: Plan, directory: RunDirectory, *, deadline_s: float | None, tell: Callable[[Progress], None]) -> Status:
    """Complete an earlier capture in ``directory``, and return its status.

    Works as :func:`record` does, and keeps the results that are whole; the rest is removed first. Servers of another engine version than
    the earlier ones end the capture: the answers would not be those of one engine.
    """
    directory = replace(directory, secrets=variables.secrets_of(config.text))
    remaining.discard_torn_capabilities(directory)
    reusable = remaining.reusable_results(directory, plan)
    remaining.discard(directory, plan, reusable)
    return record(config, plan, directory, deadline_s=deadline_s, tell=tell, reusable=reusable)


def _begin_completeness(config: Config, plan: Plan, directory: RunDirectory, reusable: ReusableResults | None) -> Completeness:
    """Return the record of complete results as the capture begins.

    For a first capture (``reusable`` is None) it is empty, and the environment is written: engine, model and machine. A later capture
    begins with the results already there. Answers of the old engine, copied from its own run to be scored here, count as complete.
    """
    if reusable is None:
        run_documents.write_environment(directory, environment.environment(config, engine_version=""))  # until a server reports one
        completeness = Completeness(plan)
    else:
        # The servers to come have to be of this version: answers of two engines would be mixed.
        earlier_version = run_documents.read_environment(directory).engine_version
        completeness = Completeness(plan, earlier=run_documents.read_status(directory), version=earlier_version)
        completeness.record_reusable(reusable)
    for workload_name in old_answers.list_stored(directory, plan):
        completeness.record_transcript(OLD_BASELINE, workload_name, missing="")
    return completeness


def _progress_writer(directory: RunDirectory, tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return a callback for writing progress to the run directory.

    It also hands the progress on to ``tell``, and may be called from any thread. Every report gets the time when this capture began.
    """
    lock, began_at_s = threading.Lock(), round(time.time(), 3)

    def write(progress: Progress) -> None:
        with lock:
            with suppress(RunError):  # nothing depends on it, and the next document reports a full disk
                run_documents.append_progress(directory, replace(progress, began_at_s=began_at_s))
            tell(progress)

    return write


@contextmanager
def _write_status_at_end(directory: RunDirectory, completeness: Completeness, reporter: Reporter) -> Iterator[None]:
    """Write the status when the block ends, for any reason.

    Errors of engine, capture, run and operating system end here, as the status's error, ``lasting`` if the same command would end in it
    again. Other exceptions, such as an interrupt, are raised again after the status is written.
    """
    error, lasting = "", False
    try:
        yield
    except (EngineError, CaptureError, RunError) as caught:
        error, lasting = str(caught), caught.lasting
    except OSError as caught:
        error = str(
            CaptureError(
                "the operating system refused a resource", found=str(caught), remedy="free disk or memory, or raise the limit (ulimit -a)"
            )
        )
    except BaseException as ended:
        with suppress(RunError):
            error = f"the capture was ended by {type(ended).__name__}: {ended}"
            run_documents.write_status(directory, completeness.status(wall_s=reporter.elapsed_s, done_s=reporter.done_s, error=error))
        raise
    run_documents.write_status(
        directory, completeness.status(wall_s=reporter.elapsed_s, done_s=reporter.done_s, error=error, lasting=lasting)
    )


def begin(config: Config, plan: Plan, directory: RunDirectory) -> None:
    """Write the documents common to every run, unless already there.

    A run that ends before its first boot needs these as well. Documents of an earlier capture stay as they are.
    """
    if not directory.environment.is_file():
        run_documents.write_environment(directory, environment.environment(config, ""))
        _write_first_documents(config, plan, directory)


def _write_first_documents(config: Config, plan: Plan, directory: RunDirectory) -> None:
    """Write the plan, the config and a running status."""
    run_documents.write_plan(directory, plan)
    atomic_write(directory.config, directory.secrets.mask(config.text))
    run_documents.write_status(directory, Status(state=State.RUNNING))


@contextmanager
def raise_on_sigterm(error: BaseException | None = None) -> Iterator[None]:
    """Raise an exception on SIGTERM within the block, to stop servers.

    By default a process ends on SIGTERM at once, and leaves its servers running; an exception has them stopped. It is ``error``, or
    SystemExit without one. Without ``error``, a handler that is already set stays. In other threads than the main one this does nothing.
    """
    is_handled = error is None and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    if is_handled or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise error or SystemExit(TERMINATED)

    previous_handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
