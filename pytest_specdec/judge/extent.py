"""Extent: whether what is wrong with tokens behind rejections is wrong with all others too.

Two stories are held against each other, each with the law that makes its tokens most probable. Neither has to hold: an alarm is taken for
granted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.betting import TINY, at_outcome, table, weighed
from pytest_specdec.stats.chances import PLAIN

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Floats, Law
    from pytest_specdec.stats.observed import Observed

__all__ = ["Extent", "extent"]

UNDRAFTED = 1.0 / 8.0
"""The chance that what is wrong with every drafted token spares those for which nothing was drafted: another sampler may emit them."""
TELLING = 1.5
"""Standard deviations that must be due before the likelier story is taken: at 1.5 it is the wrong one of 7 in 100 runs."""
SHORT, FAR_SHORT = 2.0, 3.0
"""Standard deviations by which less than due must be paid, where enough is due to tell and where not: there a fault that is everywhere is
likelier a priori."""
BOUNDS = ((-1.0, 20.0), (-10.0, 10.0))
"""Of what is added to the power and to the tail's log weight: where the best token comes alone no power is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What speaks for a fault that is everywhere, against the same behind rejections only."""

    behind: float
    """Log likelihood ratio of the latter to a correct server."""
    ahead: float
    """Log likelihood ratio of the former to the latter."""
    due: float
    """What ``ahead`` is in the mean where the fault is everywhere."""
    spread: float
    """Its standard deviation there."""

    @property
    def explained(self) -> float:
        """Log likelihood ratio of the likelier story to a correct server."""
        return self.behind + max(self.ahead, 0.0)

    @property
    def ends(self) -> bool:
        """Whether the fault is behind rejections only: the likelier story, and the other one falls short beyond chance."""
        short = SHORT if self.due > TELLING * self.spread else FAR_SHORT
        return self.ahead < min(0.0, self.due - short * self.spread)


def extent(observed: Observed) -> Extent:
    """Return the extent of what is wrong, the state being so in the step behind a rejection or in all of the answer's rest."""
    stands = observed.stands
    plain = stands.at[:, PLAIN].sum(axis=1)
    whole = _likeliest(observed.law, 1.0 - plain)
    held = (_held(observed.law, whole, behind, plain) for behind in (stands.after_rejection, stands.rejected_before))
    return max(held, key=lambda one: one.behind)


def _held(law: Law, whole: Floats, behind: Floats, plain: Floats) -> Extent:
    """Hold ``whole`` [N, K+1], the law of all tokens, against that of the tokens that are ``behind`` rejections.

    If ``whole`` is right, ``ahead`` gains in the mean the relative entropy of the two laws at every token, given those before, and the
    variances add up. ``behind`` and ``plain`` are chances [N], the latter that nothing was drafted: no law is estimated from such tokens.
    """
    m = _likeliest(law, behind * (1.0 - plain))
    partly = weighed(table(law, m), np.broadcast_to(behind[:, None], m.shape))
    gain = table(law, whole) - partly
    paid, due = at_outcome(gain, law), (whole * gain).sum(axis=1)
    undrafted = np.logaddexp(log(1.0 - UNDRAFTED) + float((plain * paid).sum()), log(UNDRAFTED))
    return Extent(
        behind=float(at_outcome(partly, law).sum()),
        ahead=float(((1.0 - plain) * paid).sum() + undrafted),
        due=float(due.sum()),
        spread=sqrt(max(0.0, float(((whole * gain**2).sum(axis=1) - due**2).sum()))),
    )


def _likeliest(law: Law, chance: Floats) -> Floats:
    """Return the law m [N, K+1] that makes the outcomes likeliest if each is drawn from ``(1 - c) p + c m``, c being ``chance`` [N].

    ``m ~ p^(1 + a)``, in the tail times ``e^b``: a wrong temperature, and more or less in the tail. Logits that are off at random, as those
    of another context are, have such a law in the mean, but for a few hundredths of a nat. Outcomes outside the core tell nothing.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - its import takes longer than most judgements, and only findings need it

    inside = law.core & (law.p > 0)
    p = np.where(inside, law.p, 0.0) / np.maximum(np.where(inside, law.p, 0.0).sum(axis=1, keepdims=True), TINY)
    bends = np.stack([_logs(law.p), np.broadcast_to(np.arange(p.shape[1]) == p.shape[1] - 1, p.shape)])
    then = np.stack([at_outcome(bend, law) for bend in bends])
    told = at_outcome(inside.astype(np.float64), law) * chance

    def bent(by: Floats) -> tuple[Floats, Floats]:
        m = p * np.exp(by[0] * bends[0] + by[1] * bends[1])
        total = np.maximum(m.sum(axis=1), TINY)
        return m / total[:, None], np.log(total)

    def surprise(by: Floats) -> tuple[float, Floats]:
        m, total = bent(by)
        less = np.maximum(1.0 - told + told * np.exp(by @ then - total), TINY)
        share = 1.0 - (1.0 - told) / less
        return -float(np.log(less).sum()), -np.asarray((share * (then - (m * bends).sum(axis=2))).sum(axis=1))

    return bent(minimize(surprise, np.zeros(2), jac=True, method="L-BFGS-B", bounds=BOUNDS).x)[0]


def _logs(p: Floats) -> Floats:
    """Return log-probabilities [N, K+1]; the tail counts as many tokens, each half as probable as the last atom."""
    atoms = np.where(p[:, :-1] > 0, p[:, :-1], 1.0)
    return np.asarray(np.log(np.column_stack([atoms, atoms.min(axis=1) / 2.0])))
