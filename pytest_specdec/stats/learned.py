"""Learned: bettors that do not know the draft's law and learn from earlier tokens where the drafter is wrong and what follows from it.

The view on a token rests on the tokens before it and on whether their windows went on, never on the token itself or its own window: a
predictable plug-in (Waudby-Smith and Ramdas, arXiv 2010.09686, section 3), so a correct server pays a mean of at most one whatever was
learned.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import betting
from pytest_specdec.stats.alternatives import Fault
from pytest_specdec.stats.betting import Bettor
from pytest_specdec.stats.recovering import BLOCK, Learned, inside, rates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.stats.laws import Bools, Floats, Ints, Law
    from pytest_specdec.stats.observed import Observed

__all__ = ["ALLOWANCE", "PUPILS", "Pupil", "log_payoffs"]

ALLOWANCE = 0.01
"""How far a correct server's law p' may lie from the scored p at every context anew: the root of ``sum p (p'/p - 1)^2``."""
STEEPEST = 8.0
"""Largest exponent of a tilt: no exponential overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pupil:
    """Who learns slopes s of the view ``m = p exp(s . features)``, normalised, one bettor for each of some ``spreads``.

    Online Newton steps on the likelihood of the emitted tokens, from slopes that are 0 but for the rate of recovered tokens: a fault of
    acceptance or recovery takes from those.
    """

    start: float
    """Of the slope on that rate."""
    firmness: float
    """Fisher information, in tokens, that the first slopes are worth."""
    spreads: tuple[float, ...] = (0.0,)
    """Standard deviations of ``ln m/p`` around the tilt at each context, of which the counts of the same context tell; 0 for none."""
    bonus: bool = False
    """Whether it learns and bets at bonus slots instead of draft slots."""

    def name(self, spread: float) -> str:
        """Return what its bettor bets on, in words."""
        first = "boldly" if self.start < PUPILS[0].start else "carefully"
        return f"learned {first}" + (f", and by context ({spread:g})" if spread else "") + (" at the bonus" if self.bonus else "")

    def tilted(self, law: Law, features: Floats) -> Floats:
        """Return the view [M, K+1] on tokens of ``law`` with ``features`` [M, K+1, F], each from the blocks before its own."""
        p, views = inside(law), np.empty(law.p.shape)
        slopes, gram = np.zeros(features.shape[2]), self.firmness * np.eye(features.shape[2])
        slopes[-1] = self.start
        counted = betting.at_outcome(law.core.astype(np.float64), law)
        for first in range(0, len(p), BLOCK):
            here = slice(first, first + BLOCK)
            views[here] = m = _normalised(p[here] * np.exp((features[here] @ slopes).clip(-STEEPEST, STEEPEST)))
            away = features[here] - (m[:, :, None] * features[here]).sum(axis=1, keepdims=True)
            weighed = (np.sqrt(m)[:, :, None] * away).reshape(-1, len(slopes))
            gram = gram + weighed.T @ weighed
            emitted = np.take_along_axis(away, law.outcome[here, None, None], axis=1)[:, 0]
            slopes = slopes + np.linalg.solve(gram, counted[here] @ emitted)
        return views


PUPILS = (
    Pupil(start=-0.06, firmness=1000.0, spreads=(0.0, 0.1, 0.2)),
    Pupil(start=-0.16, firmness=1000.0, spreads=(0.0, 0.1)),
    Pupil(start=-0.16, firmness=200.0, bonus=True),
)


def log_payoffs(
    observed: Observed,
    *,
    contexts: Ints | None = None,
    previous: Ints | None = None,
    allowance: float = ALLOWANCE,
) -> tuple[Bettor, ...]:
    """Return the bettors of all pupils, equal weights.

    ``contexts`` [N] has the same number where prompt and answer so far are the same; without it they are told apart by their atoms.
    ``previous`` [N] is the token id before each; without it that of the token emitted before, where an atom of the same answer was.
    Tokens come in the order in which they are judged, answer by answer. Where windows are unknown nothing is learned of recovered tokens,
    and every token counts for a draft slot. Valid for every law p' within ``allowance`` of p inside the core: by Cauchy and Schwarz
    ``E_p' e <= E_p e + allowance sd_p(e)``, by which each payoff is divided.
    """
    places, learned = observed.places, rates(observed, contexts=contexts, previous=previous)
    return tuple(
        bettor
        for pupil in PUPILS
        for bettor in _seated(
            pupil, observed.law, learned, places.bonus_slot if pupil.bonus else places.draft_slot | ~places.known, allowance
        )
    )


def _seated(pupil: Pupil, law: Law, learned: Learned, here: Bools, allowance: float) -> Iterator[Bettor]:
    """Yield the bettors of ``pupil``, who bet ``here`` [N]."""
    part, seen = _at(law, here), learned.seen[here]
    view = pupil.tilted(part, learned.features[here])
    for spread in pupil.spreads:
        paid = np.zeros(len(here))
        paid[here] = _paid(part, remembered(view, seen, spread), allowance)
        yield Bettor(name=pupil.name(spread), fault=Fault.BONUS if pupil.bonus else Fault.RULE, weight=1.0, log_payoffs=paid, guessed=True)


def remembered(view: Floats, seen: Floats, spread: float) -> Floats:
    """Return ``m = v exp((n - N v) / (N v + 1 / spread^2))``, normalised, [M, K+1]: n of N earlier tokens at the context were this one.

    To first order the exponent is the mean of ``ln m/v`` given n, from a normal law around 0 of standard deviation ``spread``.
    """
    expected = seen.sum(axis=1, keepdims=True) * view
    return _normalised(view * np.exp(spread**2 * (seen - expected) / (1.0 + spread**2 * expected)))


def _normalised(weight: Floats) -> Floats:
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def _at(law: Law, here: Bools) -> Law:
    arrays = {field.name: value for field in fields(law) if isinstance(value := getattr(law, field.name), np.ndarray)}
    return replace(law, **{name: value[here] for name, value in arrays.items()})


def _paid(law: Law, m: Floats, allowance: float) -> Floats:
    paid = betting.table(law, m)
    deviation = np.sqrt((inside(law) * np.expm1(paid) ** 2).sum(axis=1, keepdims=True))
    return betting.at_outcome(np.where(law.core, paid - np.log1p(allowance * deviation), 0.0), law)
