"""Proportions: exact tests and limits for binomial rates, without normal approximations."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, gammaln

__all__ = ["Interval", "greater_than_other", "greater_than_rate", "greater_than_times", "limits", "ruled_out"]

_RATES = 500
"""Number of rates among which the least favourable one is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Closed limits at a confidence in 0..1, for both sides together."""

    low: float
    high: float
    confidence: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def greater_than_other(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """Return the p-value of one rate against another sample's.

    The hypothesis is that the first rate is no greater than the other. This is Fisher's exact test, one-sided: given all hits, the number
    of the first sample's is hypergeometric. Trials are assumed to be independent. It is 1.0, no evidence, without trials on either side.
    Raises ValueError for more hits than trials.
    """
    _check(hits, trials)
    _check(other_hits, other_trials)
    if not trials or not other_trials:
        return 1.0
    total = hits + other_hits
    ways = sum(comb(trials, k) * comb(other_trials, total - k) for k in range(hits, min(total, trials) + 1))
    return ways / comb(trials + other_trials, total)


def greater_than_rate(hits: int, trials: int, rate: float) -> float:
    """Return the probability of at least ``hits`` hits in ``trials``.

    Each trial hits with probability ``rate``. If probabilities differ between trials and ``rate`` is their mean, this is an upper bound of
    the tail from one hit above the mean on (Hoeffding 1956, theorem 4). Raises ValueError for more hits than trials or a rate outside 0..1.
    """
    _check(hits, trials)
    if not 0.0 <= rate <= 1.0:
        msg = f"a rate lies in 0..1, not {rate}"
        raise ValueError(msg)
    return float(betainc(hits, trials - hits + 1, rate)) if hits else 1.0


def greater_than_times(hits: int, trials: int, other_hits: int, other_trials: int, times: float) -> float:
    """Return the p-value of one rate against ``times`` another sample's.

    The hypothesis is ``p <= 1 - (1 - p_other)^times``: the first rate is no greater than the probability of at least one hit in
    ``times`` trials of the other sample, about ``times * p_other`` for small rates. ``times`` need not be whole. This is Barnard's
    exact test (1945) of it: the probability of outcomes as extreme as these, ordered by the p-value of Fisher's test, at the least
    favourable of 500 rates. Trials are assumed to be independent. It is 1.0 without hits, or without trials on either side. Raises
    ValueError for more hits than trials.
    """
    _check(hits, trials)
    _check(other_hits, other_trials)
    if not trials or not other_trials or not hits:
        return 1.0
    order = _fisher(trials, other_trials)
    extreme = order <= order[hits, other_hits] * (1.0 + 1e-9)
    # Probabilities of no hit in one trial of the other sample.
    spared = (np.arange(_RATES) + 0.5) / _RATES
    # For a large factor the rate would round to 1, of which _binomial has no logarithm.
    chances, other_chances = _binomial(trials, np.minimum(1.0 - spared**times, 1.0 - 1e-15)), _binomial(other_trials, 1.0 - spared)
    return min(1.0, float(np.einsum("rx,xy,ry->r", chances, extreme.astype(np.float64), other_chances).max()))


def _fisher(trials: int, other_trials: int) -> npt.NDArray[np.float64]:
    """Return Fisher's exact one-sided p-values of all possible outcomes.

    They are [trials + 1, other_trials + 1], by the hits of the first sample and of the other one.
    """
    x, y = np.arange(trials + 1)[:, None], np.arange(other_trials + 1)[None, :]
    chances = np.exp(_log_comb(trials, x) + _log_comb(other_trials, y) - _log_comb(trials + other_trials, x + y))
    # The outcome with one hit more in the first sample and one less in the other has the same total, and is more extreme.
    for row in range(trials - 1, -1, -1):
        chances[row, 1:] += chances[row + 1, :-1]
    return np.asarray(chances)


def _binomial(trials: int, rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the probabilities of 0 to ``trials`` hits, [R, trials + 1].

    Each of the R rates lies strictly between 0 and 1.
    """
    x = np.arange(trials + 1)[None, :]
    return np.asarray(np.exp(_log_comb(trials, x) + x * np.log(rates)[:, None] + (trials - x) * np.log1p(-rates)[:, None]))


def _log_comb(n: int, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def limits(hits: int, trials: int, confidence: float = 0.95) -> Interval:
    """Return the exact limits of a binomial rate at ``confidence``.

    They are Clopper and Pearson's (1934), with half the error on either side; 0..1 without trials. Raises ValueError for more hits than
    trials.
    """
    _check(hits, trials)
    tail = (1.0 - confidence) / 2.0
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1.0 - tail)) if hits < trials else 1.0
    return Interval(low=low, high=high, confidence=confidence)


def ruled_out(trials: int, confidence: float = 0.99) -> float:
    """Return the rate excluded by ``trials`` without a hit.

    At a higher rate no hit would have been less likely than ``1 - confidence``. It is 1 - (1 - confidence)^(1 / trials), the exact form of
    the rule of three, and 1.0 without trials.
    """
    return 1.0 - (1.0 - confidence) ** (1.0 / trials) if trials else 1.0


def _check(hits: int, trials: int) -> None:
    """Raise ValueError for more hits than trials, or fewer than none."""
    if not 0 <= hits <= trials:
        msg = f"{hits} hits in {trials} trials"
        raise ValueError(msg)
