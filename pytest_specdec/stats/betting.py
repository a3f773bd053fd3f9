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
    return _payoffs(distribution, m, distribution.noise, outcomes=distribution.outcome[:, None])[:, 0]


def table(distribution: TokenDistribution, m: Floats, noise: float | None = None) -> Floats:
    """Return the log payoffs of every outcome for view ``m``.

    Both are [N, K+1]. The view is the distribution that the bettor expects in place of p. A payoff e is computed in four steps, so that its
    mean under a correct server is one at most:

    - Core: both distributions are conditioned on it, ``e = (m/m(core)) / (p/p(core))``. Outside e is 1, so that the mean is one whatever
      the core's true mass is.
    - Noise: of standard deviation s in the log-probabilities, it makes the average distribution ``p_i (1 + s^2 (sum p^2 - p_i))`` to second
      order, so that e is divided by ``1 + s^2 max(0, sum_i p_i (sum p^2 - p_i) e_i)``. s is ``noise``, or the distribution's own if None.
      The remainder counts as many small tokens.
    - Jumps, positions with any other distribution: e is lowered inside the core as in stats/jumps.py.
    - Violations: let their mass mu in ``m`` be above B, the largest probability that a correct server emits one, jumps included. Then they
      pay ``mu/B``, and all other payoffs are multiplied by ``(1-mu)/(1-B)``. The mean is one if violations have the probability B, and
      less if they are rarer (Huber 1965, the least favourable distribution).
    """
    return _payoffs(distribution, m, distribution.noise if noise is None else noise, outcomes=None)


def _payoffs(distribution: TokenDistribution, m: Floats, noise: Floats | float, outcomes: Ints | None) -> Floats:
    """Return the log payoffs of view ``m`` at the given outcomes.

    ``outcomes`` [N, M] are indices in 0..K, M for each token; the result is [N, M]. For None it is for all outcomes, [N, K+1]. The steps
    are those of :func:`table`, for its view ``m`` and its s, ``noise``.
    """
    core = _core(distribution)
    inside = _core_payoffs(distribution, _condition(m, distribution.core), noise, outcomes)
    if core.violation_bound is None:
        return inside
    of_violations, of_others = _violation_payoffs(distribution, core.violation_bound, m)
    return np.where(_take(outcomes, distribution.violation), of_violations, inside + of_others)


def _core_payoffs(distribution: TokenDistribution, m: Floats, noise: Floats | float, outcomes: Ints | None) -> Floats:
    """Return the log payoffs inside the core at ``outcomes``; 0 outside.

    ``m`` [N, K+1] is the view conditioned on the core. RESERVE of it is replaced by p, against bankruptcy, and all where it has no mass.
    """
    core = _core(distribution)
    view = np.where(m.sum(axis=1, keepdims=True) > 0, RESERVE * core.p + (1.0 - RESERVE) * m, core.p)
    # The mean payoff under noise in p: payoffs are divided by it.
    mean = 1.0 + np.asarray(noise)[..., None] ** 2 * np.maximum(0.0, (view * core.rise_by_noise).sum(axis=1, keepdims=True))
    bets = _take(outcomes, core.bets)
    paid = np.log(np.where(bets, _take(outcomes, view), 1.0)) - _take(outcomes, core.log_p) - np.log(mean)
    if core.jump_rate is not None:
        # Jumps may go where the payoff is highest: payoffs are lowered, and no token pays more than the cap.
        log_factors = jumps.least_favourable(np.where(core.bets, view / mean, 0.0), core.p, core.jump_rate)
        paid = np.minimum(paid + _take(outcomes, log_factors), jumps.log_largest(distribution.jump_rate))
    return np.where(bets, paid, 0.0)


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
    rise_by_noise: Floats
    """[N, K+1], see ``_rise_by_noise``."""
    violation_bound: Floats | None
    """[N], largest probability of a violation, 1 at tokens without any; None if there are none at all."""
    jump_rate: Floats | None
    """[N], share of tokens inside the core that a jump may have brought; None without jumps."""


@lru_cache(maxsize=1)  # the bettors of a panel bet on one distribution, one after the other
def _core(distribution: TokenDistribution) -> _Core:
    """Return the values of :func:`table` common to all views.

    They are p conditioned on the core, the outcomes with a bet, and the corrections of payoffs for noise, violations and jumps.
    """
    p = _condition(distribution.p, distribution.core)
    bets = distribution.core & (p > 0)
    has_violation = distribution.violation.any(axis=1)
    core_mass = np.where(distribution.core, distribution.p, 0.0).sum(axis=1)
    return _Core(
        p=p,
        log_p=np.log(np.where(bets, p, 1.0)),
        bets=bets,
        rise_by_noise=_rise_by_noise(p),
        violation_bound=np.where(has_violation, _violation_bound(distribution), 1.0) if has_violation.any() else None,
        jump_rate=_jump_share(core_mass, distribution.jump_rate) if distribution.jump_rate > 0.0 else None,
    )


