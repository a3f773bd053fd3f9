"""Truncation: the tokens that min-p, top-k and top-p surely leave and surely cut off, with margins of noise in between.

The server's logits differ from the scores by noise, so that a token near a boundary may be on either side of it. Masses are probabilities
up to a factor, of N tokens over K top tokens, by falling mass, and the remainder, all other tokens, last. A nucleus is what top-p leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from pytest_specdec.stats.noise import EXACT

if TYPE_CHECKING:
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = [
    "InnerNucleus",
    "Nucleus",
    "TopP",
    "Truncation",
    "Weights",
    "by_mass",
    "by_rank",
    "by_share",
    "inner_nucleus",
    "intersection",
    "margin",
    "nucleus_margin",
]

NUCLEUS_MARGIN = 0.05
"""Least cumulative mass on either side of ``top_p`` that no test uses: scoring noise moves tokens across the boundary."""
EXACT_NUCLEUS_MARGIN = 0.005
"""The same on servers whose logits are off by EXACT nats at most: two of them, off in opposite directions, move a mass p by
``2 EXACT p (1 - p)``, .005 at most."""
RANK_MARGIN = 2
"""Ranks on either side of ``top_k`` that no test uses."""
LOGIT_MARGIN = 0.6
"""Nats of raw logit on either side of ``top_k`` and ``min_p`` that no test uses: in a flat distribution noise changes ranks."""
STAKE = 0.95
"""Share of a view on the inner nucleus that is staked, so that one token cannot bankrupt the bettor."""
LEAST_ADVANTAGE = 1e-3
"""Least difference between two masses of the inner nucleus that is bet on."""
NUCLEUS_DRAWS = 8
"""Draws of a server's noise over which its nucleus is averaged."""
DEVIATIONS = 6.0
"""Least logit and nucleus margin, in standard deviations of the difference of two logits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """Unnormalised masses after temperature, by falling mass, relative to the most probable token."""

    top_tokens: Floats
    """[N, K]."""
    remainder: Floats
    """[N], estimated mass of the remainder; exact at temperature 1."""
    remainder_bound: Floats
    """[N], upper bound on that mass; inf above temperature 1."""
    last: Floats
    """[N], upper bound on any single token of the remainder; inf if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truncation:
    """The outcomes left by min-p, top-k and top-p, as masks [N, K+1]; those near a boundary are neither in ``core`` nor in ``excluded``."""

    included: Bools
    """Included by the scores, without regard to noise."""
    core: Bools
    """Included at any noise within the margins."""
    excluded: Bools
    """Excluded at any noise within the margins."""


def margin(temperature: Floats, noise: float) -> Floats:
    """Return the width of a boundary's margin, as a mass factor.

    It is [N], one factor per token: a token is tested only if its mass is above or below the boundary by more than that. The margin is
    LOGIT_MARGIN nats of raw logit, or DEVIATIONS standard deviations if that is more. ``noise`` is the standard deviation of one logit,
    nats; the difference of two has sqrt(2) times that.
    """
    return np.asarray(np.exp(max(LOGIT_MARGIN, DEVIATIONS * sqrt(2.0) * noise) / temperature))


def by_share(weights: Weights, min_p: Floats, factor: Floats) -> Truncation:
    """Return the outcomes left by min-p, with margins of ``factor``.

    Min-p cuts tokens below ``min_p`` [N] times the best one; 0 cuts nothing. ``factor`` [N] is a ratio of masses: a token nearer to the
    boundary than that is neither surely left nor surely cut.
    """
    limit = min_p[:, None]
    # Masses are relative to the best token. The remainder is cut for sure if its most probable token, of mass ``last`` at most, is.
    share = np.concatenate([weights.top_tokens, weights.last[:, None]], axis=1)
    surely = share >= limit * factor[:, None]
    # The least probable token of the remainder has no lower bound.
    surely[:, -1] = False
    surely[:, 0] = True
    off = limit == 0.0
    return Truncation(included=off | (share >= limit), core=off | surely, excluded=~off & (share < limit / factor[:, None]))


