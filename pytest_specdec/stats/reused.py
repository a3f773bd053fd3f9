"""Laws of a draft slot at which one random number serves two decisions: the tie shows in the order of token ids.

A token is drawn by inverse CDF: token x where the number falls into ``[F(x-), F(x)]``, tokens ordered by id. The tail's tokens lie anywhere
among the ids, so its mass is spread over them evenly (an assumption that costs power where it is wrong, and no validity).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.alternatives import ratio, residual, verified

if TYPE_CHECKING:
    from pytest_specdec.stats.drafts import Split
    from pytest_specdec.stats.laws import Bools, Floats, Ints
    from pytest_specdec.stats.observed import Observed

__all__ = ["Reuse", "accepts_once", "decided_by_the_draft", "recovered_by_the_rejection"]


TINY = 1e-9


class Reuse(StrEnum):
    """Which random number serves twice, in words."""

    NONE = ""
    RECOVERY = "the number that rejected the draft draws the recovered token"
    DRAFT = "the number that drew the draft decides on its acceptance"
    WINDOW = "one number decides on the acceptance of all drafts of a window"
    GUMBEL = "the Gumbel noise that drew the draft draws the recovered token"


def decided_by_the_draft(p: Floats, q: Floats, ids: Ints, vocabulary: int) -> Floats:
    """Return m [N, K+1] where the number that drew the draft token decides on its acceptance too.

    Given the draft token x it is uniform on ``[F(x-), F(x)]`` of q, not on [0, 1]: low ids are accepted too often, high ones too seldom.
    ``ids`` [N, K] are the atoms'.
    """
    below = _below(q, ids, vocabulary)
    width = np.where(q[:, :-1] > 0, q[:, :-1], 1.0)
    accept = ratio(p, q)
    accept[:, :-1] = np.clip((accept[:, :-1] - below) / width, 0.0, 1.0)
    return verified(q, accept, residual(p, q))


def recovered_by_the_rejection(p: Floats, q: Floats, ids: Ints, vocabulary: int) -> Floats:
    """Return m [N, K+1] where the number that rejected the draft token x draws the recovered one: it is uniform on ``[a(x), 1]``.

    A recovered token y has ``sum_x q(x) |[R(y-), R(y)] and [a(x), 1]|``, R the CDF of the residual.
    """
    accept, instead = ratio(p, q), residual(p, q)
    low = _below(instead, ids, vocabulary)
    high = low + instead[:, :-1]
    recovered = np.zeros_like(low)
    for x in range(q.shape[1]):
        least = accept[:, x, None]
        recovered += q[:, x, None] * (np.maximum(high, least) - np.maximum(low, least))
    kept = np.minimum(p, q)
    atoms = kept[:, :-1] + recovered
    return np.concatenate([atoms, np.maximum(0.0, 1.0 - atoms.sum(axis=1, keepdims=True))], axis=1)


def accepts_once(split: Split, observed: Observed) -> Floats:
    """Return the chances of acceptance [N, K+2] on ``split`` outcomes where one number decides on all drafts of a window.

    Behind accepted drafts with ratios ``r_1, ..., r_{j-1}`` it is uniform below the least of them and of 1, so that the next is accepted
    with chance ``a_j = min(1, r_j / min(1, r_1, ..., r_{j-1}))`` instead of ``min(1, r_j)``. These ratios are of tokens that were emitted
    before; where windows are not certain, nothing is taken to be known of them.
    """
    return np.minimum(1.0, ratio(split.p, split.q) / _least(observed)[:, None])


def _least(observed: Observed) -> Floats:
    """Return the least ratio of the drafts accepted before in the same window, [N]; 1 at its first token."""
    if observed.accept is None or observed.kept is None:
        return np.ones(observed.tokens)
    ratios, going_on = np.maximum(observed.accept, TINY), _going_on(observed, observed.kept)
    least = np.ones(observed.tokens)
    while True:
        further = np.where(going_on[1:], np.minimum(least[:-1], ratios[:-1]), 1.0)
        if (further == least[1:]).all():
            return least
        least[1:] = further


def _going_on(observed: Observed, kept: Floats) -> Bools:
    """Return which tokens stand, for certain, behind an accepted draft of their own window, [N]."""
    places, before = observed.places, np.concatenate([[False], ~observed.places.last[:-1]])
    accepted = np.concatenate([[False], ((observed.stands.draft == 1.0) & (kept == 1.0))[:-1]])
    return np.asarray(before & np.where(places.known, places.slot > 0, accepted))


def _below(law: Floats, ids: Ints, vocabulary: int) -> Floats:
    """Return ``F(x-)`` of every atom, [N, K]."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(law[:, :-1], order, axis=1)
    below = np.empty_like(ordered)
    np.put_along_axis(below, order, ordered.cumsum(axis=1) - ordered, axis=1)
    return np.asarray(below + law[:, -1:] * np.clip(ids / vocabulary, 0.0, 1.0))
