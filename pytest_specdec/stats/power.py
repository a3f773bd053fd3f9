"""Power: the probability that a fault would have shown, from the distributions and token counts of a run.

Under an alternative a test's log-likelihood ratios are independent given the prefixes, with known mean and variance at every token; the
spread of the mean over answers may be added, for other prefixes. Their sum is approximated by a Brownian motion with that drift. The
probability that it reaches the alarm level by the last token is given by the first-passage formula (Siegmund 1985, *Sequential Analysis*,
chapter III), with the level raised by the mean overshoot of a walk in such steps (same, chapter X), which is large if a few tokens give
nearly all evidence. A fault with rare and strong evidence has a skewed sum: the Brownian motion is then the one with the same three moments
of the time of passage, begun earlier or later. The test must reach the alarm alone, less its share of the mixture; ratios are capped at the
level. Evidence of other tests in the mixture is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_specdec.stats.token_distribution import Bools, Floats

__all__ = ["EvidenceGrowth", "first_passage", "growth", "overshoot"]

BINS = 2048
"""Number of bins of log ratios for the distribution of a step."""
FREQUENCIES = np.geomspace(1e-3, 100.0, 64)
"""Frequencies of that distribution's characteristic function, in units of one over its standard deviation."""
FINE = 24
"""Number of them that need float64; the others are sums of sines in float32, in a tenth of the time and to seven digits."""
TINY = 1e-24
"""Variance of log ratios below which a test does not move."""
STEADIEST = 0.9
"""Largest value of e in :func:`first_passage`: at 1 the time of passage would be no longer skewed."""
MOST = 1e7
"""Largest number of runs that is looked for; a test that needs more counts as never reaching its level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceGrowth:
    """The growth of a test's log evidence under an alternative, over a whole run."""

    drift: float
    """Expected log evidence at the end, nats."""
    variance: float
    """Variance of the log evidence at the end."""
    steps: int
    """Tokens at which the log evidence can change, by a fixed amount or by chance."""
    third: float = 0.0
    """Third central moment of the log evidence at the end."""
    overshoot: float = 0.0
    """Mean distance above a level when the log evidence first reaches it, nats."""

    def chance_to_reach(self, log_barrier: float, *, length: float = 1.0) -> float:
        """Return the probability of an alarm within ``length`` such runs.

        The alarm is a log evidence of ``log_barrier``, nats.
        """
        if self.steps == 0:
            return 0.0
        return first_passage(length * self.drift, length * self.variance, log_barrier + self.overshoot, length * self.third)

    def times(self, factor: float) -> EvidenceGrowth:
        """Return the growth over ``factor`` times as many such tokens."""
        return replace(
            self, drift=factor * self.drift, variance=factor * self.variance, steps=round(factor * self.steps), third=factor * self.third
        )

    def length_for(self, log_barrier: float, probability: float) -> float:
        """Return the length, in such runs, for an alarm with ``probability``.

        It is the least one at which the log evidence reaches ``log_barrier`` with that probability, and inf above :data:`MOST`. A length
        that is enough is found by doubling, the least one by bisection.
        """
        low, high = 0.0, 1.0
        while self.chance_to_reach(log_barrier, length=high) < probability:
            low, high = high, 2.0 * high
            if high > MOST:
                return inf
        for _ in range(50):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.chance_to_reach(log_barrier, length=middle) >= probability else (middle, high)
        return high


def growth(log_ratios: Floats, truth: Floats, cap: float, last: Bools | None = None) -> EvidenceGrowth:
    """Return the expected growth of a test's evidence under a fault.

    ``log_ratios`` are what the test adds to its log evidence for each outcome, capped at ``cap``; ``truth`` is the distribution of outcomes
    under the fault. Both are [N, K+1], for N tokens over K top tokens and the remainder. ``last`` [N] marks the last token of each answer:
    the variance of the mean evidence from answer to answer is then added, since other answers have other prefixes. Without it the growth is
    that of the run's own prefixes. Third moment and overshoot correct the chance of an alarm for rare, strong evidence and large steps.
    """
    capped = np.minimum(log_ratios, cap)
    mean = np.einsum("ij,ij->i", truth, capped)
    variance = np.maximum(np.einsum("ij,ij,ij->i", truth, capped, capped) - mean**2, 0.0)
    deviations = capped - mean[:, None]
    third = np.einsum("ij,ij->", truth, deviations * deviations * deviations)  # numpy's third power takes a hundred times as long
    varies = variance > 0
    return EvidenceGrowth(
        drift=float(mean.sum()),
        variance=float(variance.sum()) + (0.0 if last is None else _variance_between(mean, last)),
        steps=int((varies | (mean != 0.0)).sum()),
        third=float(third),
        overshoot=overshoot(capped[varies], truth[varies]),
    )


def _variance_between(drifts: Floats, last: Bools) -> float:
    """Return the variance of the whole drift by the spread over answers.

    A drift is a mean of evidence; ``drifts`` [N] are those of the tokens, ``last`` [N] marks the last token of each answer. A single answer
    shows no spread: the result is 0.
    """
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    by_answer = np.add.reduceat(drifts, starts)
    return len(by_answer) * float(by_answer.var(ddof=1)) if len(by_answer) > 1 else 0.0


