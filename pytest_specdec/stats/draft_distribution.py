"""Draft distributions: q on the baseline's top tokens and remainder, and the draft of prompt lookup.

Any normalised array makes a valid alternative, so an approximation of q costs power and never validity. Arrays [N, K+1] have, for each of N
emitted tokens, the K top tokens of the baseline and, last, the remainder, all other tokens; p is the baseline's distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_specdec.stats.fault_models import Alternative
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = [
    "Lookup",
    "SplitRemainder",
    "at_drafts",
    "bonus_chance",
    "favourite",
    "index_of",
    "listed_outcomes",
    "map_draft",
    "merge_remainder",
    "one_hot",
    "overlap",
]


def map_draft(draft: Floats, draft_ids: Ints, ids: Ints, p: Floats) -> Floats:
    """Return the draft's distribution on the baseline's outcomes, [N, K+1].

    The outcomes are the baseline's top tokens ``ids`` [N, K] and, last, its remainder: all other tokens; ``p`` [N, K+1] are its
    probabilities. ``draft`` [N, J+1] is over the draft's own top tokens ``draft_ids`` [N, J] and its remainder. A token in both lists gets
    the draft's probability. Tokens in the draft's list alone count to the baseline's remainder. The draft's remainder is spread in
    proportion to ``p`` over the baseline's remainder and those of its top tokens that the draft does not list. Mass that is still missing
    goes to the baseline's remainder, and the result is normalised.
    """
    same = _match_ids(ids, draft_ids)  # [N, K, J]
    in_both = same.any(axis=2)
    listed = np.where(in_both, (same * draft[:, None, :-1]).sum(axis=2), 0.0)
    unlisted = np.concatenate([np.where(in_both, 0.0, p[:, :-1]), p[:, -1:]], axis=1)
    weight = unlisted.sum(axis=1, keepdims=True)
    spread = np.where(weight > 0, unlisted / np.where(weight > 0, weight, 1.0), 0.0) * draft[:, -1:]
    q = spread + np.concatenate([listed, np.zeros((len(p), 1))], axis=1)
    q[:, -1] += np.maximum(1.0 - q.sum(axis=1), 0.0)
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def listed_outcomes(draft_ids: Ints, ids: Ints) -> Bools:
    """Return a mask of top tokens listed by the draft too.

    It is [N, K+1], and False for the remainder. ``draft_ids`` [N, J] and ``ids`` [N, K] are the top tokens of draft and baseline.
    """
    return np.concatenate([_match_ids(ids, draft_ids).any(axis=2), np.zeros((len(ids), 1), dtype=np.bool_)], axis=1)


def _match_ids(ids: Ints, draft_ids: Ints) -> Bools:
    """Return a mask [N, K, J] of equal ids; an id below 0 equals none."""
    return np.asarray((ids[:, :, None] == draft_ids[:, None, :]) & (ids >= 0)[:, :, None])


def index_of(token_ids: Ints, ids: Ints) -> Ints:
    """Return the indices of tokens among each position's top tokens.

    They are [N], for ``token_ids`` [N] and the top tokens ``ids`` [N, K]: K, the remainder, for a token that is not listed.
    """
    hits = (ids == token_ids[:, None]) & (ids >= 0)
    return np.asarray(np.where(hits.any(axis=1), hits.argmax(axis=1), ids.shape[1]), dtype=np.int64)


def one_hot(index: Ints, outcomes: int) -> Floats:
    """Return distributions [N, outcomes] certain of ``index`` [N]."""
    return np.asarray(np.arange(outcomes)[None, :] == index[:, None], dtype=np.float64)


def favourite(p: Floats) -> Floats:
    """Return distributions certain of the most probable top token.

    They are [N, K+1], and never certain of the remainder.
    """
    return one_hot(p[:, :-1].argmax(axis=1).astype(np.int64), p.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRemainder:
    """p and q on outcomes [N, K+2] with the remainder split in two.

    The first piece is the token that a draft is certain of, if it lies in the remainder; the second is the rest.
    """

    p: Floats
    q: Floats

    @classmethod
    def of(cls, p: Floats, q: Floats) -> SplitRemainder:
        """Return p and q, given on outcomes [N, K+1], with the remainder split in two.

        If ``q`` is certain of the remainder, the draft is one of its tokens, and under ``p`` less probable than the last top token. Its
        probability is unknown: half that of the last top token is assumed, or half the remainder's if that is less. At other positions the
        first piece is empty.
        """
        certain = q[:, -1] == 1.0
        last = np.where(p[:, :-1] > 0, p[:, :-1], 1.0).min(axis=1)
        drafted = np.where(certain, np.minimum(last, p[:, -1]) / 2.0, 0.0)
        return cls(
            p=np.column_stack([p[:, :-1], drafted, p[:, -1] - drafted]),
            q=np.column_stack([q[:, :-1], certain, np.where(certain, 0.0, q[:, -1])]),
        )

    def spread(self) -> SplitRemainder:
        """Return the same with the remainder's second piece in three.

        The distributions are [N, K+4] then. The pieces have the tokens that the draft prefers more than the target, less than the target,
        and hardly at all. Their shares of either mass, SPREAD, are about those of a draft whose log-probabilities are off by one nat.
        """
        p, q = (distribution[:, -1:] * np.array([weights]) for distribution, weights in zip((self.p, self.q), SPREAD, strict=True))
        return SplitRemainder(p=np.column_stack([self.p[:, :-1], p]), q=np.column_stack([self.q[:, :-1], q]))


SPREAD = ((0.25, 0.4, 0.35), (0.6, 0.28, 0.12))
"""Shares of p and of q in the three pieces that a remainder is split into."""


def merge_remainder(distribution: Floats, parts: int = 2) -> Floats:
    """Return a split distribution with one remainder again, [N, K+1].

    Its last ``parts`` outcomes are the pieces of the remainder.
    """
    return np.column_stack([distribution[:, :-parts], distribution[:, -parts:].sum(axis=1)])


def at_drafts(fault: Alternative, p: Floats, q: Floats) -> Floats:
    """Return a fault's distribution of emitted tokens at draft slots.

    It is [N, K+1]. Draft tokens are drawn from ``q`` [N, K+1].
    """
    split = SplitRemainder.of(p, q)
    return merge_remainder(fault.distribution(split.p, split.q))


def overlap(p: Floats, q: Floats) -> Floats:
    """Return a correct server's acceptance rate [N], ``sum min(p, q)``."""
    split = SplitRemainder.of(p, q)
    return np.asarray(np.minimum(split.p, split.q).sum(axis=1))


