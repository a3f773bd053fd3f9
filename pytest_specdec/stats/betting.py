"""Betting: an anytime-valid test of emitted tokens against the requested distribution.

Arrays [N, K+1] have, for each of N emitted tokens, the outcomes: K top tokens and, last, the remainder, all other tokens. The core has the
outcomes whose probability p is known up to one factor. Violations are outcomes that the request's parameters cut off.

Every bettor starts with 1 and multiplies its wealth by ``e(x) = m(x) / p(x)`` at every token, m being its view: a distribution fixed before
x is seen. Under a correct server the wealth is a non-negative supermartingale, and so is any fixed mixture of wealths; by Ville's
inequality it ever reaches ``1/alpha`` with probability alpha at most, at whichever token the test stops (Ville 1939; Waudby-Smith and
Ramdas, arXiv 2010.09686).

Independent noise in the scores has no direction and breaks no bet; a systematic error (a tilt of 2 %, a cache of lower precision in
decoding than in scoring) pays some bettor on either arm, and cancels in the difference of the two (stats/control_difference.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy.special import logsumexp

from pytest_specdec.stats import jumps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.stats.fault_models import Fault
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, TokenDistribution

__all__ = [
    "Bettor",
    "Stretch",
    "WealthProcess",
    "at_jumps",
    "at_outcome",
    "bet",
    "mixture",
    "partial_stake",
    "pointwise",
    "raw_payoffs",
    "table",
    "unit_bettor",
    "violation_table",
    "violations",
    "wealth_process",
]

Array = TypeVar("Array", "Floats", "Bools")

RESERVE = 0.05
"""Share of p in every view, so that one surprising token cannot bankrupt a bettor."""
TINY = 1e-300


class Stretch(StrEnum):
    """Tokens of an answer that a bettor on the state after a rejected draft bets on, in words."""

    AFTER_REJECTION = "right after a rejection"
    REJECTED_BEFORE = "once a draft was rejected"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bettor:
    """One bettor: the fault it bets on, its share of the starting wealth, and its payoff at each token."""

    name: str
    fault: Fault
    weight: float
    log_payoffs: Floats
    """[N], natural logs; 0 at tokens without a bet."""
    guessed: bool = False
    """Whether its view rests on a guess at the draft."""
    faulty_fraction: float = 0.0
    """Fraction of the answers that it bets are faulty, for a sparse bettor; 0 for a bet that all are."""
    stretch: Stretch | None = None
    """Tokens that it bets on, for a bettor on the state after a rejected draft."""
    variation_of: tuple[str, ...] = ()
    """Names of the bettors on the same fault that it is a variation of, the nearest first."""

    @property
    def log_wealth(self) -> float:
        """Natural log of its final wealth, from a start of 1."""
        return float(self.log_payoffs.sum())

    def __repr__(self) -> str:
        return f"<Bettor {self.name!r}: 10^{self.log_wealth / np.log(10):.1f}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WealthProcess:
    """The wealth of a panel: ``E_t = sum_d w_d prod_{s<=t} e_d(x_s)``."""

    bettors: tuple[Bettor, ...]
    log_wealth: Floats = field(repr=False)
    """[N], natural log of the mixture after every token."""

    @property
    def peak(self) -> float:
        """Highest natural-log wealth after any token, 0 before the first."""
        return max(0.0, float(self.log_wealth.max(initial=0.0)))

    def tokens_to(self, log_barrier: float) -> int | None:
        """Return the number of tokens until the mixture reached ``log_barrier``.

        ``log_barrier`` is the natural log of a wealth, for an alarm ``-ln(alpha)``. None if the mixture never reached it.
        """
        reached = np.flatnonzero(self.log_wealth >= log_barrier)
        return int(reached[0]) + 1 if len(reached) else None

    @property
    def without_sparse_bettors(self) -> WealthProcess:
        """The same process with its bettors on every answer alone.

        Sparse bettors, which bet that only a fraction of the answers is faulty, are left out. ``log_wealth`` remains that of all bettors.
        """
        return replace(self, bettors=tuple(bettor for bettor in self.bettors if not bettor.faulty_fraction))

    @property
    def winner(self) -> Bettor:
        """The bettor with most of the mixture at the end."""
        return max(self.bettors, key=lambda bettor: np.log(bettor.weight) + bettor.log_wealth)


def unit_bettor(name: str, fault: Fault, log_payoffs: Floats, *, guessed: bool = False, variation_of: tuple[str, ...] = ()) -> Bettor:
    """Return a bettor of weight 1, scaled later within its group."""
    return Bettor(name=name, fault=fault, weight=1.0, log_payoffs=log_payoffs, guessed=guessed, variation_of=variation_of)


def bet(distribution: TokenDistribution, m: Floats) -> Floats:
    """Return the log payoffs of view ``m`` at the emitted tokens.

    They are [N]: those of :func:`table`, which explains ``m`` [N, K+1], computed without the other outcomes.
    """
    return _payoffs(distribution, m, distribution.noise, distribution.outcome[:, None])[:, 0]


def table(distribution: TokenDistribution, m: Floats, noise: float | None = None) -> Floats:
    """Return the log payoffs of every outcome for view ``m``.

    Both are [N, K+1]. The view is the distribution that the bettor expects in place of p. Inside the core both distributions are
    conditioned on it, ``e = (m/m(core)) / (p/p(core))``; outside nothing is bet, so that the mean is one whatever the core's true mass is.
    If violations have a mass mu of ``m`` beyond their bound B, they pay ``mu/B`` and everything else ``(1-mu)/(1-B)`` times the rest: this
    is the bet against the correct server that is hardest to beat, one that emits them with probability B. If they are rarer, the bettor
    only loses (Huber 1965, the least favourable distribution).

    Independent noise of standard deviation s in the log-probabilities makes the average distribution ``p_i (1 + s^2 (sum p^2 - p_i))`` to
    second order; each payoff is divided by ``1 + s^2 max(0, sum_i p_i (sum p^2 - p_i) e_i)``, s being ``noise`` or else the distribution's
    own. The remainder counts as many small tokens there. Jumps are allowed for as in stats/jumps.py, inside the core at their share of the
    tokens that fall into it; they add to the bound of violations.
    """
    return _payoffs(distribution, m, distribution.noise if noise is None else noise, None)


def _payoffs(distribution: TokenDistribution, m: Floats, noise: Floats | float, outcomes: Ints | None) -> Floats:
    """Return the log payoffs of view ``m`` at the given outcomes.

    ``outcomes`` [N, M] are indices in 0..K, M for each token; the result is [N, M]. Without them it is for all outcomes, [N, K+1]. See
    :func:`table` for ``m`` and the formulas, where ``noise`` is s. Within the core, RESERVE of the view is p itself, and all of it at
    tokens where ``m`` has no mass there.
    """
    core = _core(distribution)
    view = _condition(m, distribution.core)
    view = np.where(view.sum(axis=1, keepdims=True) > 0, RESERVE * core.p + (1.0 - RESERVE) * view, core.p)
    # What noise in p adds to the mean payoff is taken off again, by a factor for each token.
    widening = 1.0 + np.asarray(noise)[..., None] ** 2 * np.maximum(0.0, (view * core.flattening).sum(axis=1, keepdims=True))
    bets = _take(outcomes, core.bets)
    paid = np.log(np.where(bets, _take(outcomes, view), 1.0)) - _take(outcomes, core.log_p) - np.log(widening)
    if core.jump_rate is not None:
        # At some positions a correct server has any other distribution: payoffs are lowered so that their mean stays one at most.
        jump_factors = jumps.least_favourable(np.where(core.bets, view / widening, 0.0), core.p, core.jump_rate)
        paid = np.minimum(paid + _take(outcomes, jump_factors), jumps.log_largest(distribution.jump_rate))
    inside = np.where(bets, paid, 0.0)
    if core.bound is None:
        return inside
    rare, elsewhere = _violation_payoffs(distribution, core.bound, m)
    return np.where(_take(outcomes, distribution.violation), rare, inside + elsewhere)


def _take(outcomes: Ints | None, values: Array) -> Array:
    """Return the ``values`` [N, K+1] at ``outcomes`` [N, M], or all of them for None."""
    return values if outcomes is None else np.take_along_axis(values, outcomes, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Core:
    """The values common to all views of one distribution."""

    p: Floats
    """[N, K+1], conditioned on the core."""
    log_p: Floats
    """[N, K+1]; 0 for outcomes without a bet."""
    bets: Bools
    """[N, K+1], outcomes with a bet."""
    flattening: Floats
    """[N, K+1], see ``_flattening``."""
    bound: Floats | None
    """[N], the bound of violations, 1 at tokens without any; None if there are none at all."""
    jump_rate: Floats | None
    """[N], share of tokens inside the core that a jump may have brought; None without jumps.

    With rate r at most r of all tokens are jumps into the core, and (1 - r) p(core) are drawn from it without a jump: the share is at most
    r / (r + (1 - r) p(core)). A core of less mass than r counts as r, so that the share stays near one half at most.
    """


@lru_cache(maxsize=1)  # the bettors of a panel bet on one distribution, one after the other
def _core(distribution: TokenDistribution) -> _Core:
    """Return the values of :func:`table` common to all views.

    They are p conditioned on the core, the outcomes with a bet, and the corrections of payoffs for noise, violations and jumps.
    """
    p = _condition(distribution.p, distribution.core)
    bets = distribution.core & (p > 0)
    has_violation, rate = distribution.violation.any(axis=1), distribution.jump_rate
    mass = np.where(distribution.core, distribution.p, 0.0).sum(axis=1)
    return _Core(
        p=p,
        log_p=np.log(np.where(bets, p, 1.0)),
        bets=bets,
        flattening=_flattening(p),
        bound=np.where(has_violation, _violation_bound(distribution), 1.0) if has_violation.any() else None,
        # Of the tokens inside the core, the share of jumps if all of them fall into it.
        jump_rate=rate / (rate + (1.0 - rate) * np.maximum(mass, rate)) if rate > 0.0 else None,
    )


def _violation_bound(distribution: TokenDistribution) -> Floats:
    """Return the largest probability [N] of a violation, with every jump taken to bring one."""
    return np.minimum(distribution.violation_bound + distribution.jump_rate, 1.0)


def _flattening(p: Floats) -> Floats:
    """Return the relative rise of each probability under unit noise.

    It is ``sum p^2 - p_i`` [N, K+1]: averaged over noise of standard deviation s in the log-probabilities, outcome i has the probability
    ``p_i (1 + s^2 (sum p^2 - p_i))``. The remainder is taken to be spread over many small tokens.
    """
    concentration = (p[:, :-1] ** 2).sum(axis=1, keepdims=True)
    return np.concatenate([concentration - p[:, :-1], concentration], axis=1)


def _violation_payoffs(distribution: TokenDistribution, bound: Floats, m: Floats) -> tuple[Floats, Floats]:
    """Return the log payoffs of violations and of other outcomes.

    Both are [N, 1]: ``ln(mu/B)`` and ``ln((1-mu)/(1-B))``. B is the ``bound`` [N], the largest probability of a violation under a correct
    server; mu is the mass of violations in view ``m``, RESERVE of it replaced by the bound. They are 0 at tokens where mu is within the
    bound.
    """
    view_mass = np.where(distribution.violation, m, 0.0).sum(axis=1) / np.maximum(m.sum(axis=1), TINY)
    mu = RESERVE * bound + (1.0 - RESERVE) * view_mass
    bets = (mu > bound) & (bound < 1.0)
    # At tokens without a bet the inner values avoid a division by 0 and its logarithm.
    rare = np.where(bets, np.log(np.where(bets, mu / np.where(bets, bound, 1.0), 1.0)), 0.0)
    elsewhere = np.where(bets, np.log1p(-np.where(bets, mu, 0.0)) - np.log1p(-np.where(bets, bound, 0.0)), 0.0)
    return rare[:, None], elsewhere[:, None]


def _condition(distribution: Floats, core: Bools) -> Floats:
    """Return ``distribution`` [N, K+1] conditioned on ``core`` [N, K+1].

    It is 0 everywhere at tokens whose core has no mass.
    """
    inside = np.where(core, distribution, 0.0)
    mass = inside.sum(axis=1, keepdims=True)
    return np.asarray(inside / np.where(mass > 0, mass, 1.0))


def partial_stake(log_payoffs: Floats, chance: Floats) -> Floats:
    """Return the log payoffs of betting only part of the wealth.

    They are ``ln(1 - c + c e)``, e being the payoffs whose logs are ``log_payoffs`` and c the fraction ``chance`` of the wealth that is bet
    at each token. The fraction must be fixed before the token is seen. Both are [N], or one is broadcast to the other.
    """
    # A whole stake is kept out of log1p: a payoff near 0 would make it infinite.
    partly = np.log1p(np.where(chance < 1.0, chance, 0.0) * np.expm1(log_payoffs))
    return np.where(chance >= 1.0, log_payoffs, partly)


def at_outcome(log_payoffs: Floats, distribution: TokenDistribution) -> Floats:
    """Return the element of each row at its emitted token.

    ``log_payoffs`` is [N, K+1], the result [N].
    """
    return np.asarray(np.take_along_axis(log_payoffs, distribution.outcome[:, None], axis=1)[:, 0])


def pointwise(distribution: TokenDistribution, share: float, vocabulary: int, noise: float | None = None) -> Floats:
    """Return the log payoffs of a bet on evenly drawn tokens.

    They are [N], of ``e = 1 - l + l / (V p(x))``, l being ``share`` and V ``vocabulary``, the assumed number of tokens. The bet needs the
    emitted token's own probability only and is valid for any number of top tokens: its mean is at most ``1 - l + l |vocabulary| / V``,
    |vocabulary| being the true number, so that V must not be too small. An upper bound of p(x) may take its place; nothing is bet if
    truncation leaves no bound. The payoff is lowered for noise as in :func:`table`; ``noise`` replaces the distribution's own. Jumps are
    allowed for as if the top tokens were drawn evenly too.
    """
    spread = distribution.noise if noise is None else noise
    bounded = np.isfinite(distribution.chosen_bound) & (distribution.chosen_bound > 0)
    payoff = 1.0 - share + share / (vocabulary * np.where(bounded, distribution.chosen_bound, 1.0))
    concentration = (distribution.p[:, :-1] ** 2).sum(axis=1)
    widening = 1.0 + spread**2 * share * np.maximum(0.0, concentration - 1.0 / vocabulary)
    evenly = np.full(distribution.p.shape, 1.0 / vocabulary)
    evenly[:, -1] = max(1.0 - evenly[0, :-1].sum(), 0.0)
    return np.where(bounded, at_jumps(distribution, np.log(payoff) - np.log(widening), evenly, share), 0.0)


def at_jumps(distribution: TokenDistribution, log_payoffs: Floats, alternative: Floats, share: float) -> Floats:
    """Return log payoffs lowered to stay fair if distributions may jump.

    ``log_payoffs`` [N] are of ``1 - l + l a(x)/p(x)`` at the emitted tokens, l being ``share`` and a the ``alternative`` [N, K+1]. A jump
    is a position with any other distribution than p (stats/jumps.py). A token of the remainder is corrected by the factor for the whole
    remainder. Without a jump rate the payoffs are returned unchanged.
    """
    if distribution.jump_rate <= 0.0:
        return log_payoffs
    view = (1.0 - share) * distribution.p + share * alternative
    factors = jumps.least_favourable(view, distribution.p, np.full(len(view), distribution.jump_rate))
    return np.minimum(log_payoffs + at_outcome(factors, distribution), jumps.log_largest(distribution.jump_rate))


def raw_payoffs(distribution: TokenDistribution) -> Floats:
    """Return the log payoffs of a bet on ignored sampling parameters.

    They are [N], for the raw distribution, before any sampling parameter, as the view. Without truncation, the payoff is ``raw(x) / p(x)``
    by the emitted token's own probabilities, also in the remainder, with RESERVE as the share of p in the view: an upper bound of p(x) may
    take its place, and an unknown raw probability counts as 0. The payoff is widened for noise and lowered for jumps, as in :func:`table`.
    Under truncation the payoffs are those of :func:`table` itself.
    """
    table_payoffs = bet(distribution, distribution.raw)
    bounded = np.isfinite(distribution.chosen_bound) & (distribution.chosen_bound > 0)
    payoff = RESERVE + (1.0 - RESERVE) * distribution.chosen_raw / np.where(bounded, distribution.chosen_bound, 1.0)
    # How much more a correct server is paid for noise of unit variance in p.
    added = (distribution.raw * _flattening(distribution.p)).sum(axis=1)
    widening = 1.0 + np.asarray(distribution.noise) ** 2 * np.maximum(0.0, added)
    paid = at_jumps(distribution, np.log(payoff) - np.log(widening), distribution.raw, 1.0 - RESERVE)
    return np.where(bounded, paid, table_payoffs)


def violations(distribution: TokenDistribution, share: float) -> Floats:
    """Return the log payoffs [N] of a bet on cut-off tokens, at the emitted ones of :func:`violation_table`."""
    return at_outcome(violation_table(distribution, share), distribution)


def violation_table(distribution: TokenDistribution, share: float) -> Floats:
    """Return the log payoffs of every outcome for a bet on cut-off tokens.

    They are [N, K+1], of ``e = 1 - l + l 1[violation] / bound``. Violations are tokens that the request's parameters cut off, ``bound`` is
    their largest probability under a correct server, and l is ``share``. Nothing is bet at tokens without a possible violation.
    """
    payoff = 1.0 - share + share * distribution.violation / _violation_bound(distribution)[:, None]
    return np.where(distribution.violation.any(axis=1, keepdims=True), np.log(payoff), 0.0)


def wealth_process(bettors: Sequence[Bettor]) -> WealthProcess:
    """Return the wealth process of ``bettors``, weights scaled to add to one."""
    return WealthProcess(bettors=tuple(bettors), log_wealth=mixture(bettors)[0])


def mixture(bettors: Sequence[Bettor], runs: int = 1) -> Floats:
    """Return the log wealth of all bettors together, by token.

    It is [runs, N / runs]: the N tokens are those of ``runs`` equally long runs, one after the other, and each run begins with a wealth of
    1. The bettors' weights are scaled to add to one.
    """
    total = sum(bettor.weight for bettor in bettors)
    paths = [bettor.log_payoffs.reshape(runs, -1).cumsum(axis=1) + np.log(bettor.weight / total) for bettor in bettors]
    return np.asarray(logsumexp(np.array(paths), axis=0))
