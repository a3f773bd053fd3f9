"""Learned: bettors that do not know the draft's law and learn from earlier tokens where the drafter is wrong.

In a correct verify step ``P(recovered | x) = max(0, 1 - q(x)/p(x))``: the windows tell, token by token, what the drafter proposes too
seldom, and every fault of acceptance or recovery takes from just these tokens and gives to the others. A view rests on the tokens before
it and on whether their windows went on, never on the token itself or its own window: a predictable plug-in (Waudby-Smith and Ramdas,
arXiv 2010.09686, section 3), so a correct server pays a mean of at most one whatever was learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import betting
from pytest_specdec.stats.alternatives import Fault
from pytest_specdec.stats.betting import Bettor
from pytest_specdec.stats.recovering import Learned, inside, rates

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Bools, Floats, Ints, Law
    from pytest_specdec.stats.panel import Observed

__all__ = ["ALLOWANCE", "VIEWS", "View", "log_payoffs"]

ALLOWANCE = 0.01
"""How far a correct server's law p' may lie from the scored p at every context anew: the root of ``sum p (p'/p - 1)^2``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a bettor reads what was learned: ``m = p exp((n - N p - strength r / spread^2) / (N p + 1 / spread^2))``, normalised.

    n of N earlier tokens at the same context were this one; r is the rate at which it is recovered, less its mean under p. To first order
    that is the mean of ``ln m/p`` given n, from a normal law around ``-strength r`` of standard deviation ``spread``.
    """

    strength: float
    spread: float = 0.0
    """0 to go by the rates alone."""
    bonus: bool = False
    """Whether it bets at bonus slots instead of draft slots."""

    @property
    def name(self) -> str:
        """What it bets on, in words."""
        place = " at the bonus" if self.bonus else ""
        return f"learned: against recovered tokens by {self.strength:g}, own counts by {self.spread:g}{place}"

    def law(self, p: Floats, learned: Learned) -> Floats:
        """Return m [N, K+1] from p [N, K+1] and what was learned before each token."""
        centred = learned.rate - (p * learned.rate).sum(axis=1, keepdims=True)
        expected = learned.seen.sum(axis=1, keepdims=True) * p
        variance = self.spread**2
        weight = p * np.exp((variance * (learned.seen - expected) - self.strength * centred) / (1.0 + variance * expected))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))


VIEWS = (
    *(View(strength=strength) for strength in (0.3, 0.8, 1.5)),
    *(View(strength=strength, spread=spread) for strength, spread in ((0.4, 0.1), (0.5, 0.2), (1.0, 0.2), (1.0, 0.4))),
    *(View(strength=strength, bonus=True) for strength in (1.0, 2.0)),
)


def log_payoffs(
    observed: Observed, *, contexts: Ints | None = None, previous: Ints | None = None, allowance: float = ALLOWANCE
) -> tuple[Bettor, ...]:
    """Return one bettor per view, equal weights.

    ``contexts`` [N] has the same number where prompt and answer so far are the same; without it they are told apart by their atoms.
    ``previous`` [N] is the token id before each; without it that of the token emitted before, where an atom of the same answer was. Tokens
    come in the order in which they are judged, answer by answer. Where windows are unknown nothing is learned of recovered tokens, and the
    views that count bet at every token. Valid for every law p' within ``allowance`` of p inside the core: by Cauchy and Schwarz
    ``E_p' e <= E_p e + allowance sd_p(e)``, by which each payoff is divided.
    """
    learned = rates(observed, contexts=contexts, previous=previous)
    p = inside(observed.law)
    return tuple(
        Bettor(
            name=view.name,
            fault=Fault.BONUS if view.bonus else Fault.RULE,
            weight=1.0,
            log_payoffs=np.where(_here(observed, view), _paid(observed.law, view.law(p, learned), allowance), 0.0),
            guessed=True,
        )
        for view in VIEWS
    )


def _here(observed: Observed, view: View) -> Bools:
    places = observed.places
    return places.bonus_slot if view.bonus else places.draft_slot | ~places.known


def _paid(law: Law, m: Floats, allowance: float) -> Floats:
    paid = betting.table(law, m)
    deviation = np.sqrt((inside(law) * np.expm1(paid) ** 2).sum(axis=1, keepdims=True))
    return betting.at_outcome(np.where(law.core, paid - np.log1p(allowance * deviation), 0.0), law)
