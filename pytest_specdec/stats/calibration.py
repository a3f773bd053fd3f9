"""Calibration: how far two computations of the same law by the same engine lie apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_specdec.model.score import Position

__all__ = ["INVALID_ABOVE", "NORMAL_UP_TO", "Calibration", "calibrate", "squares"]

NORMAL_UP_TO = 0.1
"""Logit noise, nats, up to which a scorer is as it should be (bf16 across engines reads about 0.03)."""

INVALID_ABOVE = 0.2
"""Logit noise, nats, above which a token-level gate says nothing."""

_LEAST_WEIGHT = 0.05
"""Tokens that are all but certain show no noise: those are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The logit noise between reported and teacher-forced log-probabilities."""

    noise: float | None
    """Estimated standard deviation of one logit's independent noise, nats; None without a usable token."""
    tokens: int
    """How many tokens it comes from."""
    largest: float
    """The largest |reported - teacher-forced| of any token, nats; 0 without a token."""

    @property
    def valid(self) -> bool:
        """Whether a token-level gate may rest on it."""
        return self.noise is None or self.noise <= INVALID_ABOVE


def calibrate(pairs: Iterable[tuple[float, Position]]) -> Calibration:
    """Return the noise behind pairs of (log-probability as reported when the token was emitted, its teacher-forced position).

    With independent logit noise of sd s, delta = log p'(x) - log p(x) has variance s^2 (1 - 2 p_x + sum p^2) to first order, so
    s_hat = sqrt(mean(delta^2 / (1 - 2 p_x + sum p^2))) over tokens whose weight exceeds 0.05 (facts/statistics.md section 4). Of sum p^2
    only the atoms are known: s_hat errs to the large side. Both log-probabilities must be raw.
    """
    known = [(reported - position.logprob, position) for reported, position in pairs if not math.isnan(position.logprob)]
    found = squares(known)
    return Calibration(
        noise=math.sqrt(math.fsum(found) / len(found)) if found else None,
        tokens=len(found),
        largest=max((abs(delta) for delta, _ in known), default=0.0),
    )


def squares(deltas: Iterable[tuple[float, Position]]) -> list[float]:
    """Return ``delta^2 / (1 - 2 p_x + sum p^2)`` of the tokens whose weight exceeds 0.05, each an estimate of the noise's square."""
    weighted = ((delta, _weight(position)) for delta, position in deltas)
    return [delta * delta / weight for delta, weight in weighted if weight > _LEAST_WEIGHT]


def _weight(position: Position) -> float:
    squares = math.fsum(math.exp(2.0 * logprob) for logprob in position.atom_logprobs)
    return 1.0 - 2.0 * math.exp(position.logprob) + squares
