"""Near-ties: a bet that a greedy server emits tokens below the best one more often than logit noise explains.

Null hypothesis: whatever came before, a token whose logit lies d_j below the best one is emitted with probability at most
``P0_j = max(Phi(-d_j / sigma), F(d_j / sqrt2) / 2) + u``, F being the fraction of measured differences of one logit above that size, and u
1e-4 or the measured rate of jumps. It holds for a correct server if its logits and the scores differ by independent noise, so that the
difference of two candidates' logits is off by sqrt2 times as much, drawn anew at every prefix: token j is emitted only if it passes the
best one. The first term is for normal noise of standard deviation ``sigma``, the second for the tail that the run has shown. A repeated
prefix has no new noise, so that the caller leaves it out.

A bettor with distribution Q pays ``r = Q(x) / P0(x)``, the best token having the rest of either. With ``Q_j >= P0_j`` for every token below
the best one, ``r_j >= 1 >= r_0``, and the mean payoff ``r_0 + sum p_j (r_j - r_0)`` grows in each p_j: it is largest, and 1, for p = P0.
So the wealth is an e-process for the whole null hypothesis, the mean of several wealths too, and reaches 1/alpha with probability alpha at
most (Ville 1939; Ramdas et al. 2023). A token that no top token lists pays r_0, which keeps the mean payoff below 1.

Answers to one prompt may share its prefill, and noise that it left in the cache flips several of their tokens. What one prompt pays in all
is therefore capped at ``MOST_OF_A_PROMPT``, and wealth counts after whole prompts only: the mean of ``min(r, cap)`` is at most that of
``r``, so that the wealth is still an e-process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

if TYPE_CHECKING:
    from pytest_specdec.stats.token_distribution import Floats, Ints

__all__ = [
    "HALF_PRECISION",
    "MOST_OF_A_PROMPT",
    "SINGLE_PRECISION",
    "UNSEEN",
    "FlipNoise",
    "GreedyTokens",
    "NearTieWealth",
    "sigma_of",
    "wealth",
]

SINGLE_PRECISION, HALF_PRECISION = 0.02, 0.05
"""Nats: the least standard deviation assumed for the difference of two logits, whatever is measured."""
_MARGIN = 1.3
"""Factor on the measured noise: it differs between the tokens that show it and those that are judged."""
UNSEEN = 1e-4
"""Probability of a flip that no noise explains."""
MOST_OF_A_PROMPT = 100.0
"""Most that one prompt multiplies the wealth by: at the levels of a run's tests, 1e-5 to 3e-7, an alarm takes three or four prompts at
least. Where one answer of 50 has ten times the measured noise throughout, 72 of 1,200 correct runs alarm without a cap, 10 with this one
and 2 with 30; of 1,000 runs with a fault that keeps drafts near the best token, 705, 667 and 584 do (``benchmarks.near_ties``)."""
_SCALES = (2.0, 4.0, 16.0)
_RATES = (0.02, 0.2)
_WITHIN = 0.5
"""Nats below the best token within which a fault that accepts near-ties keeps drafts."""
_MOST_NULL, _MOST = 0.95, 0.98
"""Mass of all tokens below the best one: nothing is bet if the null's exceeds the first, and no bettor's exceeds the second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GreedyTokens:
    """N emitted tokens among at most K candidates."""

    gaps: Floats
    """[N, K], nats below the best candidate, 0 for the first; inf beyond the listed ones."""
    chosen: Ints
    """[N], index of the emitted candidate; -1 for a token that is not listed."""
    prompts: Ints
    """[N], number of the prompt that the token answers, in rising order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlipNoise:
    """The noise that flips near-ties of a correct server."""

    sigma: float
    """Nats: the assumed standard deviation of the difference of two candidates' logits."""
    unseen: float = UNSEEN
    """Probability of a flip that no other noise explains, per candidate."""
    tail: Floats = field(default_factory=lambda: np.zeros(0))
    """[M], nats, the measured differences of one logit between two computations, in rising order."""

    def chances(self, gaps: Floats) -> Floats:
        """Return the bound P0 on the probability of each candidate.

        It is [N, K], by the module's formula, for ``gaps`` [N, K] in nats below the best candidate; 0 for the best one and for infinite
        gaps.
        """
        finite = np.isfinite(gaps)
        below = np.where(finite, gaps, 0.0)
        heavier = len(self.tail) - np.searchsorted(self.tail, below / sqrt(2.0), side="right")
        tail = heavier / (2.0 * max(1, len(self.tail)))
        chances = np.where(finite, np.maximum(ndtr(-below / self.sigma), tail) + self.unseen, 0.0)
        chances[:, :1] = 0.0
        return np.asarray(chances)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NearTieWealth:
    """The wealth of the bettors over a run."""

    log_wealth: Floats
    """[M], natural log of the mixture's wealth after each prompt with tokens."""

    @property
    def peak(self) -> float:
        """The highest log wealth, 0 at least."""
        return max(0.0, float(self.log_wealth.max(initial=0.0)))

    def alarms(self, alpha: float) -> bool:
        """Return True if the wealth ever reached ``1/alpha``."""
        return alpha > 0.0 and self.peak >= -log(alpha)


