"""Noise of one kernel: its scale, its tail and its jumps, from differences between reported and scored log-probabilities.

A correct server is noisy: kernels of one token and of k + 1 tokens, batch sizes and boots differ in the log-probabilities of one prefix. A
mixture of experts jumps: a rounding difference sends a token to another expert, and all logits move by a nat. Jumps come from rounding, so
that a server with exact numbers has none.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import proportions
from pytest_specdec.stats.logprob_noise import MEDIAN_SQUARE, robust_scale, squares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.model.transcript import Position
    from pytest_specdec.stats.token_distribution import Floats

__all__ = [
    "EXACT",
    "ROUNDING",
    "BootNoise",
    "JumpCount",
    "KernelNoise",
    "NoiseRatio",
    "answer_scales",
    "boot_noise",
    "is_noisier",
    "kernel_noise",
    "noise_ratio",
]

EXACT = 0.01
"""Nats: differences up to here are rounding of float32, or of printed digits; half precision shows ten times as much."""
ROUNDING = EXACT / 8.0
"""Nats: a kernel's noise up to here is rounding, and no ratio to it has a meaning."""
_ENOUGH = 200
"""Least tokens for a scale, and for a claim that a server is exact."""
_ERROR = 0.01
"""Probability that a true value lies beyond a stated limit, on each side."""
_ENOUGH_OF_AN_ANSWER = 16
"""Least tokens for the scale of one answer."""


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
        """The one-sided 99 % upper limit of the rate.

        It is exact (Clopper and Pearson 1934), and 1 without tokens.
        """
        return proportions.limits(self.jumps, self.tokens, 0.98).high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelNoise:
    """Differences between log-probabilities reported by one kernel and their scores."""

    scale: float | None
    """Robust standard deviation of one logit's noise, nats; None for fewer than 200 tokens that can show it."""
    deviations: Floats
    """[N], nats, ``|reported - scored|``."""
    of_logit: Floats
    """[M], nats, in rising order: the differences of one logit, as estimated from each token that is not all but certain."""

    @property
    def largest(self) -> float:
        """The largest difference, nats; 0 without a token."""
        return float(self.deviations.max(initial=0.0))

    @property
    def exact(self) -> bool:
        """True if enough tokens show no difference beyond rounding."""
        return len(self.deviations) >= _ENOUGH and self.largest <= EXACT

    def beyond(self, limit: float) -> JumpCount:
        """Count the tokens with a difference above ``limit`` nats."""
        return JumpCount(jumps=int((self.deviations > limit).sum()), tokens=len(self.deviations))


def kernel_noise(pairs: Iterable[tuple[float, Position]]) -> KernelNoise:
    """Return the noise of one kernel, from reported and scored log-probabilities.

    Each pair has the log-probability that the kernel reported for a token, and the position as another computation scored it. The scale is
    ``sqrt(median(z) / 0.455)`` of ``z = delta^2 / (1 - 2 p_x + sum p^2)``, as in logprob_noise, over tokens of weight, the divisor, above
    0.05: up to half of the tokens may be wrong by any amount and change it by a bounded factor only. An infinite difference counts as a
    jump; one that is not a number is left out.
    """
    deltas = [(reported - position.logprob, position) for reported, position in pairs]
    numbers = [(delta, position) for delta, position in deltas if delta == delta]  # noqa: PLR0124 - not a number
    weighted = _weighted_squares(numbers)
    scale = robust_scale(weighted) if len(weighted) >= _ENOUGH else None
    deviations = np.abs(np.array([delta for delta, _ in numbers], dtype=np.float64))
    return KernelNoise(scale=scale, deviations=deviations, of_logit=np.sort(np.sqrt(weighted)))


def _weighted_squares(deltas: Iterable[tuple[float, Position]]) -> Floats:
    """Return the estimates of squared logit noise by the finite differences alone."""
    return np.array(squares((delta, position) for delta, position in deltas if abs(delta) < np.inf))


def answer_scales(answers: Iterable[Sequence[tuple[float, Position]]]) -> Floats:
    """Return the robust scale of each answer's noise, nats, [N].

    ``answers`` have pairs of reported log-probability and scored position. Answers with fewer than 16 tokens that can show noise, by a
    weight above 0.05, are left out. A token near probability 1 has less weight; weights depend on the scores alone.
    """
    weighted = [_weighted_squares((reported - position.logprob, position) for reported, position in answer) for answer in answers]
    return np.array([math.sqrt(float(np.median(values)) / MEDIAN_SQUARE) for values in weighted if len(values) >= _ENOUGH_OF_AN_ANSWER])


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRatio:
    """The noise of one kernel over that of another."""

    ratio: float
    low: float
    """The true ratio is below it with at most the allowed probability of error."""
    high: float
    """The true ratio is above it with at most the same probability."""
    answers: int
    """Number of the first kernel's answers that were measured."""