def by_rank(weights: Weights, top_k: Ints, factor: Floats) -> Truncation:
    """Return the outcomes left by top-k, with margins on either side.

    The remainder stands at rank K: no token of it is more probable than the last top token. A token surely left, or surely cut, is
    RANK_MARGIN ranks and a ``factor`` [N] of mass away from the boundary. A ``top_k`` [N] of 0 cuts nothing.
    """
    width = weights.top_tokens.shape[1]
    rank = np.arange(width + 1)[None, :]
    k = np.where(top_k > 0, top_k, np.iinfo(np.int64).max - RANK_MARGIN)[:, None]
    boundary = np.take_along_axis(weights.top_tokens, np.minimum(k, width) - 1, axis=1)
    mass = np.concatenate([weights.top_tokens, weights.last[:, None]], axis=1)
    off = (top_k <= 0)[:, None]
    surely = (rank < k - RANK_MARGIN) & (mass >= boundary * factor[:, None])
    far = (rank >= k + RANK_MARGIN) & (mass <= boundary / factor[:, None])
    return Truncation(included=rank < k, core=off | surely | (rank == 0), excluded=~off & far)


def intersection(first: Truncation, second: Truncation) -> Truncation:
    """Return the outcomes left by two cuts, one after the other."""
    return Truncation(included=first.included & second.included, core=first.core & second.core, excluded=first.excluded | second.excluded)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nucleus:
    """A boundary of top-p [N], with the distances by which noise may move it."""

    top_p: Floats
    least: Floats
    """[N], mass up to which a token is inside at any noise."""
    most: Floats
    """[N], mass beyond which a token is outside at any noise."""
    factor: Floats
    """[N], a ratio of masses: a token at least so many times as probable as another one comes before it at any noise."""


def nucleus_margin(top_p: Floats, temperature: Floats, noise: float, *, exact: bool = False) -> Nucleus:
    """Return the boundary of top-p with margins for noisy logits.

    ``noise`` is the standard deviation of one logit, nats. Noise of d nats between the tokens above a boundary and those below it changes a
    mass p to ``p e^d / (p e^d + 1 - p)``, to first order by ``d p (1 - p)``. The margin is for ``d = 6 sqrt2 noise / temperature``, as if
    each side were one token, and NUCLEUS_MARGIN at least. On ``exact`` servers it is for ``d = 2 EXACT / temperature``, and
    EXACT_NUCLEUS_MARGIN at least.
    """
    shift = (2.0 * EXACT if exact else DEVIATIONS * sqrt(2.0) * noise) / temperature
    least = EXACT_NUCLEUS_MARGIN if exact else NUCLEUS_MARGIN
    boundary = logit(top_p)
    return Nucleus(
        top_p=top_p,
        least=np.minimum(top_p - least, expit(boundary - shift)),
        most=np.maximum(top_p + least, expit(boundary + shift)),
        factor=np.exp(shift),
    )


