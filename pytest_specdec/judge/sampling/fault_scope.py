"""The scope of a fault: whether it is on tokens after rejected drafts only, or on all tokens.

The two hypotheses are compared, each with the distribution that makes its tokens most probable. Neither is tested against a correct
server: this is done after an alarm. p is the baseline's distribution, [N, K+1] at N emitted tokens, over K top tokens and the remainder.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.betting import TINY, at_outcome, partial_stake, table
from pytest_specdec.stats.verify_slots import NO_DRAFT

if TYPE_CHECKING:
    from pytest_specdec.stats.token_distribution import Floats, TokenDistribution
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["FaultScope", "fault_scope"]

SPARED = 1.0 / 8.0
"""The chance that a fault of all drafted tokens spares those for which nothing was drafted: another sampler may emit them."""
TELLING = 1.5
"""Standard deviations that ``expected`` must reach to tell the two hypotheses apart: at 1.5 the likelier is the wrong one in 7 of 100
runs."""
BELOW, FAR_BELOW = 2.0, 3.0
"""Standard deviations by which ``everywhere`` must be below ``expected``, if enough is expected to tell the hypotheses apart and if not.
The latter is larger since a fault on all tokens is likelier a priori."""
BOUNDS = ((-1.0, 20.0), (-10.0, 10.0))
"""Bounds of what is added to the power and to the remainder's log weight: if only the best token is emitted, no power is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScope:
    """The evidence for a fault on all tokens, against the same on tokens after rejections only."""

    after_rejections: float
    """Log likelihood ratio of a fault after rejections only to a correct server."""
    everywhere: float
    """Log likelihood ratio of a fault on all tokens to one after rejections only."""
    expected: float
    """The mean of ``everywhere`` if the fault is on all tokens."""
    spread: float
    """The standard deviation of ``everywhere`` if the fault is on all tokens."""

    @property
    def explained(self) -> float:
        """Log likelihood ratio of the likelier hypothesis to a correct server."""
        return self.after_rejections + max(self.everywhere, 0.0)

    @property
    def is_after_rejections(self) -> bool:
        """True if the fault is on tokens after rejections only.

        That hypothesis has to be the likelier one: ``everywhere``, the log likelihood ratio against it, is below 0. And the ratio has to be
        lower than chance makes it under a fault on all tokens, where it has the mean ``expected`` and the standard deviation ``spread``.
        """
        tells_apart = self.expected > TELLING * self.spread
        lowest_by_chance = self.expected - (BELOW if tells_apart else FAR_BELOW) * self.spread
        return self.everywhere < min(0.0, lowest_by_chance)


def fault_scope(observed: Observed) -> FaultScope:
    """Return the evidence on a fault's scope: after rejections, or everywhere.

    A fault after rejections is tried over two spans, and the result is of the span with more evidence for it: the verify step right after
    the rejection, since the next step may overwrite a stale cache entry, and all of the answer's rest, since the entry may stay.
    """
    # All are chances [N], 0 or 1 where verify windows are known.
    slot_chances = observed.slot_chances
    undrafted = slot_chances.at[:, NO_DRAFT].sum(axis=1)
    right_after_rejection, any_time_after = slot_chances.after_rejection, slot_chances.rejected_before
    # The likeliest distribution under the fault, estimated from drafted tokens only: the fault may spare the others.
    everywhere = _fit_tilt(observed.distribution, 1.0 - undrafted)
    scopes = (
        _compare_scopes(observed.distribution, everywhere, after_rejection, undrafted)
        for after_rejection in (right_after_rejection, any_time_after)
    )
    return max(scopes, key=lambda scope: scope.after_rejections)


