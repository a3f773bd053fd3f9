"""Speedup: an interval for the log-ratio of two arms that includes the variation between boots of the same servers.

The log-ratio is the log of the speculative variant's speed over the baseline's. A boot is one start of a server, a pass one round over all
requests. With a control, the baseline has two boots beside the variant's one. Boots vary by an unknown standard deviation sigma around
their server's speed, and the passes of a boot around its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr, stdtrit

from pytest_specdec.model.baseline import BOOT_SD
from pytest_specdec.stats.boot_spread import RUN_BOOTS, BootSpread, deviations
from pytest_specdec.stats.proportions import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]

__all__ = [
    "HODGES_LEHMANN_FROM",
    "BootLevels",
    "Estimate",
    "across_blocks",
    "across_boots",
    "centre",
    "is_steady",
    "mean_levels",
    "within_one_boot",
]

HODGES_LEHMANN_FROM = 10
"""Passes from which on the median of pairwise means is used: under slow outliers it is more precise than the mean."""
STEADY = 1.7
"""Largest half-width of an interval over passes alone, in stated deviations of a boot."""
_BISECTIONS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLevels:
    """Natural logs of the speeds of boots that are compared with each other, on one scale."""

    speculative: tuple[float, ...]
    """One per boot of the variant."""
    baseline: tuple[float, ...]
    """One per boot of the baseline."""

    @property
    def log_ratio(self) -> float:
        """Log of the variant's speed over the baseline's."""
        return _mean(self.speculative) - _mean(self.baseline)

    @property
    def squares(self) -> float:
        """Sum of squares of each server's boots about their mean."""
        return _squares(self.speculative) + _squares(self.baseline)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the squares."""
        return len(self.speculative) + len(self.baseline) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A log-ratio and its error: a mixture of Student's t over the deviations that boots may have."""

    log_ratio: float
    relative_variance: float
    """Variance that boots bring to the log-ratio, over that of one boot: 1.5 with a control; 0 if the estimate is for these very boots."""
    within_variance: float
    """Variance that passes within the boots bring to the log-ratio, nats squared: that of the passes' centre."""
    within_freedom: int
    """Degrees of freedom of ``within_variance``."""
    passes: int
    passes_sd: float
    """Standard deviation of the log-ratio from pass to pass, nats."""
    boots: BootSpread

    @property
    def ratio(self) -> float:
        """The speed-up factor."""
        return math.exp(self.log_ratio)

    @property
    def standard_error(self) -> float:
        """Standard error of the log-ratio in nats, with the median deviation of boots."""
        return math.sqrt(self.relative_variance * self.boots.sd**2 + self.within_variance)

    def at_least(self, error: float) -> float:
        """Return the lower limit of the true speed-up factor.

        The true factor lies below it with probability ``error``.
        """
        return math.exp(self.log_ratio - self._half_width(error))

    def at_most(self, error: float) -> float:
        """Return the upper limit of the true speed-up factor.

        The true factor lies above it with probability ``error``.
        """
        return math.exp(self.log_ratio + self._half_width(error))

    def interval(self, confidence: float) -> Interval:
        """Return the limits at ``confidence``, half the error on each side."""
        error = (1.0 - confidence) / 2.0
        return Interval(low=self.at_least(error), high=self.at_most(error), confidence=confidence)

    def against_median(self, runs: int) -> Estimate:
        """Return the estimate as a comparison with earlier runs' median.

        The log-ratio stays, and the variance of the median of ``runs`` earlier runs is added: pi s^2 / (2 n) for n normal runs of variance
        s^2 each. Boots bring RUN_BOOTS, 1.5, times the variance of one boot to an earlier run's log-ratio, ``relative_variance`` times it
        to this one's: s^2 is taken to be in this proportion to this one's variance. If all runs are like this one, the variance becomes 1 +
        pi / (2 n) times as large: that of a prediction interval for one more run. ``relative_variance`` must not be 0.
        """
        earlier_over_this = RUN_BOOTS / self.relative_variance
        raised = 1.0 + math.pi / (2.0 * runs) * earlier_over_this
        return replace(self, relative_variance=self.relative_variance * raised, within_variance=self.within_variance * raised)

    def tail_probabilities(self, *distances: float) -> tuple[float, ...]:
        """Return the one-sided probabilities of an error beyond each of ``distances``.

        Distances are of the log-ratio, in nats. If ``relative_variance`` is 0, as for an estimate of these very boots, the error is
        Student's t over the passes; else it is the mixture of :meth:`_mixture`.
        """
        if not self.relative_variance:
            return tuple(float(stdtr(self.within_freedom, -distance / math.sqrt(self.within_variance))) for distance in distances)
        mixture = self._mixture()
        return tuple(mixture.tail(distance) for distance in distances)

    def _mixture(self) -> _Mixture:
        """Return the distribution of the error over all deviations that boots may have.

        A deviation sd_k, one of :func:`deviations`, has a Student's t: its variance is relative_variance sd_k^2, by boots, plus
        within_variance, by passes. The t's weight is the posterior one of sd_k. ``relative_variance``, the variance by boots over that of
        one boot, must not be 0.
        """
        # The measured differences between boots contain the passes' noise too: that of one boot, on the scale of one boot's variance.
        weights = np.array(self.boots.weights(self.within_variance / self.relative_variance))
        variances = self.relative_variance * np.square(deviations(self.boots.stated_sd)) + self.within_variance
        # Only the passes' part of the variance is estimated, with within_freedom degrees of freedom. The sum has more, by the square of its
        # ratio to that part (Welch, Satterthwaite).
        has_noise = self.within_variance != 0.0
        freedoms = self.within_freedom * np.square(variances / self.within_variance) if has_noise else np.full_like(variances, np.inf)
        return _Mixture(weights=weights, scales=np.sqrt(variances), freedoms=freedoms)

    def _half_width(self, error: float) -> float:
        """Return the distance from the log-ratio to a one-sided limit.

        It is in nats: the distance at which :meth:`tail_probabilities` gives ``error``, found by bisection. For an estimate of these very
        boots it is that of Student's t over the passes.
        """
        if not self.relative_variance:
            return -float(stdtrit(self.within_freedom, error)) * math.sqrt(self.within_variance)
        mixture = self._mixture()
        # The bracket ends at the limit by the largest scale and the fewest degrees of freedom, which is wider than the mixture's.
        low, high = 0.0, -float(stdtrit(self.within_freedom, error)) * float(mixture.scales[-1])
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if mixture.tail(middle) > error else (low, middle)
        return high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Mixture:
    """A mixture of K Student's t distributions around 0."""

    weights: Floats
    """[K], adding up to one."""
    scales: Floats
    """[K], rising."""
    freedoms: Floats
    """[K], degrees of freedom."""

    def tail(self, distance: float) -> float:
        """Return the probability of a value above ``distance``."""
        return float(self.weights @ stdtr(self.freedoms, -distance / self.scales))


