"""Speedup: an interval for the log-ratio of two arms that includes what other boots of the same servers would have shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from pytest_specdec.model.baseline import BOOT_SD, STATED_BOOTS
from pytest_specdec.stats.proportions import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HODGES_LEHMANN_FROM",
    "BootLevels",
    "Boots",
    "Estimate",
    "across_blocks",
    "across_boots",
    "boots",
    "centre",
    "steady",
    "typical",
    "within_one_boot",
]

HODGES_LEHMANN_FROM = 10
"""Passes from which the median of pairwise means is taken: under slow outliers it sees more than the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boots:
    """How much the log of a server's speed varies from one boot to the next."""

    variance: float
    """Of one boot, nats squared."""
    freedom: int
    """Degrees of freedom of that variance: those of the stated deviation, and one per measured pair of boots, or per boot but one of each
    server where several were measured."""
    stated_sd: float
    """The deviation that was assumed before anything was measured."""

    @property
    def sd(self) -> float:
        """The deviation, stated and measured taken together."""
        return math.sqrt(self.variance)

    @property
    def measured(self) -> int:
        """Pairs of boots it was measured on, or degrees of freedom that several boots of each server bring."""
        return self.freedom - STATED_BOOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLevels:
    """Natural logs of the speeds of boots that are compared with each other, on one scale."""

    speculative: tuple[float, ...]
    """One per boot of the variant."""
    baseline: tuple[float, ...]
    """One per boot of the baseline."""

    @property
    def log_ratio(self) -> float:
        """Speculative over baseline."""
        return _mean(self.speculative) - _mean(self.baseline)

    @property
    def squares(self) -> float:
        """Sum of squares of the boots of each server about their mean."""
        return _squares(self.speculative) + _squares(self.baseline)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of that sum."""
        return len(self.speculative) + len(self.baseline) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A log-ratio with its standard error, of which any limit can be asked."""

    log_ratio: float
    standard_error: float
    """Nats, boots included."""
    freedom: float
    """Of the standard error, for Student's t."""
    passes: int
    passes_sd: float
    """Standard deviation of the log-ratio from pass to pass, nats."""
    boots: Boots

    @property
    def ratio(self) -> float:
        """The factor itself."""
        return math.exp(self.log_ratio)

    def at_least(self, error: float) -> float:
        """Return the factor that the true one is below with probability ``error``."""
        return math.exp(self.log_ratio - self._half(error))

    def at_most(self, error: float) -> float:
        """Return the factor that the true one is above with probability ``error``."""
        return math.exp(self.log_ratio + self._half(error))

    def interval(self, confidence: float) -> Interval:
        """Return the limits that leave out half of the rest on either side."""
        error = (1.0 - confidence) / 2.0
        return Interval(low=self.at_least(error), high=self.at_most(error), confidence=confidence)

    def _half(self, error: float) -> float:
        return -float(stdtrit(self.freedom, error)) * self.standard_error


def boots(log_ratios: Sequence[float], stated_sd: float = BOOT_SD) -> Boots:
    """Return how boots vary, from the ``log_ratios`` of two boots of one server each, and from what is stated.

    s^2 = (4 sd^2 + sum of d^2 / 2) / nu, nu = 4 + number of d: two boots differ by d with variance 2 sigma^2, so that d^2 / 2 estimates
    sigma^2 with one degree of freedom, and the stated sd is a scaled inverse chi-square prior with four (Gelman et al., Bayesian Data
    Analysis, 3rd edition, section 2.6); s^2 and nu are those of the posterior, under which (x - mu) / s is Student's t with nu.
    Assumes logs that are normal and independent from boot to boot, and variants whose boots vary as the baseline's do. What the passes of
    both boots add to d makes s larger, never smaller.
    """
    freedom = STATED_BOOTS + len(log_ratios)
    squares = STATED_BOOTS * stated_sd**2 + math.fsum(d**2 / 2.0 for d in log_ratios)
    return Boots(variance=squares / freedom, freedom=freedom, stated_sd=stated_sd)


def within_one_boot(log_ratios: Sequence[float]) -> Estimate:
    """Return the ratio of the very boots that were met, from one log-ratio per pass: Student's t over the passes, and nothing of boots.

    Raises ValueError for fewer than two passes.
    """
    return across_boots(log_ratios, Boots(variance=0.0, freedom=len(log_ratios) - 1, stated_sd=0.0), baseline_boots=1)


def steady(log_ratios: Sequence[float], stated_sd: float = BOOT_SD) -> bool:
    """Return whether passes add little to an interval beside what the boots of a first run are stated to add.

    t(n-1) sd / sqrt(n) <= t(4) sqrt(1.5) stated_sd / 2, both t at 97.5 %: the half-width of the interval over the n passes alone is at most
    half of that over boots alone, three boots of which nothing is measured. For normal passes the spread is independent of the mean, so
    that passes that are taken until it is small enough say nothing of the speedup itself (Stein 1945, for two stages; with more of them
    the spread comes out a little small: ``benchmarks.speed_gate`` has the errors). Raises ValueError for fewer than two passes.
    """
    passes = within_one_boot(log_ratios)
    of_passes = float(stdtrit(passes.freedom, 0.975)) * passes.standard_error
    of_boots = float(stdtrit(STATED_BOOTS, 0.975)) * math.sqrt(1.5) * stated_sd
    return of_passes <= of_boots / 2.0


