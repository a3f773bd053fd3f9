"""Recovering: which tokens a drafter proposes too seldom, learned from the windows of earlier tokens, and how often each was emitted.

In a correct verify step ``P(recovered | x) = max(0, 1 - q(x)/p(x))``: the windows tell token by token where q falls short of p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.observed import TAIL

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Bools, Floats, Ints, Law
    from pytest_specdec.stats.observed import Observed

__all__ = ["Learned", "inside", "rates"]

BLOCK = 64
"""Tokens that share what was learned from all blocks before."""
OWN = 3.0
"""Tokens of the same kind at the same context that count for as much as the rate learned over all contexts."""
COMMON = 0.25
"""The rate before any token was seen, and RIDGE for how many tokens it counts."""
RIDGE = 3.0
BACKED = 4.0
"""Tokens behind the same previous token that count for as much as the mean law of all."""
FEATURES = 6
LEAST = 1e-7
"""Least probability that is told from nothing."""
USUAL = 0.2
"""About the standard deviation of rates at one context."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """What was known before each of N tokens, [N, K+1]."""

    rate: Floats
    """Of being recovered rather than accepted, when emitted at a draft slot; an estimate in 0..1."""
    seen: Floats
    """How often the same token was emitted at the same context."""
    features: Floats
    """[N, K+1, F], of about unit size and mean 0 under p, the rate's the last."""


def inside(law: Law) -> Floats:
    """Return p given the core, [N, K+1]."""
    p = np.where(law.core, law.p, 0.0)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def rates(observed: Observed, *, contexts: Ints | None = None, previous: Ints | None = None) -> Learned:
    """Return what was learned before each token; see ``learned.log_payoffs`` for the arguments.

    The rate over all contexts is a ridge regression of "its window ended with it" on p, on the mean law so far, and on the mean law so far
    behind the same previous token: a drafter is a worse model, and leans to what is frequent. Each feature stands twice, less its mean
    under p and as that mean, so that a difference between positions is not taken for one between tokens (Mundlak 1978).
    """
    places, law = observed.places, observed.law
    counted = (places.draft_slot | ~places.known) & np.take_along_axis(law.core, law.outcome[:, None], axis=1)[:, 0]
    flagged = counted & places.known & ~places.last
    words = _words(observed)
    told = _Features.of(law, words, observed.before if previous is None else previous)
    memory = _Memory.of(observed, words, _alike(observed.ids) if contexts is None else contexts)
    gram = RIDGE * np.eye(2 * FEATURES + 1)
    moment = COMMON * gram[-1]
    rate, seen = np.empty(law.p.shape), np.empty(law.p.shape)
    centred = np.empty((*law.p.shape, FEATURES + 1))
    for first in range(0, observed.tokens, BLOCK):
        here = slice(first, first + BLOCK)
        features = told.at(here)
        common = (features @ np.linalg.solve(gram, moment)).clip(0.0, 1.0)
        rate[here], seen[here] = memory.at(here, common)
        centred[here, :, :FEATURES] = features[:, :, :FEATURES]
        emitted = np.take_along_axis(features, law.outcome[here, None, None], axis=1)[:, 0][flagged[here]]
        gram = gram + emitted.T @ emitted
        moment = moment + emitted.T @ places.ended[here][flagged[here]]
        told.learn(here)
        memory.learn(here, counted[here], flagged[here])
    centred[:, :, -1] = (rate - (told.p * rate).sum(axis=1, keepdims=True)) / USUAL
    return Learned(rate=rate, seen=np.where(law.core, seen, 0.0), features=centred)


def _alike(ids: Ints) -> Ints:
    return np.asarray(np.unique(ids, axis=0, return_inverse=True)[1], dtype=np.int64).reshape(-1)


def _words(observed: Observed) -> Ints:
    """Return a small number for every outcome's token id, [N, K+1]."""
    ids = np.column_stack([observed.ids, np.full(observed.tokens, TAIL)])
    return np.asarray(np.unique(ids, return_inverse=True)[1], dtype=np.int64).reshape(ids.shape)


def _numbered(groups: Ints, words: Ints) -> tuple[Ints, int]:
    """Return a number for every pair of a group [N] and an outcome's word [N, K+1], and how many there are."""
    kinds = np.unique(groups, return_inverse=True)[1].reshape(-1, 1)
    pairs, cells = np.unique(kinds * (words.max() + 1) + words, return_inverse=True)
    return np.asarray(cells, dtype=np.int64).reshape(words.shape), len(pairs)


