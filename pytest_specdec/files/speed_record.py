"""Speed record: the files of a run read as what it knows of its servers' speed.

A run of two engines has the whole run of the engine in use, the old one, in a folder of its own. It may also have answers of the old engine
that were timed in turn with those of the new one. A boot is one start of a server.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.files import old_timings, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.plan import Role
from pytest_specdec.model.speed_record import DraftedWorkload, SpeedRecord, TimedWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import Workload


def read(directory: RunDirectory) -> SpeedRecord:
    """Return the timed answers and verify steps of a run.

    The machine is unknown, an empty name, if a server was attached. Raises RunError if an existing file is invalid.
    """
    plan = run_documents.read_plan(directory)
    is_attached = any(boot.attached for boot in plan.boots)
    timed = [workload for workload in plan.workloads if workload.timed]
    return SpeedRecord(
        machine="" if is_attached else run_documents.read_environment(directory).machine,
        timed={workload.name: _read_timed(directory, plan, workload) for workload in timed},
        drafted={pair.name: tuple(_read_drafted(directory, plan, pair)) for pair in plan.pairs},
    )


def read_predecessor(old: RunDirectory, new: RunDirectory) -> SpeedRecord:
    """Return the speed record of ``old``, for comparison with ``new``.

    If ``new`` is a run of two engines and ``old`` that of its old engine, answers of the old engine in ``new`` replace those in ``old`` to
    the same workloads: they were timed in turn with the new ones, so that drift of the machine affects both alike. Raises RunError if an
    existing file is invalid.
    """
    record = read(old)
    if not _is_run_of_old_engine(old, new):
        return record
    plan = run_documents.read_plan(new)
    alternated = {
        name: TimedWorkload(workload=run_documents.read_workload(new, plan, name), boots=boots, alternated=True)
        for name, boots in old_timings.read(new).items()
    }
    return replace(record, timed={**record.timed, **alternated})


def _is_run_of_old_engine(old: RunDirectory, new: RunDirectory) -> bool:
    """Return True if ``old`` is the run of the old engine in ``new``.

    A copy of that run counts too: it has the id of the same session.
    """
    stored_old = RunDirectory(new.old)
    session = run_documents.session(old)
    return old.root.resolve() == stored_old.root.resolve() or (bool(session) and session == run_documents.session(stored_old))


def _read_timed(directory: RunDirectory, plan: Plan, workload: Workload) -> TimedWorkload:
    """Return the answers of every boot to a timed workload, by arm.

    The answers of a further boot are stored under a name of its own (:attr:`Boot.arms`) and are returned under its arm, with those of the
    first boot. The control's boot counts as a further boot of the baseline; one that answers as both counts once, as the baseline. Answers
    to requests without a speed gate are left out, and so are the old engine's boots.
    """
    sent = run_documents.read_workload(directory, plan, workload.name)
    gated_ids = frozenset(request.id for request in sent.gated_requests)
    boots: dict[str, tuple[Transcript, ...]] = {}
    for boot in plan.boots:
        if boot.role.is_old:
            continue
        transcript = transcripts.read(directory, boot.arms[0], workload.name) if workload.name in boot.answers else None
        if transcript is not None:
            arm = BASELINE if boot.role is Role.CONTROL else boot.arm
            boots[arm] = (*boots.get(arm, ()), transcript.part(gated_ids))
    return TimedWorkload(workload=sent, boots=boots)


def _read_drafted(directory: RunDirectory, plan: Plan, pair: Pair) -> Iterator[DraftedWorkload]:
    """Yield a variant's answers to each workload drafted alike in every run.

    Its accepted lengths can then be compared with another run's. Left out are timed workloads, which are compared by themselves,
    calibrations, which get no verdict, and workloads with so many requests in flight that less may be drafted.
    """
    for workload in plan.workloads:
        if workload.timed or workload.calibrates or pair.variant.draft.depends_on(workload.concurrency):
            continue
        transcript = transcripts.read(directory, pair.name, workload.name)
        if transcript is not None:
            yield DraftedWorkload(workload=run_documents.read_workload(directory, plan, workload.name), transcript=transcript)
