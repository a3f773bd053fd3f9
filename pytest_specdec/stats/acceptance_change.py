"""Acceptance change: mean accepted lengths of the same prompts now and in stored runs, with limits by the spread over prompts.

An accepted length is the mean number of tokens per verify step. A relative change of MARGIN at most is no reason to act. Limits and
p-values are by Student's t, with the prompts as units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, ndtr, stdtr, stdtrit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MARGIN", "POWER", "AcceptanceChange", "compare"]

MARGIN = 0.03
"""Fraction of the stored mean length by which a length may differ: a smaller change is no reason to act."""
POWER = 0.99
"""Probability with which a detectable loss is detected."""
_QUANTILES = 400
"""Quantiles of each spread in the integral of the power."""
_HALVINGS = 20
"""Halvings of the bracket of a detectable loss: to a millionth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceChange:
    """The difference of two mean accepted lengths over the same prompts."""

    stored: float
    """Mean of the prompts' stored lengths, tokens per verify step."""
    now: float
    """Mean of the prompts' lengths in this run, tokens per verify step."""
    standard_error: float
    """Standard error of the difference, tokens per verify step, from the spread over prompts."""
    prompts: int

    @property
    def relative(self) -> float:
        """The relative change of the length; -0.08 is a loss of 8 %."""
        return self.now / self.stored - 1.0

    def at_least(self, error: float) -> float:
        """Return the lower limit of the true relative change.

        The true change lies below it with probability ``error``.
        """
        return self.relative - self._half_width(error)

    def at_most(self, error: float) -> float:
        """Return the upper limit of the true relative change.

        The true change lies above it with probability ``error``.
        """
        return self.relative + self._half_width(error)

    def is_lower(self, alpha: float) -> bool:
        """Return True if the length is surely lower beyond MARGIN.

        It is wrongly True with probability ``alpha`` / 2 at most: the other half is that of :meth:`is_higher`.
        """
        return self.at_most(alpha / 2.0) < -MARGIN

    def is_higher(self, alpha: float) -> bool:
        """Return True if the length is surely higher beyond MARGIN.

        It is wrongly True with probability ``alpha`` / 2 at most: the other half is that of :meth:`is_lower`.
        """
        return self.at_least(alpha / 2.0) > MARGIN

    @property
    def p_lower(self) -> float:
        """The one-sided p-value of a loss larger than the margin.

        The hypothesis is a loss of the margin at most, as in :meth:`is_lower`. Without any spread it is 0 for a larger loss, else 1.
        """
        # By how much the length is above the least one within the margin, in tokens per verify step.
        distance = self.now - self.stored * (1.0 - MARGIN)
        if not self.standard_error:
            return float(distance >= 0.0)
        return float(stdtr(self.prompts - 1, distance / self.standard_error))

    @property
    def largest_loss(self) -> float:
        """The relative loss of all acceptance: a step still emits one token."""
        return 1.0 - 1.0 / self.stored

    def detectable(self, alpha: float) -> float:
        """Return the smallest relative loss detected with probability :data:`POWER`.

        It is L = MARGIN + m SE / stored, for a later run of as many prompts, judged by :meth:`is_lower` at ``alpha``. SE, this run's
        standard error, and SE', the later run's, both estimate a true one, sigma. In tokens per step, the later run measures the loss
        MARGIN stored + m SE + sigma Z with a standard normal Z. It is detected if this exceeds MARGIN stored + t SE', t being Student's
        quantile at ``alpha`` / 2. Over sigma that is m S1 + Z > t S2, with S1 = SE / sigma and S2 = SE' / sigma: their squares are
        chi-square over n - 1 degrees of freedom, and Z, S1 and S2 are independent. m is the least value at which the condition has the
        probability POWER. A loss is taken to be equal in all prompts, which leaves their spread as it is. No loss is that sure to be
        detected if the result is larger than :attr:`largest_loss`.
        """
        degrees = self.prompts - 1
        student_quantile = -float(stdtrit(degrees, alpha / 2.0))
        return MARGIN + _detectable_multiple(student_quantile, degrees) * self.standard_error / self.stored

    def _half_width(self, error: float) -> float:
        """Return the half-width of a one-sided limit of the relative change.

        The true change lies beyond the limit with probability ``error``, which is below one half.
        """
        return -float(stdtrit(self.prompts - 1, error)) * self.standard_error / self.stored


def compare(stored: Sequence[float], now: Sequence[float]) -> AcceptanceChange:
    """Return the change of mean accepted lengths from ``stored`` to ``now``.

    Both have tokens per verify step, one mean for each prompt, of the same prompts in the same order. d_i = now_i - stored_i, SE = sd(d) /
    sqrt(n), and (mean d - true) / SE follows Student's t with n - 1 degrees of freedom: the paired t (Student 1908), whose units are the
    prompts. Prompts differ, and the steps of one prompt depend on each other: taken as independent units, steps give 12 to 18 % false
    alarms at nominal 1 %. The test assumes that prompts are independent of each other. The chance error of a stored length is part of d, so
    that it needs no term of its own. Raises ValueError for fewer than two prompts, or if the two are of different lengths.
    """
    count = len(now)
    if count < 2:  # noqa: PLR2004 - one value has no spread
        msg = f"a comparison needs two prompts, not {count}"
        raise ValueError(msg)
    differences = [b - a for a, b in zip(stored, now, strict=True)]
    mean = math.fsum(differences) / count
    variance = math.fsum((d - mean) ** 2 for d in differences) / (count - 1)
    stored_mean = math.fsum(stored) / count
    return AcceptanceChange(stored=stored_mean, now=stored_mean + mean, standard_error=math.sqrt(variance / count), prompts=count)


@cache
def _detectable_multiple(quantile: float, degrees: int) -> float:
    """Return the multiple m of :meth:`AcceptanceChange.detectable`.

    It is the m at which Z + m S1 > ``quantile`` S2 has the probability POWER. Z is standard normal, and ``quantile`` is Student's t. S1 and
    S2 are the standard errors of two runs over the true one: their squares are chi-square over ``degrees`` of freedom. The probability is
    the mean of Phi(m S1 - quantile S2) over evenly spaced quantiles of S1 and S2. An m that is enough is found by doubling, the least one
    by bisection.
    """
    # The evenly spaced quantiles that stand for S1, in rows, and for S2, in columns.
    spreads = np.sqrt(chdtri(degrees, (np.arange(_QUANTILES) + 0.5) / _QUANTILES) / degrees)

    def power(multiple: float) -> float:
        return float(ndtr(multiple * spreads[:, None] - quantile * spreads).mean())

    low, high = 0.0, max(quantile, 1.0)
    while power(high) < POWER:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
