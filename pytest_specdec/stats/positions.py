"""Positions: scored tokens as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.laws import Raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.score import Position

__all__ = ["raw"]


def raw(positions: Sequence[Position], atoms: int, vocabulary: int = 0) -> Raw:
    """Return the arrays of ``positions``, at most ``atoms`` atoms each, by falling probability.

    Servers add the chosen token to the list when it lies outside the most probable ones; beyond ``atoms`` it is cut off again, for the
    outcome may not decide what counts as an atom.
    """
    width = max(1, *(len(position.atom_ids) for position in positions))
    ids = np.full((len(positions), width), -1, dtype=np.int64)
    logprobs = np.full((len(positions), width), -np.inf)
    for row, position in enumerate(positions):
        ids[row, : len(position.atom_ids)] = position.atom_ids
        logprobs[row, : len(position.atom_logprobs)] = position.atom_logprobs
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :atoms]
    return Raw(
        ids=np.take_along_axis(ids, order, axis=1),
        logprobs=np.take_along_axis(logprobs, order, axis=1),
        chosen=np.array([position.token_id for position in positions], dtype=np.int64),
        chosen_logprobs=np.array([position.logprob for position in positions]),
        vocabulary=vocabulary,
    )
