"""Control difference: what a bet earned on the arm under judgement less what it earned on the control, where their errors cancel.

Independent noise in the scores has no direction and does not break a bet; a systematic error (a tilt of 2 %, a cache of lower precision in
decoding than in scoring) pays some bettor whoever is judged. The difference costs twice the variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

if TYPE_CHECKING:
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.token_distribution import Bools, Floats

__all__ = ["DOUBT", "ControlDifference", "Earnings", "counterpart", "difference", "least_score"]

MOST = 10.0
"""Largest payoff counted: one wild token is no tendency."""

LEAST_SCORE, LEAST_SCORE_IN_DOUBT = 2.5, 4.0
"""Standard errors by which a winning bet must pay better than on the control. An alarm stands at five or so on its own."""
DOUBT = log(10.0)
"""Evidence of the control against its own scores, log wealth, that a healthy one shows in a tenth of runs at most (Ville)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Earnings:
    """What one bettor's bets paid on one arm."""

    log_payoffs: Floats
    """[N]; 0 where it did not bet."""
    last: Bools
    """[N], the last token of each answer."""

    @property
    def by_answer(self) -> Floats:
        """[answers], the sum of ``e - 1``: without an error of the scores its mean is 0 at every token, whichever tokens are bet on."""
        return self._sums(np.minimum(np.exp(self.log_payoffs), MOST) - 1.0)

    @property
    def bets(self) -> Floats:
        """[answers], how many."""
        return self._sums((self.log_payoffs != 0.0).astype(np.float64))

    def _sums(self, values: Floats) -> Floats:
        starts = np.concatenate([[0], np.flatnonzero(self.last)[:-1] + 1])
        return np.asarray(np.add.reduceat(values, starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDifference:
    """Mean earnings per bet, as a share of the stake."""

    mine: float
    theirs: float
    error: float
    """Standard error of mine - theirs."""
    answers: int
    """Of both arms."""

    @property
    def score(self) -> float:
        """The difference in standard errors."""
        return (self.mine - self.theirs) / self.error if self.error > 0.0 else 0.0

    @property
    def p_value(self) -> float:
        """Of no difference, one-sided: Student's t over answers."""
        return float(stdtr(max(self.answers - 2, 1), -self.score))


def difference(mine: Earnings, theirs: Earnings) -> ControlDifference:
    """Return the difference of earnings per bet, its error from the spread between answers.

    Tokens of one answer hang together, answers do not (a ratio estimator, Cochran 1977, *Sampling Techniques*, section 6.3).
    """
    rates = [float(each.by_answer.sum() / max(each.bets.sum(), 1.0)) for each in (mine, theirs)]
    errors = [_error(each, rate) for each, rate in zip((mine, theirs), rates, strict=True)]
    return ControlDifference(mine=rates[0], theirs=rates[1], error=sqrt(sum(errors)), answers=len(mine.bets) + len(theirs.bets))


def _error(earned: Earnings, rate: float) -> float:
    """Return the squared standard error of an arm's rate; infinite of a single answer."""
    count = len(earned.bets)
    if count < 2:  # noqa: PLR2004 - a spread needs two
        return float("inf")
    apart = earned.by_answer - rate * earned.bets
    return float((apart**2).sum()) * count / (count - 1) / max(float(earned.bets.sum()), 1.0) ** 2


def counterpart(bettor: Bettor, others: tuple[Bettor, ...]) -> Bettor | None:
    """Return who bets on the control what ``bettor`` bets: the same, or the one of whom it is a copy for some places in a window."""
    same = [other for other in others if bettor.name.startswith(other.name)]
    return max(same, key=lambda other: len(other.name)) if same else None


def least_score(control_peak: float) -> float:
    """Return the standard errors that an alarm needs against a control whose highest log wealth is ``control_peak``."""
    return LEAST_SCORE_IN_DOUBT if control_peak >= DOUBT else LEAST_SCORE
