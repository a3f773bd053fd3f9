"""Reused numbers: the distribution of an emitted token if one random number makes two decisions of a verify step.

That shows in the order of token ids: by inverse CDF, token x is drawn if the number falls into ``[F(x-), F(x)]``, tokens ordered by id. The
remainder's mass is assumed to be spread evenly over the ids; if it is not, power is lost, but no validity. Distributions are arrays [N,
K+1], the remainder last.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.fault_models import ratio, residual, verified_distribution

if TYPE_CHECKING:
    from pytest_specdec.stats.draft_distribution import SplitRemainder
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["ReusedNumber", "accepts_once", "decided_by_the_draft", "id_order", "recovered_by_the_rejection"]

TINY = 1e-9
"""Least ratio of an accepted draft token: no division by 0."""


class ReusedNumber(StrEnum):
    """The random number that is used twice, in words."""

    NONE = ""
    RECOVERY = "the number that rejected the draft draws the recovered token"
    DRAFT = "the number that drew the draft decides on its acceptance"
    WINDOW = "one number decides on the acceptance of all drafts of a window"
    GUMBEL = "the Gumbel noise that drew the draft draws the recovered token"


def id_order(p: Floats, ids: Ints, theta: float) -> Floats:
    """Return ``p`` tilted towards the low or the high token ids.

    It is ``p (1 + theta (2 U - 1))`` [N, K+1]; ``ids`` [N, K] are the top tokens'. U is the middle of the outcome's interval of the CDF in
    token-id order, given a top token. A ``theta`` above 0 favours high ids, one below low ids. It is the randomised probability integral
    transform, averaged over its uniform number, so that nothing is drawn. The remainder has no place in the order and keeps its mass.
    """
    top_tokens = p[:, :-1]
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(top_tokens, order, axis=1)
    total = np.where(top_tokens.sum(axis=1, keepdims=True) > 0, top_tokens.sum(axis=1, keepdims=True), 1.0)
    middle = np.empty_like(top_tokens)
    np.put_along_axis(middle, order, (ordered.cumsum(axis=1) - ordered / 2.0) / total, axis=1)
    return np.concatenate([top_tokens * (1.0 + theta * (2.0 * middle - 1.0)), p[:, -1:]], axis=1)


def decided_by_the_draft(p: Floats, q: Floats, ids: Ints, vocabulary: int) -> Floats:
    """Return emitted tokens' distribution if the draft's number decides its acceptance.

    The number that drew the draft token x is, given x, uniform on ``[F(x-), F(x)]`` of q, not on [0, 1]: low ids are accepted too often,
    high ones too seldom. x is accepted with probability ``(min(1, p/q) - F(x-)) / (F(x) - F(x-))``, within 0..1; draft tokens of the
    remainder, which have no place in the order, as by a correct rule. ``p``, ``q`` and the result are [N, K+1], ``ids`` [N, K] are the top
    tokens', ``vocabulary`` is the number of all tokens.
    """
    below = _cdf_below(q, ids, vocabulary)
    width = np.where(q[:, :-1] > 0, q[:, :-1], 1.0)
    accept = ratio(p, q)
    accept[:, :-1] = np.clip((accept[:, :-1] - below) / width, 0.0, 1.0)
    return verified_distribution(q, accept, residual(p, q))


def recovered_by_the_rejection(p: Floats, q: Floats, ids: Ints, vocabulary: int) -> Floats:
    """Return emitted tokens' distribution if the rejection's number draws the recovered one.

    The draft token x is rejected by a number above a(x), the acceptance. The same number draws the recovered token y if it is in ``[R(y-),
    R(y)]``, R being the CDF of the residual in token-id order. So y has the probability ``sum_x q(x) |[R(y-), R(y)] and [a(x), 1]|``: the
    length of what both share, the number being uniform on [0, 1]. ``p``, ``q`` and the result are [N, K+1], ``ids`` [N, K] the top tokens',
    ``vocabulary`` is the number of all tokens. A draft in the remainder counts as one token.
    """
    accept, recovery = ratio(p, q), residual(p, q)
    low = _cdf_below(recovery, ids, vocabulary)
    high = low + recovery[:, :-1]
    recovered = np.zeros_like(low)
    for x in range(q.shape[1]):
        least = accept[:, x, None]
        recovered += q[:, x, None] * (np.maximum(high, least) - np.maximum(low, least))
    smaller = np.minimum(p, q)  # the accepted draft tokens
    top_tokens = smaller[:, :-1] + recovered
    return np.concatenate([top_tokens, np.maximum(0.0, 1.0 - top_tokens.sum(axis=1, keepdims=True))], axis=1)


def accepts_once(split: SplitRemainder, observed: Observed) -> Floats:
    """Return the acceptance probabilities with one random number per window.

    They are [N, K+M], on the outcomes of ``split`` with its remainder in M pieces. A window is the tokens of one verify step. After
    accepted drafts with ratios ``r_1, ..., r_{j-1}`` the number is uniform below the least of them and of 1, so that the next is accepted
    with probability ``a_j = min(1, r_j / min(1, r_1, ..., r_{j-1}))`` instead of ``min(1, r_j)``. These ratios are of tokens emitted
    before; they count as unknown if the windows are not certain.
    """
    return np.minimum(1.0, ratio(split.p, split.q) / _least_ratio(observed)[:, None])


def _least_ratio(observed: Observed) -> Floats:
    """Return the least ratio p/q of drafts accepted in the window.

    It is [N], over the tokens before each in the same verify window, whose one random number was below it; 1 if there are none or the
    ratios are unknown.
    """
    if observed.accepted_if_drafted is None or observed.accepted_if_emitted is None:
        return np.ones(observed.tokens)
    ratios = np.maximum(observed.accepted_if_drafted, TINY)  # min(1, p/q) of each emitted token
    follows = _follows_accepted(observed, observed.accepted_if_emitted)
    least = np.ones(observed.tokens)
    # Each round looks one token further back, until no window has any left.
    while True:
        updated = np.where(follows[1:], np.minimum(least[:-1], ratios[:-1]), 1.0)
        if (updated == least[1:]).all():
            return least
        least[1:] = updated


def _follows_accepted(observed: Observed, accepted_if_emitted: Floats) -> Bools:
    """Return a mask of tokens certainly following an accepted draft token.

    It is [N]. The draft token is the token before, of the same window and answer. Without known windows it was accepted for certain if its
    slot is a draft slot for certain, and ``accepted_if_emitted`` [N], the probability that an emitted token was accepted, is 1.
    """
    slots, in_answer = observed.slots, np.concatenate([[False], ~observed.slots.last[:-1]])
    accepted = np.concatenate([[False], ((observed.slot_chances.draft == 1.0) & (accepted_if_emitted == 1.0))[:-1]])
    return np.asarray(in_answer & np.where(slots.known, slots.slot > 0, accepted))


def _cdf_below(distribution: Floats, ids: Ints, vocabulary: int) -> Floats:
    """Return ``F(x-)`` of every top token, in token-id order.

    It is [N, K], the mass of all tokens with a lower id, for the top tokens ``ids`` [N, K] of ``distribution`` [N, K+1]. The remainder's
    mass is taken to be spread evenly over the ``vocabulary`` ids.
    """
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(distribution[:, :-1], order, axis=1)
    below = np.empty_like(ordered)
    np.put_along_axis(below, order, ordered.cumsum(axis=1) - ordered, axis=1)
    return np.asarray(below + distribution[:, -1:] * np.clip(ids / vocabulary, 0.0, 1.0))
