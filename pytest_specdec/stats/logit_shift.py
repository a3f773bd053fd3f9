"""Logit shift: how far the distributions of two servers lie apart, after the same prefixes.

The shift of one prompt is the square of the logit noise that would explain its differences (stats/logprob_noise.py), by the median of its
positions, which a few jumps do not move, and by their upper tenth, which differs from it where noise is on a grid or has a heavy tail: of
a shift the smaller of the two counts, of a noise and of every upper limit the larger. Over prompts the median is taken again, with limits
from order statistics: the number of prompts below their median is binomial at 1/2, whatever their distribution (Conover 1999, section 3.2).
Positions of one prompt may depend on each other, prompts do not.
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

__all__ = ["ERROR", "Beyond", "LogitShift", "count_beyond", "measure"]

ERROR = 1e-3 / 3.0
"""Probability that the median lies beyond one limit. A comparison uses three: the lower one of the shift, the upper ones of two noises."""


_TENTH, _TENTH_SQUARE = 0.9, 2.7055435
"""The quantile that leaves an upper tenth, and that of a squared standard normal variable."""
_LEAST_POSITIONS = 10
"""Positions that a prompt needs for its upper tenth to count."""
_OF_FEW = 3.0
"""Times a size that the shift of a prompt with fewer positions has to exceed: one normal position is beyond twice its sd in 1 of 20."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """The prompts whose own shift is larger than a size."""

    prompts: int
    compared: int
    """All prompts with usable positions."""


def measure(by_prompt: Iterable[Sequence[tuple[float, Position]]], *, largest: bool = False) -> LogitShift | None:
    """Return the logit shift between two servers, with its limits.

    ``by_prompt`` has, for each prompt, pairs of one server's log-probability of a token and the other server's position with that token. A
    prompt has two estimates, by the median and by the upper tenth of its positions. The smaller one counts, so that a shift is no artefact
    of the noise's shape. With ``largest`` the larger one counts, for a noise that is tolerated; in the upper limit it always does. A
    position is usable if its token is not all but certain. None for fewer than 12 prompts with usable positions: the smallest of 11 values
    lies above the median with a probability of more than :data:`ERROR`.
    """
    squared = [values for pairs in by_prompt if (values := _squared_differences(pairs))]
    variances = np.sort([_prompt_variance(values, largest=largest) for values in squared])
    larger_variances = np.sort([_prompt_variance(values, largest=True) for values in squared])
    rank = _lowest_rank(len(squared))
    if not rank:
        return None
    return LogitShift(
        nats=math.sqrt(float(np.median(variances))),
        low=math.sqrt(variances[rank - 1]),
        high=math.sqrt(larger_variances[len(squared) - rank]),
        prompts=len(squared),
        positions=sum(map(len, squared)),
    )


def count_beyond(by_prompt: Iterable[Sequence[tuple[float, Position]]], nats: float, *, largest: bool = False) -> Beyond:
    """Return a count of prompts with a shift above ``nats``.

    ``by_prompt`` has, for each prompt, pairs of one server's log-probability of a token and the other server's position with that token.
    With ``largest`` the larger of a prompt's two estimates of its shift counts, else the smaller (:func:`measure`). The shift of a prompt
    with fewer than 10 usable positions must be three times as large, since few positions vary more by chance. A prompt without usable
    positions is not among those compared.
    """
    squared = [values for pairs in by_prompt if (values := _squared_differences(pairs))]
    limits = (nats * (1.0 if len(values) >= _LEAST_POSITIONS else _OF_FEW) for values in squared)
    beyond = sum(_prompt_variance(values, largest=largest) > limit**2 for values, limit in zip(squared, limits, strict=True))
    return Beyond(prompts=beyond, compared=len(squared))


def _squared_differences(pairs: Sequence[tuple[float, Position]]) -> list[float]:
    """Return an estimate of a logit's squared difference at each usable position."""
    return squares((logprob - position.logprob, position) for logprob, position in pairs)


def _prompt_variance(values: Sequence[float], *, largest: bool) -> float:
    """Return the variance of a logit's difference in one prompt.

    ``values`` estimate it, one for each position (:func:`logprob_noise.squares`). From ten values on there are two estimates, by their
    median and by their upper tenth: the larger one is returned if ``largest``, else the smaller one. For fewer values it is that by the
    median.
    """
    by_median, by_tenth = np.quantile(values, (0.5, _TENTH)) / (MEDIAN_SQUARE, _TENTH_SQUARE)
    if len(values) < _LEAST_POSITIONS:
        return float(by_median)
    return float(max(by_median, by_tenth) if largest else min(by_median, by_tenth))


def _lowest_rank(n: int) -> int:
    """Return the rank of the median's lower limit among ``n`` values.

    It is the highest k, counted from 1, for which the true median is below the k-th smallest value with probability :data:`ERROR` at most;
    0 if there is none. That happens if fewer than k values are below the median: P(B < k) for B binomial with n and 1/2.
    """
    rank, below = 0, 0.0
    while rank < n // 2:
        below += math.comb(n, rank) * 0.5**n
        if below > ERROR:
            break
        rank += 1
    return rank
