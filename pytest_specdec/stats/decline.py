"""Decline: whether values in their order of time fall, exactly and whatever their distribution.

Two tests share the false-alarm probability evenly (Bonferroni). The first counts the pairs of which the later value is smaller: under
exchangeability the number is that of inversions of a random permutation, whose distribution is exact (Mann 1945, "Nonparametric tests
against trend"; Kendall 1938). Ties count as no fall, which can only raise the p-value. The second looks for an end of which every value
lies below all earlier ones: that has probability 1 / C(n, k) for the last k, and the union bound takes every k.

Assumption: without a fault the rounds are exchangeable, as rounds of the same requests on a server that keeps its state are. Rounds that
settle at first, or that follow a load which drifts, are not: p is then too small. A caller leaves the first rounds out and asks for a fall
that such drift does not bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import comb, factorial
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Decline", "decline", "inversion_p_value", "theil_sen_slope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decline:
    """How far values fall from their beginning to their end, with the chance of that."""

    first: float
    """Median before the fall: of the first third, or of all values before an end that lies below."""
    last: float
    """Median after it: of the last third, or of that end."""
    end: int
    """Values at the end that all lie below every earlier one, where that is the surer sign; 0 for a trend."""
    p_value: float

    @property
    def fraction_left(self) -> float:
        """The last median over the first; 1 where the first is not above 0."""
        return self.last / self.first if self.first > 0 else 1.0


def decline(values: Sequence[float]) -> Decline:
    """Return the fall of ``values``, at least two, by the surer of two tests.

    One is of the trend, by the number of inversions: pairs of which the later value is smaller. The other is of an end, the last k values,
    if all of them lie below all earlier values; of several such ends the surest counts. If the end is surer than the trend, the fall is
    from all earlier values to it; else it is from the first third to the last.
    """
    n = len(values)
    p_trend = inversion_p_value(n, sum(later < earlier for at, earlier in enumerate(values) for later in values[at + 1 :]))
    # The p-value of each end of k values that lies below, by the union bound over all n - 1 ends.
    ends = {k: (n - 1) / comb(n, k) for k in range(1, n) if max(values[-k:]) < min(values[:-k])}
    end = min(ends, key=ends.__getitem__, default=0)
    is_step = bool(end) and ends[end] < p_trend
    third = max(1, n // 3)
    before, after = (values[:-end], values[-end:]) if is_step else (values[:third], values[-third:])
    p_value = min(1.0, 2.0 * min(p_trend, ends.get(end, 1.0)))  # two tests, Bonferroni
    return Decline(first=median(before), last=median(after), end=end if is_step else 0, p_value=p_value)


def inversion_p_value(n: int, inversions: int) -> float:
    """Return the probability of so many inversions or more in a random permutation of ``n``.

    The counts of permutations by inversions are the Mahonian numbers.
    """
    return sum(_count_by_inversions(n)[max(0, inversions) :]) / factorial(n)


@cache
def _count_by_inversions(n: int) -> tuple[int, ...]:
    """Return the number of permutations of ``n`` with 0, 1, 2 and more inversions.

    Elements are added one at a time: one more to a permutation of ``size - 1`` adds 0 to ``size - 1`` inversions, by its place.
    """
    counts = [1]
    for size in range(2, n + 1):
        # A new count is the sum of ``size`` neighbouring old ones, here as a difference of sums from the start.
        sums = [0, *accumulate([*counts, *[0] * (size - 1)])]
        counts = [sums[at + 1] - sums[max(0, at + 1 - size)] for at in range(len(sums) - 1)]
    return tuple(counts)


def theil_sen_slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs (Sen 1968).

    ``at`` is in rising order; pairs at the same place have no slope and are left out. It is 0 without a pair.
    """
    points = list(zip(at, values, strict=True))
    slopes = [
        (y - earlier_y) / (x - earlier_x) for n, (earlier_x, earlier_y) in enumerate(points) for x, y in points[n + 1 :] if x > earlier_x
    ]
    return median(slopes) if slopes else 0.0
