"""Acceptance change: mean accepted lengths of the same prompts now and in stored runs, with limits by the spread over prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import chdtri, nctdtr, ndtri, stdtr, stdtrit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MARGIN", "POWER", "AcceptanceChange", "compare"]

MARGIN = 0.03
"""Fraction of the stored mean length by which a length may differ: a smaller change is no reason to act."""
POWER = 0.99
"""Probability with which a detectable loss is detected."""
_HALVINGS = 50
"""Halvings of the bracket of a noncentrality, down to rounding."""


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
        """Return True if the length is surely lower, beyond the margin.

        It is wrongly True with probability ``alpha`` / 2 at most: the other half is that of :meth:`is_higher`.
        """
        return self.at_most(alpha / 2.0) < -MARGIN

    def is_higher(self, alpha: float) -> bool:
        """Return True if the length is surely higher, beyond the margin.

        It is wrongly True with probability ``alpha`` / 2 at most: the other half is that of :meth:`is_lower`.
        """
        return self.at_least(alpha / 2.0) > MARGIN

    @property
    def p_lower(self) -> float:
        """The one-sided p-value of a loss larger than the margin.

        The hypothesis is a loss of the margin at most, as in :meth:`is_lower`. Without any spread it is 0 for a larger loss, else 1.
        """
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

        :meth:`is_lower` is then True at ``alpha`` in at least 99 of 100 other runs of as many prompts. In a run with true loss L and true
        standard error sigma, (mean d + margin stored) / SE follows the noncentral t with n - 1 degrees of freedom and noncentrality
        -(L - margin) stored / sigma (Johnson, Kotz & Balakrishnan, Continuous Univariate Distributions 2, chapter 31). sigma is not known:
        its upper confidence limit SE sqrt((n - 1) / q) stands for it, with q of the lower tail 1 - sqrt(POWER) of chi-square with n - 1
        degrees of freedom. The limit holds with probability sqrt(POWER), and the power at it is sqrt(POWER), so that both together hold
        with probability POWER at least. L = margin + noncentrality limit / stored may be larger than :attr:`largest_loss`: no loss is then
        that sure to be detected. The loss is taken to leave the spread over prompts as it is, as one of equal size in every prompt does.
        """
        degrees, level = self.prompts - 1, math.sqrt(POWER)
        inflation = math.sqrt(degrees / float(chdtri(degrees, level)))
        noncentrality = _noncentrality(-float(stdtrit(degrees, alpha / 2.0)), degrees, 1.0 - level)
        return MARGIN + noncentrality * inflation * self.standard_error / self.stored

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
    that it needs no term of its own. Raises ValueError for fewer than two prompts.
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


def _noncentrality(quantile: float, degrees: int, miss: float) -> float:
    """Return the noncentrality at which t falls below ``quantile`` with probability ``miss``.

    T = (Z + noncentrality) / S, with Z standard normal and S^2 chi-square over its degrees of freedom. With b(p) = quantile S_p - z_p, of
    upper quantile S_p and lower quantile z_p, the result is below b(miss / 2), by the union of Z < z_p and S > S_p, and not below
    b(sqrt(miss)), by their intersection. Bisection is between the two: elsewhere ``nctdtr`` may be NaN (of 29 degrees of freedom, at 5.29,
    from noncentrality 49 on). Where it is NaN between them too, the result is the upper bound, at which ``miss`` is not exceeded either.
    """

    def bound(p: float) -> float:
        return quantile * math.sqrt(float(chdtri(degrees, p)) / degrees) - float(ndtri(p))

    low, high = bound(math.sqrt(miss)), bound(miss / 2.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if nctdtr(degrees, middle, quantile) <= miss else (middle, high)  # NaN <= miss is False
    return high
