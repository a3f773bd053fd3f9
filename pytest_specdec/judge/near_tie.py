"""Near-ties of scored answers, as the bet on them sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.near_ties import Choices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import Forced
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.score import Position

__all__ = ["choices"]

_TIE = 1e-5
"""Nats: scores are stored with seven significant digits."""


def choices(captured: Captured, answers: Sequence[Forced]) -> Choices:
    """Return the choices at all tokens of ``answers``, each prefix once: the same one again brings the same noise again."""
    found = [position for position in _once(captured, answers) if position.atom_ids]
    widest = max((len(position.atom_ids) for position in found), default=1)
    gaps = np.full((len(found), widest), np.inf)
    chosen = np.full(len(found), -1, dtype=np.int64)
    for row, position in enumerate(found):
        below = position.atom_logprobs[0] - np.array(position.atom_logprobs)
        gaps[row, : len(below)] = np.where(below > _TIE, below, 0.0)
        if position.token_id in position.atom_ids:
            chosen[row] = position.atom_ids.index(position.token_id)
    return Choices(gaps=gaps, chosen=chosen)


def _once(captured: Captured, answers: Sequence[Forced]) -> Iterator[Position]:
    asks = {request.id: request.asks for request in captured.workload.requests}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for each in answers:
        prompt = asks.get(each.answer.request_id, each.answer.request_id)
        ids = each.answer.choice.token_ids
        for index, position in enumerate(each.positions):
            if (prompt, ids[:index]) not in seen:
                seen.add((prompt, ids[:index]))
                yield position
