"""Jumps: a null hypothesis for servers whose distribution is another one at a small fraction of positions.

Experts of a mixture flip, and a logit moves by a nat or more. The distribution of an emitted token is then ``(1 - r) p + r J``, J being any
distribution over top tokens and remainder, and r the rate of jumps at most. Of all these the least favourable one for a bet on m is
``p* = max((1 - r) p, m / c)``, with c such that it adds up to one, and ``m / p* = min(m / ((1 - r) p), c)`` has a mean of one at most under
each of them (Huber 1965; Huber and Strassen 1973). A mild bet loses next to nothing, and no token pays more than ``1 / r``.

Within the remainder a jump is assumed to have no direction: there J is in proportion to p.
"""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["JUMP_RATE", "largest_payoff", "least_favourable", "log_largest"]

JUMP_RATE = 1e-4
"""Rate of jumps allowed for if none is measured: one position in 10,000."""
SHARE_AT_MOST = 0.01
"""Largest mean payoff of jumps to one token, by which a token's payoff is capped."""
LEAST = 10.0
"""The cap of a token's payoff is never below this, however frequent jumps are."""
TINY = 1e-300


def log_largest(rate: float) -> float:
    """Return the log of the largest payoff of one token, a cap on bets.

    ``rate`` is the largest share of positions that jump; without jumps the result is inf. Within the remainder bets assume jumps in
    proportion to p. Even if all go to one token there, they bring ``rate`` times the cap at most to the mean payoff: the cap makes that
    SHARE_AT_MOST, but is LEAST if that is more.
    """
    return log(max(SHARE_AT_MOST / rate, LEAST)) if rate > 0.0 else inf


def largest_payoff(m: Floats, p: Floats, rate: Floats) -> Floats:
    """Return the largest payoff c of a bet allowing for jumps.

    It is [N], with ``sum max((1 - r) p, m / c) = 1`` at each of N tokens. The distributions that are bet on, ``m``, whose sums may be below
    1, and the baseline's, ``p``, are [N, K+1]; ``rate`` [N], above 0, is r. With A, the outcomes at which ``m / c`` is the larger term, the
    sum is ``m(A) / c + (1 - r) (1 - p(A))``, so that ``c = m(A) / (r + (1 - r) p(A))``, the value of A. For another set this sum would not
    be the larger terms and thus at most 1, so that no set has a larger value. c is found by Dinkelbach's iteration (1967): the next set has
    the outcomes with ``m / ((1 - r) p)`` above the last set's value, until no value grows.
    """
    without_jump = (1.0 - rate)[:, None] * p
    # The value of the first set, which has all outcomes.
    most = _row_sums(m) / np.maximum(rate + _row_sums(without_jump), TINY)
    # Tokens whose value may still grow: m, without_jump and rate are cut down to their rows.
    growing = np.arange(len(m))
    for _ in range(m.shape[1]):
        in_set = m > most[growing, None] * without_jump
        value = np.einsum("ij,ij->i", m, in_set) / (rate + np.einsum("ij,ij->i", without_jump, in_set))
        grows = value > most[growing] * (1.0 + 1e-12)
        if not grows.any():
            break
        growing, m, without_jump, rate = growing[grows], m[grows], without_jump[grows], rate[grows]
        most[growing] = value[grows]
    return np.asarray(most)


def _row_sums(values: Floats) -> Floats:
    """Return row sums, computed faster for short rows than by numpy."""
    return np.asarray(np.einsum("ij->i", values))


def least_favourable(m: Floats, p: Floats, rate: Floats) -> Floats:
    """Return the log factors making payoffs fair in spite of jumps.

    They are [N, K+1], from ``m / p`` to ``m / p*``. p* is the distribution with jumps under which a bet on ``m`` is paid best (module
    docstring): payoffs times these factors have a mean of one at most wherever the jumps go. ``rate`` [N] is the rate r of jumps, above 0.
    """
    # The factor is min(1 / (1 - r), c p / m), c being the largest payoff.
    most = largest_payoff(m, p, rate)[:, None] * p
    capped = np.log(np.maximum(most, TINY)) - np.log(np.maximum(m, TINY))
    return np.where(m > 0.0, np.minimum(-np.log1p(-rate)[:, None], capped), 0.0)
