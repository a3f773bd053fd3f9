"""Captured answers: the files of a run read as the input of one judgement.

A judgement holds a variant, which speculates, against the baseline, on one workload; the control is the baseline booted again. The three
are arms. A plain draw is a token sampled at temperature 1, with the log-probability that its server reported, and the baseline's score.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents, server_failures, transcripts
from pytest_specdec.model.captured import BootBlock, Calibrations, Captured, ReportedDraws
from pytest_specdec.model.captured_run import CapturedRun, join
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.model.spec_counters import SpecCounters, sum_ranks
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import TypeAlias

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.baseline import Gate, Slo
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.plan import Judgement, Plan
    from pytest_specdec.model.transcript import Answer, Position, Score, ServerFailure, Transcript
    from pytest_specdec.model.workload import Request, Workload

    _PlainDraws: TypeAlias = tuple[tuple[float, Position], ...]
    """One answer's plain draws: by token, the log-probability that its server reported, and the scored position."""

_AGAIN = "capture again, or restore the files that the capture wrote"

MOST_TOKENS = 8192
"""Tokens of the calibration: enough for the noise to one part in a hundred."""


def read_calibration(directory: RunDirectory, plan: Plan, *arms: str) -> ReportedDraws:
    """Return the plain draws of ``arms``: reported log-probabilities with scores.

    The two numbers of a token are of the same distribution: plain requests have no sampling parameter that an engine could apply before it
    reports. They differ by noise alone, as between two servers. Without ``arms``, those of baseline and control are read that another boot
    scored, or both if there are none. :func:`calibrating_workloads` says which workloads are read. At most :data:`MOST_TOKENS` tokens are
    returned; empty if there are none. A file that cannot be read is skipped, since its own judgement reports the error.
    """
    arms = arms or arms_scored_by_other_boots(plan) or (BASELINE, CONTROL)
    by_answer: list[_PlainDraws] = []
    tokens_left = MOST_TOKENS
    for draws in _read_plain_draws(directory, plan, arms):
        by_answer.append(draws[:tokens_left])
        tokens_left -= len(by_answer[-1])
        if not tokens_left:
            break
    return ReportedDraws(answers=tuple(by_answer))


def read_calibrations(directory: RunDirectory, plan: Plan, pair: str) -> Calibrations:
    """Return the run's plain draws for judging ``pair``, by the noise in them.

    ``decode`` shows the noise of decoding token by token, and between two boots, starts of a server: the baseline's draws scored by another
    boot. ``same_boot`` shows it without that between boots: those scored by the boot that drew them. ``verify`` shows the noise of the
    variant's verify steps.
    """
    both = (BASELINE, CONTROL)
    decode_arms = arms_scored_by_other_boots(plan) or both
    same_boot_arms = tuple(arm for arm in both if arm not in decode_arms)
    return Calibrations(
        # If these arms have no draws: those of both, whichever boot scored them.
        decode=read_calibration(directory, plan, *decode_arms) or read_calibration(directory, plan, *both),
        same_boot=read_calibration(directory, plan, *same_boot_arms) if same_boot_arms else ReportedDraws(),
        verify=read_calibration(directory, plan, pair),
    )


def arms_scored_by_other_boots(plan: Plan) -> tuple[str, ...]:
    """Return those of baseline and control that another boot scored.

    Between such an arm's reported log-probabilities and its scores is the noise between boots, as in the variant's. Looked at are the
    calibration workloads or, without any, the first scored workload. Empty if each arm was scored by its own boot.
    """
    scored_names = [workload.name for workload in plan.workloads if workload.calibrates or workload.scored]
    calibrating = [name for name in scored_names if plan.workload(name).calibrates] or scored_names[:1]
    # `scored_by` returns the arms whose answers the scoring boot gave itself.
    scored_by_same_boot = {arm for name in calibrating for arm in plan.scored_by(name)}
    return tuple(arm for arm in (BASELINE, CONTROL) if arm not in scored_by_same_boot)


