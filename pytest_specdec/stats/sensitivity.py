"""Sensitivity: with what probability a fault would have shown, from the very laws and token counts of a run.

Under an alternative the log payoffs of a bettor are independent given the prefixes, with known mean and variance at every token. Their
sum is taken for a Brownian motion with that drift, and the chance that it reaches the alarm level by the last token is the
first-passage formula (Siegmund 1985, *Sequential Analysis*, chapter III), the level raised by 0.583 standard deviations of a step
because a walk in steps crosses later (same, chapter X). A fault that pays seldom and then much has a skewed sum, whose median lies below
its mean: the normal law of the end is replaced by the Pearson III law of the same three moments. The bettor must earn the alarm alone,
its share of the starting wealth charged; payoffs are capped at the level. What the other bettors add is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammainc, gammaincc, log_ndtr, ndtr

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Floats

__all__ = ["Growth", "first_passage", "growth"]

OVERSHOOT = 0.583
STRAIGHT = 1e-3
"""Skewness below which a sum counts as normal."""
MOST = 1e7
"""Times a run may have to be longer to settle it; beyond, it never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a bettor's log wealth moves under an alternative, over a whole run."""

    drift: float
    """Expected log wealth at the end, nats."""
    variance: float
    """Of the log wealth at the end."""
    steps: int
    """Tokens at which it can move."""
    third: float = 0.0
    """Third central moment of the log wealth at the end."""

    def shown(self, log_barrier: float, *, length: float = 1.0) -> float:
        """Return the chance that it reaches ``log_barrier`` within ``length`` runs like this one."""
        if self.steps == 0:
            return 0.0
        raised = log_barrier + OVERSHOOT * sqrt(self.variance / self.steps)
        return first_passage(length * self.drift, length * self.variance, raised, length * self.third)

    def times(self, factor: float) -> Growth:
        """Return the growth over ``factor`` times as many tokens of the same kind."""
        return Growth(
            drift=factor * self.drift, variance=factor * self.variance, steps=round(factor * self.steps), third=factor * self.third
        )

    def length_for(self, log_barrier: float, probability: float) -> float:
        """Return how many runs like this one reach ``log_barrier`` with ``probability``; inf if no number does."""
        low, high = 0.0, 1.0
        while self.shown(log_barrier, length=high) < probability:
            low, high = high, 2.0 * high
            if high > MOST:
                return inf
        for _ in range(50):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.shown(log_barrier, length=middle) >= probability else (middle, high)
        return high


def growth(log_payoffs: Floats, truth: Floats, cap: float) -> Growth:
    """Return the growth of a bettor with ``log_payoffs`` [N, K+1] when tokens follow ``truth`` [N, K+1]."""
    paid = np.minimum(log_payoffs, cap)
    mean = (truth * paid).sum(axis=1)
    variance = np.maximum((truth * paid**2).sum(axis=1) - mean**2, 0.0)
    third = (truth * (paid - mean[:, None]) ** 3).sum()
    return Growth(drift=float(mean.sum()), variance=float(variance.sum()), steps=int((variance > 0).sum()), third=float(third))


def first_passage(drift: float, variance: float, barrier: float, third: float = 0.0) -> float:
    """Return the chance that a motion with total ``drift``, ``variance`` and ``third`` central moment reaches ``barrier`` > 0 by its end.

    ``P(end >= b) + exp(2 mu b / s^2) Phi((-mu - b)/s)``, exact for a Brownian motion, whose end is normal.
    """
    if not isfinite(barrier) or variance <= 0.0:
        return float(drift >= barrier)
    s = sqrt(variance)
    mirrored = 2.0 * drift * barrier / variance + float(log_ndtr((-drift - barrier) / s))
    return min(1.0, _beyond((barrier - drift) / s, third / s**3) + exp(min(mirrored, 0.0)))


def _beyond(deviations: float, skewness: float) -> float:
    """Return the chance of a Pearson III variable of this skewness to lie so many standard deviations above its mean."""
    if abs(skewness) < STRAIGHT:
        return float(ndtr(-deviations))
    shape = 4.0 / skewness**2
    place = max(shape + np.sign(skewness) * sqrt(shape) * deviations, 0.0)
    return float(gammaincc(shape, place) if skewness > 0 else gammainc(shape, place))
