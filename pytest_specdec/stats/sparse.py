"""Sparse: bettors on faults that only some answers have, as a cache hit, one slot of a batch or a mixed batch would bring them.

A bettor on all tokens loses in the sound answers what it earns in the faulty ones. These bettors give every answer the same small chance to
be faulty and begin their bets anew in each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.laws import Bools, Floats

__all__ = ["CHANCES", "bettors", "named", "one", "within"]

CHANCES = (0.02, 0.1, 0.3)
"""Shares of faulty answers that are bet on."""


def bettors(panel: Iterable[Bettor], last: Bools) -> Iterator[Bettor]:
    """Yield for each of ``panel`` and each pi of CHANCES who holds ``W = prod_r (1 - pi + pi E_r)`` after every token.

    E_r is the wealth of the bettor begun anew at answer r, as far as r has come; ``last`` [N] marks the ends of answers. Within r only the
    last factor moves. It is the mixture of a stake that is kept and one that is bet, so its mean given all that came before a token, r's
    own tokens and those of earlier answers, is at most what it was before it. W is a product of such factors, each from 1: a
    non-negative supermartingale, so that it may be looked at after every token, and mixed with others. Answers that were drawn at the same
    time are in no one's way: every bet is on the law of one token given its prefix, and whose answers come first is settled before any is.
    """
    for bettor in panel:
        for chance in CHANCES:
            yield one(bettor, chance, last)


def one(bettor: Bettor, chance: float, last: Bools) -> Bettor:
    """Return who bets as ``bettor`` does, begun anew at every answer, that the share ``chance`` of the answers is faulty."""
    held = np.logaddexp(np.log1p(-chance), np.log(chance) + within(bettor, last))
    paid = np.diff(held, prepend=0.0)
    starts = np.concatenate([[True], last[:-1]])
    paid[starts] = held[starts]
    return replace(bettor, name=f"{bettor.name}{_words(chance)}", log_payoffs=paid, chance=chance)


def named(bettor: Bettor) -> str:
    """Return the name of the bettor on all answers that ``bettor`` begins anew."""
    return bettor.name.removesuffix(_words(bettor.chance))


def _words(chance: float) -> str:
    return f", in {chance:.0%} of the answers"


def within(bettor: Bettor, last: Bools) -> Floats:
    """Return the log wealth [N] of ``bettor``, begun anew at every answer."""
    held = bettor.log_payoffs.cumsum()
    ends = np.concatenate([[0.0], held[last]])
    return np.asarray(held - ends[np.concatenate([[0], last[:-1].cumsum()])])
