"""Agreement of a quick run with the stored table, cell by cell, by tests that hold whatever the distribution of tokens to an alarm is.

Of n runs those that alarm no later than the median of N stored ones, its order statistic i, are beta-binomial with parameters n, i and
N + 1 - i (Gumbel and von Schelling 1950, "The distribution of the number of exceedances"): that gives an interval for the ratio of two
medians, and for all cells of one way of judging a sum of known mean and variance, which sees a small change that all cells share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import betabinom, fisher_exact, norm

from benchmarks.detection.targets import HIDDEN, KNOWN, Target, label, way

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.detection.targets import Cell

__all__ = ["CHANCE", "MedianPair", "agreement"]

CHANCE = 0.01
"""That a quick run of the same servers and judge disagrees: a third each for medians, for their sums, and for names."""


@lru_cache
def _alarmed_by_the_stored_median(runs: int, stored_runs: int) -> betabinom:
    """Return the distribution of the number of ``runs`` that alarm no later than the median of ``stored_runs``."""
    place = ceil((stored_runs - 1) / 2) + 1
    return betabinom(runs, place, stored_runs + 1 - place)


@lru_cache
def _places(runs: int, stored_runs: int, level: float) -> tuple[int, int]:
    """Return the places, from 1, of the two runs between which the stored median lies but for chance ``level``; outside for none."""
    law, counts = _alarmed_by_the_stored_median(runs, stored_runs), np.arange(runs + 1)
    return int((law.cdf(counts) <= level / 2).sum()), int((law.sf(counts - 1) > level / 2).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianPair:
    """Tokens to an alarm of one cell in one way of judging: the alarms of a quick run against the stored median."""

    cell: str
    mode: str
    alarms: tuple[float, ...]
    """Ascending; inf for a run that was silent to the last."""
    median: float
    """Stored; inf for never."""
    stored_runs: int
    most: int
    """Tokens after which a silent quick run is given up."""

    @property
    def comparable(self) -> bool:
        """Whether the quick run looks as far as the stored median."""
        return self.median <= self.most

    @property
    def law(self) -> betabinom:
        """The distribution of the number of quick runs that alarm no later than the stored median."""
        return _alarmed_by_the_stored_median(len(self.alarms), self.stored_runs)

    @property
    def alarmed(self) -> tuple[int, int]:
        """Quick runs that alarm before the stored median, and no later than it."""
        return sum(tokens < self.median for tokens in self.alarms), sum(tokens <= self.median for tokens in self.alarms)

    def limits(self, level: float) -> tuple[float, float]:
        """Return the tokens between which the stored median lies, but for chance ``level``; 0 and inf where too few runs tell."""
        low, high = _places(len(self.alarms), self.stored_runs, level)
        least = self.alarms[low - 1] if low and self.comparable else 0.0
        return least, self.alarms[high - 1] if high <= len(self.alarms) else inf

    def agrees(self, level: float) -> bool:
        """Whether the stored median lies within the limits."""
        low, high = self.limits(level)
        return low <= self.median <= high

    def words(self, level: float) -> str:
        """Return the cell with the ratio of the medians and its interval."""
        middle = self.alarms[ceil((len(self.alarms) - 1) / 2)]
        if self.median == inf:
            return f"{self.cell}, {self.mode}: median {middle:,.0f} tokens, stored never"
        low, high = (tokens / self.median for tokens in self.limits(level))
        return f"{self.cell}, {self.mode}: {middle:,.0f} / {self.median:,.0f} tokens = {middle / self.median:.2f} [{low:.2f}, {high:.2f}]"


def agreement(quick: Sequence[Cell], stored: Sequence[Cell], most: int) -> list[Target]:
    """Return whether the cells of a ``quick`` run, which gives up after ``most`` tokens, agree with the ``stored`` ones."""
    known = {label(cell): cell for cell in stored}
    missing = tuple(f"{label(cell)}: not stored" for cell in quick if label(cell) not in known)
    pairs = [pair for cell in quick if label(cell) in known for pair in _pairs(cell, known[label(cell)], most)]
    return [
        Target(
            words="cells that are stored",
            figure=f"{len(quick) - len(missing)} of {len(quick)}",
            met=not missing,
            missed=missing,
            scarce=False,
        ),
        _medians(pairs),
        *_sums(pairs),
        _names([(cell, known[label(cell)]) for cell in quick if label(cell) in known], most),
    ]


def _pairs(cell: Cell, stored: Cell, most: int) -> Iterator[MedianPair]:
    for mode, figures in cell["ways"].items():
        there = way(stored, mode)
        yield MedianPair(
            cell=label(cell), mode=mode, alarms=tuple(figures["alarms"]), median=there["median"], stored_runs=stored["runs"], most=most
        )


def _medians(pairs: Sequence[MedianPair]) -> Target:
    level = CHANCE / 3 / max(len(pairs), 1)
    missed = tuple(pair.words(level) for pair in pairs if not pair.agrees(level))
    return Target(
        words="median tokens over the stored median, interval holds 1",
        figure=f"{len(pairs) - len(missed)} of {len(pairs)}",
        met=not missed and bool(pairs),
        missed=missed,
        scarce=False,
    )


def _sums(pairs: Sequence[MedianPair]) -> Iterator[Target]:
    by_mode: dict[str, list[MedianPair]] = {}
    for pair in pairs:
        if pair.comparable:
            by_mode.setdefault(pair.mode, []).append(pair)
    for mode, same in by_mode.items():
        mean, spread = sum(pair.law.mean() for pair in same), sqrt(sum(pair.law.var() for pair in same))
        before, until = (sum(pair.alarmed[which] for pair in same) for which in (0, 1))
        runs, margin = sum(len(pair.alarms) for pair in same), norm.isf(CHANCE / 3 / len(by_mode) / 2) * spread
        yield Target(
            words=f"runs that alarm by the stored median, {len(same)} cells, {mode}",
            figure=f"{before / runs:.3f} to {until / runs:.3f} (between {(mean - margin) / runs:.3f} and {(mean + margin) / runs:.3f})",
            met=bool(before <= mean + margin and until >= mean - margin),
            scarce=False,
        )


def _names(cells: Sequence[tuple[Cell, Cell]], most: int) -> Target:
    """Return whether alarms are named as rightly as stored, where a quick run looks far enough for all of them."""
    ends = [(label(cell), mode, way(cell, mode), way(stored, mode)) for cell, stored in cells for mode in (KNOWN, HIDDEN)]
    named = [(cell, mode, quick["at_alarm"], stored["at_alarm"]) for cell, mode, quick, stored in ends if stored["late"] <= most]
    compared = [each for each in named if each[2]["family"] is not None and each[2]["named"]]
    level = CHANCE / 3 / max(len(compared), 1)
    missed = tuple(
        f"{cell}, {mode}: {quick['family']} of {quick['named']}, stored {stored['family']} of {stored['named']}"
        for cell, mode, quick, stored in compared
        if _differ(quick, stored) <= level
    )
    figure = f"{len(compared) - len(missed)} of {len(compared)}"
    return Target(words="right family at the alarm as often as stored", figure=figure, met=not missed, missed=missed, scarce=False)


def _differ(quick: Mapping[str, int], stored: Mapping[str, int]) -> float:
    """Return the p-value of Fisher's exact test that names are right equally often."""
    table = [[end["family"], end["named"] - end["family"]] for end in (quick, stored)]
    return float(fisher_exact(table).pvalue)
