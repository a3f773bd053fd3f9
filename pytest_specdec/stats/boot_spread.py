"""Boot spread: the variation of the log of a server's speed from one boot to the next, as a posterior.

A boot is one start of a server. The deviation, the standard deviation between boots, is unknown: a grid of possible deviations is weighted
by a prior around a stated one, and by what was measured. It needs the standard library alone: floors are computed by processes that load no
numpy.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.baseline import BOOT_SD

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LIKELY", "RUN_BOOTS", "BootSpread", "boot_spread"]

LIKELY = 5.0
"""Times the stated deviation up to which all deviations are equally likely by the prior."""
UNLIKELY = 1e-3
"""Prior density just beyond LIKELY, over the density below; from there it falls with the square of the deviation."""
RUN_BOOTS = 1.5
"""Variance of a run's log-ratio over that of one boot: the variant's, and half each of the baseline's two."""
_BISECTIONS = 28
_OCTAVES_UP, _OCTAVES_DOWN, _PER_OCTAVE = 4, 7, 4
_MAD_TO_SD = 1.4826
_MAD_EFFICIENCY = 0.37
"""The median absolute deviation of n normal values is as precise as the standard deviation of 0.37 n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootSpread:
    """The deviation between boots: a prior, and sums of squares that were measured."""

    squares: float = 0.0
    """Nats squared, about the means; one degree of freedom of them estimates the variance of one boot."""
    freedom: float = 0.0
    """Degrees of freedom of the squares; 0 if nothing is measured."""
    stated_sd: float = BOOT_SD

    def weights(self, pass_variance: float = 0.0) -> tuple[float, ...]:
        """Return the posterior weight of each of :func:`deviations`.

        A weight is the probability that boots vary by this standard deviation; all add up to one: w_k ~ prior(sd_k) v_k^(-freedom / 2)
        exp(-squares / (2 v_k)), v_k = sd_k^2 + ``pass_variance``. ``pass_variance`` is the variance of a boot's mean over its passes:
        without it, the variation of passes would count as that of boots.
        """
        variances = [sd**2 + pass_variance for sd in deviations(self.stated_sd)]
        logs = [-self.freedom / 2.0 * math.log(v) - self.squares / (2.0 * v) for v in variances]
        most = max(logs)
        likely = [prior * math.exp(log - most) for prior, log in zip(_prior(), logs, strict=True)]
        total = math.fsum(likely)
        return tuple(weight / total for weight in likely)

    @property
    def at_least_stated(self) -> BootSpread:
        """This spread, or only its prior if less was measured than stated."""
        is_narrower = self.squares < self.freedom * self.stated_sd**2
        return BootSpread(stated_sd=self.stated_sd) if is_narrower else self

    @property
    def sd(self) -> float:
        """The posterior median of the standard deviation between boots, in nats."""
        below = 0.0
        for sd, weight in zip(deviations(self.stated_sd), self.weights(), strict=True):
            below += weight
            if below >= 0.5:  # noqa: PLR2004 - a half
                return sd
        return deviations(self.stated_sd)[-1]

    def half_width(self, error: float, relative_variance: float) -> float:
        """Return the one-sided error limit of a mean over boots.

        The mean is of logs of speeds, in nats. It is above its true value by more than the result with probability ``error``, and below it
        as often. Its variance is ``relative_variance`` times that of one boot. The limit is found by bisection, over all deviations by
        their posterior weights.
        """
        # An error is normal for each possible deviation, so that its tail is the mean of normal tails, erfc(x / (sqrt(2) sd)) / 2.
        weights = self.weights()
        scales = [math.sqrt(2.0 * relative_variance) * sd for sd in deviations(self.stated_sd)]
        low, high = 0.0, 10.0 * scales[-1]
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            tail = math.fsum(w * math.erfc(middle / scale) for w, scale in zip(weights, scales, strict=True)) / 2.0
            low, high = (middle, high) if tail > error else (low, middle)
        return high


@functools.cache
def deviations(stated_sd: float) -> tuple[float, ...]:
    """Return the grid of possible standard deviations between boots, in nats.

    It is geometric, with four steps per octave (a factor of 2). Step 0 is LIKELY (5) times the stated one, the bend of the prior. The
    grid goes from 7 octaves below it, 5 / 2^7 = a 25th of the stated deviation, to 4 above it, 5 x 2^4 = 80 times as much.
    """
    steps = range(-_OCTAVES_DOWN * _PER_OCTAVE, _OCTAVES_UP * _PER_OCTAVE + 1)
    return tuple(LIKELY * stated_sd * 2.0 ** (step / _PER_OCTAVE) for step in steps)


@functools.cache
def _prior() -> tuple[float, ...]:
    """Return the prior mass at each of :func:`deviations`, not normalised.

    x is a deviation over LIKELY times the stated one. The density of x is 1 up to x = 1, and UNLIKELY / x^2 beyond. The width of a
    geometric grid's step is in proportion to x, and so its mass is x times the density: x, or UNLIKELY / x.
    """
    lowest = -_OCTAVES_DOWN * _PER_OCTAVE
    below = [2.0 ** (step / _PER_OCTAVE) for step in range(lowest, 0)]
    all_lowest = below[0] / (1.0 - 2.0 ** (-1.0 / _PER_OCTAVE))  # the geometric series down to 0: the lowest stands for all below it
    at_bend = (1.0 + UNLIKELY) / 2.0  # half within and half beyond: the mean of both masses at x = 1
    beyond = [UNLIKELY * 2.0 ** (-step / _PER_OCTAVE) for step in range(1, _OCTAVES_UP * _PER_OCTAVE + 1)]
    return (all_lowest, *below[1:], at_bend, *beyond)


def boot_spread(apart: Sequence[float], stated_sd: float = BOOT_SD, runs: Sequence[float] = ()) -> BootSpread:
    """Return the spread between boots by ``apart`` and ``runs`` together.

    Both are measured log-ratios of speeds: those in ``apart`` of two boots of one server, those in ``runs`` of variant over baseline, one
    per run. ``stated_sd`` is the deviation assumed before any is measured. sigma^2 is the variance of one boot.

    - ``apart``: two boots differ by d with variance 2 sigma^2, so that d^2 / 2 estimates sigma^2 with one degree of freedom.
    - ``runs``: a run compares one boot of the variant with the mean of two of the baseline: its log-ratio varies by (1 + 1/2) sigma^2. The
      median absolute deviation of n runs, which one lucky run moves little, estimates that with .37 (n - 1) degrees of freedom (Rousseeuw
      and Croux 1993).

    The prior is uniform in sigma (Gelman 2006) up to five times the stated deviation: without one, limits from one pair of boots are too
    wide for any use. Logs are assumed to be normal and independent from boot to boot, and the variant's boots to vary as the baseline's do.
    """
    squares, freedom = math.fsum(d**2 / 2.0 for d in apart), float(len(apart))
    if len(runs) > 1:
        centre, robust_freedom = statistics.median(runs), _MAD_EFFICIENCY * (len(runs) - 1)
        robust_sd = _MAD_TO_SD * statistics.median(abs(run - centre) for run in runs)
        squares, freedom = squares + robust_freedom * robust_sd**2 / RUN_BOOTS, freedom + robust_freedom
    return BootSpread(squares=squares, freedom=freedom, stated_sd=stated_sd)
