"""An excerpt: the part of a run that one judgement reads, as a run directory of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.files import captured, run_documents, server_failures, transcripts
from pytest_specdec.files.run_directory import writable
from pytest_specdec.model.pair import BASELINE, CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Judgement, Plan

__all__ = ["write"]


def write(source: RunDirectory, plan: Plan, judgement: Judgement, target: RunDirectory) -> None:
    """Write what ``judgement`` reads of the run ``source`` into ``target``, where a replay comes to the same verdict.

    Its workload is there as a whole, since every judge counts over all answers to it. Other variants, other workloads,
    server logs and reports are left out. Raises RunError if a file cannot be read or written.
    """
    excerpt = _restrict(source, plan, judgement)
    for path in dict.fromkeys(_paths(source, excerpt, judgement)):
        if path.is_file():
            _copy(path, target.root / path.relative_to(source.root))
    run_documents.write_plan(target, excerpt)


def _copy(path: Path, target: Path) -> None:
    """Copy a file as it is: the capture has masked all secrets in it."""
    with writable(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _restrict(source: RunDirectory, plan: Plan, judgement: Judgement) -> Plan:
    """Return the plan of ``judgement`` alone, with all boots in their places, since transcripts refer to them by index."""
    scored = _scored_workloads(plan, judgement)
    answered = _answered_workloads(source, plan, judgement)

    def restrict_boot(boot: Boot) -> Boot:
        is_read = not boot.role.is_old
        tasks = tuple(task for task in boot.scores if is_read and task.workload in scored and task.arm in _arms(judgement))
        return replace(boot, answers=tuple(name for name in boot.answers if name in answered), scores=tasks)

    return replace(
        plan,
        pairs=(plan.pair(judgement.pair),),
        workloads=tuple(workload for workload in plan.workloads if workload.name in answered),
        judgements=(judgement,),
        boots=tuple(map(restrict_boot, plan.boots)),
        extensions={name: further for name, further in plan.extensions.items() if name in answered},
        withheld={},
        enlarged={name: requests for name, requests in plan.enlarged.items() if name in answered},
        old=None,
    )


def _arms(judgement: Judgement) -> tuple[str, ...]:
    return (judgement.pair, BASELINE, CONTROL)


def _scored_workloads(plan: Plan, judgement: Judgement) -> frozenset[str]:
    """Return the workloads whose scores are read: the judged ones and the calibration; empty for a verdict on a whole run."""
    if plan.rows[judgement.family].whole_run:
        return frozenset()
    extensions = captured.extensions(plan, judgement)
    calibrating = [workload.name for workload in captured.calibrating_workloads(plan)]
    return frozenset((judgement.workload, *extensions, *calibrating))


def _answered_workloads(source: RunDirectory, plan: Plan, judgement: Judgement) -> frozenset[str]:
    """Return the workloads whose answers are read: those of the whole run if the judgement, or the count of failures, is over it."""
    whole = plan.rows[judgement.family].whole_run or server_failures.read(source, plan, judgement.pair)
    return frozenset(workload.name for workload in plan.workloads) if whole else _scored_workloads(plan, judgement)


def _paths(source: RunDirectory, excerpt: Plan, judgement: Judgement) -> Iterator[Path]:
    """Yield the files of an excerpt but its plan; not all of them need be there."""
    yield from (source.config, source.environment, source.status)
    yield from sorted(source.capabilities.glob("*.json"))
    yield from sorted(source.baselines.rglob("*.yaml"))
    # Where an arm answered nothing on a route, the judge looks whether the others did.
    needs_all_arms = _has_silent_route(source, excerpt, judgement)
    for boot in excerpt.boots:
        yield from (source.scores(boot.under, task.arm, task.workload) for task in boot.scores)
        for name in boot.answers if needs_all_arms or boot.arm in _arms(judgement) else ():
            yield source.workload(name)
            for arm in boot.arms:
                yield from (source.transcript(arm, stored) for stored in server_failures.stored_names(source, arm, name))


def _has_silent_route(source: RunDirectory, excerpt: Plan, judgement: Judgement) -> bool:
    """Return True if an arm answered nothing on a route: the judge then looks whether the other arms did."""
    names = [workload.name for workload in excerpt.workloads]
    arms = [transcripts.read(source, arm, name) for arm in _arms(judgement) for name in names]
    return any(transcript.silent_routes for transcript in arms if transcript is not None)