def by_mass(weights: Weights, before: Truncation, top_k: Ints, nucleus: Nucleus) -> Truncation:
    """Return the outcomes left by top-p after the other cuts.

    ``before`` has those left by top-k and min-p, ``nucleus`` the boundary with its margins. Top-p cuts a token if the mass above it, the
    share of all more probable tokens in what the other cuts left, reaches the boundary. That share is bounded by two sums: by the smallest
    possible one it is largest, which shows the outcomes surely left; by the largest it is smallest, which shows those surely cut off.
    Engines differ in whether min-p comes before top-p: the smallest sum assumes that it does, the largest that it does not.
    """
    mass = np.where(before.included, np.concatenate([weights.top_tokens, weights.remainder[:, None]], axis=1), 0.0)
    above = mass.cumsum(axis=1) - mass
    smallest_sum, largest_sum = _smallest_sum(weights, before, top_k), _largest_sum(weights, top_k)
    # The share of each token with all above it is this at most; down to the remainder it is all.
    most_down_to = np.concatenate([weights.top_tokens.cumsum(axis=1) / smallest_sum[:, None], np.ones((len(smallest_sum), 1))], axis=1)
    least_above = _mass_surely_above(weights, nucleus.factor) / largest_sum[:, None]
    limit, untruncated = nucleus.top_p[:, None], (nucleus.top_p >= 1.0)[:, None]
    surely = untruncated | (most_down_to <= nucleus.least[:, None])
    within = untruncated | (above < limit * mass.sum(axis=1, keepdims=True))
    # A nucleus has the most probable token at least.
    surely[:, 0] = within[:, 0] = True
    return Truncation(
        included=before.included & within,
        core=before.core & surely,
        excluded=before.excluded | (~untruncated & (least_above >= nucleus.most[:, None])),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InnerNucleus:
    """The top tokens in a nucleus of top_p squared, and how often a correct server and one with that nucleus emit them."""

    inside: Bools
    """[N, K+1], in the order of the scores: where biases and penalties change that order, nothing is bet."""
    bound: Floats
    """[N], upper bound on the probability of ``inside`` under a correct server; 1 where there is none."""
    if_narrower: Floats
    """[N], its probability if the nucleus is that of top_p squared: below 1 if the top tokens do not fill it."""

    def log_payoffs(self, jump_rate: float) -> Floats:
        """Return the log payoffs [N, K+1] of a bet on a too narrow nucleus.

        With B, the bound plus the ``jump_rate``, the view gives ``inside`` the mass ``mu = B + STAKE (if_narrower - B)``. It pays mu / B
        inside and (1 - mu) / (1 - B) outside. As mu is above B, the mean grows with the probability of ``inside``, and it is one at B: so
        it is one at most under a correct server (Huber 1965). Assumed is that independent noise, averaged, makes probable tokens no more
        probable, as in ``betting.table``. Where ``if_narrower`` is not above B by LEAST_ADVANTAGE, nothing is bet: the log payoffs are 0.
        """
        most = np.minimum(self.bound + jump_rate, 1.0)
        bets = most < self.if_narrower - LEAST_ADVANTAGE
        expected = np.where(bets, most, 0.5)
        view = np.where(bets, expected + STAKE * (self.if_narrower - expected), 0.5)
        return np.where(self.inside, np.log(view / expected)[:, None], (np.log1p(-view) - np.log1p(-expected))[:, None])


def inner_nucleus(weights: Weights, nucleus: Nucleus, is_only_cut: Bools) -> InnerNucleus:
    """Return the nucleus of top_p squared, with bounds on its probability.

    A server whose nucleus is narrower than the requested ``nucleus`` emits its top tokens, ``inside``, too often: with the probability
    ``if_narrower`` if it cuts at top_p squared. A correct server's nucleus has a mass of top_p at least, or that of the top tokens surely
    in it if this is more. It emits them with the probability ``bound`` at most, the inner mass over that. ``is_only_cut`` [N] marks where
    top_p alone cuts tokens, at temperature 1 or below. Elsewhere ``bound`` is 1 and nothing is bet: top_k and min_p take mass from a
    nucleus, and so does a temperature above 1 on engines that cut before it.
    """
    mass, top_p = weights.top_tokens, nucleus.top_p
    # The smallest possible sum, so that ``bound`` is not too low: the remainder counts only if its mass is exact.
    smallest_sum = mass.sum(axis=1) + np.where(weights.remainder == weights.remainder_bound, weights.remainder, 0.0)
    share = mass / smallest_sum[:, None]
    above = share.cumsum(axis=1) - share
    inside = above < (top_p**2)[:, None]
    inside[:, 0] = True
    inner_mass = np.where(inside, share, 0.0).sum(axis=1)
    surely_left = above <= nucleus.least[:, None]  # at any noise within the margins
    nucleus_mass = np.maximum(top_p, np.where(surely_left, share, 0.0).sum(axis=1))
    return InnerNucleus(
        inside=np.concatenate([inside, np.zeros((len(mass), 1), dtype=np.bool_)], axis=1),
        bound=np.where(is_only_cut, inner_mass / np.maximum(nucleus_mass, inner_mass), 1.0),
        if_narrower=inner_mass / np.maximum(top_p**2, inner_mass),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopP:
    """What the requests' top-p cuts, from which follow the distributions of servers that cut elsewhere."""

    mass: Floats
    """[N, K+1], the distribution before top-p, in the order of the scores."""
    limit: Floats
    """[N], top_p."""
    is_only_cut: Bools
    """[N], where nothing else cuts or moves tokens, at temperature 1 or below."""
    noise: Floats
    """[N], nats between the server's and the scored log-ratios; 0 on exact servers."""

    @classmethod
    def of(cls, weights: Weights, limit: Floats, is_only_cut: Bools, noise: Floats) -> TopP:
        """Return what top-p of ``limit`` [N] cuts from ``weights``, normalised."""
        mass = np.concatenate([weights.top_tokens, weights.remainder[:, None]], axis=1)
        return cls(mass=mass / mass.sum(axis=1, keepdims=True), limit=limit, is_only_cut=is_only_cut, noise=noise)

    def cut_at(self, limit: Floats, p: Floats) -> Floats:
        """Return the distribution of a server that cuts at ``limit`` of mass.

        ``limit`` is [N], the result [N, K+1]. It is ``p`` [N, K+1] where top-p is not the only cut.
        """
        here, cut = self.is_only_cut, p.copy()
        cut[here] = _average_nucleus(self.mass[here], limit[here], self.noise[here])
        return cut


def _average_nucleus(mass: Floats, limit: Floats, noise: Floats) -> Floats:
    """Return the distribution of a server that cuts at ``limit`` of mass.

    It is [N, K+1], averaged over NUCLEUS_DRAWS draws of that server's logits, which lie ``noise`` [N] nats from those of ``mass`` [N, K+1].
    Its nucleus is that of its own logits: the tokens from the most probable one down until their mass reaches ``limit`` [N]. The draws are
    the same at every call.
    """
    random, total = np.random.default_rng(0), np.zeros_like(mass)
    draws = NUCLEUS_DRAWS if noise.any() else 1
    rows = np.arange(len(mass))[:, None]
    for _ in range(draws):
        masses = mass.copy()
        masses[:, :-1] *= np.exp(noise[:, None] * random.standard_normal((len(mass), mass.shape[1] - 1)))
        masses /= masses.sum(axis=1, keepdims=True)
        order = np.column_stack([np.argsort(-masses[:, :-1], axis=1), np.full(len(mass), mass.shape[1] - 1)])
        ranked = masses[rows, order]
        # What the tokens before leave of the limit: a token is inside if anything is left.
        room = limit[:, None] - (ranked.cumsum(axis=1) - ranked)
        left = np.where(room > 0.0, ranked, 0.0)
        left[:, -1] = np.minimum(left[:, -1], np.maximum(room[:, -1], 0.0))  # many small tokens, of which a part is inside
        masses[rows, order] = left / left.sum(axis=1, keepdims=True)
        total += masses
    return np.asarray(total / draws)


def _mass_surely_above(weights: Weights, factor: Floats) -> Floats:
    """Return the mass of top tokens surely ranked before each outcome.

    It is [N, K+1]. A token is surely before another one if it is more than ``factor`` [N] times as probable: noise may swap nearly equal
    ones.
    """
    masses = np.concatenate([weights.top_tokens, weights.last[:, None]], axis=1)  # ``last`` bounds any token of the remainder
    # By falling mass the surely likelier tokens are the first ones, so that their number gives their mass.
    counts = (weights.top_tokens[:, :, None] > masses[:, None, :] * factor[:, None, None]).sum(axis=1)
    sums = np.concatenate([np.zeros((len(masses), 1)), weights.top_tokens.cumsum(axis=1)], axis=1)
    return np.asarray(np.take_along_axis(sums, counts, axis=1))


def _smallest_sum(weights: Weights, before: Truncation, top_k: Ints) -> Floats:
    """Return the smallest possible sum of masses under top-p.

    It is [N]: the sum of what surely remains after the cuts ``before`` top-p, min-p among them. The remainder counts only if its mass is
    exact.
    """
    exact_remainder = (top_k == 0) & (weights.remainder == weights.remainder_bound) & before.core[:, -1]
    return np.asarray(
        np.where(before.core[:, :-1], weights.top_tokens, 0.0).sum(axis=1) + np.where(exact_remainder, weights.remainder, 0.0)
    )


def _largest_sum(weights: Weights, top_k: Ints) -> Floats:
    """Return the largest possible sum of masses that top-p takes shares of.

    It is [N]: the sum of what ``top_k`` [N] may leave, with the upper bound of the remainder's mass. Min-p is left out, which an engine may
    apply after top-p. Divided by this sum, masses are the smallest shares that they may have.
    """
    k, width = top_k[:, None], weights.top_tokens.shape[1]
    # Noise may swap RANK_MARGIN ranks at the boundary of top-k, so that tokens of these ranks may remain.
    perhaps = (k == 0) | (np.arange(width)[None, :] < k + RANK_MARGIN)
    open_remainder = (top_k == 0) | (top_k + RANK_MARGIN > width)
    return np.asarray(np.where(perhaps, weights.top_tokens, 0.0).sum(axis=1) + np.where(open_remainder, weights.remainder_bound, 0.0))
