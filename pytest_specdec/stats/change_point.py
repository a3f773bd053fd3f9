"""Change points: where the level of a series moved, by a permutation test whose false-alarm rate is the caller's.

Null hypothesis: the values are exchangeable, as those of independent runs of one server are. Each value becomes a score: its distance from
the median in robust standard deviations, cut off at CLIP, so that one bad night counts for little (Huber 1981; Fearnhead and Rigaill,
Journal of the American Statistical Association 114, 2019). For a stretch of scores from s to e that is split at b, with sums S, the
contrast is

    |(e - b) (S_b - S_s) - (b - s) (S_e - S_b)| / sqrt((b - s) (e - b) (e - s)),

the difference of the two means in units of their standard error. The statistic is the largest contrast over the seeded stretches of
Kovács, Bühlmann, Li and Munk (Biometrika 110, 2023): halves, quarters and so on, each overlapping the next by half, so that a loss that was
mended later shows as well. Its distribution under the null is that over permutations of the same scores (Antoch and Hušková, Statistics and
Probability Letters 53, 2001), so that neither the shape nor the spread of the values is assumed. A series that is not exchangeable, such as
one that drifts or follows the load of a shared machine, is marked more often.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LEAST", "ChangePoint", "find_change_points"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.intp]

LEAST = 10
"""Values below which nothing is tested: the two ways in which the lower half of ten comes first or last have 2 of 252 chances."""
CLIP = 3.0
"""Robust standard deviations that a score reaches at most."""
SHORTEST = 2
"""Values on each side of a split: one value is an outlier."""
_MAD_TO_SD = 1.4826
_EXCEEDING = 5
"""Permutations with a statistic as large that end a test: each test draws this many over its level, less one."""
_BATCH = 32
_SEED = 20240229
_INSIDE = 0.95
"""Confidence of the range that a change point lies in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A place where the level moved."""

    index: int
    """Of the first value after it."""
    earliest: int
    """The lower end of a 95 % confidence set for ``index``."""
    latest: int
    """The upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Splits:
    """Every split of every seeded stretch, as three index arrays of equal length."""

    start: Ints
    split: Ints
    end: Ints

    def contrasts(self, scores: Floats) -> Floats:
        """Return the contrast of ``scores`` at every split.

        ``scores`` are [..., n], one series or several; contrasts are [..., splits]. A contrast is the difference of the means on both sides
        of the split, in units of its standard error for scores of unit variance (module docstring).
        """
        sums = np.concatenate([np.zeros((*scores.shape[:-1], 1)), scores.cumsum(axis=-1)], axis=-1)
        left, right = self.split - self.start, self.end - self.split
        at_split = sums[..., self.split]
        difference = right * (at_split - sums[..., self.start]) - left * (sums[..., self.end] - at_split)
        return np.asarray(np.abs(difference) / np.sqrt(left * right * (left + right)))


def find_change_points(values: Sequence[float], alpha: float) -> tuple[ChangePoint, ...]:
    """Return the places of a series with another level, in order.

    ``values`` are in the order of time. If they are exchangeable any place is returned with probability ``alpha`` at most. A series with a
    change point is split there, and each part is tested at a level of ``alpha`` / (number of values) for each of its values: the levels of
    all parts add up to ``alpha``. After a split the rate of false alarms is measured (benchmarks/trend.py) and not proven, since the data
    chose its place. In the end each place is estimated anew between its neighbours.
    """
    series = np.asarray(values, dtype=np.float64)
    level_per_value = alpha / max(len(series), 1)
    places = sorted(_find_changes(series, 0, len(series), level_per_value))
    points: list[ChangePoint] = []
    for number in range(len(places)):
        # From the new estimate of the place before, or the start, to the first estimate of the place after, or the end.
        start = points[-1].index if points else 0
        end = places[number + 1] if number + 1 < len(places) else len(series)
        points.append(_locate(series[start:end], start))
    return tuple(points)


