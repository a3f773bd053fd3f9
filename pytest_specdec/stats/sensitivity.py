"""Sensitivity: with what probability a fault would have shown, from the very laws and token counts of a run.

Under an alternative the log payoffs of a bettor are independent given the prefixes, with known mean and variance at every token. Their
sum is taken for a Brownian motion with that drift, and the chance that it reaches the alarm level by the last token is the
first-passage formula (Siegmund 1985, *Sequential Analysis*, chapter III), the level raised by 0.583 standard deviations of a step
because a walk in steps crosses later (same, chapter X). The bettor must earn the alarm alone, its share of the starting wealth charged;
payoffs are capped at the level. What the other bettors add is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Floats

__all__ = ["Growth", "first_passage", "growth"]

OVERSHOOT = 0.583
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

    def shown(self, log_barrier: float, *, length: float = 1.0) -> float:
        """Return the chance that it reaches ``log_barrier`` within ``length`` runs like this one."""
        if self.steps == 0:
            return 0.0
        raised = log_barrier + OVERSHOOT * sqrt(self.variance / self.steps)
        return first_passage(length * self.drift, length * self.variance, raised)

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
    return Growth(drift=float(mean.sum()), variance=float(variance.sum()), steps=int((variance > 0).sum()))


def first_passage(drift: float, variance: float, barrier: float) -> float:
    """Return the chance that a Brownian motion with total ``drift`` and ``variance`` reaches ``barrier`` > 0 by its end.

    ``Phi((mu - b)/s) + exp(2 mu b / s^2) Phi((-mu - b)/s)``.
    """
    if not isfinite(barrier) or variance <= 0.0:
        return float(drift >= barrier)
    s = sqrt(variance)
    mirrored = 2.0 * drift * barrier / variance + float(log_ndtr((-drift - barrier) / s))
    return min(1.0, float(ndtr((drift - barrier) / s)) + exp(min(mirrored, 0.0)))
