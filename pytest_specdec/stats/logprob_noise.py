"""Logprob noise: the difference between two computations of one distribution by the same engine.

Numerical faults have no direction: emitted tokens hardly show them, reported log-probabilities show them in 50 to 400 tokens. The noise is
the standard deviation of one logit, nats. A token's weight, ``1 - 2 p_x + sum p^2``, is the variance that logit noise of variance 1 gives
its log-probability: near 0 for a token of probability near 1, which shows no noise and is not usable. A scoring bias is no noise but a
tilt: scores of another temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.model.transcript import Position
    from pytest_specdec.stats.token_distribution import Floats, Ints

__all__ = ["INVALID_ABOVE", "NORMAL_UP_TO", "Calibration", "calibrate", "robust_scale", "squares"]

NORMAL_UP_TO = 0.1
"""Logit noise, nats, up to which a scorer is normal (bf16 across engines shows about 0.03)."""

INVALID_ABOVE = 0.2
"""Logit noise, nats, above which a token-level gate shows nothing."""

MEDIAN_SQUARE = 0.4549364
"""Median of a squared standard normal variable."""
_LEAST_WEIGHT = 0.05
"""Least weight of a token that is used: tokens with a probability near 1 show no noise."""
_LEAST_TOKENS = 200
"""Least tokens for the standard error of a scoring bias."""
_LEAST_SCORING_BIAS = 0.002
"""A scoring bias too small to matter: it gives at most 0.13 nats of evidence in 32,768 tokens of two nats squared of information each."""
_MOST_REMAINDER = 0.25
"""Largest mass outside the top tokens: within it, the slope of a small model's wide distributions is too flat by a tenth or so."""
_SCORING_BIAS_OF_NOISE = 1.0 / 3.0
"""Times the square of the noise: tokens are drawn from the noisy distribution, so that improbable ones are reported a little high."""
_STANDARD_ERRORS = 3.0
"""Standard errors beyond which a bias, or a noise above the limit, is certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The differences between log-probabilities reported in decoding and teacher-forced ones."""

    noise: float | None
    """Estimated standard deviation of one logit's independent noise, nats, without the effect of a scoring bias; None without a usable
    token."""
    tokens: int
    """Number of tokens that it is estimated from."""
    largest: float
    """The largest |reported - teacher-forced| of any token, nats; 0 without a token."""
    noise_error: float = 0.0
    """Standard error of ``noise``; 0 if unknown."""
    scale: float | None = None
    """The noise estimated by the median, which a tail or a few wrong numbers do not move; None without a usable token."""
    scoring_bias: float = 0.0
    """Power less one to which the scores must be raised to become the reported distribution; 0 if unknown."""
    scoring_bias_error: float = math.inf
    """Standard error of ``scoring_bias``, for tokens drawn independently from the raw distribution."""

    @property
    def is_biased(self) -> bool:
        """True if scores are biased by more than noise explains.

        Noise alone explains a bias of a third of its square. What exceeds that must be three standard errors, and of a size that matters.
        """
        return abs(self.scoring_bias) > (self.noise or 0.0) ** 2 * _SCORING_BIAS_OF_NOISE + max(
            _LEAST_SCORING_BIAS, _STANDARD_ERRORS * self.scoring_bias_error
        )

    @property
    def valid(self) -> bool:
        """True if the noise is small enough to judge single tokens.

        True also if nothing is known. An infinite noise is never valid. Otherwise the estimate by a median, ``scale``, decides: a tail does
        not move it. It must not be above the limit by more than three standard errors, which are known of ``noise`` alone.
        """
        if self.noise is None:
            return True
        if not math.isfinite(self.noise):
            return False
        scale = self.noise if self.scale is None else self.scale
        return scale - _STANDARD_ERRORS * self.noise_error <= INVALID_ABOVE


def calibrate(pairs: Iterable[tuple[float, Position]], *, unprocessed: bool = True) -> Calibration:
    """Return noise and bias in pairs of reported and scored log-probabilities.

    Each pair has the log-probability that a server reported in decoding, and the position of the same token under teacher forcing, which
    scores it. Both are raw, before any sampling parameter. delta is their difference.
    Noise: independent logit noise of sd s gives delta the variance s^2 w to first order, with the weight w = 1 - 2 p_x + sum p^2. So
    ``noise`` is sqrt(mean(delta^2 / w)) over tokens of weight above 0.05, and ``scale`` is computed from the median of delta^2 / w. The top
    tokens alone are known of sum p^2, which makes both somewhat too large.

    Bias: a scorer that raises the distribution to a wrong power (a cache of another precision, a template, a temperature applied twice)
    makes delta proportional to ``log p(x) - E_p log p``: the scoring bias is that slope. It is measured only if tokens were drawn from the
    ``unprocessed`` distribution: at a low temperature the tokens that noise raised are drawn more often, which makes a slope as well.
    """
    numbers = [(reported - position.logprob, position) for reported, position in pairs if not math.isnan(reported - position.logprob)]
    deltas, top_tokens = np.array([delta for delta, _ in numbers]), _TopTokens.of([position for _, position in numbers])
    squared = _squares(deltas, top_tokens)
    line = _fit_line(deltas, top_tokens) if unprocessed else _Line()
    measured = Calibration(
        noise=math.sqrt(float(squared.mean())) if len(squared) else None,
        tokens=len(squared),
        noise_error=_root_error(squared),
        largest=float(np.abs(deltas).max(initial=0.0)),
        scale=robust_scale(squared),
        scoring_bias=line.slope,
        scoring_bias_error=line.error,
    )
    # A bias is part of every difference: of biased scores the noise is what the differences vary by about the fitted line.
    without_bias = replace(measured, noise=line.noise)
    return without_bias if without_bias.is_biased else measured