def _find_changes(series: Floats, start: int, end: int, level_per_value: float) -> list[int]:
    """Return the indices of changes from ``start`` up to ``end``.

    They are indices of ``series``, not in order. The part is tested at ``level_per_value`` times its length, a probability of a false
    alarm, and so are the two parts of a split in turn. A part of fewer than LEAST values has none.
    """
    if end - start < LEAST:
        return []
    place = _find_significant_split(series[start:end], level_per_value * (end - start))
    if place is None:
        return []
    parts = ((start, start + place), (start + place, end))
    return [start + place, *(index for part in parts for index in _find_changes(series, *part, level_per_value))]


def _find_significant_split(values: Floats, level: float) -> int | None:
    """Return the split with the largest contrast, if significant at ``level``.

    It is the index of the first value after the change; None without a significant one. A contrast is the difference of the means on both
    sides in units of its standard error. It is significant if fewer than five of ``5 / level - 1`` random permutations have one as large;
    drawing stops at the fifth (Besag and Clifford, Biometrika 78, 1991).
    """
    scores = _scores(values)
    if not scores.any():
        return None
    splits = _seeded_splits(len(scores))
    contrasts = splits.contrasts(scores)
    # Equal arrangements of tied scores must count as equal in spite of rounding.
    largest, reaching = float(contrasts.max()) * (1.0 - 1e-9), 0
    rng, remaining = np.random.default_rng(_SEED), ceil(_EXCEEDING / level) - 1
    while remaining > 0:
        batch = rng.permuted(np.broadcast_to(scores, (min(_BATCH, remaining), len(scores))), axis=1)
        reaching += int((splits.contrasts(batch).max(axis=1) >= largest).sum())
        if reaching >= _EXCEEDING:
            return None
        remaining -= len(batch)
    return int(splits.split[contrasts.argmax()])


def _scores(values: Floats) -> Floats:
    """Return the distances from the median, in robust standard deviations.

    They are cut off at CLIP on either side. If more than half of the values are equal there is no scale, and the signs of the distances
    stand in.
    """
    distances = values - np.median(values)
    scale = _MAD_TO_SD * float(np.median(np.abs(distances)))
    return np.asarray(np.clip(distances / scale, -CLIP, CLIP) if scale else np.sign(distances))


@cache
def _seeded_splits(count: int) -> _Splits:
    """Return all splits of the seeded stretches of a series.

    The series has ``count`` values. A stretch is a part of it that is searched for one change. After k halvings there are 2^(k + 1) - 1
    stretches of count / 2^k values, evenly shifted. Each is split at every place with SHORTEST values or more on either side.
    """
    stretches, halvings = {(0, count)}, 1
    while count / 2**halvings >= 2 * SHORTEST:
        length, shifts = count / 2**halvings, 2 * 2**halvings - 2
        shift = (count - length) / shifts
        stretches |= {(int(i * shift), ceil(i * shift + length)) for i in range(shifts + 1)}
        halvings += 1
    triples = np.array([(s, b, min(e, count)) for s, e in sorted(stretches) for b in range(s + SHORTEST, min(e, count) - SHORTEST + 1)])
    return _Splits(start=triples[:, 0], split=triples[:, 1], end=triples[:, 2])


def _locate(values: Floats, start: int) -> ChangePoint:
    """Return the change point of ``values``, with its confidence set.

    ``values`` are a part of the series with one change, ``start`` is the index of the first. The confidence set holds the splits with n
    log(SSE / least SSE) <= x, where (1 - exp(-x / 2))^2 = .95 (Siegmund, International Statistical Review 56, 1988); SSE is the sum of
    squares of the scores about the means of their sides.
    """
    scores, count = _scores(values), len(values)
    index = np.arange(SHORTEST, count - SHORTEST + 1)
    contrasts = _Splits(start=np.zeros_like(index), split=index, end=np.full_like(index, count)).contrasts(scores)
    # The SSE of each split: that about the common mean, less what two means take from it.
    squares = float(((scores - scores.mean()) ** 2).sum()) - contrasts**2
    limit = float(squares.min()) * np.exp(-2.0 * np.log(1.0 - np.sqrt(_INSIDE)) / count)
    inside = index[squares <= limit + 1e-9]
    best = int(index[contrasts.argmax()])
    return ChangePoint(index=start + best, earliest=start + int(inside.min()), latest=start + int(inside.max()))
