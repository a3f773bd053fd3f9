"""Noise comparison: a test whether an arm's log-probabilities differ from their scores by more than tolerated numerics explain.

Kernels of one token and of k + 1 tokens are different kernels, so that a verify kernel may be noisier than decode by a bounded factor.
Quantiles and counts are compared, never sums of squares: if an expert of a mixture flips now and then, a few tokens make up the whole sum.
An arm is one server. Noise is the standard deviation of one logit, nats, and a square is one token's estimate of its variance. A jump is a
token whose two log-probabilities differ by more than a limit. The floor is the noise tolerated whatever the baseline shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.stats.token_distribution import Floats

__all__ = [
    "BOUNDED",
    "EXACT",
    "HALF_PRECISION",
    "SINGLE_PRECISION",
    "LogprobSample",
    "NoiseComparison",
    "compare",
    "detectable_noise",
    "jump_limit",
    "scale",
    "tolerated_factor",
    "tolerated_floor",
]

BOUNDED, TOLERATED, MOST = 4.0, 1.3, 0.25
"""Times the baseline's noise, reported against scored, that is tolerated: a verify kernel 5.6 times as noisy as decode; 3 was measured.

The factor holds up to a noise of ``MOST`` nats, at which probabilities are off by a quarter. It is ``TOLERATED`` for a baseline as noisy as
that.
"""
SINGLE_PRECISION, HALF_PRECISION = 0.01, 0.05
"""Logit noise, nats, that is tolerated whatever the baseline shows; log-probabilities are reported with four digits by some."""
_BETWEEN_BOOTS = 0.15
"""The same in half precision if one boot of the baseline answered and scored: nothing then shows how two boots differ, and boots that add
.1 nats each, which is much, differ by .14."""
EXACT = 0.05
"""Nats: if single precision is used and no token of the baseline differs by more, its servers do not jump."""
_BULK = 0.2
"""Fraction of the tokens beyond the quantile that a scale is computed from: fewer tokens that jump do not move it."""
_TAIL = 0.05
"""A smaller fraction that is tested too: a fault at a sixth of the tokens hardly moves the quantile of a fifth."""
_FRACTIONS = (_BULK, _TAIL)
_STATED, _PER_NOISE, _PER_FLOOR = 0.5, 4.0, 8.0
"""Distance from which on a token jumps: half a nat, four times the noise tolerated against the baseline, eight times the floor."""
_VISIBLE = 0.002
"""Noise, nats, below which the baseline's is rounding and no factor has a meaning."""
DETECTED = 2.326
"""Standard normal quantile of 0.99."""


