"""Old answers: those of the baseline before an upgrade, copied into the run of the engine after it, whose baseline scores their tokens.

Scores are a server's log-probabilities of given tokens. They show whether the answers fit the other engine's distribution. Copies keep the
prompt ids of the old run: another chat template then changes nothing of what is scored. Where a run has both engines, the old baseline
scored the new one's answers too. A judge tests such answers as if they were those of a speculative variant.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import captured, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.captured import Captured
from pytest_specdec.model.pair import BASELINE, CONTROL, OLD_BASELINE, Draft, DraftKind, Variant
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_specdec.model.captured import ReportedDraws
    from pytest_specdec.model.plan import Plan, ScoringTask
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["copy", "list_answered", "list_stored", "read", "read_new"]

_NEW_BASELINE = "new.baseline"
"""The new baseline's name where the old one scored it; no file has it."""
_PLACEHOLDER = Variant(name=OLD_BASELINE, draft=Draft(kind=DraftKind.UNKNOWN, tokens=1))


def list_answered(earlier: Path) -> frozenset[str]:
    """Return the names of the workloads answered by an earlier run's baseline.

    Raises RunError if ``earlier`` is no run directory, or if its plan is invalid.
    """
    directory = RunDirectory.open(earlier)
    names = (workload.name for workload in run_documents.read_plan(directory).workloads)
    return frozenset(name for name in names if directory.transcript(BASELINE, name).is_file())


def copy(earlier: Path, directory: RunDirectory, plan: Plan) -> None:
    """Copy the old baseline's answers to be scored into ``directory``.

    ``earlier`` is the directory of the old run, and ``plan`` the new run's, with the workloads to score. An answer is copied if a request
    of the workload of the same name asks the same. A workload without such answers is left out, and so is one whose files cannot be read
    or written: the comparison of the two runs says why. Existing files stay, since they may have been scored already.
    """
    source = RunDirectory(earlier)
    with suppress(RunError):
        old_plan = run_documents.read_plan(source)
        shared_names = {workload.name for workload in old_plan.workloads} & _scored_names(plan)
        for name in sorted(shared_names):
            if not directory.transcript(OLD_BASELINE, name).exists():
                with suppress(RunError):
                    _copy_workload(source, old_plan.workload(name), directory, plan.workload(name))


def list_stored(directory: RunDirectory, plan: Plan) -> tuple[str, ...]:
    """Return the workloads with old answers to be scored in ``directory``."""
    return tuple(name for name in sorted(_scored_names(plan)) if directory.transcript(OLD_BASELINE, name).is_file())


def read(directory: RunDirectory, plan: Plan, calibration: ReportedDraws) -> Iterator[Captured]:
    """Yield the old baseline's answers with the new scores, by workload.

    The old answers are in the variant's place. Those of the run's own baseline are in the places of baseline and control, so that they are
    tested in the same way. ``calibration`` shows the noise of the scores. Raises RunError if a file is invalid.
    """
    for name in list_stored(directory, plan):
        old, baseline = (transcripts.read(directory, arm, name) for arm in (OLD_BASELINE, BASELINE))
        if old is None or baseline is None:
            continue
        yield Captured(
            pair=replace(plan.pairs[0], variant=_PLACEHOLDER),  # any pair does: all have this run's baseline
            workload=run_documents.read_workload(directory, plan, name).with_room(baseline.room),  # with the token limits as sent
            family=Family.SAMPLING,
            baseline=baseline,
            control=baseline,
            speculative=old,
            scores={arm: transcripts.read_scores(directory, BASELINE, arm, name) for arm in (OLD_BASELINE, BASELINE)},
            calibration=calibration,
            scored_by=plan.scored_by(name),
            capabilities=run_documents.read_capabilities(directory),
        )


