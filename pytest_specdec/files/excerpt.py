"""An excerpt: the part of a run that one judgement reads, as a run directory of its own.

A judgement holds a variant, which speculates, against the baseline and its control (the baseline booted again) on one workload. A
workload's extensions are workloads with further requests, added while its verdict was open.
"""

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
    """Write the part of a run needed for one judgement into ``target``.

    A replay there comes to the same verdict. The judgement's workload is written as a whole, since every judge counts over all answers to
    it. Other variants, workloads that the judgement does not read, server logs and reports are left out. Raises RunError if a file cannot
    be read or written.
    """
    excerpt = _restrict(source, plan, judgement)
    for path in dict.fromkeys(_paths(source, excerpt, judgement)):  # several boots name the same workload's file
        if path.is_file():
            _copy(path, target.root / path.relative_to(source.root))
    run_documents.write_plan(target, excerpt)


def _copy(path: Path, target: Path) -> None:
    """Copy a file as it is; raise RunError if ``target`` cannot be written.

    The capture has masked all secrets in it.
    """
    with writable(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _restrict(source: RunDirectory, plan: Plan, judgement: Judgement) -> Plan:
    """Return the plan cut down to ``judgement``, with all its boots.

    A boot keeps only the answers and scores that are read, but stays in its place, since transcripts refer to boots by index. The answers
    that are read may be of more workloads than the scores (:func:`_answered_workloads`).
    """
    scored = _scored_workloads(plan, judgement)
    answered = _answered_workloads(source, plan, judgement)

    def restrict_boot(boot: Boot) -> Boot:
        scores = () if boot.role.is_old else boot.scores  # no judge of a pair reads those by the old engine
        tasks = tuple(task for task in scores if task.workload in scored and task.arm in _arms(judgement))
        return replace(boot, answers=tuple(name for name in boot.answers if name in answered), scores=tasks)

    return replace(
        plan,
        pairs=(plan.pair(judgement.pair),),
        workloads=tuple(workload for workload in plan.workloads if workload.name in answered),
        judgements=(judgement,),
        boots=tuple(map(restrict_boot, plan.boots)),
        extensions={name: further for name, further in plan.extensions.items() if name in answered},
        withheld={},  # workloads that were sent to no arm
        # The usual number of requests, by workload that was sent more.
        enlarged={name: requests for name, requests in plan.enlarged.items() if name in answered},
        old=None,
    )


def _arms(judgement: Judgement) -> tuple[str, ...]:
    return (judgement.pair, BASELINE, CONTROL)


def _scored_workloads(plan: Plan, judgement: Judgement) -> frozenset[str]:
    """Return the names of workloads with scores read by ``judgement``.

    They are its own workload, the extensions of that, and those of the calibration. Empty for a family judged over the whole run, without
    scores.
    """
    if plan.rows[judgement.family].whole_run:
        return frozenset()
    extensions = captured.extensions(plan, judgement)
    calibrating = [workload.name for workload in captured.calibrating_workloads(plan)]
    return frozenset((judgement.workload, *extensions, *calibrating))


def _answered_workloads(source: RunDirectory, plan: Plan, judgement: Judgement) -> frozenset[str]:
    """Return the names of workloads with answers read by ``judgement``.

    They are all of the run if its family is judged over the whole run, or if the variant has server failures, which are counted over all
    requests. Otherwise they are those of :func:`_scored_workloads`.
    """
    reads_all = plan.rows[judgement.family].whole_run or server_failures.read(source, plan, judgement.pair)
    return frozenset(workload.name for workload in plan.workloads) if reads_all else _scored_workloads(plan, judgement)


def _paths(source: RunDirectory, excerpt: Plan, judgement: Judgement) -> Iterator[Path]:
    """Yield the paths of an excerpt's files in ``source``.

    The plan is left out, since the excerpt has its own. Transcripts of unfinished workloads, and those set aside when a workload was
    captured again, are included, since their server failures count. Not every file need exist.
    """
    yield from (source.config, source.environment, source.status)
    yield from sorted(source.capabilities.glob("*.json"))
    yield from sorted(source.baselines.rglob("*.yaml"))
    # Where an arm answered nothing on a route, the judge looks whether the others did.
    needs_all_arms = _has_silent_route(source, excerpt, judgement)
    for boot in excerpt.boots:
        # Any boot may have scored the tokens of this judgement's arms; `under` is the model that scored.
        yield from (source.scores(boot.under, task.arm, task.workload) for task in boot.scores)
        if not needs_all_arms and boot.arm not in _arms(judgement):
            continue
        for name in boot.answers:
            yield source.workload(name)
            for arm in boot.arms:
                yield from (source.transcript(arm, stored) for stored in server_failures.stored_names(source, arm, name))


def _has_silent_route(source: RunDirectory, excerpt: Plan, judgement: Judgement) -> bool:
    """Return True if a route refused all requests of an arm.

    The arms are the variant, the baseline and the control. The judge then reads the answers of all other arms too.
    """
    names = [workload.name for workload in excerpt.workloads]
    arms = [transcripts.read(source, arm, name) for arm in _arms(judgement) for name in names]
    return any(transcript.silent_routes for transcript in arms if transcript is not None)