def _normal_quantile(fraction: float) -> float:
    """Return the value that ``fraction`` of squared standard normal variables exceed."""
    return float(ndtri(1.0 - fraction / 2.0)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobSample:
    """Differences between reported and scored log-probabilities of one arm."""

    squares: Sequence[float]
    """``delta^2 / (1 - 2 p_x + sum p^2)`` of tokens that are not all but certain; the mean of each is the squared logit noise."""
    distances: Sequence[float]
    """``|delta|`` of tokens neither all but impossible nor certain, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseComparison:
    """The noise of an arm's log-probabilities against the baseline's."""

    noise: float
    """The arm's noise, nats: a scale by a quantile."""
    granted: float
    """The baseline's own noise, nats."""
    floor: float
    """Tolerated whatever the baseline shows, nats."""
    factor: float
    """Times the baseline's noise that is tolerated."""
    p_noise: float
    """The p-value of a noise of at most ``factor`` times the baseline's, or of at most the floor."""
    jumps: int
    """Tokens beyond ``limit``."""
    limit: float
    """Nats."""
    other_jumps: int
    """The baseline's tokens beyond the same limit over ``factor``."""
    p_jumps: float
    """The p-value of as many jumps as the baseline's, each at most ``factor`` times as far."""

    @property
    def kernel(self) -> float | None:
        """Ratio of the verify kernel's noise to decode's; None if exact.

        Two kernels add to a noise, that which reports and that which scores, prefill. Prefill is assumed to be as noisy as decode, so that
        ``granted^2 = decode^2 + decode^2`` for the baseline and ``noise^2 = verify^2 + decode^2`` for the arm.
        """
        if self.granted < _VISIBLE:
            return None
        return sqrt(max(0.0, 2.0 * (self.noise / self.granted) ** 2 - 1.0))


def scale(squares: Sequence[float] | Floats) -> float:
    """Return the standard deviation of one logit's noise, by a quantile.

    It is in nats: the quantile of ``squares`` that a fifth of them exceeds, over that of a squared standard normal variable. It is 0
    without any.
    """
    return sqrt(float(np.quantile(np.asarray(squares, dtype=np.float64), 1.0 - _BULK)) / _normal_quantile(_BULK)) if len(squares) else 0.0


def tolerated_floor(*, single_precision: bool, one_boot: bool) -> float:
    """Return the noise tolerated however exact the baseline is, in nats.

    It is of one logit, and small in ``single_precision``. Else it is larger if ``one_boot`` of the baseline answered and scored: the noise
    between two boots is then unknown.
    """
    if single_precision:
        return SINGLE_PRECISION
    return _BETWEEN_BOOTS if one_boot else HALF_PRECISION


def tolerated_factor(granted: float) -> float:
    """Return how many times the baseline's noise an arm may have.

    ``granted`` is the baseline's own noise, in nats. The factor is ``BOUNDED`` as long as the arm may then have ``MOST`` nats or less. For
    a noisier baseline it is the one that gives the arm ``MOST`` nats, but never less than ``TOLERATED``.
    """
    return min(BOUNDED, max(TOLERATED, MOST / granted)) if granted > 0.0 else BOUNDED


def jump_limit(granted: float, floor: float, *, exact: bool = False) -> float:
    """Return the least difference counted as a jump, in nats.

    It is the largest of three: half a nat, four times the tolerated noise, and eight times the ``floor``, a noise in nats that is tolerated
    whatever the baseline shows. ``granted`` is the baseline's own noise, nats; that times :func:`tolerated_factor` is tolerated. Half a nat
    is left out for ``exact`` servers, which have been seen not to jump.
    """
    tolerated = tolerated_factor(granted) * granted
    return max(0.0 if exact else _STATED, _PER_NOISE * tolerated, _PER_FLOOR * floor)


def compare(arm: LogprobSample, baseline: LogprobSample, floor: float, *, exact: bool = False) -> NoiseComparison:
    """Return the comparison of two arms' differences, in noise and jumps.

    Neither sample may be empty; ``floor`` is the noise in nats that is tolerated whatever the baseline shows, and ``exact`` servers have a
    lower :func:`jump_limit`. An arm may be :func:`tolerated_factor` times as noisy as the baseline.

    Noise is tested twice, and both tests must reject. Against the baseline: the arm's squares over ``factor^2`` and the baseline's are
    pooled, and Fisher's exact test counts the arm's among the largest fifth, and among the largest twentieth (Mood's test, 1950, at other
    quantiles). It is exact if the arm's noise has the baseline's shape and is ``factor`` times as large. Against the floor: more than a
    fifth, or a twentieth, of the squares lie beyond that quantile of normal noise of the floor's size. Jumps: Fisher's exact test on tokens
    beyond the limit. Tokens are assumed independent, and the factor fixed, though it follows from the baseline.
    """
    z, z0 = np.asarray(arm.squares, dtype=np.float64), np.asarray(baseline.squares, dtype=np.float64)
    granted = scale(z0)
    factor, limit = tolerated_factor(granted), jump_limit(granted, floor, exact=exact)
    jumps = int((np.asarray(arm.distances) > limit).sum())
    # An arm ``factor`` times as noisy is beyond the limit as often as the baseline is beyond limit / factor.
    other_jumps = int((np.asarray(baseline.distances) > limit / factor).sum())
    return NoiseComparison(
        noise=scale(z),
        granted=granted,
        floor=floor,
        factor=factor,
        p_noise=_noise_p_value(z, z0, floor, factor),
        jumps=jumps,
        limit=limit,
        other_jumps=other_jumps,
        p_jumps=proportions.greater_than_other(jumps, len(arm.distances), other_jumps, len(baseline.distances)) if jumps else 1.0,
    )


def _noise_p_value(z: Floats, z0: Floats, floor: float, factor: float) -> float:
    """Return the p-value of no more noise than is tolerated, by two quantiles.

    ``z`` are the squares of the arm, ``z0`` those of the baseline. The noise is tolerated up to ``floor`` nats, or ``factor`` times the
    baseline's if that is more. The quantiles are those that a fifth and a twentieth of the squares exceed (_FRACTIONS).
    """
    smallest = min(_quantile_p_value(z, z0, floor, factor, fraction) for fraction in _FRACTIONS)
    return min(1.0, len(_FRACTIONS) * smallest)  # Bonferroni, for the choice among them


def _quantile_p_value(z: Floats, z0: Floats, floor: float, factor: float, fraction: float) -> float:
    """Return the p-value at the quantile beyond which ``fraction`` of the squares lie.

    It is the larger of two, against the ``floor``, a noise in nats, and against ``factor`` times the baseline's noise: the arm's squares
    ``z`` must exceed both. ``z0`` are the baseline's squares.
    """
    # Of normal noise of the floor's size, ``fraction`` of the squares lie beyond this quantile.
    beyond = int((z > _normal_quantile(fraction) * floor**2).sum())
    against_floor = proportions.greater_than_rate(beyond, len(z), fraction)
    # An arm ``factor`` times as noisy has squares factor^2 times as large. Scaled down, they are as often among the largest of both.
    arm_count, baseline_count = _count_largest(z / factor**2, z0, fraction)
    against_baseline = proportions.greater_than_other(arm_count, len(z), baseline_count, len(z0))
    return max(against_floor, against_baseline)


def _count_largest(z: Floats, z0: Floats, fraction: float) -> tuple[int, int]:
    """Return the numbers of either sample's values among the largest.

    These are a ``fraction`` of both samples together.
    """
    cut = np.quantile(np.concatenate([z, z0]), 1.0 - fraction)
    return int((z > cut).sum()), int((z0 > cut).sum())


def detectable_noise(tokens: int, baseline: Sequence[float], floor: float, alpha: float) -> float:
    """Return the smallest noise detected with a probability of 0.99.

    It is in nats, for an arm with ``tokens`` squares, as in :class:`LogprobSample`, and the tests of :func:`compare` at ``alpha``, of which
    ``floor`` is the noise in nats tolerated in any case. The arm's squares have the shape of the ``baseline`` ones, scaled; the shape is
    normal if the baseline is exact. The tests must reject even if chance makes their counts as low as it does in 1 % of cases. The noise is
    found by bisection between the tolerated noise and 100 times that, which is returned if nothing smaller is detected.
    """
    z0 = np.asarray(baseline, dtype=np.float64)
    granted, places = scale(z0), (np.arange(tokens) + 0.5) / tokens
    # The expected squares of the arm for noise of 1 nat, at evenly spaced quantiles.
    shape = np.quantile(z0, places) / granted**2 if granted >= _VISIBLE else np.asarray(ndtri(0.5 + places / 2.0)) ** 2
    tolerated = max(floor, tolerated_factor(granted) * granted)
    low, high = log(tolerated), log(100.0 * tolerated)
    for _ in range(16):
        middle = (low + high) / 2.0
        shows = _would_show(shape * exp(2.0 * middle), z0, floor, alpha)
        low, high = (low, middle) if shows else (middle, high)
    return exp(high)


def _would_show(z: Floats, z0: Floats, floor: float, alpha: float) -> bool:
    """Return True if both tests reject in spite of chance.

    They are those of :func:`compare`, against the ``floor`` and against the baseline's noise, at the larger of its two fractions. ``z`` and
    ``z0`` are expected squares of arm and baseline. The arm's counts are taken to be less than expected by what chance exceeds with
    probability 0.01. The p-value, corrected for two fractions, must be ``alpha`` at most.
    """
    tokens = len(z)
    beyond = int((z > _normal_quantile(_BULK) * floor**2).sum())
    beyond -= _chance_loss(beyond, tokens, 1.0)
    arm_count, baseline_count = _count_largest(z / tolerated_factor(scale(z0)) ** 2, z0, _BULK)
    # The baseline's share varies too, tokens / len(z0) times as much; of the largest squares of both, it has those that the arm has not.
    lost = _chance_loss(arm_count, tokens, 1.0 + tokens / len(z0))
    arm_count, baseline_count = arm_count - lost, min(len(z0), baseline_count + lost)
    if min(beyond, arm_count) <= 0:
        return False
    against_floor = proportions.greater_than_rate(beyond, tokens, _BULK)
    against_baseline = proportions.greater_than_other(arm_count, tokens, baseline_count, len(z0))
    return len(_FRACTIONS) * max(against_floor, against_baseline) <= alpha


def _chance_loss(count: int, tokens: int, variance_factor: float) -> int:
    """Return how far a count may fall below its expectation by chance.

    ``count`` of ``tokens`` are expected. It falls by more in 1 % of cases, taken as normal with ``variance_factor`` times the binomial
    variance. The result is rounded up, to be safe.
    """
    return int(DETECTED * sqrt(count * (1.0 - count / tokens) * variance_factor)) + 1
