"""Cuts: what min-p, top-k and top-p leave of a law of which the atoms are known exactly and the tail's mass at most.

Each cut says which outcomes are surely kept and surely cut. What lies within a margin of a boundary is neither: there scoring noise
decides, and nothing is bet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

__all__ = [
    "LOGIT_MARGIN",
    "NUCLEUS_MARGIN",
    "RANK_MARGIN",
    "Bools",
    "Cut",
    "Floats",
    "Ints",
    "Weights",
    "by_mass",
    "by_rank",
    "by_share",
    "margin",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NUCLEUS_MARGIN = 0.05
"""Cumulative mass on either side of ``top_p`` in which nothing is bet: scoring noise moves tokens across the boundary."""
RANK_MARGIN = 2
"""Ranks on either side of ``top_k`` in which nothing is bet."""
LOGIT_MARGIN = 0.6
"""Nats of raw logit on either side of ``top_k`` and ``min_p`` in which nothing is bet: ranks alone do not hold where the law is flat."""
DEVIATIONS = 6.0
"""As many deviations of a difference of two logits it is at least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """Unnormalised masses after temperature, by falling mass, relative to the most probable token."""

    atoms: Floats
    """[N, K]."""
    tail: Floats
    """[N], estimated; exact at temperature 1."""
    tail_bound: Floats
    """[N], upper bound; inf above temperature 1."""
    last: Floats
    """[N], upper bound on any single token of the tail; inf where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """What a truncation does to the outcomes, masks [N, K+1]."""

    kept: Bools
    core: Bools
    """Safely kept."""
    far: Bools
    """Safely cut."""


def margin(temperature: Floats, noise: float) -> Floats:
    """Return the factor of mass [N] on either side of a boundary in which nothing is bet, for logits with ``noise``."""
    return np.asarray(np.exp(max(LOGIT_MARGIN, DEVIATIONS * sqrt(2.0) * noise) / temperature))


def by_share(weights: Weights, min_p: Floats, factor: Floats) -> Cut:
    """Cut what is less than ``min_p`` [N] times as probable as the most probable token; 0 cuts nothing."""
    limit = min_p[:, None]
    share = np.concatenate([weights.atoms, weights.last[:, None]], axis=1)
    surely = share >= limit * factor[:, None]
    # The least probable token of the tail has no lower bound.
    surely[:, -1] = False
    surely[:, 0] = True
    off = limit == 0.0
    return Cut(kept=off | (share >= limit), core=off | surely, far=~off & (share < limit / factor[:, None]))


def by_rank(weights: Weights, top_k: Ints, factor: Floats) -> Cut:
    """Cut by top-k; the tail begins at rank K, and what lies there is no more probable than the last atom."""
    width = weights.atoms.shape[1]
    rank = np.arange(width + 1)[None, :]
    k = np.where(top_k > 0, top_k, np.iinfo(np.int64).max - RANK_MARGIN)[:, None]
    boundary = np.take_along_axis(weights.atoms, np.minimum(k, width) - 1, axis=1)
    mass = np.concatenate([weights.atoms, weights.last[:, None]], axis=1)
    off = (top_k <= 0)[:, None]
    surely = (rank < k - RANK_MARGIN) & (mass >= boundary * factor[:, None])
    far = (rank >= k + RANK_MARGIN) & (mass <= boundary / factor[:, None])
    return Cut(kept=rank < k, core=off | surely | (rank == 0), far=~off & far)


def by_mass(weights: Weights, before: Cut, top_k: Ints, top_p: Floats) -> Cut:
    """Cut what top-k and min-p kept by top-p, each way with the normaliser that is the less favourable.

    Engines differ in whether min-p comes before top-p: the smallest normaliser takes it to, the largest not to.
    """
    mass = np.where(before.kept, np.concatenate([weights.atoms, weights.tail[:, None]], axis=1), 0.0)
    above = mass.cumsum(axis=1) - mass
    cumulative = weights.atoms.cumsum(axis=1)
    least, most = _least(weights, before, top_k), _most(weights, top_k)
    until = np.concatenate([cumulative / least[:, None], np.ones((len(least), 1))], axis=1)
    since = np.concatenate([np.zeros((len(most), 1)), cumulative], axis=1) / most[:, None]
    limit, whole = top_p[:, None], (top_p >= 1.0)[:, None]
    core = whole | (until <= limit - NUCLEUS_MARGIN)
    core[:, 0] = True
    return Cut(
        kept=before.kept & (whole | (above < limit * mass.sum(axis=1, keepdims=True))),
        core=before.core & core,
        far=before.far | (~whole & (since >= limit + NUCLEUS_MARGIN)),
    )


def _least(weights: Weights, before: Cut, top_k: Ints) -> Floats:
    """Return the smallest sum of masses [N] that top-p may have seen after the cuts ``before`` it."""
    exact_tail = (top_k == 0) & (weights.tail == weights.tail_bound) & before.core[:, -1]
    return np.asarray(np.where(before.core[:, :-1], weights.atoms, 0.0).sum(axis=1) + np.where(exact_tail, weights.tail, 0.0))


def _most(weights: Weights, top_k: Ints) -> Floats:
    """Return the largest sum of masses [N] that top-p may have seen after top-k."""
    k, width = top_k[:, None], weights.atoms.shape[1]
    perhaps = (k == 0) | (np.arange(width)[None, :] < k + RANK_MARGIN)
    open_tail = (top_k == 0) | (top_k + RANK_MARGIN > width)
    return np.asarray(np.where(perhaps, weights.atoms, 0.0).sum(axis=1) + np.where(open_tail, weights.tail_bound, 0.0))
