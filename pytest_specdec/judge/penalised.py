"""Penalised: the baseline's raw law with a request's own additions to the logits, as far as they are known.

Presence and frequency penalties and logit biases add a known number of nats to a token's logit, whatever the other logits are: gaps
between listed tokens are exact under them, the normaliser falls out. Of tokens that no list names nothing is said, so a gap can only be
understated, never invented. A repetition penalty multiplies the logit itself, which no log-probability tells: it is not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.score import Position
    from pytest_specdec.stats.adjustments import Penalties

__all__ = ["penalised"]


def penalised(positions: Sequence[Position], penalties: Penalties) -> tuple[Position, ...]:
    """Return an answer's ``positions`` with what ``penalties`` add; its own tokens are what they count, the prompt's are not.

    A token whose log-probability is not told counts with the most that it can be. The atoms stay sorted by falling log-probability. The
    numbers are no longer normalised: differences are all they are good for.
    """
    if not penalties.adds:
        return tuple(positions)
    counts: Counter[int] = Counter()
    found = []
    for position in positions:
        found.append(_at(position, penalties, counts))
        counts[position.token_id] += 1
    return tuple(found)


def _at(position: Position, penalties: Penalties, counts: Mapping[int, int]) -> Position:
    def added(token: int) -> float:
        held = counts.get(token, 0)
        return penalties.bias.get(token, 0.0) - penalties.frequency * held - (penalties.presence if held else 0.0)

    raised = [(logprob + added(token), token) for token, logprob in zip(position.atom_ids, position.atom_logprobs, strict=True)]
    raised.sort(key=lambda pair: -pair[0])
    return replace(
        position,
        logprob=_most(position) + added(position.token_id),
        atom_ids=tuple(token for _, token in raised),
        atom_logprobs=tuple(logprob for logprob, _ in raised),
    )


def _most(position: Position) -> float:
    unlisted = math.isnan(position.logprob) and bool(position.atom_logprobs)
    return min(position.atom_logprobs) if unlisted else position.logprob