@dataclass(slots=True, kw_only=True, eq=False)
class _Mean:
    """The mean law so far within each of some groups of tokens, by token id."""

    cells: Ints
    """[N, K+1], of a group and a token id."""
    groups: Ints
    """[N]."""
    mass: Floats
    """By cell."""
    tokens: Floats
    """By group."""

    @classmethod
    def of(cls, groups: Ints, words: Ints) -> _Mean:
        cells, count = _numbered(groups, words)
        kinds, group = np.unique(groups, return_inverse=True)
        return cls(cells=cells, groups=group.reshape(-1), mass=np.zeros(count), tokens=np.zeros(len(kinds)))

    def at(self, here: slice, backed: float, prior: Floats) -> Floats:
        """Return the mean law, with ``prior`` [M, K+1] for as much as ``backed`` tokens."""
        return np.asarray((self.mass[self.cells[here]] + backed * prior) / (self.tokens[self.groups[here]][:, None] + backed))

    def learn(self, here: slice, p: Floats) -> None:
        np.add.at(self.mass, self.cells[here], p)
        np.add.at(self.tokens, self.groups[here], 1.0)


@dataclass(slots=True, kw_only=True, eq=False)
class _Features:
    """What the common rate is a linear function of."""

    p: Floats
    fixed: Floats
    """[N, K+1, 4], of p."""
    usual: _Mean
    following: _Mean

    @classmethod
    def of(cls, law: Law, words: Ints, previous: Ints) -> _Features:
        p = inside(law)
        surprise = np.log(np.maximum(p, LEAST))
        tail = np.broadcast_to(np.arange(p.shape[1]) == p.shape[1] - 1, p.shape)
        return cls(
            p=p,
            fixed=np.stack([surprise / 1.5, surprise**2 / 7.5, 3.0 * tail, 4.0 * p], axis=2),
            usual=_Mean.of(np.zeros_like(previous), words),
            following=_Mean.of(previous, words),
        )

    def at(self, here: slice) -> Floats:
        """Return the features, less their means under p, these means, and 1, [M, K+1, twice as many + 1]."""
        usual = self.usual.at(here, 1.0, np.asarray(1.0 / len(self.usual.mass)))
        laws = np.log(np.stack([usual, self.following.at(here, BACKED, usual)], axis=2)) / 3.0
        told = np.concatenate([self.fixed[here], laws], axis=2)
        mean = (self.p[here][:, :, None] * told).sum(axis=1, keepdims=True)
        return np.concatenate([told - mean, np.broadcast_to(mean, told.shape), np.ones((*told.shape[:2], 1))], axis=2)

    def learn(self, here: slice) -> None:
        self.usual.learn(here, self.p[here])
        self.following.learn(here, self.p[here])


@dataclass(slots=True, kw_only=True, eq=False)
class _Memory:
    """What was emitted at each context, by token id."""

    cells: Ints
    """[N, K+1], of a context and a token id."""
    emitted: Ints
    """[N], the cell of each token."""
    ended: Bools
    seen: Floats
    """By cell, as what follows."""
    flagged: Floats
    recovered: Floats

    @classmethod
    def of(cls, observed: Observed, words: Ints, contexts: Ints) -> _Memory:
        cells, count = _numbered(contexts, words)
        emitted = np.take_along_axis(cells, observed.law.outcome[:, None], axis=1)[:, 0]
        nothing = np.zeros((3, count))
        return cls(cells=cells, emitted=emitted, ended=observed.places.ended, seen=nothing[0], flagged=nothing[1], recovered=nothing[2])

    def at(self, here: slice, common: Floats) -> tuple[Floats, Floats]:
        """Return the rate, drawn towards ``common`` [M, K+1], and the counts."""
        cells = self.cells[here]
        return (OWN * common + self.recovered[cells]) / (OWN + self.flagged[cells]), self.seen[cells]

    def learn(self, here: slice, counted: Bools, flagged: Bools) -> None:
        np.add.at(self.seen, self.emitted[here], counted)
        np.add.at(self.flagged, self.emitted[here], flagged)
        np.add.at(self.recovered, self.emitted[here], flagged & self.ended[here])
