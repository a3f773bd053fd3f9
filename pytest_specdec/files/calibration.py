"""From a run directory to what the baseline's boots reported of their own tokens, beside the scores of these."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import records, scores, transcripts
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.selection import survey_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.score import Position

__all__ = ["MOST_TOKENS", "read"]

MOST_TOKENS = 8192
"""As many tell the noise to one part in a hundred (facts/statistics.md section 4)."""


def read(directory: RunDirectory, plan: Plan) -> tuple[tuple[float, Position], ...]:
    """Return reported log-probabilities of the baseline and the control with the scored positions; () where none are reported raw.

    A file that cannot be read is passed over: the judgement that it belongs to says so.
    """
    return tuple(islice(_pairs(directory, plan), MOST_TOKENS))


def _pairs(directory: RunDirectory, plan: Plan) -> Iterator[tuple[float, Position]]:
    known = records.read_capabilities(directory)
    told = [workload.name for workload in plan.workloads if any("logprobs" in request.body for request in workload.requests)]
    for arm in (BASELINE, CONTROL):
        found = known.get(arm) or known.get(BASELINE)
        if found is None or found.raw_logprobs:
            for workload in (*map(survey_of, plan.pools), *told):
                with suppress(RunError):
                    yield from _of(directory, arm, workload)


def _of(directory: RunDirectory, arm: str, workload: str) -> Iterator[tuple[float, Position]]:
    transcript = transcripts.read(directory, arm, workload)
    law = {score.key: score.positions for score in scores.read(directory, BASELINE, arm, workload)}
    for answer in () if transcript is None else transcript.answers:
        reported, positions = answer.choice.logprobs, law.get(answer.key, ())
        if reported is not None and len(reported) == len(positions):
            yield from zip(reported, positions, strict=True)