def bonus_chance(beta: Floats, k: int) -> Floats:
    """Return the chance [N] of a token in an unknown window to be its bonus.

    The bonus is the target's token after a draft accepted in full. A verify step of ``k`` draft tokens gets to slot j with probability
    ``beta^j``, so that the bonus has the share ``beta^k / sum_{j=0..k} beta^j`` of all tokens. ``beta`` [N] is the overlap at the token
    itself; a mean over the run would depend on later tokens, which no bet may.
    """
    powers = beta[:, None] ** np.arange(k + 1)[None, :]
    return np.asarray(powers[:, -1] / powers.sum(axis=1))


class Lookup:
    """A growing context and the draft that prompt lookup proposes for it.

    It looks for the earliest occurrence of the longest suffix, of ``shortest`` to ``longest`` tokens, that occurred before. The tokens
    after it are the draft, which is shorter if the context ends first. vLLM does the same (``v1/spec_decode/ngram_proposer.py``).
    """

    def __init__(self, tokens: Iterable[int], *, shortest: int, longest: int) -> None:
        self._tokens: list[int] = []
        self._sizes = range(longest, shortest - 1, -1)
        # Of each n-gram, the index after its earliest occurrence.
        self._first: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Append one emitted token to the context."""
        self._tokens.append(token)
        end = len(self._tokens)
        for size in self._sizes:
            if size <= end:
                self._first.setdefault(tuple(self._tokens[end - size :]), end)

    def propose(self, k: int) -> tuple[int, ...]:
        """Return at most ``k`` draft tokens; none without a match."""
        end = len(self._tokens)
        for size in self._sizes:
            # A suffix that did not occur before ends at ``end`` only: nothing comes after it.
            after = self._first.get(tuple(self._tokens[end - size :]), end) if size <= end else end
            if after < end:
                return tuple(self._tokens[after : after + k])
        return ()
