"""From a run directory to what a judge sees."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents, server_failures, transcripts
from pytest_specdec.model.captured import Captured
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.plan import Role
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.plan import Judgement, Plan
    from pytest_specdec.model.transcript import Position, Score, ServerFailure, Transcript

__all__ = ["MOST_TOKENS", "read", "read_calibration"]

MOST_TOKENS = 8192
"""As many tell the noise to one part in a hundred."""


def read_calibration(directory: RunDirectory, plan: Plan) -> tuple[tuple[float, Position], ...]:
    """Return log-probabilities that baseline and control reported of plain draws at temperature 1, with the scored positions.

    Only there is what is reported of the scored distribution, whether the server reports it before or after processing; and a token drawn
    cold is chosen for what noise adds to it. () where none are reported. A file that cannot be read is passed over: the judgement that it
    belongs to says so.
    """
    return tuple(islice(_pairs(directory, plan), MOST_TOKENS))


def _pairs(directory: RunDirectory, plan: Plan) -> Iterator[tuple[float, Position]]:
    for workload in plan.workloads:
        wanted = {request.id for request in workload.requests if request.unprocessed and "logprobs" in request.body}
        heard: dict[tuple[str, int], tuple[int, ...]] = {}
        for arm in (BASELINE, CONTROL) if wanted else ():
            with suppress(RunError):
                yield from _of(directory, arm, workload.name, wanted, heard)


def _of(
    directory: RunDirectory, arm: str, workload: str, wanted: set[str], heard: dict[tuple[str, int], tuple[int, ...]]
) -> Iterator[tuple[float, Position]]:
    """Yield the pairs of one arm; an answer that was ``heard`` before, token by token, is no further evidence."""
    transcript = transcripts.read(directory, arm, workload)
    distribution = {score.key: score.positions for score in transcripts.read_scores(directory, BASELINE, arm, workload)}
    for answer in () if transcript is None else transcript.answers:
        said = answer.choice
        reported, positions = said.logprobs, distribution.get(answer.key, ())
        again = heard.get(answer.key) == said.token_ids
        if answer.request_id in wanted and reported is not None and len(reported) == len(positions) and not again:
            heard[answer.key] = said.token_ids
            yield from zip(reported, positions, strict=True)


def read(
    directory: RunDirectory, plan: Plan, judgement: Judgement, gates: tuple[Gate, ...], calibration: tuple[tuple[float, Position], ...] = ()
) -> Captured:
    """Return everything that the run holds for one judgement; ``calibration`` is of the whole run (files/calibration.py).

    Raises RunError, with the reason that the capture gave, when an arm's answers or scores that the plan has are not there, and when an arm
    answered another workload of that name.
    """
    pair, parts = plan.pair(judgement.pair), _parts(plan, judgement)
    runs = [_Run(directory, plan, replace(judgement, workload=name)) for name in parts]
    scored = [arm for arm in (judgement.pair, CONTROL, BASELINE) if runs[0].is_scored(arm)]
    drafts = [run.draft_scores(pair.variant.draft.model) for run in runs]
    return Captured(
        pair=pair,
        workload=replace(plan.workload(judgement.workload), requests=tuple(r for name in parts for r in plan.workload(name).requests)),
        family=judgement.family,
        baseline=_joined([run.transcript(BASELINE) for run in runs]),
        control=_joined([run.transcript(CONTROL) for run in runs]) if runs[0].is_planned(CONTROL) else None,
        speculative=_joined([run.transcript(judgement.pair) for run in runs]),
        scores={arm: tuple(score for run in runs for score in run.scores(arm)) for arm in scored},
        draft_scores={arm: tuple(score for each in drafts for score in each.get(arm, ())) for arm in drafts[0]},
        calibration=calibration,
        capabilities=run_documents.read_capabilities(directory),
        alpha=judgement.alpha,
        failures=server_failures.read(directory, plan, judgement.pair),
        gates=tuple(gate for gate in gates if gate.pair in {"", judgement.pair} and gate.workload in {"", judgement.workload}),
    )


def _parts(plan: Plan, judgement: Judgement) -> tuple[str, ...]:
    """Return the workload and those that take it further for this pair: only a sampling judge goes on where it stopped."""
    further = plan.extensions.get(judgement.workload, ()) if judgement.family is Family.SAMPLING else ()
    answered = {name for boot in plan.boots if boot.arm == judgement.pair for name in boot.answers}
    return (judgement.workload, *(name for name in further if name in answered))


def _joined(parts: Sequence[Transcript]) -> Transcript:
    """Return the parts of one arm as one transcript, in the order of their capture."""
    first = parts[0]
    if len(parts) == 1:
        return first
    counted = [part.counters for part in parts if part.counters is not None]
    return replace(
        first,
        answers=tuple(answer for part in parts for answer in part.answers),
        counters=sum(counted[1:], counted[0]) if len(counted) == len(parts) else None,
        server_failures=tuple(replace(met, failure=number) for number, met in _numbered(parts)),
        restarts=sum(part.restarts for part in parts),
        concurrency=min((part.concurrency for part in parts if part.concurrency is not None), default=None),
        wall_s=sum(part.wall_s for part in parts),
    )


def _numbered(parts: Sequence[Transcript]) -> Iterator[tuple[int, ServerFailure]]:
    """Give the server failures of all parts with the number of their failure over all of them."""
    numbers: dict[tuple[int, int], int] = {}
    for part, transcript in enumerate(parts):
        for met in transcript.server_failures:
            yield numbers.setdefault((part, met.failure), len(numbers)), met


class _Run:
    """One cell's part of a run."""

    def __init__(self, directory: RunDirectory, plan: Plan, judgement: Judgement) -> None:
        self._directory = directory
        self._plan = plan
        self._judgement = judgement
        self._workload = judgement.workload

    def is_planned(self, arm: str) -> bool:
        return any(boot.arm == arm and self._workload in boot.answers for boot in self._plan.boots)

    def is_scored(self, arm: str) -> bool:
        asked = (scored for boot in self._plan.boots if boot.role is not Role.DRAFT for scored in boot.scores)
        return any((scored.arm, scored.workload) == (arm, self._workload) for scored in asked)

    def transcript(self, arm: str) -> Transcript:
        found = transcripts.read(self._directory, arm, self._workload)
        if found is None:
            raise self._missing(arm, "answers")
        wanted = self._plan.workload(self._workload).digest
        if found.digest != wanted:
            where = f"{self._directory.transcript(arm, self._workload)}:1"
            msg = "the answers are to another workload"
            raise RunError(msg, where=where, found=f"digest {found.digest}", expected=f"{wanted}, as in plan.json")
        return found

    def scores(self, arm: str) -> tuple[Score, ...]:
        found = transcripts.read_scores(self._directory, BASELINE, arm, self._workload)
        if not found and self._reason(arm) and not self._directory.scores(BASELINE, arm, self._workload).is_file():
            raise self._missing(arm, "scores")
        return found

    def draft_scores(self, model: str | None) -> dict[str, tuple[Score, ...]]:
        """Return the draft model's distribution by arm: it sharpens a verdict, so that none is missing without it."""
        if model is None:
            return {}
        found = {
            arm: transcripts.read_scores(self._directory, model, arm, self._workload) for arm in (self._judgement.pair, CONTROL, BASELINE)
        }
        return {arm: distribution for arm, distribution in found.items() if distribution}

    def _missing(self, arm: str, what: str) -> RunError:
        where = f"{arm}/{self._workload}"
        return RunError(
            f"the run has no {what} of {where}", where=str(self._directory.root), found=self._reason(arm) or "no file, and no reason"
        )

    def _reason(self, arm: str) -> str:
        try:
            status = run_documents.read_status(self._directory)
        except RunError:
            return ""
        told = [missing.reason for missing in status.missing if missing.arm == arm and missing.workload in {self._workload, ""}]
        return "\n".join(told) or status.error