def _read_plain_draws(directory: RunDirectory, plan: Plan, arms: Sequence[str]) -> Iterator[_PlainDraws]:
    """Yield the plain draws of ``arms``, answer by answer.

    If an arm answered a request and pass with the same tokens as the arm before it, its answer is left out: equal draws count once. Files
    that cannot be read are skipped.
    """
    for workload in calibrating_workloads(plan):
        request_ids = {request.id for request in workload.requests if _reports_plain_draws(request)}
        last_tokens: dict[tuple[str, int], tuple[int, ...]] = {}
        for arm in arms if request_ids else ():  # without such requests no file is read
            with suppress(RunError):
                for answer, draws in _draws_of_arm(directory, arm, workload.name, request_ids):
                    if last_tokens.get(answer.key) != answer.choice.token_ids:
                        last_tokens[answer.key] = answer.choice.token_ids
                        yield draws


def calibrating_workloads(plan: Plan) -> tuple[Workload, ...]:
    """Return the workloads whose plain draws measure the noise of log-probabilities.

    They are those made for it, so that the noise is the same whichever tests are selected. If none has plain draws, any other may.
    """
    made_for_it = (workload for workload in plan.workloads if workload.calibrates)
    return tuple(workload for workload in made_for_it if any(map(_reports_plain_draws, workload.requests))) or plan.workloads


def _reports_plain_draws(request: Request) -> bool:
    """Return True if answers to a request report plain draws."""
    return request.unprocessed and "logprobs" in request.body


def _draws_of_arm(directory: RunDirectory, arm: str, workload: str, ids: Collection[str]) -> Iterator[tuple[Answer, _PlainDraws]]:
    """Yield one arm's answers to the requests ``ids``, with their draws.

    Answers that reported no log-probabilities, or another number of them than was scored, are left out. Raises RunError if a file is
    invalid.
    """
    transcript = transcripts.read(directory, arm, workload)
    scored = {score.key: score.positions for score in transcripts.read_scores(directory, BASELINE, arm, workload)}
    for answer in () if transcript is None else transcript.answers:
        reported, positions = answer.choice.logprobs, scored.get(answer.key, ())
        if answer.request_id in ids and reported is not None and len(reported) == len(positions):
            yield answer, tuple(zip(reported, positions, strict=True))


def read(
    directory: RunDirectory,
    plan: Plan,
    judgement: Judgement,
    gates: tuple[Gate, ...],
    calibrations: Calibrations = Calibrations(),  # noqa: B008 - frozen
    *,
    slo: Slo | None = None,
) -> Captured:
    """Return a judge's whole input for one judgement.

    ``gates`` are all gates of the run, of which those of this pair and workload are kept. ``calibrations`` are those of the whole run, and
    ``slo`` is that of its config. Extensions are workloads added while the verdict was open. For sampling they have further requests, whose
    answers are joined with the workload's own; for other families they ask the same again, and are under ``repeats``. Raises RunError if
    planned answers or scores of an arm are missing, with the capture's reason, or if an arm answered another workload of that name, or
    under other token limits than the baseline.
    """
    workload_names = _judged_workloads(plan, judgement)
    runs = [_Run(directory, plan, replace(judgement, workload=name)) for name in workload_names]
    scored_arms = [arm for arm in (judgement.pair, CONTROL, BASELINE) if runs[0].is_scored(arm)]
    for run in runs:
        run.require_equal_limits()
    speculative = _join_transcripts([run.transcript(judgement.pair) for run in runs])
    baseline = _join_transcripts([run.transcript(BASELINE) for run in runs])
    sent_workloads = [run_documents.read_workload(directory, plan, name) for name in workload_names]
    workload = replace(sent_workloads[0], requests=tuple(request for sent in sent_workloads for request in sent.requests))
    pair = _set_draft_length(plan.pair(judgement.pair), speculative)
    draft_scores = [run.draft_scores(pair.variant.draft.model) for run in runs]
    return Captured(
        pair=pair,
        workload=workload.with_room(baseline.room),  # with the token limits as sent
        family=judgement.family,
        baseline=baseline,
        control=_join_transcripts([run.transcript(CONTROL) for run in runs]) if runs[0].is_planned(CONTROL) else None,
        speculative=speculative,
        beside=runs[0].other_arms(),  # empty unless a route refused all requests
        further=tuple(runs[0].further_boots(judgement.pair)),
        repeats=tuple(
            read(directory, plan, replace(judgement, workload=name), gates, calibrations) for name in _repeated_workloads(plan, judgement)
        ),
        scores={arm: tuple(score for run in runs for score in run.scores(arm)) for arm in scored_arms},
        # By the arms with scores of the judgement's own workload, the first.
        draft_scores={arm: tuple(score for by_arm in draft_scores for score in by_arm.get(arm, ())) for arm in draft_scores[0]},
        calibration=calibrations.decode,
        same_boot_calibration=calibrations.same_boot,
        verify_calibration=calibrations.verify,
        scored_by=plan.scored_by(judgement.workload),
        capabilities=run_documents.read_capabilities(directory),
        alpha=judgement.alpha,
        failures=server_failures.read(directory, plan, judgement.pair),
        within_one_boot=plan.within_one_boot,
        gates=tuple(gate for gate in gates if gate.pair in {"", judgement.pair} and gate.workload in {"", judgement.workload}),
        slo=slo,
    )


