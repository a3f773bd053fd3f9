"""Remainder bets: bets on tokens beyond the top tokens, by the emitted token's own two probabilities, p(x) and q(x).

In a table, with a column for each outcome, all these tokens are one outcome, the remainder. p is the target's distribution, q the draft's;
a core has the outcomes whose p is known up to one factor. Bets on single ones need lower bounds of q that add up to one at most over the
vocabulary, and an upper bound p' of p at the emitted token: the mean of ``q(x)/p'(x)`` under a correct server is then
``sum_x p(x) q(x)/p'(x) <= sum_x q(x) <= 1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import betting, jumps

if TYPE_CHECKING:
    from pytest_specdec.stats.draft_distribution import SplitRemainder
    from pytest_specdec.stats.token_distribution import Bools, Floats, TokenDistribution
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["excess_stake", "leak_payoffs", "refine_remainder", "refined_payoffs"]

LEAST = 1e-5
"""Least mass that is not rounding."""
MOST = 0.95
"""Largest fraction in :func:`excess_stake`, before it is halved."""


def leak_payoffs(observed: Observed, share: float, table: Floats) -> Floats:
    """Return the log payoffs [N] of a bet on leaked draft tokens.

    A leak l, ``share``, is the probability that a rejected draft token is emitted all the same. The payoff is ``1 - l + l q(x)/p'(x)``: p'
    is an upper bound of the emitted token's own p, and q(x) a lower bound of its own q, ``q_chosen``. Its mean is one at most (module
    docstring). It is divided by the mean payoff under noise in p, as in ``betting.table``, and lowered for jumps. A token with p = 0 pays
    ``1 - l``, the least there is. Without q(x), and where truncation leaves no p', the payoffs are those of ``table`` [N, K+1], the same
    bet on outcomes.
    """
    distribution = observed.distribution
    table_payoffs = betting.at_outcome(table, distribution)
    if observed.q is None or observed.q_chosen is None:
        return table_payoffs
    # By how much noise of unit variance in p raises the mean of q/p: sum_i q_i (sum p^2 - p_i), tokens of the remainder being small.
    rise = (distribution.p[:, :-1] ** 2).sum(axis=1) - (distribution.p * observed.q)[:, :-1].sum(axis=1)
    mean = 1.0 + np.asarray(distribution.noise) ** 2 * share * np.maximum(0.0, rise)
    paid = np.log(1.0 - share + share * _ratio(distribution, observed.q_chosen)) - np.log(mean)
    return np.where(_has_bound(distribution), betting.at_jumps(distribution, paid, observed.q, share), table_payoffs)


def refine_remainder(observed: Observed, stake: Floats) -> Floats:
    """Return log factors [N] that refine a bet within the remainder.

    A bet on outcomes pays all tokens of the remainder alike. This factor pays more for those that the draft prefers, x being the emitted
    one: it is ``1 - l + l (q(x)/q_rest) / (p'(x)/p_rest)``. l is the ``stake`` [N], fixed before the token; p'(x) is an upper bound of the
    token's p, q(x) a lower bound of its q. p_rest is the remainder's mass, q_rest the most that it may have in q. Given a token of the
    remainder, the factor's mean is ``1 - l + l sum_x q(x)/q_rest <= 1``, so that a bet times this factor still has a mean of one at most.
    The log factor is 0 for top tokens, without q(x), and if the remainder is no outcome of the core or has no mass in q.
    """
    distribution, nothing = observed.distribution, np.zeros(observed.tokens)
    if observed.q is None or observed.q_chosen is None or observed.listed is None:
        return nothing
    # ``listed`` marks the top tokens whose q is exact: the remainder has what they leave at most.
    q_rest = 1.0 - np.where(observed.listed, observed.q, 0.0)[:, :-1].sum(axis=1)
    in_remainder = distribution.outcome == distribution.p.shape[1] - 1
    refines = in_remainder & distribution.core[:, -1] & _has_bound(distribution) & (q_rest > LEAST)
    factor = 1.0 - stake + stake * _ratio(distribution, observed.q_chosen) * distribution.p[:, -1] / np.where(refines, q_rest, 1.0)
    return np.where(refines, np.log(np.where(refines, factor, 1.0)), nothing)


def excess_stake(split: SplitRemainder, accept: Floats, parts: int = 2) -> Floats:
    """Return the stake [N] in the remainder for a bet on wrong acceptance.

    The fault accepts draft tokens with probability ``accept``, on the outcomes of ``split``, whose remainder has ``parts`` pieces. A
    fraction of the draft tokens that a correct server rejects is accepted by the fault; it is taken as MOST at most. The stake is half of
    it: the wrongly accepted tokens follow q only in part, since most faults accept up to some multiple of p. It is 0 if the fault accepts
    no draft token in the remainder.
    """
    # Probabilities that a correct server accepts a draft token, and that only the fault accepts it.
    rightly_accepted = np.minimum(split.p, split.q).sum(axis=1)
    wrongly_accepted = (split.q * accept).sum(axis=1) - rightly_accepted
    fraction = np.clip(wrongly_accepted / np.maximum(1.0 - rightly_accepted, LEAST), 0.0, MOST)
    accepts_beyond = (accept[:, -parts:] * split.q[:, -parts:]).sum(axis=1) > 0.0
    return np.where(accepts_beyond, 0.5 * fraction, 0.0)


def refined_payoffs(observed: Observed, m: Floats, stake: Floats) -> Floats:
    """Return the log payoffs [N] of view ``m``, refined in the remainder.

    ``m`` [N, K+1] is the distribution bet on, by outcome. ``stake`` [N] is the share of that bet, 0..1, with which it is refined: with it
    tokens of the remainder are paid the more the draft prefers them (:func:`refine_remainder`). The payoffs are multiplied, so that logs
    add, and capped at the largest payoff that jumps allow.
    """
    log_cap = jumps.log_largest(observed.distribution.jump_rate)
    return np.minimum(betting.bet(observed.distribution, m) + refine_remainder(observed, stake), log_cap)


def _has_bound(distribution: TokenDistribution) -> Bools:
    """Return a mask [N] of tokens with a bound p': those of requests without truncation."""
    return np.asarray(np.isfinite(distribution.chosen_bound))


def _ratio(distribution: TokenDistribution, q: Floats) -> Floats:
    """Return ``q(x)/p'(x)`` [N] at the emitted tokens; 0 if p' is 0 or missing."""
    bounded = np.isfinite(distribution.chosen_bound) & (distribution.chosen_bound > 0)
    return np.where(bounded, q / np.where(bounded, distribution.chosen_bound, 1.0), 0.0)