def read_new(directory: RunDirectory, plan: Plan) -> Iterator[Captured]:
    """Yield the new baseline's answers with the old scores, by workload.

    The new answers are in the variant's place. In the places of both baseline and control are the old baseline's own answers to the same
    requests, with the scores and the noise of the old run, which is in the folder ``old`` of this one. Nothing without that run, or if
    the plan has the old baseline score nothing. Raises RunError if a file is invalid.
    """
    old_run = RunDirectory(directory.old)
    tasks = list(_tasks_of_old(plan))
    if not tasks or not old_run.plan.is_file():
        return
    old_plan = run_documents.read_plan(old_run)
    # The draws that show the noise: if the arms that another boot scored have none, those of baseline and control.
    calibration = captured.read_calibration(old_run, old_plan) or captured.read_calibration(old_run, old_plan, BASELINE, CONTROL)
    for name in (task.workload for task in tasks):
        new, old = transcripts.read(directory, BASELINE, name), transcripts.read(old_run, BASELINE, name)
        if new is None or old is None:
            continue
        old = old.part(_ids_of_same(old_plan.workload(name), plan.workload(name)))
        yield Captured(
            pair=replace(plan.pairs[0], variant=replace(_PLACEHOLDER, name=_NEW_BASELINE)),
            workload=run_documents.read_workload(directory, plan, name).with_room(new.room),  # with the token limits as sent
            family=Family.SAMPLING,
            baseline=old,
            control=old,
            speculative=replace(new, arm=_NEW_BASELINE),
            scores={
                _NEW_BASELINE: transcripts.read_scores(directory, OLD_BASELINE, BASELINE, name),
                BASELINE: transcripts.read_scores(old_run, BASELINE, BASELINE, name),
            },
            calibration=calibration,
            scored_by=old_plan.scored_by(name),
            capabilities=run_documents.read_capabilities(old_run),
        )


def _ids_of_same(sent: Workload, workload: Workload) -> frozenset[str]:
    """Return the ids of requests that ask the same in both workloads."""
    sent_questions = {(request.id, request.asks) for request in sent.requests}
    return frozenset(request.id for request in workload.requests if (request.id, request.asks) in sent_questions)


def _scored_names(plan: Plan) -> set[str]:
    return {task.workload for boot in plan.boots for task in boot.scores if task.arm == OLD_BASELINE}


def _tasks_of_old(plan: Plan) -> Iterator[ScoringTask]:
    yield from (task for boot in plan.boots if boot.under == OLD_BASELINE for task in boot.scores)


def _copy_workload(source: RunDirectory, old_workload: Workload, directory: RunDirectory, workload: Workload) -> None:
    """Copy one workload's old answers into the run ``directory``.

    ``old_workload`` is that of the old run, ``workload`` the new run's of the same name. Only successful answers of the first pass with
    known token ids, also of the prompt, are copied, without the old server's counters and failures. Nothing is written without any.
    Raises RunError for files that cannot be read or written.
    """
    transcript = transcripts.read(source, BASELINE, old_workload.name)
    if transcript is None:
        return
    scores = transcripts.read_scores(source, BASELINE, BASELINE, old_workload.name)
    prompts = {score.key: score.prompt_token_ids for score in scores}
    first_passes = (answer for answer in transcript.answers if answer.ok and answer.choice.token_ids and not answer.pass_index)
    with_prompts = (replace(answer, prompt_token_ids=answer.prompt_token_ids or prompts.get(answer.key, ())) for answer in first_passes)
    usable = {answer.request_id: answer for answer in with_prompts if answer.prompt_token_ids}
    answers = tuple(_assign_to_requests(usable, old_workload, workload))
    if answers:
        copied = replace(transcript, arm=OLD_BASELINE, boot=0, digest=workload.digest, answers=answers)
        transcripts.write(directory, replace(copied, counters=None, ranks=(), server_failures=(), restarts=0))


def _assign_to_requests(old: dict[str, Answer], old_workload: Workload, workload: Workload) -> Iterator[Answer]:
    """Yield the old answers that the requests of ``workload`` ask for, under their ids.

    ``old`` has answers by request id of ``old_workload``. A request gets an answer to the same question, with the same seed if there is
    one, and each answer is used once. A sampled answer is left out if an earlier one had the same seed: both are drawn by the same random
    numbers, also where the questions differ, and are not independent.
    """
    unused_by_question: dict[str, list[Request]] = {}
    for request in old_workload.requests:
        if request.id in old:
            unused_by_question.setdefault(request.asks, []).append(request)
    seeds: set[object] = set()
    for request in workload.requests:
        candidates = unused_by_question.get(request.asks, [])
        match = next((candidate for candidate in candidates if candidate.seed == request.seed), candidates[0] if candidates else None)
        if match is None:
            continue
        candidates.remove(match)
        repeats_draw = not match.greedy and match.seed is not None and match.seed in seeds
        seeds.add(match.seed)
        if not repeats_draw:
            yield replace(old[match.id], request_id=request.id)
