"""Reported log-probabilities: whether an arm's lie farther from the scores than the baseline's own do.

Numerical faults have no direction: the tokens hardly show them, the log-probabilities that a server reports of its own tokens show them in
50 to 400 tokens (facts/statistics.md section 4, channel 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FLOOR", "TOLERATED", "Comparison", "compare"]

TOLERATED = 1.3
"""Times the baseline's own noise that is no fault: batches and shapes differ under speculation."""
FLOOR = 0.01
"""Logit noise, nats, that is granted where the baseline shows less: log-probabilities are reported with four digits by some."""
NORMAL = 2.0
"""Variance of a squared standard normal variable: the least spread of z about its mean that is believed."""
DETECTED = 2.326
"""Standard normal quantile of 0.99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two samples of ``z = delta^2 / (1 - 2 p_x + sum p^2)``, each with the square of the logit noise as its mean."""

    noise: float
    """Of the arm, nats."""
    granted: float
    """The baseline's own, at least FLOOR."""
    excess: float
    """``log(mean z / granted^2) - 2 log 1.3``: above 0 the arm is noisier than tolerated."""
    error: float
    """Standard error of the excess."""
    alpha: float

    @property
    def quantile(self) -> float:
        """Standard errors that an excess of chance stays below with probability 1 - alpha."""
        return -float(ndtri(self.alpha))

    @property
    def exceeds(self) -> bool:
        """Whether the arm is noisier than chance and tolerance allow."""
        return self.excess > self.quantile * self.error

    @property
    def shown(self) -> float:
        """Logit noise, nats, that would have shown with probability 0.99."""
        return TOLERATED * self.granted * exp((self.quantile + DETECTED) * self.error / 2.0)


def compare(mine: Sequence[float], theirs: Sequence[float], alpha: float) -> Comparison:
    """Compare ``mine`` with ``theirs``, both not empty: ``log ratio - 2 log 1.3 > q sqrt(kappa/n + kappa/n0)``.

    For Gaussian noise kappa is 2; where the baseline's own z have heavier tails, their squared coefficient of variation.
    """
    z, own = np.asarray(mine, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    granted = max(sqrt(float(own.mean())), FLOOR)
    kappa = max(NORMAL, float(own.var()) / granted**4)
    noise = sqrt(float(z.mean()))
    return Comparison(
        noise=noise,
        granted=granted,
        excess=2.0 * (log(noise / granted) - log(TOLERATED)) if noise > 0.0 else -np.inf,
        error=sqrt(kappa / len(z) + kappa / len(own)),
        alpha=alpha,
    )