def within_one_boot(log_ratios: Sequence[float]) -> Estimate:
    """Return the speed-up of these very boots, not of others.

    ``log_ratios`` has the log of speculative over baseline speed, one per pass. The interval is Student's t over the passes, without the
    variation of boots: their spread and number do not matter. Raises ValueError for fewer than two passes.
    """
    return replace(across_boots(log_ratios, BootSpread(), baseline_boots=1), relative_variance=0.0)


def is_steady(log_ratios: Sequence[float], stated_sd: float = BOOT_SD) -> bool:
    """Return True if more passes would hardly narrow the interval.

    Boots are taken to vary by ``stated_sd``. The condition is t(n-1) sd / sqrt(n) <= 1.7 stated_sd, t at 97.5 %: the half-width of the
    interval over the n passes alone is at most about half of that from three boots. To stop as soon as that holds does not bias the
    speed-up: for normal passes the spread is independent of the mean (Stein 1945, for two stages; with more stages the spread is estimated
    a little too small: ``benchmarks.speed_gate`` has the errors). Raises ValueError for fewer than two passes.
    """
    passes = within_one_boot(log_ratios)
    standard_error = math.sqrt(passes.within_variance)  # sd / sqrt(n)
    return float(stdtrit(passes.within_freedom, 0.975)) * standard_error <= STEADY * stated_sd


def across_boots(log_ratios: Sequence[float], spread: BootSpread, *, baseline_boots: int) -> Estimate:
    """Return the speed-up expected of other boots, from one boot's passes.

    ``log_ratios`` has, for each pass, the log of the speed of one variant boot over the mean of ``baseline_boots``. The variance is (1 + 1
    / baseline_boots) sigma^2, 1.5 sigma^2 with a control, plus that of the passes' centre. The unknown sigma is integrated out over
    ``spread``. Raises ValueError for fewer than two passes.
    """
    if len(log_ratios) < 2:  # noqa: PLR2004 - one value has no spread
        msg = f"an interval needs two passes, not {len(log_ratios)}"
        raise ValueError(msg)
    sd = float(np.std(log_ratios, ddof=1))
    return Estimate(
        log_ratio=centre(log_ratios),
        relative_variance=1.0 + 1.0 / baseline_boots,
        within_variance=sd**2 / len(log_ratios),
        within_freedom=len(log_ratios) - 1,
        passes=len(log_ratios),
        passes_sd=sd,
        boots=spread,
    )


