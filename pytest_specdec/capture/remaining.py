"""The results that an earlier capture of the same plan left whole, and the work that remains.

Whole answers are all of an arm's to one workload, to the plan's requests, and without a server failure or a lost route that another capture
may not have again. Answers are named by (arm, workload), or key. One boot, a start of a server with its work, may answer as two arms: as
baseline and as control. The old engine is the one in use, captured beside the one under test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.room import limit_setting_boot
from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents, server_failures, transcripts
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE, OLD_BASELINE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan, ScoringTask
    from pytest_specdec.model.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusableResults:
    """The results of an earlier capture of the same plan.

    Answers are given by (arm, workload), scores by (model whose distribution they give, arm, workload), and capability probes by arm.
    """

    answers: frozenset[tuple[str, str]]
    scores: frozenset[tuple[str, str, str]]
    probes: frozenset[str]

    def remaining(self, plan: Plan) -> tuple[Boot, ...]:
        """Return the unfinished boots, reduced to their remaining work."""
        reduced_boots = (self._reduce_boot(boot) for boot in plan.boots)
        return tuple(boot for boot in reduced_boots if boot.answers or boot.scores or boot.probe)

    def has(self, boot: Boot, task: ScoringTask) -> bool:
        """Return True if the scores of ``task`` are there."""
        return (boot.under, task.arm, task.workload) in self.scores

    def _reduce_boot(self, boot: Boot) -> Boot:
        """Return the boot with only the work still to do.

        A workload stays if any of the boot's arms lacks answers to it.
        """
        return replace(
            boot,
            answers=tuple(name for name in boot.answers if any((arm, name) not in self.answers for arm in boot.arms)),
            scores=tuple(task for task in boot.scores if not self.has(boot, task)),
            probe=boot.probe and boot.arms[0] not in self.probes,
        )


def reusable_results(directory: RunDirectory, plan: Plan) -> ReusableResults:
    """Return the results in ``directory`` worth keeping for this plan.

    Of answers, these are the whole ones, but for those that do not count without answers which are missing.
    """
    failing_variants = _variants_with_unexplained_failures(directory, plan)
    planned_keys = [(arm, name) for boot in plan.boots for name in boot.answers for arm in boot.arms]
    whole_keys = {key for key in planned_keys if _is_whole(directory, plan, *key, failing_variants)}
    # A boot that answers as baseline and as control has both or none.
    valid_keys = whole_keys - _two_armed_answers_to_repeat(plan, whole_keys)
    # All arms answer a workload anew if figures would be measured at two times, or without the baseline's answers if these set all limits.
    workloads_to_repeat = {
        name
        for _, name in planned_keys
        if _is_timed_in_part(plan, name, whole_keys) or ((BASELINE, name) not in valid_keys and limit_setting_boot(plan, name) is not None)
    }
    answers = frozenset((arm, name) for arm, name in valid_keys if name not in workloads_to_repeat)
    unscorable = bool(run_documents.unscorable_reason(directory))  # no score is missing then: no server is booted for it
    return ReusableResults(
        answers=answers,
        scores=frozenset(
            (boot.under, task.arm, task.workload)
            for boot in plan.boots
            for task in boot.scores
            if unscorable or _has_scores(directory, plan, boot, task, answers)
        ),
        probes=frozenset(run_documents.read_capabilities(directory)),
    )


def _is_timed_in_part(plan: Plan, name: str, whole: Collection[tuple[str, str]]) -> bool:
    """Return True if a timed workload lacks answers; the old engine's may be missing, since no verdict needs them."""
    needed_arms = [arm for boot in plan.boots if name in boot.answers and not boot.role.is_old for arm in boot.arms]
    return plan.workload(name).timed and any((arm, name) not in whole for arm in needed_arms)


def _has_scores(directory: RunDirectory, plan: Plan, boot: Boot, task: ScoringTask, answers: Collection[tuple[str, str]]) -> bool:
    """Return True if a task is scored; ``answers`` are the keys of those that count."""
    # The old baseline's answers are copied from its own run, and are not among ``answers``.
    if task.arm != OLD_BASELINE and (task.arm, task.workload) not in answers:
        return False
    return _is_scored(directory, boot.under, task, plan.workload(task.workload).scored_to)


def has_answers_to_renew(directory: RunDirectory, plan: Plan) -> bool:
    """Return True if another capture would renew some existing answers.

    A server failed among them, and no request makes it fail again; or a route was lost, as by a proxy. Failures of a variant that are too
    many to be chance are judged as they are.
    """
    failing_variants = _variants_with_unexplained_failures(directory, plan)
    arm_transcripts = (transcripts.read(directory, arm, name) for boot in plan.boots for name in boot.answers for arm in boot.arms)
    return any(
        transcript is not None and (_is_unexplained(transcript, failing_variants) or _has_lost_a_route(directory, plan, transcript))
        for transcript in arm_transcripts
    )


def discard_torn_capabilities(directory: RunDirectory) -> None:
    """Remove capability files that cannot be read.

    A killed capture may leave such. The arms are probed again; existing results do not depend on the files.
    """
    for path in directory.capabilities.glob("*.json"):
        try:
            run_documents.read_capabilities_file(path)
        except RunError:
            path.unlink(missing_ok=True)


