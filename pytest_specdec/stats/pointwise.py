"""Pointwise: bets on a draft's law by the emitted token's own two probabilities, p(x) and q(x), wherever it lies in the vocabulary.

What hangs on q at tokens beyond the atoms is lost in one tail outcome. These bets look at the token itself, and need no more of q than
lower bounds that add up to one at most over the whole vocabulary. Of p they need an upper bound at the emitted token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_specdec.stats.drafts import Split
    from pytest_specdec.stats.laws import Bools, Floats, Law
    from pytest_specdec.stats.observed import Observed

__all__ = ["excess", "leak", "refined"]

LEAST = 1e-5
"""Mass below which rounding decides what it is."""
MOST = 0.95
"""Largest share of a payoff that is staked on the token's own ratio."""


def leak(observed: Observed, share: float, table: Floats) -> Floats:
    """Return the log payoffs [N] of ``e = 1 - l + l q(x)/p(x)`` for the leak l = ``share``; those of ``table`` [N, K+1] under truncation.

    Its mean under p is ``1 - l + l sum_x p(x) q(x)/p'(x) <= 1 - l + l sum_x q(x) <= 1``, p' >= p being the bound and q the lower bounds. A
    token whose p is told as 0 pays ``1 - l``, the least there is. Divided by what noise in p makes of it, as in ``betting.table``.
    """
    law = observed.law
    listed = np.take_along_axis(table, law.outcome[:, None], axis=1)[:, 0]
    if observed.q is None or observed.q_chosen is None:
        return listed
    flat = (law.p[:, :-1] ** 2).sum(axis=1) - (law.p * observed.q)[:, :-1].sum(axis=1)
    widening = 1.0 + np.asarray(law.noise) ** 2 * share * np.maximum(0.0, flat)
    paid = np.log(1.0 - share + share * _ratio(law, observed.q_chosen)) - np.log(widening)
    return np.where(_bounded(law), paid, listed)


def refined(observed: Observed, stake: Floats) -> Floats:
    """Return by what log factor [N] a bet on q at the tail outcome is multiplied: ``1 - l + l (q(x)/q') / (p(x)/p_tail)``; 0 elsewhere.

    l is the ``stake`` [N], settled before the token; q' bounds q's mass in the tail from above: one less what q has on atoms where it is
    exact. Given the tail outcome, the mean of the factor under p is ``1 - l + l sum_x (p(x)/p_tail) (q(x)/q') (p_tail/p(x))``, which is
    ``1 - l + l sum_x q(x)/q' <= 1``, the sums over the tail's tokens; so the product with any bet of mean one at most has a mean of one at
    most. Only where the tail is a single outcome of known mass.
    """
    law, nothing = observed.law, np.zeros(observed.tokens)
    if observed.q is None or observed.q_chosen is None or observed.listed is None:
        return nothing
    mass = 1.0 - np.where(observed.listed, observed.q, 0.0)[:, :-1].sum(axis=1)
    here = (law.outcome == law.p.shape[1] - 1) & law.core[:, -1] & _bounded(law) & (mass > LEAST)
    factor = 1.0 - stake + stake * _ratio(law, observed.q_chosen) * law.p[:, -1] / np.where(here, mass, 1.0)
    return np.where(here, np.log(np.where(here, factor, 1.0)), nothing)


def excess(split: Split, accept: Floats) -> Floats:
    """Return half the share [N] of the draft tokens that a correct server rejects and ``accept`` [N, K+2] accepts, 0..MOST / 2.

    About so much of what a fault emits beyond the atoms follows q, for most faults accept no more than some multiple of p; nothing does
    where no draft is accepted there.
    """
    overlap = np.minimum(split.p, split.q).sum(axis=1)
    more = (split.q * accept).sum(axis=1) - overlap
    share = 0.5 * np.clip(more / np.maximum(1.0 - overlap, LEAST), 0.0, MOST)
    return np.where((accept[:, -2:] * split.q[:, -2:]).sum(axis=1) > 0.0, share, 0.0)


def _bounded(law: Law) -> Bools:
    """Return where p of any token has a bound, [N]: a matter of what the request asks for."""
    return np.asarray(np.isfinite(law.chosen_bound))


def _ratio(law: Law, q: Floats) -> Floats:
    """Return ``q(x)/p(x)`` [N]; 0 where p is told as 0, or not bounded."""
    known = np.isfinite(law.chosen_bound) & (law.chosen_bound > 0)
    return np.where(known, q / np.where(known, law.chosen_bound, 1.0), 0.0)
