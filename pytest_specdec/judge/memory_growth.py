"""Memory growth: whether a server's resident memory grows with its requests to the end of a soak, and not by a step or to a level.

A soak is minutes of the same traffic, in rounds. Caches fill in its first third. The rounds after it are warm, and only they are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.stats.decline import inversion_p_value, theil_sen_slope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.soak import SoakRound

__all__ = ["MemoryGrowth", "memory_growth"]

_LEAST_ROUNDS = 12
"""Warm rounds needed: of fewer a quarter has no slope."""
_LEAST_MIB = 32.0
"""Growth over the warm rounds that counts: allocators and caches take less when they are warm."""
_STEADY = 0.75
"""Fraction of the slope of the first half of the warm rounds that the second needs."""
_LASTING = 0.5
"""Fraction of the slope of all warm rounds that their last quarter needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """Growth of resident memory over the warm rounds of a soak.

    All slopes are Theil's and Sen's, in MiB per 1,000 requests: one step leaves them at 0.
    """

    mib: float
    """Growth over all warm rounds, by their slope."""
    slope: float
    """The slope of all warm rounds."""
    first_half_slope: float
    """The slope of their first half, the second third of the soak."""
    second_half_slope: float
    """The slope of their second half, the last third of the soak."""
    last_quarter_slope: float
    """The slope of their last quarter."""
    p_value: float
    """Chance of so many pairs of warm rounds of which the later has more memory (stats/decline.py)."""

    @property
    def goes_on(self) -> bool:
        """True if growth is large enough and has not levelled off.

        Of the warm rounds, the second half must be at least three quarters as steep as the first, and the last quarter half as steep as
        all.
        """
        goes_on_late = self.second_half_slope >= _STEADY * self.first_half_slope
        return self.mib >= _LEAST_MIB and goes_on_late and self.last_quarter_slope >= _LASTING * self.slope


def memory_growth(rounds: Sequence[SoakRound]) -> MemoryGrowth | None:
    """Return the growth of resident memory over the warm rounds of a soak.

    The warm rounds are the last two thirds of those with a known size. None for fewer than twelve, or if a request failed in any round.
    """
    # Each point is the number of requests so far and the MiB then.
    totals = accumulate(one.requests for one in rounds)
    points = [(float(total), one.resident_mib) for one, total in zip(rounds, totals, strict=True) if one.resident_mib is not None]
    warm = points[len(points) // 3 :]
    if len(warm) < _LEAST_ROUNDS or any(one.failed for one in rounds):
        return None
    half, quarter, slope = len(warm) // 2, len(warm) // 4, _slope(warm)  # the late parts show whether growth levels off (goes_on)
    # By chance as many pairs rise as fall, so that the test of inversions, pairs that fall, serves for those that rise.
    rising_pairs = sum(size > earlier for at, (_, earlier) in enumerate(warm) for _, size in warm[at + 1 :])
    return MemoryGrowth(
        mib=slope * (warm[-1][0] - warm[0][0]) / 1000.0,  # a slope is in MiB per 1,000 requests
        slope=slope,
        first_half_slope=_slope(warm[:half]),
        second_half_slope=_slope(warm[half:]),
        last_quarter_slope=_slope(warm[-quarter:]),
        p_value=inversion_p_value(len(warm), rising_pairs),
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope in MiB per 1,000 requests; points are the requests so far and MiB."""
    return 1000.0 * theil_sen_slope([total for total, _ in points], [size for _, size in points])