def across_blocks(
    blocks: Sequence[Sequence[float]], groups: Sequence[BootLevels], earlier: BootSpread, *, baseline_boots: Sequence[int]
) -> Estimate:
    """Return the speedup to expect of future boots, from blocks of passes.

    A boot is one start of a server, a pass one round over all requests. ``blocks`` has one block for each boot of the variant: for each
    pass the log of its speed over that of the baseline boots next to it. ``baseline_boots`` has the number of these boots for each block.
    ``groups`` has the same boots' log speeds; blocks that share a baseline boot are in one group. If servers run one after the other there
    is one group; if they run side by side there is one for each start together. ``earlier`` is the spread between other runs' boots.

    The log-ratio and the spread between boots come from the groups (:func:`_combine_groups`), the variance of passes from the blocks
    (:func:`_passes_variance`). A steady drift of the machine cancels in the log-ratio if the order of boots is symmetric, and adds to the
    spread. Raises ValueError for a block of fewer than two passes.
    """
    if not blocks or min(map(len, blocks)) < 2:  # noqa: PLR2004 - one value has no spread
        msg = f"an interval needs two passes a block, not {[len(block) for block in blocks]}"
        raise ValueError(msg)
    passes, combined = sum(map(len, blocks)), _combine_groups(groups, earlier)
    freedom = passes - len(blocks)
    return Estimate(
        log_ratio=combined.log_ratio,
        relative_variance=combined.relative_variance,
        # A boot's mean over P passes, those of a block on average, varies by tau^2 / P beside sigma^2; the log-ratio by relative_variance
        # times that. It allows for shared boots: for n blocks one after the other it is (4 n + 2) / (3 n + 3) times the blocks' pooled
        # variance over the number of all passes.
        within_variance=combined.relative_variance * _passes_variance(blocks, baseline_boots) * len(blocks) / passes,
        within_freedom=freedom,
        passes=passes,
        passes_sd=math.sqrt(math.fsum(map(_squares, blocks)) / freedom),
        boots=combined.boots,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CombinedGroups:
    """The log-ratio over all groups of boots, and their spread between boots."""

    log_ratio: float
    relative_variance: float
    """Variance of the log-ratio over that of one boot."""
    boots: BootSpread


def _combine_groups(groups: Sequence[BootLevels], earlier: BootSpread) -> _CombinedGroups:
    """Return the log-ratio and the spread between boots over all groups.

    Squares and their degrees of freedom are added to those of ``earlier``, the spread that other runs showed. Each group has a level of its
    own, since the machine may be faster when one group runs than when another does. With n boots of the variant and m of the baseline in a
    group, all of variance sigma^2, and v = 1/n + 1/m:

        log-ratio = sum(log-ratio of a group / v) / sum(1 / v)               its variance: sigma^2 / sum(1 / v)
        squares   = sum(squares of a group) + sum((log-ratio of a group - log-ratio)^2 / v)
        freedom   = sum(n + m - 2) + (number of groups - 1)

    Squares over freedom estimate sigma^2. This is least squares over the log speeds of all boots, with a level for each group: the best
    linear estimate (Gauss-Markov). Log-ratios by block, S_i - (B_i + B_(i+1)) / 2 for log speeds S of the variant's boots and B of the
    baseline's, one after the other, are made of the same boots and add nothing.
    """
    weights = _precisions(groups)  # 1 / v of each group
    log_ratio = math.fsum(w * group.log_ratio for w, group in zip(weights, groups, strict=True)) / math.fsum(weights)
    between_groups = math.fsum(w * (group.log_ratio - log_ratio) ** 2 for w, group in zip(weights, groups, strict=True))
    squares = earlier.squares + math.fsum(group.squares for group in groups) + between_groups
    freedom = earlier.freedom + sum(group.freedom for group in groups) + len(groups) - 1
    boots = replace(earlier, squares=squares, freedom=freedom)
    return _CombinedGroups(log_ratio=log_ratio, relative_variance=1.0 / math.fsum(weights), boots=boots)


def _passes_variance(blocks: Sequence[Sequence[float]], baseline_boots: Sequence[int]) -> float:
    """Return tau^2, the variance of one boot's speed from pass to pass.

    It is of the log of the speed, nats squared. In a block with b baseline boots the passes' log-ratios vary by (1 + 1/b) tau^2, since
    those boots vary too: tau^2 = sum(squares of a block's passes / (1 + 1/b)) / (number of passes - number of blocks).
    """
    boot_squares = math.fsum(_squares(block) / (1.0 + 1.0 / boots) for block, boots in zip(blocks, baseline_boots, strict=True))
    return boot_squares / (sum(map(len, blocks)) - len(blocks))


def mean_levels(groups: Sequence[BootLevels]) -> tuple[float, float]:
    """Return the mean levels of variant and baseline over all groups.

    They are natural logs of speeds, in this order. Groups have the weights of :func:`_combine_groups`, so that the levels differ by its
    log-ratio.
    """
    weights = _precisions(groups)
    weighted_sums = (
        math.fsum(w * _mean(levels) for w, levels in zip(weights, side, strict=True))
        for side in ([group.speculative for group in groups], [group.baseline for group in groups])
    )
    speculative, baseline = (total / math.fsum(weights) for total in weighted_sums)
    return speculative, baseline


def _precisions(groups: Sequence[BootLevels]) -> list[float]:
    """Return each group's weight 1/v, v sigma^2 being the variance of its log-ratio."""
    return [1.0 / (1.0 / len(group.speculative) + 1.0 / len(group.baseline)) for group in groups]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squares about the mean."""
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def centre(values: Sequence[float]) -> float:
    """Return the mean, or for many values a robust centre.

    For ten or more values it is the median of the means of all pairs, each value with itself included (Hodges and Lehmann 1963).
    """
    if len(values) < HODGES_LEHMANN_FROM:
        return math.fsum(values) / len(values)
    return float(np.median([(a + b) / 2.0 for a, b in combinations_with_replacement(values, 2)]))