def _jump_share(core_mass: Floats, rate: float) -> Floats:
    """Return the largest share [N] of jumps among tokens inside the core.

    At most ``rate`` r of all tokens are jumps into the core; (1 - r) ``core_mass`` are drawn from it without. A core of less mass than r
    counts as r, so that the share stays near one half at most.
    """
    return np.asarray(rate / (rate + (1.0 - rate) * np.maximum(core_mass, rate)))


def _violation_bound(distribution: TokenDistribution) -> Floats:
    """Return the largest probability [N] of a violation, with every jump taken to bring one."""
    return np.minimum(distribution.violation_bound + distribution.jump_rate, 1.0)


def _rise_by_noise(p: Floats) -> Floats:
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
    |vocabulary| being the true number, so that V must not be too small. p(x) is replaced by its upper bound ``chosen_bound``; nothing is
    bet at tokens without one. The payoff is lowered for noise of standard deviation ``noise``, the distribution's own if None, and for
    jumps (:func:`at_jumps`).
    """
    sd = distribution.noise if noise is None else noise
    has_bound = _has_bound(distribution)
    payoff = 1.0 - share + share / (vocabulary * np.where(has_bound, distribution.chosen_bound, 1.0))
    # The mean payoff under noise, by the formula of ``table``: sum_i p_i (sum p^2 - p_i) e_i is l (sum p^2 - 1/V).
    sum_of_squares = (distribution.p[:, :-1] ** 2).sum(axis=1)
    mean = 1.0 + sd**2 * share * np.maximum(0.0, sum_of_squares - 1.0 / vocabulary)
    evenly = np.full(distribution.p.shape, 1.0 / vocabulary)
    evenly[:, -1] = max(1.0 - evenly[0, :-1].sum(), 0.0)
    return np.where(has_bound, at_jumps(distribution, np.log(payoff) - np.log(mean), evenly, share), 0.0)


def _has_bound(distribution: TokenDistribution) -> Bools:
    """Return a mask [N] of tokens with an upper bound of their own p: it is inf where requests truncate."""
    return np.asarray(np.isfinite(distribution.chosen_bound) & (distribution.chosen_bound > 0))


def at_jumps(distribution: TokenDistribution, log_payoffs: Floats, alternative: Floats, share: float) -> Floats:
    """Return log payoffs lowered to stay fair if distributions may jump.

    ``log_payoffs`` [N] are of ``1 - l + l a(x)/p(x)`` at the emitted tokens, l being ``share`` and a the ``alternative`` [N, K+1]. A jump
    is a position with any other distribution than p (stats/jumps.py). Payoffs are lowered by a factor for the emitted token's outcome, and
    capped: jumps may prefer some tokens of the remainder, which is one outcome. Without a jump rate they are returned unchanged.
    """
    if distribution.jump_rate <= 0.0:
        return log_payoffs
    view = (1.0 - share) * distribution.p + share * alternative
    log_factors = jumps.least_favourable(view, distribution.p, np.full(len(view), distribution.jump_rate))
    return np.minimum(log_payoffs + at_outcome(log_factors, distribution), jumps.log_largest(distribution.jump_rate))


def raw_payoffs(distribution: TokenDistribution) -> Floats:
    """Return the log payoffs of a bet on ignored sampling parameters.

    They are [N], for a view that is the raw distribution, before any sampling parameter, and to a share RESERVE p itself. Where p(x) of the
    emitted token has an upper bound, the payoff is ``RESERVE + (1 - RESERVE) raw(x) / bound``: it tells tokens of the remainder apart. An
    unknown raw(x) counts as 0. The payoff is lowered for noise and jumps, as in :func:`table`. Elsewhere, under truncation, the payoffs are
    those of :func:`table` itself, by outcome.
    """
    has_bound = _has_bound(distribution)
    payoff = RESERVE + (1.0 - RESERVE) * distribution.chosen_raw / np.where(has_bound, distribution.chosen_bound, 1.0)
    # By how much noise of unit variance in p raises the mean payoff.
    rise = (distribution.raw * _rise_by_noise(distribution.p)).sum(axis=1)
    mean = 1.0 + np.asarray(distribution.noise) ** 2 * np.maximum(0.0, rise)
    paid = at_jumps(distribution, np.log(payoff) - np.log(mean), distribution.raw, 1.0 - RESERVE)
    return np.where(has_bound, paid, bet(distribution, distribution.raw))


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
