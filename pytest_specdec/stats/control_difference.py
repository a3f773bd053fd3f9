"""Control difference: what a bettor earns on the judged arm beyond what it earns on the control.

An arm is one server. A bettor bets on a fault, token by token; a payoff is the factor by which a token multiplies its wealth, 1 without a
bet. A systematic error of the scores pays a bettor on either arm. It cancels in the difference, at twice the variance.
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

MOST_PAYOFF = 10.0
"""Largest payoff counted in a mean, so that one token cannot decide it."""

LEAST_SCORE, LEAST_SCORE_IN_DOUBT = 2.5, 4.0
"""Standard errors by which a winning bet must pay better than on the control. A bet that raises an alarm has about five by itself."""
DOUBT = log(10.0)
"""Log wealth of the control against its own scores that a healthy one reaches in a tenth of runs at most (Ville)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Earnings:
    """The payoffs of one bettor on one arm."""

    log_payoffs: Floats
    """[N]; 0 at tokens without a bet."""
    last: Bools
    """[N], the last token of each answer."""

    @property
    def by_answer(self) -> Floats:
        """The sum of ``e - 1`` over each answer's tokens, [answers].

        e is the payoff, counted as MOST_PAYOFF at most, so that one token cannot decide a mean. Without an error of the scores its mean is
        0 at most at every token, whichever are bet on.
        """
        return self._sums(np.minimum(np.exp(self.log_payoffs), MOST_PAYOFF) - 1.0)

    @property
    def bets(self) -> Floats:
        """[answers], the number of bets."""
        return self._sums((self.log_payoffs != 0.0).astype(np.float64))

    def _sums(self, values: Floats) -> Floats:
        """Return the sums of ``values`` [N] over the tokens of each answer."""
        starts = np.concatenate([[0], np.flatnonzero(self.last)[:-1] + 1])
        return np.asarray(np.add.reduceat(values, starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDifference:
    """Mean earnings per bet, as a share of the stake."""

    arm: float
    control: float
    error: float
    """Standard error of arm - control."""
    answers: int
    """Of both arms."""

    @property
    def score(self) -> float:
        """The difference in standard errors."""
        return (self.arm - self.control) / self.error if self.error > 0.0 else 0.0

    @property
    def p_value(self) -> float:
        """The one-sided p-value of no difference, by Student's t over answers."""
        return float(stdtr(max(self.answers - 2, 1), -self.score))


def difference(arm: Earnings, control: Earnings) -> ControlDifference:
    """Return the difference of earnings per bet between two arms.

    ``arm`` and ``control`` are the earnings of the same bettor on either: an error of the scores pays it on both and cancels. The standard
    error comes from the spread between answers. Tokens of one answer depend on each other, answers do not (a ratio estimator, Cochran 1977,
    *Sampling Techniques*, section 6.3).
    """
    rates = [float(earnings.by_answer.sum() / max(earnings.bets.sum(), 1.0)) for earnings in (arm, control)]
    errors = [_squared_error(earnings, rate) for earnings, rate in zip((arm, control), rates, strict=True)]
    return ControlDifference(arm=rates[0], control=rates[1], error=sqrt(sum(errors)), answers=len(arm.bets) + len(control.bets))


def _squared_error(earned: Earnings, rate: float) -> float:
    """Return the squared standard error of an arm's earnings per bet.

    ``rate`` is the earnings per bet of all answers together: the error is by how far single answers lie from it. It is infinite for a
    single answer.
    """
    count = len(earned.bets)
    if count < 2:  # noqa: PLR2004 - a spread needs two
        return float("inf")
    residuals = earned.by_answer - rate * earned.bets
    return float((residuals**2).sum()) * count / (count - 1) / max(float(earned.bets.sum()), 1.0) ** 2


def counterpart(bettor: Bettor, others: tuple[Bettor, ...]) -> Bettor | None:
    """Return the bettor on the same fault among ``others``.

    They are another arm's bettors, which may lack some of this arm's. It is the one of the same name, or else the first of those that
    ``bettor`` is a variation of, the nearest first; None without either.
    """
    by_name = {other.name: other for other in others}
    return next((by_name[name] for name in (bettor.name, *bettor.variation_of) if name in by_name), None)


def least_score(control_peak: float) -> float:
    """Return the least score of a significant difference from the control.

    A score is a difference in standard errors. More is needed if ``control_peak``, the control's highest log wealth against its own scores,
    reaches DOUBT: a healthy control seldom gets there, so that the scores are doubtful.
    """
    return LEAST_SCORE_IN_DOUBT if control_peak >= DOUBT else LEAST_SCORE