def read_run(directory: RunDirectory, plan: Plan, judgement: Judgement) -> CapturedRun:
    """Return one pair's answers to all workloads, without scores.

    ``parts`` has them by workload, ``whole`` all of them as one workload, with the settings of the judgement's own. Raises RunError, as
    :func:`read` does, if the own workload cannot be read. Other unreadable ones are listed as ``missing``.
    """
    # A pair has the name of its variant's arm.
    names = dict.fromkeys(name for boot in plan.boots if boot.arm == judgement.pair for name in boot.answers)
    parts: list[Captured] = []
    for name in names:
        try:
            parts.append(_read_without_scores(directory, plan, replace(judgement, workload=name)))
        except RunError:
            if name == judgement.workload:
                raise
    judged_part = next(part for part in parts if part.workload.name == judgement.workload)
    answered = {part.workload.name for part in parts}
    return CapturedRun(whole=join(judged_part, parts), parts=tuple(parts), missing=tuple(name for name in names if name not in answered))


def _read_without_scores(directory: RunDirectory, plan: Plan, judgement: Judgement) -> Captured:
    """Return the answers of one judgement, without scores.

    Raises RunError as :func:`read` does.
    """
    run = _Run(directory, plan, judgement)
    run.require_equal_limits()
    speculative, baseline = run.transcript(judgement.pair), run.transcript(BASELINE)
    return Captured(
        pair=_set_draft_length(plan.pair(judgement.pair), speculative),
        workload=plan.workload(judgement.workload).with_room(baseline.room),  # with the token limits as sent
        family=judgement.family,
        baseline=baseline,
        control=run.transcript(CONTROL) if run.is_planned(CONTROL) else None,
        speculative=speculative,
        beside=run.other_arms(),  # empty unless a route refused all requests
        capabilities=run_documents.read_capabilities(directory),
        alpha=judgement.alpha,
        within_one_boot=plan.within_one_boot,
    )


def _set_draft_length(pair: Pair, transcript: Transcript) -> Pair:
    """Return the pair with its number of draft tokens per verify step.

    If no setting states the number, as with attached servers, it is estimated from the transcript: the largest of the counted
    positions, the mean drafts per step rounded up, and the longest verify step without its last token.
    """
    if pair.variant.draft.tokens:
        return pair
    counters = transcript.counters or SpecCounters()
    windows = [window for answer in transcript.answers for choice in answer.choices for window in choice.windows or ()]
    drafted_per_step = math.ceil(counters.draft_tokens / counters.drafts) if counters.drafts else 0
    # Any of the three may be below the setting, as where little is drafted or accepted: the largest is the nearest.
    tokens = max(len(counters.accepted_per_position), drafted_per_step, max(windows, default=1) - 1)
    draft = replace(pair.variant.draft, tokens=tokens)
    return replace(pair, variant=replace(pair.variant, draft=draft))


def _judged_workloads(plan: Plan, judgement: Judgement) -> tuple[str, ...]:
    """Return the names of the workloads judged as one.

    They are the judgement's own and, for sampling, its extensions (further requests): a sequential test goes on over further answers. In
    other families an extension sends the same requests again, and :func:`_repeated_workloads` returns it.
    """
    return (judgement.workload, *(extensions(plan, judgement) if judgement.family is Family.SAMPLING else ()))


def _repeated_workloads(plan: Plan, judgement: Judgement) -> tuple[str, ...]:
    """Return the names of workloads with the same requests again; () for sampling."""
    return () if judgement.family is Family.SAMPLING else extensions(plan, judgement)


def extensions(plan: Plan, judgement: Judgement) -> tuple[str, ...]:
    """Return the names of the judged workload's extensions planned for this variant."""
    answered = {name for boot in plan.boots if boot.arm == judgement.pair for name in boot.answers}
    return tuple(name for name in plan.extensions.get(judgement.workload, ()) if name in answered)


