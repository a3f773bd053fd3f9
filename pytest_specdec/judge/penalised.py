"""Penalised: the baseline's raw law with a request's own additions to the logits, as far as they are known.

Presence and frequency penalties and logit biases add a known number of nats to a token's logit, whatever the other logits are: gaps
between listed tokens are exact under them, the normaliser falls out. Of tokens that no list names nothing is said, so a gap can only be
understated, never invented. A repetition penalty multiplies the logit itself, which no log-probability tells: it is not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.score import Position
    from pytest_specdec.model.workload import JSON

__all__ = ["PLAIN", "Additions", "additions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What a request asks to be added to the logits."""

    presence: float = 0.0
    """Nats taken from every token that the answer already holds."""
    frequency: float = 0.0
    """Nats taken from a token for each time that the answer already holds it."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """Nats added, by token id."""

    def __bool__(self) -> bool:
        return bool(self.presence or self.frequency or self.bias)

    def on(self, positions: Sequence[Position]) -> tuple[Position, ...]:
        """Return an answer's ``positions`` with the additions made; its own tokens are what the penalties count, the prompt's are not.

        A token whose log-probability is not told counts with the most that it can be. The atoms stay sorted by falling log-probability. The
        numbers are no longer normalised: differences are all they are good for.
        """
        if not self:
            return tuple(positions)
        counts: Counter[int] = Counter()
        found = []
        for position in positions:
            found.append(self._at(position, counts))
            counts[position.token_id] += 1
        return tuple(found)

    def _at(self, position: Position, counts: Mapping[int, int]) -> Position:
        raised = [
            (logprob + self._added(token, counts), token) for token, logprob in zip(position.atom_ids, position.atom_logprobs, strict=True)
        ]
        raised.sort(key=lambda pair: -pair[0])
        return replace(
            position,
            logprob=_most(position) + self._added(position.token_id, counts),
            atom_ids=tuple(token for _, token in raised),
            atom_logprobs=tuple(logprob for logprob, _ in raised),
        )

    def _added(self, token: int, counts: Mapping[int, int]) -> float:
        held = counts.get(token, 0)
        return self.bias.get(token, 0.0) - self.frequency * held - (self.presence if held else 0.0)


def _most(position: Position) -> float:
    unlisted = math.isnan(position.logprob) and bool(position.atom_logprobs)
    return min(position.atom_logprobs) if unlisted else position.logprob


PLAIN = Additions()


def additions(body: Mapping[str, JSON]) -> Additions:
    """Return what ``body`` adds to the logits. Source: the presence and frequency penalty and logit bias of the OpenAI API reference."""
    bias = body.get("logit_bias")
    return Additions(
        presence=_number(body.get("presence_penalty")),
        frequency=_number(body.get("frequency_penalty")),
        bias={int(token): _number(value) for token, value in bias.items()} if isinstance(bias, dict) else {},
    )


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
