"""The runner: carries out a plan and leaves a run directory, whatever happens on the way."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, estimate, locks, remaining
from pytest_specdec.capture.completeness import Completeness
from pytest_specdec.capture.progress import Reporter
from pytest_specdec.capture.server import orphans
from pytest_specdec.config import variables
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import CaptureError, EngineError, RunError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.capture.boot import ServerRecipes
    from pytest_specdec.config.config import Config
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.status import Progress

__all__ = ["record", "resume"]


def record(config: Config, plan: Plan, directory: RunDirectory, *, deadline_s: float | None, tell: Callable[[Progress], None]) -> Status:
    """Boot, ask, score and write everything that ``plan`` wants into ``directory``; return what came of it.

    What goes wrong with an engine, a lease or the deadline is in the status, with what is missing because of it. ConfigError is raised
    before anything boots. An interrupt is raised again after the servers are stopped and the status is written.
    """
    directory, completeness = replace(directory, secrets=variables.secrets_of(config.text)), Completeness(plan)
    run_documents.write_environment(directory, environment.environment(config, ""))
    return _recorded(config, plan, plan.boots, directory, completeness, deadline_s=deadline_s, tell=tell)


def resume(config: Config, plan: Plan, directory: RunDirectory, *, deadline_s: float | None, tell: Callable[[Progress], None]) -> Status:
    """Do what an earlier capture of the same plan left undone in ``directory``, as :func:`record` does; keep what is whole.

    Servers of another version than the earlier ones end it: their answers are not those of one engine.
    """
    directory = replace(directory, secrets=variables.secrets_of(config.text))
    remaining.discard_torn(directory)
    found = remaining.of(directory, plan)
    remaining.discard(directory, plan, found)
    completeness = Completeness(
        plan, earlier=run_documents.read_status(directory), version=run_documents.read_environment(directory).engine_version
    )
    completeness.keep(found)
    return _recorded(config, plan, found.remaining(plan), directory, completeness, deadline_s=deadline_s, tell=tell)


def _recorded(
    config: Config,
    plan: Plan,
    boots: Sequence[Boot],
    directory: RunDirectory,
    completeness: Completeness,
    *,
    deadline_s: float | None,
    tell: Callable[[Progress], None],
) -> Status:
    from pytest_specdec.capture.boot import ServerRecipes  # noqa: PLC0415 - a process that waits for another's capture never pays for openai

    engine, telling = engine_of(config.engine.kind), threading.Lock()

    def told(progress: Progress) -> None:
        with telling:
            with suppress(RunError):  # nothing is decided by it: what follows it says that the disk is full
                run_documents.append_progress(directory, progress)
            tell(progress)

    planned = estimate.steps(boots, plan.workloads, engine.pace, route=plan.route)
    reporter = Reporter(planned, len(plan.boots), deadline_s, told)
    recipes = ServerRecipes(config=config, plan=plan, directory=directory, engine=engine)
    _write_beginnings(config, plan, directory)
    try:
        with _sigterm_raises():
            error = _carried_out(boots, recipes, reporter, completeness)
    except BaseException as ended:
        with suppress(RunError):
            error = f"the capture was ended by {type(ended).__name__}: {ended}"
            run_documents.write_status(directory, completeness.status(wall_s=reporter.elapsed_s, error=error))
        raise
    status = completeness.status(wall_s=reporter.elapsed_s, error=error)
    run_documents.write_status(directory, status)
    return status


def _carried_out(boots: Sequence[Boot], recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> str:
    """Return what ended the capture early; empty when nothing did."""
    from pytest_specdec.capture import parallel, sequential  # noqa: PLC0415 - as above

    plan = recipes.plan
    try:
        recipes.engine.check(recipes.config)
        recipes.check()
        orphans.sweep(recipes.directory.root.parent, held=recipes.directory.root)
        with ExitStack() as held:
            for device in _devices():
                held.enter_context(locks.device(device, min(reporter.left_s, locks.LONGEST_S), reporter.check))
            if plan.placement is Placement.SIDE_BY_SIDE:
                parallel.run(boots, recipes, reporter, completeness)
            else:
                sequential.run(boots, recipes, reporter, completeness)
    except (EngineError, CaptureError, RunError) as error:
        return str(error)
    except OSError as error:
        return str(CaptureError("the machine refused what a capture needs", found=str(error), remedy="make room, or raise the limit"))
    return ""


def _write_beginnings(config: Config, plan: Plan, directory: RunDirectory) -> None:
    run_documents.write_plan(directory, plan)
    atomic_write(directory.config, directory.secrets.mask(config.text))
    run_documents.write_status(directory, Status(state=State.RUNNING))


def _devices() -> tuple[str, ...]:
    """Return the accelerators that this process may use, in one order for all; none without an accelerator.

    CUDA_VISIBLE_DEVICES names them by number or by the beginning of their UUID; here each has one name.
    """
    found = environment.devices()
    if not found:
        return ()
    known = environment.uuids()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(found)))))
    return tuple(sorted({_one_name(name.strip(), known) for name in visible.split(",") if name.strip()}))


def _one_name(name: str, known: Sequence[str]) -> str:
    if name.isdecimal():
        return known[int(name)] if int(name) < len(known) else name
    return next((uuid for uuid in known if uuid.startswith(name)), name)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into SystemExit where nobody else has made it an exception already."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
