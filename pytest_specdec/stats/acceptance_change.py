"""Acceptance change: mean accepted lengths prompt by prompt against those of stored runs, with limits over prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtr, stdtrit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MARGIN", "POWER", "AcceptanceChange", "compare"]

MARGIN = 0.03
"""Part of the stored typical value by which a length may differ: less is no reason to act."""
POWER = 0.99
"""Probability with which a detectable loss is detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceChange:
    """The difference of two mean accepted lengths over the same prompts."""

    stored: float
    """Mean of the prompts' stored lengths, tokens per step: the typical value."""
    now: float
    standard_error: float
    """Of the difference, tokens per step, over prompts."""
    prompts: int

    @property
    def part(self) -> float:
        """The difference as a part of the typical value. -0.08 is a loss of 8 %."""
        return self.now / self.stored - 1.0

    def at_least(self, error: float) -> float:
        """Return the lower limit of the true part. The true part lies below it with probability ``error``."""
        return self.part - self._half_width(error)

    def at_most(self, error: float) -> float:
        """Return the upper limit of the true part. The true part lies above it with probability ``error``."""
        return self.part + self._half_width(error)

    def lower(self, alpha: float) -> bool:
        """Whether the length is lower by more than the margin. Wrongly so with probability ``alpha`` / 2 at most."""
        return self.at_most(alpha / 2.0) < -MARGIN

    def higher(self, alpha: float) -> bool:
        """Whether the length is higher by more than the margin. Wrongly so with probability ``alpha`` / 2 at most."""
        return self.at_least(alpha / 2.0) > MARGIN

    @property
    def p_lower(self) -> float:
        """Chance of so low a length, given a loss of the margin."""
        distance = self.now - self.stored * (1.0 - MARGIN)
        if not self.standard_error:
            return float(distance >= 0.0)
        return float(stdtr(self.prompts - 1, distance / self.standard_error))

    def detectable(self, alpha: float) -> float:
        """Return the smallest loss, a part, detected with probability :data:`POWER`.

        The test is :meth:`lower`, the spread as it is here. The loss is margin + (t_(1 - alpha/2) + t_(0.99)) SE: the shifted t in place of
        the noncentral one.
        """
        return MARGIN + self._half_width(alpha / 2.0) + self._half_width(1.0 - POWER)

    def _half_width(self, error: float) -> float:
        return -float(stdtrit(self.prompts - 1, error)) * self.standard_error / self.stored


def compare(stored: Sequence[float], now: Sequence[float]) -> AcceptanceChange:
    """Return the change of mean accepted lengths from ``stored`` to ``now``.

    Both are of the same prompts in the same order. d_i = now_i - stored_i, SE = sd(d) / sqrt(n), and (mean d - true) / SE follows Student's
    t with n - 1 degrees of freedom: the paired t (Student 1908), whose units are the prompts. Prompts differ and steps of one depend on
    each other: as independent units, steps give 12 to 18 % false alarms at nominal 1 %. Assumes prompts that are independent of each other.
    What a stored length owes to chance is in d as well, less of it where several runs were pooled, so that it needs no term of its own.
    Raises ValueError for fewer than two prompts.
    """
    count = len(now)
    if count < 2:  # noqa: PLR2004 - one value has no spread
        msg = f"a comparison needs two prompts, not {count}"
        raise ValueError(msg)
    differences = [b - a for a, b in zip(stored, now, strict=True)]
    mean = math.fsum(differences) / count
    variance = math.fsum((d - mean) ** 2 for d in differences) / (count - 1)
    typical = math.fsum(stored) / count
    return AcceptanceChange(stored=typical, now=typical + mean, standard_error=math.sqrt(variance / count), prompts=count)
