"""Sparse bettors: bets that some answers are faulty and the others sound.

Bettors on some answers give every answer the same small probability to be faulty and begin anew in each. Faults of a cache hit, of one slot
of a batch or of a mixed batch need them: a bettor on all tokens loses in sound answers what it earns in faulty ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.token_distribution import Bools, Floats

__all__ = ["FAULTY_FRACTIONS", "bet_on_some_answers", "parent_name", "sparse_bettors", "wealth_within_answers"]

FAULTY_FRACTIONS = (0.02, 0.1, 0.3)
"""Fractions of faulty answers that are bet on."""


def sparse_bettors(panel: Iterable[Bettor], last: Bools) -> Iterator[Bettor]:
    """Yield bettors on faults in some answers only.

    For each bettor of ``panel`` and each pi of FAULTY_FRACTIONS one has wealth ``W = prod_r (1 - pi + pi E_r)``. E_r is the wealth of the
    bettor begun anew at answer r, up to the token at hand; ``last`` [N] marks the ends of answers. Within r only the last factor changes.
    It is the mixture of a stake that rests and one that is bet, so that its mean given all earlier tokens, of r and of earlier answers, is
    at most its value before the token. W is a product of such factors, each starting at 1: a non-negative supermartingale, so that the test
    may stop after any token, and W may be mixed with others. Answers drawn at the same time do no harm: every bet is on the distribution of
    one token given its prefix, and the order of the answers is fixed before any is drawn.
    """
    for bettor in panel:
        for faulty_fraction in FAULTY_FRACTIONS:
            yield bet_on_some_answers(bettor, faulty_fraction, last)


def bet_on_some_answers(bettor: Bettor, faulty_fraction: float, last: Bools) -> Bettor:
    """Return ``bettor`` as a bet on a fraction of faulty answers.

    In each answer the bet begins anew, with the part ``faulty_fraction`` of the wealth, and the rest is not bet. ``last`` [N] marks the
    ends of answers.
    """
    # The log wealth within each answer, of the part at rest and the part that is bet; its differences are the log payoffs.
    wealth = np.logaddexp(np.log1p(-faulty_fraction), np.log(faulty_fraction) + wealth_within_answers(bettor, last))
    paid = np.diff(wealth, prepend=0.0)
    # Each answer begins with a wealth of 1, not with that at the end of the answer before.
    starts = np.concatenate([[True], last[:-1]])
    paid[starts] = wealth[starts]
    name = f"{bettor.name}, in {faulty_fraction:.0%} of the answers"
    return replace(bettor, name=name, log_payoffs=paid, faulty_fraction=faulty_fraction, variation_of=(bettor.name, *bettor.variation_of))


def parent_name(bettor: Bettor) -> str:
    """Return the name of the same bettor on all answers."""
    return bettor.variation_of[0] if bettor.faulty_fraction else bettor.name


def wealth_within_answers(bettor: Bettor, last: Bools) -> Floats:
    """Return the log wealth [N] of ``bettor``, begun anew at every answer."""
    wealth = bettor.log_payoffs.cumsum()
    ends = np.concatenate([[0.0], wealth[last]])
    return np.asarray(wealth - ends[np.concatenate([[0], last[:-1].cumsum()])])