def overshoot(log_ratios: Floats, truth: Floats) -> float:
    """Return the mean overshoot of a level by a driftless walk.

    The overshoot is the distance above a level at which the walk first passes it. Its steps x are ``log_ratios`` [N, K+1] with
    probabilities ``truth``, every row equally likely, less their mean; s^2 is their variance. The result is ``E x^3 / (6 s^2) - 1/pi
    int_0^inf Re log{2 (1 - f(l)) / (s l)^2} dl / l^2``, f being the characteristic function of a step (Siegmund 1985, chapter X; 0.583 s
    for normal steps). Only ``|1 - f|`` is needed of f, since the real part of a logarithm is the logarithm of the absolute value. A walk
    without variance has no overshoot.
    """
    steps, chance = _pool_steps(log_ratios, truth)
    variance = float(chance @ steps**2)
    if variance <= TINY:
        return 0.0
    at = FREQUENCIES / sqrt(variance)
    coarse = np.float32  # enough for the higher frequencies, and faster
    fine_part = _one_less_f(at[:FINE], steps, chance)
    coarse_part = _one_less_f(at[FINE:], steps.astype(coarse), chance.astype(coarse))
    integrand = np.log(2.0 * np.concatenate([fine_part, coarse_part]) / (at**2 * variance)) / at**2
    up_to_first = integrand[0] * at[0]  # it hardly changes there
    between = np.trapezoid(integrand * at, np.log(at))  # frequencies are evenly spaced in their logarithm
    # From the last frequency on log |1 - f| is replaced by its mean, 0: the integral of log(2 / (s l)^2) / l^2.
    beyond_last = (log(2.0 / variance) - 2.0 * log(at[-1]) - 2.0) / at[-1]
    return float(chance @ steps**3) / (6.0 * variance) - float(up_to_first + between + beyond_last) / pi


def _one_less_f(at: Floats, steps: npt.NDArray[np.floating], chance: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return ``|1 - f|``, f being the characteristic function of a step.

    f(l) is the mean of ``exp(i l x)`` over the ``steps`` x, B values with probabilities ``chance``. The result is [F], at the frequencies l
    in ``at`` [F], in the precision of ``steps``.
    """
    # The real part of 1 - f is the mean of 1 - cos(phase) = 2 sin(phase / 2)^2, which keeps its digits at small phases.
    phase = at.astype(steps.dtype)[:, None] * steps[None, :]
    return np.asarray(np.hypot(2.0 * np.sin(phase / 2.0) ** 2 @ chance, np.sin(phase) @ chance))


def _pool_steps(log_ratios: Floats, truth: Floats) -> tuple[Floats, Floats]:
    """Return the walk's steps, less their mean, and their probabilities.

    Both are [B], with B at most BINS: outcomes of all rows of ``log_ratios`` [N, K+1] that hardly differ are pooled, with the sum of their
    ``truth``.
    """
    low, high = log_ratios.min(initial=0.0), log_ratios.max(initial=0.0)
    bins = ((log_ratios.ravel() - low) * ((BINS - 1) / max(high - low, TINY))).astype(np.int64)
    mass = np.bincount(bins, truth.ravel())
    filled = mass > 0.0
    chance = mass[filled] / mass.sum()
    steps = np.bincount(bins, (truth * log_ratios).ravel())[filled] / mass[filled]
    return steps - chance @ steps, chance


def first_passage(drift: float, variance: float, barrier: float, third: float = 0.0) -> float:
    """Return the probability of evidence to reach ``barrier`` by the end.

    At the end of a run the evidence has the mean mu = ``drift``, the ``variance`` s^2 and the ``third`` central moment k; b = ``barrier``
    is above 0. The time at which it passes b, the run's length being 1, has the cumulants ``b / mu, b s^2 / mu^3, b (3 s^4 - mu k) / mu^5``
    (Wald's identity). A Brownian motion stands in for it, the one whose time of passage has the same three: with e = mu k / (3 s^4) its
    drift is (1 - e) mu, its variance (1 - e)^3 s^2, and it begins ``b k / (3 s^4 (1 - e))`` before the run, after its start for a negative
    k. e is :data:`STEADIEST` at most. Without variance the probability is 1 if mu reaches b, else 0; it is 0 for an infinite b.
    """
    if not isfinite(barrier) or variance <= 0.0:
        return float(drift >= barrier)
    e_over_drift = third / (3.0 * variance**2)
    if e_over_drift * drift > STEADIEST:
        e_over_drift = STEADIEST / drift
    one_less_e = 1.0 - e_over_drift * drift
    time = 1.0 + barrier * e_over_drift / one_less_e
    if time <= 0.0:  # it begins after the end of the run
        return 0.0
    return _brownian_passage(time * one_less_e * drift, time * one_less_e**3 * variance, barrier)


def _brownian_passage(drift: float, variance: float, barrier: float) -> float:
    """Return the probability of a Brownian motion to reach ``barrier``.

    It has the total ``drift`` mu and ``variance`` s^2 at its end. The probability is ``P(end >= b) + exp(2 mu b / s^2) Phi((-mu - b)/s)``.
    """
    s = sqrt(variance)
    mirrored = 2.0 * drift * barrier / variance + float(log_ndtr((-drift - barrier) / s))
    return min(1.0, float(ndtr((drift - barrier) / s)) + exp(min(mirrored, 0.0)))