def robust_scale(squared: Floats) -> float | None:
    """Return the standard deviation behind squared noise, by the median.

    It is ``sqrt(median / 0.455)`` of ``squared`` (Hampel 1974): 0.455 is the median of a squared standard normal variable. None without a
    value.
    """
    return math.sqrt(float(np.median(squared)) / MEDIAN_SQUARE) if len(squared) else None


def _root_error(squared: Floats) -> float:
    """Return the standard error of the root mean of ``squared``.

    It is half the standard error of the mean over the root. A single value shows no spread: its error is inf, so that it condemns no
    scorer. The error is 0 without any value, and if the root is 0 or infinite: an infinite root is invalid whatever its error.
    """
    if len(squared) < 2:  # noqa: PLR2004 - a spread needs two
        return math.inf if len(squared) else 0.0
    root = math.sqrt(float(squared.mean()))
    if not math.isfinite(root):
        return 0.0
    return float(np.std(squared, ddof=1)) / math.sqrt(len(squared)) / (2.0 * root) if root > 0.0 else 0.0


def squares(deltas: Iterable[tuple[float, Position]]) -> list[float]:
    """Return estimates of the squared logit noise, one per usable token.

    ``deltas`` are pairs of a difference of two log-probabilities and the token's position. The estimates are ``delta^2 / (1 - 2 p_x + sum
    p^2)``, of tokens of weight above 0.05, the divisor: tokens with a probability near 1 show no noise.
    """
    pairs = list(deltas)
    return list(map(float, _squares(np.array([delta for delta, _ in pairs]), _TopTokens.of([position for _, position in pairs]))))


def _squares(deltas: Floats, top_tokens: _TopTokens) -> Floats:
    """Return the estimates of :func:`squares`, for ``deltas`` [N] at the N positions of ``top_tokens``."""
    weight = top_tokens.variance_factor
    heavy = weight > _LEAST_WEIGHT
    return np.asarray(deltas[heavy] ** 2 / weight[heavy])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TopTokens:
    """The top tokens of N positions, one after the other."""

    chosen: Floats
    """[N], the log-probability of each position's own token."""
    position: Ints
    """[M], the index of each top token's position, from 0."""
    logprobs: Floats
    """[M]."""

    @classmethod
    def of(cls, positions: Sequence[Position]) -> _TopTokens:
        """Return the top tokens of ``positions``, with the tokens' own log-probabilities."""
        lengths = np.array([len(position.top_logprobs) for position in positions], dtype=np.int64)
        return cls(
            chosen=np.array([position.logprob for position in positions]),
            position=np.repeat(np.arange(len(positions)), lengths),
            logprobs=np.array([logprob for position in positions for logprob in position.top_logprobs]),
        )

    def _sums(self, values: Floats) -> Floats:
        """Return the sums [N] of ``values`` [M] over the top tokens of each position."""
        return np.asarray(np.bincount(self.position, values, minlength=len(self.chosen)), dtype=np.float64)

    @property
    def variance_factor(self) -> Floats:
        """[N], ``1 - 2 p_x + sum p^2``: the variance of delta by that of the logit noise."""
        return np.asarray(1.0 - 2.0 * np.exp(self.chosen) + self._sums(np.exp(2.0 * self.logprobs)))

    @property
    def remainder(self) -> Floats:
        """[N], mass outside the top tokens."""
        return np.maximum(0.0, 1.0 - self._sums(np.exp(self.logprobs)))

    @property
    def expectedness(self) -> Floats:
        """``log p(x) - E_p log p`` of each token, [N]: negative surprise.

        In the mean, the tokens of the remainder are taken to be as improbable as the last top token.
        """
        logprobs = np.where(np.isfinite(self.logprobs), self.logprobs, 0.0)
        last = np.zeros(len(self.chosen))
        np.minimum.at(last, self.position, logprobs)
        return np.asarray(self.chosen - self._sums(np.exp(logprobs) * logprobs) - self.remainder * last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Delta as a linear function of expectedness."""

    slope: float = 0.0
    error: float = math.inf
    noise: float = 0.0
    """Logit noise of the residuals, nats."""


def _fit_line(deltas: Floats, top_tokens: _TopTokens) -> _Line:
    """Return delta as a linear function of ``log p(x) - E_p log p``.

    ``deltas`` [N] are reported less scored log-probabilities, at the positions of ``top_tokens``. The fit is least squares with an
    intercept. A token's weight is 1 over ``1 - 2 p_x + sum p^2``, to which the variance of its delta is proportional. The slope's error is
    White's (1980) estimator, the noise the root of the weighted mean of squared residuals. Noise of sd s alone makes a slope of about
    -s^2/7 to -s^2/2, by the shape of the distributions. Slope 0 with an infinite error is returned for too few tokens, and if ``log p(x) -
    E_p log p`` is the same for all.
    """
    # E_p log p is known from the top tokens alone: a long tail beyond them would flatten the slope.
    usable = np.isfinite(deltas) & (top_tokens.variance_factor > _LEAST_WEIGHT) & (top_tokens.remainder < _MOST_REMAINDER)
    if usable.sum() < _LEAST_TOKENS:
        return _Line()
    deltas, expected, inverse = deltas[usable], top_tokens.expectedness[usable], 1.0 / top_tokens.variance_factor[usable]
    centred = expected - np.average(expected, weights=inverse)
    spread = float((inverse * centred**2).sum())
    if spread == 0.0:
        return _Line()
    slope = float((inverse * centred * deltas).sum()) / spread
    residual = deltas - np.average(deltas, weights=inverse) - slope * centred
    error = math.sqrt(float(((inverse * centred * residual) ** 2).sum())) / spread
    return _Line(slope=slope, error=error, noise=math.sqrt(float((inverse * residual**2).mean())))
