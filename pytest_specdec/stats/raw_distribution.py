"""Raw distributions: a server's scores as arrays, before any sampling parameter.

Scores are log-probabilities by teacher forcing. The remainder is all tokens outside the top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.transcript import Position
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = ["SLACK", "RawDistribution", "raw_distribution", "raw_probabilities"]

SLACK = 1e-6
"""Smallest mass of the remainder: float32 and rounded log-probabilities give a sum of probabilities no better."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawDistribution:
    """The unprocessed distribution (temperature 1, nothing truncated) at N tokens, with K top tokens each by falling probability."""

    ids: Ints
    """[N, K]; -1 if a position has fewer top tokens."""
    logprobs: Floats
    """[N, K], natural logs; -inf if a position has fewer top tokens."""
    chosen: Ints
    """[N], the emitted token ids."""
    chosen_logprobs: Floats
    """[N], of the emitted tokens, also outside the top tokens; nan if the scores lack them."""
    vocabulary: int = 0
    """Tokens in the vocabulary; 0 if unknown. As many top tokens are the whole distribution, without a remainder."""

    @property
    def lists_vocabulary(self) -> Bools:
        """[N], positions whose top tokens are the whole vocabulary."""
        return np.asarray((self.ids >= 0).sum(axis=1) >= (self.vocabulary or np.iinfo(np.int64).max))

    @property
    def outcome(self) -> Ints:
        """[N], index of the emitted token among the top tokens; K, the remainder, if it is not listed."""
        hits = self.ids == self.chosen[:, None]
        return np.asarray(np.where(hits.any(axis=1), hits.argmax(axis=1), self.ids.shape[1]), dtype=np.int64)


def raw_distribution(positions: Sequence[Position], top_tokens: int, vocabulary: int = 0) -> RawDistribution:
    """Return scored positions as arrays, with one row for each.

    Each row has the position's ``top_tokens`` most probable tokens at most, by falling probability. Servers append the emitted token to a
    list that lacks it. A list is then longer than ``top_tokens`` and is cut off again: which tokens are top tokens must not depend on the
    token emitted. ``vocabulary`` is the number of tokens in it, 0 if unknown.
    """
    width = max([1, *(len(position.top_ids) for position in positions)])
    ids = np.full((len(positions), width), -1, dtype=np.int64)
    logprobs = np.full((len(positions), width), -np.inf)
    for row, position in enumerate(positions):
        ids[row, : len(position.top_ids)] = position.top_ids
        logprobs[row, : len(position.top_logprobs)] = position.top_logprobs
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :top_tokens]
    return RawDistribution(
        ids=np.take_along_axis(ids, order, axis=1),
        logprobs=np.take_along_axis(logprobs, order, axis=1),
        chosen=np.array([position.token_id for position in positions], dtype=np.int64),
        chosen_logprobs=np.array([position.logprob for position in positions]),
        vocabulary=vocabulary,
    )


def raw_probabilities(raw: RawDistribution) -> Floats:
    """Return the raw distribution over top tokens and remainder, [N, K+1]."""
    mass = np.exp(raw.logprobs)
    remainder = np.where(raw.lists_vocabulary, 0.0, np.maximum(1.0 - mass.sum(axis=1), SLACK))
    masses = np.concatenate([mass, remainder[:, None]], axis=1)
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))