def _join_transcripts(parts: Sequence[Transcript]) -> Transcript:
    """Return an arm's transcripts of several workloads as one.

    ``parts`` are in the order of their capture, and the first gives all fields that are not joined. Counters are added up only if every
    transcript has them, since the sum has to cover all answers.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    counters = [part.counters for part in parts if part.counters is not None]
    return replace(
        first,
        answers=tuple(answer for part in parts for answer in part.answers),
        counters=sum(counters[1:], counters[0]) if len(counters) == len(parts) else None,
        ranks=sum_ranks(part.ranks for part in parts),
        server_failures=tuple(_renumber_failures(parts)),
        restarts=sum(part.restarts for part in parts),
        concurrency=min((part.concurrency for part in parts if part.concurrency is not None), default=None),
        # Texts on what was wrong with a server or its counters, empty where nothing was: one of them is enough.
        replaced=next((part.replaced for part in parts if part.replaced), ""),
        foreign=next((part.foreign for part in parts if part.foreign), ""),
        elsewhere=next((part.elsewhere for part in parts if part.elsewhere), ""),
        uncounted=next((part.uncounted for part in parts if part.uncounted), ""),
        silent_routes=tuple(dict.fromkeys(route for part in parts for route in part.silent_routes)),
        limited=sum(part.limited for part in parts),  # times that a server refused with a 429
        machine_load=max((part.machine_load for part in parts if part.machine_load is not None), default=None),
        wall_s=sum(part.wall_s for part in parts),
    )


def _renumber_failures(parts: Sequence[Transcript]) -> Iterator[ServerFailure]:
    """Yield the server failures of all transcripts with new numbers.

    Each transcript numbers its failures from 0, and requests with the same number were in flight together. The new numbers keep failures of
    different transcripts apart.
    """
    numbers: dict[tuple[int, int], int] = {}
    for part_index, transcript in enumerate(parts):
        for failure in transcript.server_failures:
            number = numbers.setdefault((part_index, failure.failure), len(numbers))
            yield replace(failure, failure=number)


class _Run:
    """The files of a run that one judgement of one workload reads, by arm: the variant, ``baseline`` or ``control``."""

    def __init__(self, directory: RunDirectory, plan: Plan, judgement: Judgement) -> None:
        self._directory = directory
        self._plan = plan
        self._judgement = judgement
        self._workload = judgement.workload
        self._transcripts: dict[str, Transcript] = {}  # by arm, those read so far

    def is_planned(self, arm: str) -> bool:
        return any(boot.arm == arm and self._workload in boot.answers for boot in self._plan.boots)

    def is_scored(self, arm: str) -> bool:
        """Return True if the plan has scores of ``arm``; those under a draft model do not count."""
        tasks = (task for boot in self._plan.boots if boot.role is not Role.DRAFT for task in boot.scores)
        return any((task.arm, task.workload) == (arm, self._workload) for task in tasks)

    def transcript(self, arm: str) -> Transcript:
        """Return the answers of ``arm``, read once."""
        if arm not in self._transcripts:
            self._transcripts[arm] = self._read_transcript(arm)
        return self._transcripts[arm]

    def _read_transcript(self, arm: str) -> Transcript:
        """Return the answers of ``arm`` from its file.

        Raises RunError if there is no file, or if its answers are to another workload than the planned one.
        """
        transcript = transcripts.read(self._directory, arm, self._workload)
        if transcript is None:
            raise self._missing_error(arm, "answers")
        planned_digest = self._plan.workload(self._workload).digest
        if transcript.digest != planned_digest:
            where = f"{self._directory.transcript(arm, self._workload)}:1"
            msg = "the answers are to another workload"
            raise RunError(
                msg, where=where, found=f"digest {transcript.digest}", expected=f"{planned_digest}, as in plan.json", remedy=_AGAIN
            )
        return transcript

    def require_equal_limits(self) -> None:
        """Raise RunError if an arm answered under other token limits than the baseline.

        Answers cut at different lengths cannot be compared. ``room`` is the factor by which all planned limits of a workload were raised.
        """
        for arm in (self._judgement.pair, *([CONTROL] if self.is_planned(CONTROL) else [])):
            room, baseline = self.transcript(arm).room, self.transcript(BASELINE).room
            if room != baseline:
                what = f"{arm} and the baseline answered under different token limits"
                where = f"{self._directory.transcript(arm, self._workload)}:1"
                multiple, expected = f"{room} times the planned limits", f"{baseline} times, as the baseline"
                raise RunError(what, where=where, found=multiple, expected=expected, remedy=_AGAIN)

    def further_boots(self, pair: str) -> Iterator[BootBlock]:
        """Yield the variant's further boots, with the baseline boots beside them.

        Speed is measured over all boots of the variant; further ones come after the first. Beside each is the last boot of baseline or
        control before it: side by side, the one whose requests alternated with its own. If servers run in turn, the next one after it is
        there too, against drift of the machine.
        """
        answering = [boot for boot in self._plan.boots if self._workload in boot.answers]
        baselines = [boot for boot in answering if boot.role in {Role.BASELINE, Role.CONTROL}]
        for boot in (boot for boot in answering if boot.arm == pair and boot.number > 1):
            boots_before = [other for other in baselines if other.index < boot.index][-1:]
            boots_after = (
                [other for other in baselines if other.index > boot.index][:1] if self._plan.placement is Placement.IN_TURN else []
            )
            # `arms` are the names that a boot stores answers under; of two, baseline and control, the control's are the later ones.
            neighbours = tuple(self.transcript(other.arms[-1]) for other in (*boots_before, *boots_after))
            yield BootBlock(speculative=self.transcript(boot.arms[-1]), baselines=neighbours)

    def other_arms(self) -> tuple[Transcript, ...]:
        """Return other arms' answers if a route was silent; else ().

        A route is silent if it refused every request of an arm. Only arms that :meth:`transcript` has read are looked at, which are this
        pair's. The other arms show whether the engine has the route at all.
        """
        if not any(transcript.silent_routes for transcript in self._transcripts.values()):
            return ()
        return tuple(transcripts.read_other_arms(self._directory, self._plan, self._workload, self._transcripts))

    def scores(self, arm: str) -> tuple[Score, ...]:
        """Return the scores of ``arm`` under the baseline.

        Raises RunError if there is no file and the capture gave a reason for that. Without a reason there were no tokens to
        score, and the result is empty.
        """
        scores = self._read_scores(BASELINE, arm)
        if not scores and self._reason_for_missing(arm) and not self._directory.scores(BASELINE, arm, self._workload).is_file():
            raise self._missing_error(arm, "scores")
        return scores

    def draft_scores(self, model: str | None) -> dict[str, tuple[Score, ...]]:
        """Return the arms' scores under the draft model, by arm.

        An arm without such scores is left out. This is no error, since no verdict needs them. Empty without a draft model (None).
        """
        if model is None:
            return {}
        by_arm = {arm: self._read_scores(model, arm) for arm in (self._judgement.pair, CONTROL, BASELINE)}
        return {arm: scores for arm, scores in by_arm.items() if scores}

    def _read_scores(self, under: str, arm: str) -> tuple[Score, ...]:
        """Return the scores of ``arm`` by the server ``under``; () without a file.

        Raises RunError if the file is invalid, and ScoreError if a position is impossible, as with one token listed where several were
        planned.
        """
        tasks = [(boot.under, task) for boot in self._plan.boots for task in boot.scores]
        planned_numbers = [task.top_tokens for server, task in tasks if (server, task.arm, task.workload) == (under, arm, self._workload)]
        # Tasks of several boots may plan different numbers: the file may have the lowest.
        return transcripts.read_scores(self._directory, under, arm, self._workload, top_tokens=min(planned_numbers, default=1))

    def _missing_error(self, arm: str, what: str) -> RunError:
        """Return the error for missing answers or scores, with the capture's reason."""
        where = f"{arm}/{self._workload}"
        return RunError(
            f"the run has no {what} of {where}",
            where=str(self._directory.root),
            found=self._reason_for_missing(arm) or "no file, and no reason in status.json",
        )

    def _reason_for_missing(self, arm: str) -> str:
        """Return the capture's reason for missing files of ``arm``.

        Without one it is the error that ended the capture; empty if there is none, or if the status cannot be read.
        """
        try:
            status = run_documents.read_status(self._directory)
        except RunError:
            return ""
        reasons = [missing.reason for missing in status.missing if missing.arm == arm and missing.workload in {self._workload, ""}]
        return "\n".join(reasons) or status.error