def noise_ratio(kernel: Floats, other: Floats, error: float) -> NoiseRatio | None:
    """Return the ratio of ``kernel`` to ``other``, with its limits.

    Both are scales of the answers' noise (:func:`answer_scales`); the true ratio lies beyond either limit with probability ``error``. The
    centre and the limits of the logarithms are those of Wilcoxon's signed ranks (Hodges and Lehmann 1963; Hollander, Wolfe and Chicken
    2014, section 3.3), combined by squaring and adding their distances (Zou and Donner 2008). The tokens of an answer may depend on one
    another in any way. Answers are assumed to be independent, and the logarithms of their scales to be symmetric about the centre. Scales
    below rounding count as rounding. None for so few answers that all of them lie on one side of the centre with a probability above
    ``error``.
    """
    if min(len(kernel), len(other)) == 0 or 0.5 ** min(len(kernel), len(other)) > error:
        return None
    numerator, denominator = _centre(kernel, error), _centre(other, error)
    log_ratio = numerator.middle - denominator.middle
    # The ratio is lowest for the lowest numerator and the highest denominator, and highest for the opposite.
    down = math.hypot(numerator.middle - numerator.low, denominator.high - denominator.middle)
    up = math.hypot(numerator.high - numerator.middle, denominator.middle - denominator.low)
    return NoiseRatio(ratio=math.exp(log_ratio), low=math.exp(log_ratio - down), high=math.exp(log_ratio + up), answers=len(kernel))


def is_noisier(scales: Floats, limit: float) -> bool:
    """Return True if the answers' ``scales`` are surely above ``limit`` nats.

    Their centre must be above it by signed ranks at 1 %. False for too few answers.
    """
    if len(scales) == 0 or 0.5 ** len(scales) > _ERROR:
        return False
    return _centre(scales, _ERROR).low > math.log(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootNoise:
    """Noise that one boot adds to a logit at every call alike: a standard deviation in nats, with limits at 99 % on each side."""

    boot: float
    low: float
    high: float
    call: float
    """Noise from call to call, between two calls of one boot, nats."""

    def __str__(self) -> str:
        limits = f"{self.low:.3g} to {self.high:.3g} at 99%, from two boots of the baseline"
        return f"{self.call:.3g} nats between calls of one boot, and a boot keeps {self.boot:.3g} ({limits})"


def boot_noise(another: Floats, same: Floats) -> BootNoise | None:
    """Return the noise of one boot, common to all its calls.

    ``another`` has the scales of answers scored by another boot than the one reporting, ``same`` those of answers scored by the same
    boot. Two calls of one boot share its noise, two calls of two boots do not: ``another^2 = same^2 + 2 boot^2``. Its limits follow from
    those of the ratio of ``another`` to ``same`` (:func:`noise_ratio`). None for too few answers, or if that ratio is not surely above 1.
    """
    ratio = noise_ratio(another, same, _ERROR)
    if ratio is None or ratio.low <= 1.0:
        return None
    call = math.exp(_centre(same, _ERROR).middle)
    boot, low, high = (call * math.sqrt((times**2 - 1.0) / 2.0) for times in (ratio.ratio, ratio.low, ratio.high))
    return BootNoise(boot=boot, low=low, high=high, call=call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Centre:
    """The centre of logarithms of scales, with a limit on either side."""

    low: float
    middle: float
    high: float


def _centre(scales: Floats, error: float) -> _Centre:
    """Return the median of pairwise means of logarithms, with limits.

    The logarithms are of ``scales``, each of ROUNDING at least. The true centre lies beyond either limit with probability ``error``.
    Callers ensure that there are enough scales, since fewer have no limits: ``0.5^n`` is at most ``error`` for n of them.
    """
    logs = np.log(np.maximum(scales, ROUNDING))
    first, second = np.triu_indices(len(logs))
    averages = np.sort((logs[first] + logs[second]) / 2.0)
    # Either limit is the average with this many others beyond it: as rare as ``error`` by Wilcoxon's signed ranks.
    rank = _signed_rank(len(logs), error)
    return _Centre(low=float(averages[rank]), middle=float(np.median(averages)), high=float(averages[-1 - rank]))


@functools.cache
def _signed_rank(values: int, error: float) -> int:
    """Return the largest statistic with a lower tail within ``error``.

    It is Wilcoxon's sum of signed ranks, -1 if there is none: under the null hypothesis each rank from 1 to ``values`` counts or not with
    probability one half.
    """
    chances = np.ones(1)  # of each sum of the ranks so far
    for rank in range(1, values + 1):
        chances = np.concatenate((chances, np.zeros(rank))) / 2.0 + np.concatenate((np.zeros(rank), chances)) / 2.0
    return int(np.searchsorted(np.cumsum(chances), error, side="right")) - 1