def sigma_of(noise: float, floor: float) -> float:
    """Return the assumed standard deviation of the difference of two logits.

    ``noise`` is that of one logit between two computations, ``floor`` the least result.
    """
    return max(_MARGIN * sqrt(2.0) * noise, floor)


def wealth(choices: GreedyTokens, noise: FlipNoise, most: float = MOST_OF_A_PROMPT) -> NearTieWealth:
    """Return the wealth of all bettors' mixture, prompt by prompt.

    ``choices`` are tokens emitted at temperature 0, each after another prefix; ``noise`` gives the null hypothesis, ``most`` caps the
    payoff of a prompt. The null is the largest probability of each candidate below the best one; nothing is bet at tokens with so many
    near-ties that it leaves the best candidate next to nothing.
    """
    null = noise.chances(choices.gaps)
    playing = null.sum(axis=1) < _MOST_NULL
    distributions = [_raise_to_null(null, flips) for flips in _alternatives(choices, null, noise)]
    payoffs = np.array([np.where(playing, _log_payoffs(null, flips, choices.chosen), 0.0) for flips in distributions])
    paths = np.cumsum(np.minimum(_sums_of_prompts(payoffs, choices.prompts), log(most)), axis=1)
    return NearTieWealth(log_wealth=np.logaddexp.reduce(paths, axis=0) - log(len(paths)))


def _sums_of_prompts(payoffs: Floats, prompts: Ints) -> Floats:
    """Return the sums [B, M] of the log payoffs [B, N] over each prompt's tokens."""
    return np.asarray(np.add.reduceat(payoffs, np.flatnonzero(np.diff(prompts, prepend=-1)), axis=1))


def _alternatives(choices: GreedyTokens, null: Floats, noise: FlipNoise) -> list[Floats]:
    """Return the distributions bet on, [N, K], one for each bettor.

    They are flips by 2, 4 and 16 times the noise, flips at two fixed rates evenly among candidates within half a nat of the best, and the
    null with one hundredth spread evenly over all listed candidates. ``null`` [N, K] is P0; the best candidate has 0 in all of them.
    """
    candidates = null > 0.0
    near = candidates & (choices.gaps <= _WITHIN)
    evenly = near / np.maximum(near.sum(axis=1, keepdims=True), 1)
    top_tokens = np.maximum(np.isfinite(choices.gaps).sum(axis=1, keepdims=True), 1)
    scaled = [replace(noise, sigma=scale * noise.sigma).chances(choices.gaps) for scale in _SCALES]
    return [*scaled, *(rate * evenly for rate in _RATES), np.where(candidates, 0.99 * null + 0.01 / top_tokens, 0.0)]


def _raise_to_null(null: Floats, flips: Floats) -> Floats:
    """Return ``flips`` raised to at least ``null``, candidate by candidate.

    Both are [N, K], the probabilities of the candidates below the best one: Q of a bettor and P0 of the null hypothesis; the best one has 0
    in both. A bet is valid only with ``Q_j >= P0_j`` for all of them (module docstring). The excess over the null is scaled down if all of
    Q would be more than _MOST, which leaves the best candidate 0.02.
    """
    above_null = np.maximum(flips - null, 0.0)
    # The mass above the null, and the most that leaves the best candidate its share.
    excess = above_null.sum(axis=1, keepdims=True)
    room = np.maximum(_MOST - null.sum(axis=1, keepdims=True), 0.0)
    return np.asarray(null + above_null * np.minimum(1.0, room / np.maximum(excess, 1e-300)))


def _log_payoffs(null: Floats, flips: Floats, chosen: Ints) -> Floats:
    """Return the log payoffs of one bettor at the chosen candidates.

    They are [N], ``ln Q(x) - ln P0(x)``. ``flips`` [N, K] is the bettor's distribution Q, ``null`` [N, K] is P0; both are 0 for the best
    candidate, which has the rest of either. ``chosen`` [N] is the emitted candidate's index, 0 for the best one and -1 for an unlisted
    token. An unlisted token pays as the best one does: no candidate pays less, so that such tokens only lower the mean payoff.
    """
    best = np.log1p(-flips.sum(axis=1).clip(max=_MOST)) - np.log1p(-null.sum(axis=1).clip(max=_MOST))
    rows = np.arange(len(chosen))
    flip_chance, null_chance = flips[rows, np.maximum(chosen, 0)], null[rows, np.maximum(chosen, 0)]
    flipped = (chosen > 0) & (null_chance > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(flipped, np.log(flip_chance) - np.log(null_chance), best))
