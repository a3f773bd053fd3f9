"""The results that an earlier capture of the same plan left whole, and the work that remains."""

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
        """Return the boot with only the work still to do."""
        return replace(
            boot,
            answers=tuple(name for name in boot.answers if any((arm, name) not in self.answers for arm in boot.arms)),
            scores=tuple(task for task in boot.scores if not self.has(boot, task)),
            probe=boot.probe and boot.arms[0] not in self.probes,
        )


def reusable_results(directory: RunDirectory, plan: Plan) -> ReusableResults:
    """Return the results in ``directory`` worth keeping for this plan.

    Results that are not whole count as missing.

    A timed workload counts only if all arms but the old engine's have answered it: figures measured at two times are not compared. If the
    baseline may raise the token limits of a workload, no arm's answers count without the baseline's, since all arms answer under the same
    limits. Answers around a server death that no request reproduces do not count: they are judged as an infrastructure error, and another
    capture may pass without one. If such deaths are so many that they are a finding, the answers stay as they are.
    """
    failing_variants = _variants_with_unexplained_failures(directory, plan)
    planned_keys = [(arm, name) for boot in plan.boots for name in boot.answers for arm in boot.arms]
    whole_keys = {key for key in planned_keys if _is_whole(directory, plan, *key, failing_variants)}
    # A timed workload counts with all of its arms or not at all; the old engine's may be missing, since no verdict needs them.
    judged_keys = [(arm, name) for boot in plan.boots if not boot.role.is_old for name in boot.answers for arm in boot.arms]
    torn_workloads = {name for _, name in planned_keys if plan.workload(name).timed} & {
        name for arm, name in judged_keys if (arm, name) not in whole_keys
    }
    # A boot that answers as baseline and as control has both or none.
    valid_keys = whole_keys - _two_armed_answers_to_repeat(plan, whole_keys)
    # Where the baseline sets the token limits of all arms, none counts without it.
    torn_workloads |= {
        name for _, name in planned_keys if (BASELINE, name) not in valid_keys and limit_setting_boot(plan, name) is not None
    }
    answers = frozenset((arm, name) for arm, name in valid_keys if name not in torn_workloads)
    # Scores that cannot be had are not missing: no server is booted for them. The old baseline's answers are copied from its own run and
    # are not among ``answers``, so that their scores count without them.
    unscorable = bool(run_documents.unscorable_reason(directory))
    tasks = [
        (boot, task)
        for boot in plan.boots
        for task in boot.scores
        if unscorable or task.arm == OLD_BASELINE or (task.arm, task.workload) in answers
    ]
    return ReusableResults(
        answers=answers,
        scores=frozenset(
            (boot.under, task.arm, task.workload)
            for boot, task in tasks
            if unscorable or _is_scored(directory, boot.under, task, plan.workload(task.workload).scored_to)
        ),
        probes=frozenset(run_documents.read_capabilities(directory)),
    )


def has_answers_to_renew(directory: RunDirectory, plan: Plan) -> bool:
    """Return True if another capture would renew some existing answers.

    Such answers surround a server death that nothing explains, or are on a route that was lost. A run that misses nothing may have some.
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

    Scores of removed answers go too, since the answers captured next may have other tokens, and so do the filled prompts of a workload
    without reusable answers. A copy of answers with an unexplained server failure is set aside, so that the failure still counts.
    """
    for name in {name for boot in plan.boots for name in boot.answers} - {name for _, name in reusable.answers}:
        directory.workload(name).unlink(missing_ok=True)
    for boot in plan.boots:
        for arm, name in ((arm, name) for arm in boot.arms for name in boot.answers if (arm, name) not in reusable.answers):
            server_failures.set_aside(directory, arm, name)
            directory.transcript(arm, name).unlink(missing_ok=True)
            directory.transcript(arm, f"{name}.partial").unlink(missing_ok=True)
        for task in boot.scores:
            if not reusable.has(boot, task):
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

    A variant has three or more that did not recur with any request, and the baseline's arms have none: then they are its own fault.
    """
    failures_by_variant = {pair.name: server_failures.read(directory, plan, pair.name) for pair in plan.pairs}
    return {
        name
        for name, by_arm in failures_by_variant.items()
        if by_arm and by_arm[name].are_finding(failures for arm, failures in by_arm.items() if arm != name)
    }


def _is_whole(directory: RunDirectory, plan: Plan, arm: str, name: str, failing_variants: Collection[str]) -> bool:
    """Return True if an arm's answers need not be captured again.

    They are captured again if they cannot be read, if the plan's requests have changed since, or if a server failure or a lost route
    affects the verdict. ``name`` is the workload's.
    """
    try:
        transcript = transcripts.read(directory, arm, name)
    except RunError:
        return False
    if transcript is None or transcript.digest != plan.workload(name).digest:
        return False
    return not (_is_unexplained(transcript, failing_variants) or _has_lost_a_route(directory, plan, transcript))


def _has_lost_a_route(directory: RunDirectory, plan: Plan, transcript: Transcript) -> bool:
    """Return True if a route silent here answered another arm.

    A silent route refused every request. A proxy in front of one server may be the reason, and another capture may find the route again.
    """
    if not transcript.silent_routes:
        return False
    return bool(transcript.lost_routes(transcripts.read_other_arms(directory, plan, transcript.workload, {transcript.arm})))


def _is_unexplained(transcript: Transcript, failing_variants: Collection[str]) -> bool:
    """Return True if a failure in the transcript has no explanation.

    This is so if the server failed requests and none of these failed again, or if somebody else replaced the server, it denied access, or
    another server answered. A request that failed again excuses all failures in the transcript. Failures of a variant in
    ``failing_variants`` do not count.
    """
    has_outside_cause = transcript.replaced or transcript.elsewhere or any(answer.denied for answer in transcript.answers)
    return bool(has_outside_cause) or (bool(transcript.unexplained) and transcript.arm not in failing_variants)


def _is_scored(directory: RunDirectory, under: str, task: ScoringTask, scored_to: int | None) -> bool:
    """Return True if every token of a task has its score.

    Answers of more than ``scored_to`` tokens need none, nor do those without token ids if the probe got no ids above temperature 0. Returns
    False if the answers or the scores cannot be read.
    """
    try:
        transcript = transcripts.read(directory, task.arm, task.workload)
        scores = transcripts.read_scores(directory, under, task.arm, task.workload, top_tokens=task.top_tokens)
        scores_by_key = {score.key: score for score in scores}
    except RunError:
        return False
    lacks_ids = run_documents.read_capabilities(directory).get(BASELINE, Capabilities()).lacks_ids
    emitted_ids = {
        answer.key: answer.choice.token_ids
        for answer in (transcript.answers if transcript else ())
        if answer.ok and not answer.is_longer_than(scored_to) and (answer.choice.token_ids or not lacks_ids)
    }
    return scores_by_key.keys() == emitted_ids.keys() and all(
        tuple(position.token_id for position in scores_by_key[key].positions) == ids for key, ids in emitted_ids.items()
    )
