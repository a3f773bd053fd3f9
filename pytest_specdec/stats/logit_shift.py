"""Logit shift: how far the distributions of two servers lie apart, after the same prefixes.

The shift of one prompt is the square of the logit noise that would explain its differences (stats/logprob_noise.py), by the median of its
positions, which a few jumps do not move. Over prompts the median is taken again, with limits from order statistics: the number of prompts
below their median is binomial at 1/2, whatever their distribution (Conover 1999, section 3.2). Positions of one prompt may depend on each
other, prompts do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.logprob_noise import MEDIAN_SQUARE, squares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.model.transcript import Position

__all__ = ["ERROR", "LogitShift", "measure"]

ERROR = 1e-3 / 3.0
"""Probability that the median lies beyond one limit. A comparison uses three: the lower one of the shift, the upper ones of two noises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitShift:
    """A standard deviation of the difference of logits, nats, with its limits."""

    nats: float
    low: float
    """The true one lies below it with probability :data:`ERROR` at most."""
    high: float
    prompts: int
    """Number of prompts, or of answers, that it is the median of."""
    positions: int


def measure(by_prompt: Iterable[Sequence[tuple[float, Position]]]) -> LogitShift | None:
    """Return the shift between two distributions; None for too few prompts to limit it.

    For each prompt there are pairs of one server's log-probability of a token and the other server's position with that token. Limits at
    :data:`ERROR` need 12 prompts.
    """
    deltas = ([(logprob - position.logprob, position) for logprob, position in pairs] for pairs in by_prompt)
    squared = [values for pairs in deltas if (values := squares(pairs))]
    medians = np.sort([float(np.median(values)) for values in squared]) / MEDIAN_SQUARE
    rank = _lowest_rank(len(medians))
    if not rank:
        return None
    low, middle, high = math.sqrt(medians[rank - 1]), math.sqrt(float(np.median(medians))), math.sqrt(medians[len(medians) - rank])
    return LogitShift(nats=middle, low=low, high=high, prompts=len(medians), positions=sum(map(len, squared)))


def _lowest_rank(n: int) -> int:
    """Return the highest rank, from 1, below which the median of ``n`` values lies with probability :data:`ERROR` at most; 0 without one.

    The k-th smallest value is above the median if fewer than k values are below it: P(B < k) for B binomial with n and 1/2.
    """
    rank, below = 0, 0.0
    while rank < n // 2:
        below += math.comb(n, rank) * 0.5**n
        if below > ERROR:
            break
        rank += 1
    return rank
