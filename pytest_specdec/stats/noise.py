"""Noise of one kernel: its scale, its tail and its jumps, from log-probabilities that it reported and that were scored.

A correct server is noisy: kernels of one token and of k + 1 tokens, batch sizes and boots give other log-probabilities for one prefix. A
mixture of experts jumps: a rounding difference sends a token to another expert, and all logits move by a nat. Jumps come of rounding, so
that a server whose numbers are exact has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from pytest_specdec.stats import proportions
from pytest_specdec.stats.logprob_noise import MEDIAN_SQUARE, robust_scale, squares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_specdec.model.transcript import Position
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["EXACT", "ROUNDING", "JumpCount", "KernelNoise", "NoiseRatio", "kernel_noise", "noise_ratio"]

EXACT = 0.01
"""Nats: differences up to here are rounding of float32, or of what a server prints; half precision shows ten times as much."""
ROUNDING = EXACT / 8.0
"""Nats: a kernel's noise up to here is rounding, and no ratio is taken of it."""
_ENOUGH = 200
"""Least tokens for a scale, and for a claim that a server is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpCount:
    """Tokens with a difference beyond a limit, of all tokens."""

    jumps: int
    tokens: int

    @property
    def rate(self) -> float:
        """Jumps per token; 0 without tokens."""
        return self.jumps / self.tokens if self.tokens else 0.0

    @property
    def most(self) -> float:
        """The upper limit of the rate, one-sided at 99 % (Clopper and Pearson 1934); 1 without tokens."""
        return proportions.limits(self.jumps, self.tokens, 0.98).high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelNoise:
    """Differences between what one kernel reported and what was scored."""

    scale: float | None
    """Robust standard deviation of one logit's noise, nats; None for fewer than 200 tokens that can show it."""
    deviations: Floats
    """[N], nats, ``|reported - scored|``."""
    of_logit: Floats
    """[M], nats, in rising order: the differences of one logit that those of tokens which can show it come of."""

    @property
    def largest(self) -> float:
        """The largest difference, nats; 0 without a token."""
        return float(self.deviations.max(initial=0.0))

    @property
    def exact(self) -> bool:
        """Whether enough tokens show no difference beyond rounding."""
        return len(self.deviations) >= _ENOUGH and self.largest <= EXACT

    def scale_limit(self, error: float) -> float:
        """Return what the true scale is below with chance ``error``; above a half, what it is above with the rest.

        An order statistic, for tokens of any distribution (David and Nagaraja 2003, section 7.1). The noise of tokens is taken to be
        independent.
        """
        tokens = len(self.of_logit)
        rank = int(stats.binom.ppf(min(error, 1.0 - error), tokens, 0.5)) - 1
        if rank < 0:
            return 0.0 if error < 0.5 else math.inf  # noqa: PLR2004 - the median
        return float(self.of_logit[rank if error < 0.5 else tokens - 1 - rank]) / math.sqrt(MEDIAN_SQUARE)  # noqa: PLR2004 - the median

    def beyond(self, limit: float) -> JumpCount:
        """Count the tokens with a difference above ``limit`` nats."""
        return JumpCount(jumps=int((self.deviations > limit).sum()), tokens=len(self.deviations))


def kernel_noise(pairs: Iterable[tuple[float, Position]]) -> KernelNoise:
    """Return the noise behind pairs of a reported log-probability and the token's scored position.

    The scale is ``sqrt(median(z) / 0.455)`` of ``z = delta^2 / (1 - 2 p_x + sum p^2)``, as in logprob_noise, over tokens of weight above
    0.05: half of the tokens may be wrong by any amount before it says more than a constant times their noise. An infinite difference
    counts as a jump, one that is not a number as no token.
    """
    deltas = [(reported - position.logprob, position) for reported, position in pairs]
    numbers = [(delta, position) for delta, position in deltas if delta == delta]  # noqa: PLR0124 - not a number
    weighed_squares = squares((delta, position) for delta, position in numbers if abs(delta) < np.inf)
    weighed = np.array(weighed_squares)
    scale = robust_scale(weighed) if len(weighed) >= _ENOUGH else None
    deviations = np.abs(np.array([delta for delta, _ in numbers], dtype=np.float64))
    return KernelNoise(scale=scale, deviations=deviations, of_logit=np.sort(np.sqrt(weighed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRatio:
    """The noise of one kernel over that of another."""

    ratio: float
    low: float
    """What the true ratio is below with at most the chance that was allowed."""
    tokens: int
    """Tokens of the first kernel."""


def noise_ratio(kernel: KernelNoise, other: KernelNoise, error: float) -> NoiseRatio | None:
    """Return the robust scale of ``kernel`` over that of ``other``, and its lower limit; None where a scale is unknown.

    The limits of the two logarithms are combined by squaring and adding their distances (Zou and Donner 2008). Scales below rounding count
    as rounding.
    """
    if kernel.scale is None or other.scale is None:
        return None
    above, below = _log(kernel.scale), _log(other.scale)
    distance = math.hypot(above - _log(kernel.scale_limit(error)), _log(other.scale_limit(1.0 - error)) - below)
    return NoiseRatio(ratio=math.exp(above - below), low=math.exp(above - below - distance), tokens=len(kernel.of_logit))


def _log(scale: float) -> float:
    return math.log(max(scale, ROUNDING))
