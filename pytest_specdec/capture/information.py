"""Information: how much of a choice the baseline's law leaves at each candidate's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.selection import Candidate
from pytest_specdec.stats.asked import asked
from pytest_specdec.stats.laws import requested
from pytest_specdec.stats.positions import raw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.score import Position, Score
    from pytest_specdec.model.workload import JSON, Request, Workload

__all__ = ["found"]


def found(survey: Workload, scores: Sequence[Score], vocabulary: int) -> tuple[Candidate, ...]:
    """Return every prompt of a survey with the information of its answer, in order; without tokens where it has no score.

    ``scores`` are the baseline's own, ``vocabulary`` is 0 where unknown.
    """
    law = {score.request_id: score.positions for score in scores}
    return tuple(_candidate(request, law.get(request.id, ()), survey.atoms, vocabulary) for request in survey.requests)


def _candidate(request: Request, positions: Sequence[Position], atoms: int, vocabulary: int) -> Candidate:
    return Candidate(
        id=request.id,
        category=request.category,
        tokens=len(positions),
        information=_information(positions, request.body, atoms, vocabulary) if positions else 0.0,
    )


def _information(positions: Sequence[Position], body: Mapping[str, JSON], atoms: int, vocabulary: int) -> float:
    """Return the informative tokens of one answer; a law that is not modelled has none, penalties and biases are left out."""
    wish = asked(body)
    return 0.0 if wish.unmodelled else requested(raw(positions, atoms, vocabulary), wish.processing(len(positions))).information
