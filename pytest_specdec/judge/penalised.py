"""Penalised: the baseline's raw law with a request's own additions to the logits, as far as they are known.

Presence and frequency penalties and logit biases add a known number of nats to a token's logit, whatever the other logits are: gaps
between listed tokens are exact under them, the normaliser falls out. Of tokens that no list names nothing is said, so a gap can only be
understated, never invented. A repetition penalty multiplies the logit itself, which no log-probability tells: it is not modelled.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.adjustments import adjustment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.score import Position
    from pytest_specdec.stats.adjustments import Penalties
    from pytest_specdec.stats.laws import Floats

__all__ = ["penalised"]


def penalised(positions: Sequence[Position], penalties: Penalties) -> tuple[Position, ...]:
    """Return an answer's ``positions`` with what ``penalties`` add; its own tokens are what they count, the prompt's are not.

    A token whose log-probability is not told counts with the most that it can be. The atoms stay sorted by falling log-probability. The
    numbers are no longer normalised: differences are all they are good for.
    """
    if not penalties.adds or not positions:
        return tuple(positions)
    ids = np.full((len(positions), max(1, *(len(position.atom_ids) for position in positions))), -1, dtype=np.int64)
    for row, position in enumerate(positions):
        ids[row, : len(position.atom_ids)] = position.atom_ids
    added = adjustment(replace(penalties, repetition=1.0), (), [position.token_id for position in positions], ids)
    return tuple(map(_raised, positions, added.atoms, added.chosen.tolist()))


def _raised(position: Position, atoms: Floats, chosen: float) -> Position:
    raised = [
        (logprob + more, token) for token, logprob, more in zip(position.atom_ids, position.atom_logprobs, atoms.tolist(), strict=False)
    ]
    raised.sort(key=lambda pair: -pair[0])
    return replace(
        position,
        logprob=_most(position) + chosen,
        atom_ids=tuple(token for _, token in raised),
        atom_logprobs=tuple(logprob for logprob, _ in raised),
    )


def _most(position: Position) -> float:
    unlisted = math.isnan(position.logprob) and bool(position.atom_logprobs)
    return min(position.atom_logprobs) if unlisted else position.logprob