def _compare_scopes(distribution: TokenDistribution, everywhere: Floats, after_rejection: Floats, undrafted: Floats) -> FaultScope:
    """Return the evidence for a fault everywhere against after rejections only.

    ``everywhere`` [N, K+1] is the distribution under a fault on all tokens; that of a fault after rejections is estimated here. Either
    explains the tokens by its log likelihood ratio to the correct ``distribution``, as a bet on it is paid. ``after_rejection`` and
    ``undrafted`` are chances [N]: that a token is after a rejection, and that nothing was drafted for it. The result's ``expected`` and
    ``spread`` hold if ``everywhere`` is right: at each token, given those before, the gain has a mean and a variance, and both add up.
    """
    fitted_after = _fit_tilt(distribution, after_rejection * (1.0 - undrafted))
    # Log payoffs [N, K+1] of a bet on the fault after rejections, which stakes the chance of such a token. Then how much more a bet on the
    # fault everywhere is paid.
    paid = partial_stake(table(distribution, fitted_after), np.broadcast_to(after_rejection[:, None], fitted_after.shape))
    gain = table(distribution, everywhere) - paid
    gain_at_outcome, expected_gain = at_outcome(gain, distribution), (everywhere * gain).sum(axis=1)
    # A mixture of two cases: the fault is on tokens without a draft as well, or, with chance SPARED, another sampler emits these correctly.
    gain_undrafted = np.logaddexp(log(1.0 - SPARED) + float((undrafted * gain_at_outcome).sum()), log(SPARED))
    return FaultScope(
        after_rejections=float(at_outcome(paid, distribution).sum()),
        everywhere=float(((1.0 - undrafted) * gain_at_outcome).sum() + gain_undrafted),
        expected=float(expected_gain.sum()),
        spread=sqrt(max(0.0, float(((everywhere * gain**2).sum(axis=1) - expected_gain**2).sum()))),
    )


def _fit_tilt(distribution: TokenDistribution, chance: Floats) -> Floats:
    """Return the likeliest tilted distribution m [N, K+1] of the tokens.

    It stands for the distribution under the fault. A token is taken to be drawn from m with probability ``chance`` [N], else from p, the
    correct one. Tilted is ``m ~ p^(1 + a)``, in the remainder times ``e^b``, with exponents a and b that are the same at all tokens: a
    wrong temperature, and more or less mass in the remainder. They are chosen by maximum likelihood. Logits that are off at random, as
    those of another context, have nearly such a distribution in the mean. Outcomes outside the core are left out: p is an estimate there.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - its import takes longer than most judgements, and only findings need it

    inside = distribution.core & (distribution.p > 0)
    core_p = np.where(inside, distribution.p, 0.0)
    p = core_p / np.maximum(core_p.sum(axis=1, keepdims=True), TINY)
    # Log m is linear in these two, up to a constant: log p, and whether an outcome is the remainder.
    features = np.stack([_logs(distribution.p), np.broadcast_to(np.arange(p.shape[1]) == p.shape[1] - 1, p.shape)])
    emitted_features = np.stack([at_outcome(feature, distribution) for feature in features])
    # A token outside the core says nothing: it is taken to be drawn from p.
    chance_inside = at_outcome(inside.astype(np.float64), distribution) * chance

    def tilt(exponents: Floats) -> tuple[Floats, Floats]:
        """Return m [N, K+1], and the log [N] of the total that normalised it."""
        m = p * np.exp(exponents[0] * features[0] + exponents[1] * features[1])
        total = np.maximum(m.sum(axis=1), TINY)
        return m / total[:, None], np.log(total)

    def negative_log_likelihood(exponents: Floats) -> tuple[float, Floats]:
        """Return minus the log likelihood ratio to p, and its gradient by the exponents."""
        m, log_total = tilt(exponents)
        likelihood = np.maximum(1.0 - chance_inside + chance_inside * np.exp(exponents @ emitted_features - log_total), TINY)
        # The chance that the emitted outcome was drawn from m, given what it is. By so much it counts in the gradient of log m.
        drawn_from_m = 1.0 - (1.0 - chance_inside) / likelihood
        gradient_of_log_m = emitted_features - (m * features).sum(axis=2)
        return -float(np.log(likelihood).sum()), -np.asarray((drawn_from_m * gradient_of_log_m).sum(axis=1))

    return tilt(minimize(negative_log_likelihood, np.zeros(2), jac=True, method="L-BFGS-B", bounds=BOUNDS).x)[0]


def _logs(p: Floats) -> Floats:
    """Return the log-probabilities [N, K+1] of single tokens.

    The remainder is taken to be spread over tokens that are each half as probable as the last top token.
    """
    # An impossible token stays so under any tilt: 1 keeps its log finite, and the least probable of the others the minimum.
    top_tokens = np.where(p[:, :-1] > 0, p[:, :-1], 1.0)
    return np.asarray(np.log(np.column_stack([top_tokens, top_tokens.min(axis=1) / 2.0])))
