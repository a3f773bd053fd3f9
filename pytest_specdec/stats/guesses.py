"""Guesses: who bets on a drafter whose law is not known, each as if it were like something that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import betting, learned
from pytest_specdec.stats.alternatives import CATALOGUE
from pytest_specdec.stats.betting import seated
from pytest_specdec.stats.drafts import at_drafts, favourite, hidden_bonus, one_hot, overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_specdec.stats.alternatives import Alternative
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.chances import Chances
    from pytest_specdec.stats.laws import Floats
    from pytest_specdec.stats.observed import Observed

__all__ = ["learners", "surrogate"]

SURROGATE = " of the baseline's favourite"
DRAWN = " of a token as the baseline draws it"


def surrogate(observed: Observed, stands: Chances) -> Iterator[Bettor]:
    """Bet as if the drafter always proposed the baseline's best token, and as if it proposed one that the baseline would draw.

    Best guesses at a greedy drafter whose law is unknown: the first where it mostly agrees with the baseline, the second where it is often
    wrong, nobody knows how.
    """
    p = observed.law.p
    best = favourite(p)
    share = _guessed(observed, stands, overlap(p, best))
    yield from _catalogue(observed, SURROGATE, lambda one: at_drafts(one, p, best), share)
    share = _guessed(observed, stands, np.asarray((p**2).sum(axis=1)))
    apart, rows = np.unique(p, axis=0, return_inverse=True)  # a law that comes again is worked out once
    yield from _catalogue(observed, DRAWN, lambda one: _at_any_draft(one, apart)[rows.reshape(-1)], share)


def _catalogue(observed: Observed, words: str, law: Callable[[Alternative], Floats], share: Floats) -> Iterator[Bettor]:
    """Bet on every fault of the catalogue by its ``law`` [N, K+1], with a ``share`` [N] of the wealth."""
    for one in CATALOGUE:
        paid = betting.weighed(betting.bet(observed.law, law(one)), share)
        yield seated(one.name + words, one.fault, paid, guessed=True)


def _at_any_draft(one: Alternative, p: Floats) -> Floats:
    """Return the law [N, K+1] behind a draft that is certain of a token which was drawn from ``p``: nobody knows which of the tail's."""
    mixed = p[:, -1:] * p
    for atom in range(p.shape[1] - 1):
        mixed += p[:, atom : atom + 1] * at_drafts(one, p, one_hot(np.full(len(p), atom), p.shape[1]))
    return np.asarray(mixed)


def _guessed(observed: Observed, stands: Chances, beta: Floats) -> Floats:
    """Return the chances [N] of a draft slot, from a guess at the overlap ``beta`` [N] where nothing tells of the windows."""
    guess = 1.0 - hidden_bonus(beta, observed.k, np.ones(observed.tokens, dtype=np.bool_))
    return np.where(observed.places.known | (observed.kept is not None), stands.draft, guess)


def learners(observed: Observed) -> Iterator[Bettor]:
    """Bet on what earlier tokens tell of a drafter whose law is not known."""
    if observed.previous is not None:
        yield from learned.log_payoffs(observed, contexts=observed.contexts, previous=observed.previous)
