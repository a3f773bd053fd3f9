"""From a run directory to what the baseline's boots reported of their own tokens, beside the scores of these."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import scores, transcripts
from pytest_specdec.model.pair import BASELINE, CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.score import Position

__all__ = ["MOST_TOKENS", "read"]

MOST_TOKENS = 8192
"""As many tell the noise to one part in a hundred (facts/statistics.md section 4)."""


def read(directory: RunDirectory, plan: Plan) -> tuple[tuple[float, Position], ...]:
    """Return log-probabilities that the baseline and the control reported of tokens from the law as it is, with the scored positions.

    Only there is what is reported of the scored law, whether the server reports it before or after processing; and a token drawn cold is
    chosen for what noise adds to it. () where none are reported. A file that cannot be read is passed over: the judgement that it belongs
    to says so.
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
    law = {score.key: score.positions for score in scores.read(directory, BASELINE, arm, workload)}
    for answer in () if transcript is None else transcript.answers:
        said = answer.choice
        reported, positions = said.logprobs, law.get(answer.key, ())
        again = heard.get(answer.key) == said.token_ids
        if answer.request_id in wanted and reported is not None and len(reported) == len(positions) and not again:
            heard[answer.key] = said.token_ids
            yield from zip(reported, positions, strict=True)