def across_boots(log_ratios: Sequence[float], spread: Boots, *, baseline_boots: int) -> Estimate:
    """Return the ratio that other boots would show, from one log-ratio per pass of one variant boot against ``baseline_boots``.

    variance = (1 + 1 / baseline_boots) s^2 + that of the passes' centre: 1.5 s^2 with a control. Student's t with the degrees of freedom
    of s^2, fewer where the passes vary more than the boots (Welch 1947, Satterthwaite 1946), never more. Raises ValueError for fewer than
    two passes.
    """
    if len(log_ratios) < 2:  # noqa: PLR2004 - one value has no spread
        msg = f"an interval needs two passes, not {len(log_ratios)}"
        raise ValueError(msg)
    between = (1.0 + 1.0 / baseline_boots) * spread.variance
    sd = float(np.std(log_ratios, ddof=1))
    within = sd**2 / len(log_ratios)
    return Estimate(
        log_ratio=centre(log_ratios),
        standard_error=math.sqrt(between + within),
        freedom=_freedom(between, spread.freedom, within, len(log_ratios) - 1),
        passes=len(log_ratios),
        passes_sd=sd,
        boots=spread,
    )


def across_blocks(
    blocks: Sequence[Sequence[float]], groups: Sequence[BootLevels], earlier: Sequence[float] = (), stated_sd: float = BOOT_SD
) -> Estimate:
    """Return the ratio that other boots would show, from blocks of one variant boot and the baseline boots beside it.

    ``blocks`` are log-ratios, one per pass, of each variant boot against the baseline boots beside it. ``groups`` are the boots that
    blocks connect: in turn all of them, since neighbours share a baseline boot; side by side those of one wave. ``earlier`` and
    ``stated_sd`` are as for :func:`boots`.

    In turn a block reads y_i = S_i - (B_i + B_(i+1)) / 2. Neighbours share a boot, so that blocks covary: by sigma^2 / 4 where each has
    1.5 sigma^2. Taken together with the differences d_i = B_(i+1) - B_i of the baseline boots around them, they hold all contrasts of
    independent boots S and B of one variance; generalised least squares over them is then least squares over the boots (Gauss-Markov),
    with a level of its own for each group, since the machine may be faster in one wave than in another:

        log-ratio of a group = mean(S) - mean(B)                             its variance: v sigma^2, v = 1/n + 1/m
        log-ratio = sum(log-ratio of a group / v) / sum(1 / v)               its variance: sigma^2 / sum(1 / v)
        s^2 = (4 sd^2 + squares of S and of B, about their mean in the group + sum of (log-ratio of a group - log-ratio)^2 / v
               + sum of d^2 / 2 of earlier runs) / nu
        nu = 4 + sum(n + m - 2) + (groups - 1) + earlier runs

    s^2 is independent of the log-ratio and, with the stated sd as in :func:`boots`, (x - mu) / s is Student's t with nu. One block between
    two baseline boots gives :func:`across_boots`: the mean of two boots, and d^2 / 2 between them. The passes' own variance is added as
    there, though boots have it in them already: the error gets larger, never smaller. In turn a steady drift of the machine cancels where
    the order reads the same from both ends, and adds to s. Raises ValueError for a block of fewer than two passes.
    """
    if not blocks or min(map(len, blocks)) < 2:  # noqa: PLR2004 - one value has no spread
        msg = f"an interval needs two passes a block, not {[len(block) for block in blocks]}"
        raise ValueError(msg)
    known, passes, weights = boots(earlier, stated_sd), sum(map(len, blocks)), _precisions(groups)
    log_ratio = math.fsum(w * group.log_ratio for w, group in zip(weights, groups, strict=True)) / math.fsum(weights)
    apart = math.fsum(w * (group.log_ratio - log_ratio) ** 2 for w, group in zip(weights, groups, strict=True))
    freedom = known.freedom + sum(group.freedom for group in groups) + len(groups) - 1
    squares = known.freedom * known.variance + math.fsum(group.squares for group in groups) + apart
    spread = Boots(variance=squares / freedom, freedom=freedom, stated_sd=stated_sd)
    between = spread.variance / math.fsum(weights)
    variance = math.fsum(map(_squares, blocks)) / (passes - len(blocks))
    return Estimate(
        log_ratio=log_ratio,
        standard_error=math.sqrt(between + variance / passes),
        freedom=_freedom(between, freedom, variance / passes, passes - len(blocks)),
        passes=passes,
        passes_sd=math.sqrt(variance),
        boots=spread,
    )


def typical(groups: Sequence[BootLevels]) -> tuple[float, float]:
    """Return the level of the variant and of the baseline over all groups, which differ by the log-ratio of :func:`across_blocks`."""
    weights = _precisions(groups)
    sides = (
        math.fsum(w * _mean(levels) for w, levels in zip(weights, side, strict=True))
        for side in ([group.speculative for group in groups], [group.baseline for group in groups])
    )
    speculative, baseline = (side / math.fsum(weights) for side in sides)
    return speculative, baseline


def _precisions(groups: Sequence[BootLevels]) -> list[float]:
    return [1.0 / (1.0 / len(group.speculative) + 1.0 / len(group.baseline)) for group in groups]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squares about the mean."""
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def centre(values: Sequence[float]) -> float:
    """Return the mean, from ten values on the median of all pairwise means (Hodges and Lehmann 1963)."""
    if len(values) < HODGES_LEHMANN_FROM:
        return math.fsum(values) / len(values)
    return float(np.median([(a + b) / 2.0 for a, b in combinations_with_replacement(values, 2)]))


def _freedom(between: float, between_freedom: int, within: float, within_freedom: int) -> float:
    doubt = between**2 / between_freedom + within**2 / within_freedom
    return min(float(between_freedom), (between + within) ** 2 / doubt) if doubt else float(between_freedom)