def discard(directory: RunDirectory, plan: Plan, reusable: ReusableResults) -> None:
    """Remove all results of the plan except the ``reusable`` ones.

    Scores of removed answers go too, since the answers captured next may have other tokens. So do the stored requests of a workload without
    reusable answers: its prompts are filled up anew.
    """
    for name in {name for boot in plan.boots for name in boot.answers} - {name for _, name in reusable.answers}:
        directory.workload(name).unlink(missing_ok=True)
    for boot in plan.boots:
        for arm, name in ((arm, name) for arm in boot.arms for name in boot.answers if (arm, name) not in reusable.answers):
            # Copies answers with an unexplained failure: the server's failures still count, however often a run is resumed.
            server_failures.set_aside(directory, arm, name)
            directory.transcript(arm, name).unlink(missing_ok=True)
            directory.transcript(arm, f"{name}.partial").unlink(missing_ok=True)
        for task in boot.scores:
            if not reusable.has(boot, task):  # scores are stored under the model that gives them
                directory.scores(boot.under, task.arm, task.workload).unlink(missing_ok=True)


def _two_armed_answers_to_repeat(plan: Plan, whole: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the answers to repeat because a boot has two arms.

    A boot that is both baseline and control answers as both: if the answers of one arm are not whole, those of the other are captured
    again too. Keys are (arm, workload).
    """
    whole_keys = set(whole)
    two_armed = [(boot.arms, name) for boot in plan.boots if len(boot.arms) > 1 for name in boot.answers]
    return {(arm, name) for arms, name in two_armed if any((other, name) not in whole_keys for other in arms) for arm in arms}


def _variants_with_unexplained_failures(directory: RunDirectory, plan: Plan) -> set[str]:
    """Return the variants whose unexplained server failures are a finding.

    Unexplained failures did not recur with any request. Three or more are the variant's own fault if baseline and control have none.
    """
    failures_by_variant = {pair.name: server_failures.read(directory, plan, pair.name) for pair in plan.pairs}
    return {
        name
        for name, by_arm in failures_by_variant.items()
        if by_arm and by_arm[name].are_finding(failures for arm, failures in by_arm.items() if arm != name)
    }


def _is_whole(directory: RunDirectory, plan: Plan, arm: str, name: str, failing_variants: Collection[str]) -> bool:
    """Return True if an arm's answers need not be captured again.

    ``name`` is the workload's. ``failing_variants`` are those whose failures are judged, so that another capture need not do without.
    """
    try:
        transcript = transcripts.read(directory, arm, name)
    except RunError:
        return False
    if transcript is None:
        return False
    if transcript.digest != plan.workload(name).digest:
        return False  # the plan's requests have changed since
    if _is_unexplained(transcript, failing_variants):
        return False
    return not _has_lost_a_route(directory, plan, transcript)


def _has_lost_a_route(directory: RunDirectory, plan: Plan, transcript: Transcript) -> bool:
    """Return True if a route silent here answered another arm.

    A silent route refused every request. If another arm has answers there, the engine has it. A proxy in front of this server may have lost
    it for a while, and another capture may find it again.
    """
    if not transcript.silent_routes:
        return False
    return bool(transcript.lost_routes(transcripts.read_other_arms(directory, plan, transcript.workload, {transcript.arm})))


def _is_unexplained(transcript: Transcript, failing_variants: Collection[str]) -> bool:
    """Return True if another capture may go without what failed here; ``failing_variants`` are judged by it."""
    is_denied = any(answer.denied for answer in transcript.answers)
    if transcript.replaced or transcript.elsewhere or is_denied:
        return True  # somebody else started the server anew, the baseline's server answered in its place, or access was denied
    if transcript.arm in failing_variants:
        return False
    return bool(transcript.unexplained)  # the server failed requests, and none of these failed again


def _is_scored(directory: RunDirectory, under: str, task: ScoringTask, scored_to: int | None) -> bool:
    """Return True if every token of a task has its score.

    ``under`` names the model that scored. Returns False if the answers or the scores cannot be read.
    """
    try:
        transcript = transcripts.read(directory, task.arm, task.workload)
        scores = transcripts.read_scores(directory, under, task.arm, task.workload, top_tokens=task.top_tokens)
        scores_by_key = {score.key: score for score in scores}
    except RunError:
        return False
    # An engine may give token ids in greedy answers alone, as the baseline's probe shows: sampled ones then need no scores. Neither do
    # sequences of more than ``scored_to`` tokens, prompt and answer.
    lacks_ids = run_documents.read_capabilities(directory).get(BASELINE, Capabilities()).lacks_ids
    emitted_ids = {
        answer.key: answer.choice.token_ids
        for answer in (transcript.answers if transcript else ())
        if answer.ok and not answer.is_longer_than(scored_to) and (answer.choice.token_ids or not lacks_ids)
    }
    # The scores are of these very answers and tokens, not of those of an earlier capture.
    return scores_by_key.keys() == emitted_ids.keys() and all(
        tuple(position.token_id for position in scores_by_key[key].positions) == ids for key, ids in emitted_ids.items()
    )
