"""Fault models: the distribution of an emitted token under each named fault, given the target's p and the draft's q.

A verified position under any accept-or-replace rule has the distribution ``m(x) = q(x) a(x) + (1 - sum_y q(y) a(y)) rho(x)`` with
acceptance probability a and replacement distribution rho; the correct rule is ``a = min(1, p/q)``, ``rho = max(p - q, 0) / sum`` and gives
m = p (Leviathan et al. 2023, arXiv 2211.17192, appendix A.1; Chen et al. 2023, arXiv 2302.01318, theorem 1). Distributions are arrays [N,
K+1], the remainder last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from pytest_specdec.stats.draft_distribution import favourite, one_hot
from pytest_specdec.stats.raw_distribution import SLACK
from pytest_specdec.stats.token_distribution import Floats

__all__ = [
    "BONUS",
    "CATALOGUE",
    "GENERIC",
    "Alternative",
    "Fault",
    "Shape",
    "leak",
    "lenient_ratio",
    "temperature_tilt",
    "tilt_name",
]

Shape: TypeAlias = Callable[[Floats, Floats], Floats]
"""(p, q) to m, all [N, K+1]."""


class Fault(StrEnum):
    """The family of faults that an alternative stands for, in words."""

    LENIENT = "acceptance too lenient"
    RULE = "acceptance rule"
    RESIDUAL = "recovered token"
    BONUS = "bonus token"
    STEP = "verification of draft tokens"
    TEMPERATURE = "temperature or truncation"
    IMPROBABLE = "improbable tokens"
    ORDER = "order of token ids (inverse CDF, reused random numbers)"
    PENALTIES = "penalties or biases"
    ENDING = "end of sequence"
    DEPENDENCE = "dependence between requests (an answer given again)"
    STATE = "state after a rejected draft (KV cache not rolled back)"


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return ``min(1, numerator / denominator)``, 1 for a denominator of 0.

    For p over q it is the correct probability to accept a draft token.
    """
    ones = np.ones(np.broadcast_shapes(numerator.shape, denominator.shape))
    # Only quotients below 1 are computed: by a denominator near the smallest number another one would overflow.
    return np.divide(numerator, denominator, out=ones, where=denominator > numerator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One fault: its name, its family, and its distribution of emitted tokens, given p and q."""

    name: str
    fault: Fault
    distribution: Shape
    accept: Shape = ratio
    """Probability with which it accepts each draft token."""
    draft: bool = True
    """Whether its distribution depends on q."""
    leak: float | None = None
    """Fraction of rejected draft tokens that is emitted all the same; None for any other fault."""
    repeats: bool = False
    """Whether a recovered token may be the rejected draft token itself, even if the draft was certain of it."""


def verified_distribution(q: Floats, accept: Floats, replacement: Floats) -> Floats:
    """Return m, the distribution of tokens emitted by a verify rule.

    All are [N, K+1]: ``q`` of the draft, ``accept`` the probability to accept each draft token, ``replacement`` the distribution of the
    token that takes a rejected one's place.
    """
    accepted = q * accept
    return np.asarray(accepted + (1.0 - accepted.sum(axis=1, keepdims=True)) * replacement)


def residual(p: Floats, q: Floats) -> Floats:
    """Return ``max(p - q, 0)`` normalised, or p if p equals q."""
    excess = np.maximum(p - q, 0.0)
    total = excess.sum(axis=1, keepdims=True)
    return np.where(total > 0, excess / np.where(total > 0, total, 1.0), p)


def accept_all(_: Floats, q: Floats) -> Floats:
    """Return q, the distribution if every draft token is emitted: ``a = 1``."""
    return q


def leak(share: float) -> Shape:
    """Return the fault of emitting rejected draft tokens with probability ``share``.

    It is a function of p and q, [N, K+1], that returns ``(1 - share) p + share q``.
    """

    def distribution(p: Floats, q: Floats) -> Floats:
        return (1.0 - share) * p + share * q

    return distribution


def leaky(share: float) -> Shape:
    """Return the rule of accepting rejected draft tokens with probability ``share``.

    It is a function of p and q, [N, K+1], that returns the probability to accept each draft token.
    """

    def accept(p: Floats, q: Floats) -> Floats:
        return (1.0 - share) * ratio(p, q) + share

    return accept


def lenient_ratio(factor: float) -> Shape:
    """Return the rule of accepting draft tokens too often, by ``factor``.

    It is a function of p and q, [N, K+1], that returns ``min(1, p / (factor q))``: a factor of 0.67 stands for 1.5 p/q.
    """

    def accept(p: Floats, q: Floats) -> Floats:
        return ratio(p, factor * q)

    return accept


def inverted_ratio(p: Floats, q: Floats) -> Floats:
    """Return ``a = min(1, q/p)``, the acceptance by an inverted ratio."""
    return ratio(q, p)


def typical(p: Floats, _: Floats) -> Floats:
    """Return 1 for outcomes accepted by typical acceptance, else 0, [N, K+1].

    The rule is Medusa's (arXiv 2401.10774), with vLLM's defaults: it accepts x if ``p(x) > min(.09, .3 exp(-H(p)))``. For the entropy H the
    remainder is taken to be spread over tokens that are each half as probable as the last top token; for the comparison it is one outcome,
    accepted or not as a whole.
    """
    token_p = np.concatenate([p[:, :-1], np.minimum(_least_probable(p[:, :-1]) / 2.0, p[:, -1])[:, None]], axis=1)
    entropy = -(p * np.log(np.where(token_p > 0, token_p, 1.0))).sum(axis=1, keepdims=True)
    return np.asarray(p > np.minimum(0.09, 0.3 * np.exp(-entropy)), dtype=np.float64)


def best_only(p: Floats, _: Floats) -> Floats:
    """Return 1 for the target's best token, else 0: the greedy rule under temperature."""
    return favourite(p)


def rule_distribution(accept: Shape, replacement: Shape) -> Shape:
    """Return the distribution of tokens emitted by an accept-or-replace rule.

    All three are functions of p and q, [N, K+1]: ``accept`` returns the probability to accept each draft token, ``replacement`` the
    distribution of the token that takes a rejected one's place.
    """

    def distribution(p: Floats, q: Floats) -> Floats:
        return verified_distribution(q, accept(p, q), replacement(p, q))

    return distribution


def the_target(p: Floats, _: Floats) -> Floats:
    """Return p, the target's distribution."""
    return p


def residual_best(p: Floats, q: Floats) -> Floats:
    """Return the distribution certain of ``argmax(p - q)``."""
    return one_hot((p - q).argmax(axis=1).astype(np.int64), p.shape[1])


def unnormalised_residual(p: Floats, q: Floats) -> Floats:
    """Return the distribution if the residual is not normalised.

    Recovered tokens are drawn from it, and its missing mass falls into the remainder. By inverse CDF the distribution is ``min(p, q) + (1 -
    beta) (max(p - q, 0) + beta 1[remainder])``, beta being the acceptance rate ``sum min(p, q)``.
    """
    smaller = np.minimum(p, q)
    beta = smaller.sum(axis=1, keepdims=True)
    distribution: Floats = smaller + (1.0 - beta) * np.maximum(p - q, 0.0)
    distribution[:, -1] += (1.0 - distribution.sum(axis=1)).clip(0.0)
    return distribution


def greedy(share: float) -> Shape:
    """Return the fault of taking the best token with probability ``share``.

    It is a function of p and q, [N, K+1], that returns the distribution.
    """

    def distribution(p: Floats, _q: Floats) -> Floats:
        return (1.0 - share) * p + share * favourite(p)

    return distribution


def without_best(share: float) -> Shape:
    """Return the fault of avoiding the best token with probability ``share``.

    It is a function of p and q, [N, K+1], that returns the distribution.
    """

    def distribution(p: Floats, _q: Floats) -> Floats:
        others = np.where(favourite(p) > 0, 0.0, p)
        total = others.sum(axis=1, keepdims=True)
        others = np.where(total > 0, others / np.where(total > 0, total, 1.0), p)
        return (1.0 - share) * p + share * others

    return distribution


def temperature_tilt(power: float) -> Shape:
    """Return the fault of drawing from ``p^power``, a wrong temperature.

    It is a function of p and q, [N, K+1], that returns the distribution. The remainder is taken to be spread over tokens that are each half
    as probable as the last top token.
    """

    def distribution(p: Floats, _q: Floats) -> Floats:
        top_tokens = p[:, :-1]
        last = _least_probable(top_tokens) / 2.0
        # A remainder no larger than rounding, SLACK, has no tokens that a temperature could raise.
        rest = np.where(p[:, -1] > 2.0 * SLACK, p[:, -1] * last ** (power - 1.0), p[:, -1])
        weight = np.concatenate([top_tokens**power, rest[:, None]], axis=1)
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    return distribution


def _least_probable(top_tokens: Floats) -> Floats:
    """Return the least positive probability [N] of ``top_tokens`` [N, K]."""
    return np.asarray(np.where(top_tokens > 0, top_tokens, 1.0).min(axis=1))


def tilt_name(power: float) -> str:
    """Return the name of the alternative ``temperature_tilt(power)``."""
    return f"temperature {1 / power:.3g} times the requested one"


def beyond_nucleus(factor: float) -> Shape:
    """Return the fault of a wrong mass outside the 0.9 nucleus.

    The nucleus is the fewest tokens, from the most probable one down, with 0.9 of the mass. The result is a function of p and q, [N, K+1],
    that returns p with the mass outside multiplied by ``factor``, normalised. A factor below 1 stands for a truncation too many, one above
    1 for one too few.
    """

    def distribution(p: Floats, _q: Floats) -> Floats:
        weight = np.where(p.cumsum(axis=1) - p >= 0.9, factor * p, p)  # noqa: PLR2004 - the nucleus in the name of the alternative
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    return distribution


def remainder(share: float) -> Shape:
    """Return the fault of emitting improbable tokens with probability ``share``.

    It is a function of p and q, [N, K+1], that returns the distribution. Improbable tokens are those outside the K top tokens.
    """

    def distribution(p: Floats, _q: Floats) -> Floats:
        distribution = (1.0 - share) * p
        distribution[:, -1] += share
        return distribution

    return distribution


def _lenient_fault(name: str, accept: Shape, leak: float | None = None) -> Alternative:
    return Alternative(name=name, fault=Fault.LENIENT, distribution=rule_distribution(accept, residual), accept=accept, leak=leak)


def _rule_fault(name: str, accept: Shape, replacement: Shape, *, repeats: bool = False) -> Alternative:
    return Alternative(name=name, fault=Fault.RULE, distribution=rule_distribution(accept, replacement), accept=accept, repeats=repeats)


CATALOGUE = (
    _lenient_fault("accept-all", leaky(1.0), 0.95),
    *(_lenient_fault(f"acceptance leak of {share:.0%}", leaky(share), share) for share in (0.01, 0.05, 0.2, 0.5)),
    *(_lenient_fault(f"lenient acceptance {1 / factor:.3g} p/q", lenient_ratio(factor)) for factor in (0.5, 0.67, 0.8, 0.95)),
    _rule_fault("inverted ratio", inverted_ratio, residual),
    _rule_fault("typical acceptance", typical, lambda p, _: favourite(p)),
    _rule_fault("greedy acceptance", best_only, the_target, repeats=True),
    Alternative(name="resample from p", fault=Fault.RESIDUAL, distribution=rule_distribution(ratio, the_target), repeats=True),
    Alternative(
        name="recover by argmax", fault=Fault.RESIDUAL, distribution=rule_distribution(ratio, lambda p, _: favourite(p)), repeats=True
    ),
    Alternative(name="residual argmax", fault=Fault.RESIDUAL, distribution=rule_distribution(ratio, residual_best)),
    Alternative(name="residual not normalised", fault=Fault.RESIDUAL, distribution=unnormalised_residual),
)
"""Faults at a draft slot, given the draft's distribution."""

BONUS = (
    Alternative(name="bonus from q", fault=Fault.BONUS, distribution=accept_all),
    Alternative(name="greedy bonus", fault=Fault.BONUS, distribution=greedy(1.0), draft=False),
    Alternative(name="bonus out of place", fault=Fault.BONUS, distribution=remainder(0.8), draft=False),
)
"""Faults at a bonus slot; a stale or shifted token is an improbable one there."""

GENERIC = (
    *(Alternative(name=tilt_name(b), fault=Fault.TEMPERATURE, distribution=temperature_tilt(b)) for b in (0.5, 0.8, 0.93, 1.07, 1.25, 2.0)),
    *(
        Alternative(name=f"mass beyond the 0.9 nucleus times {c:g}", fault=Fault.TEMPERATURE, distribution=beyond_nucleus(c))
        for c in (0.5, 1.5)
    ),
    *(Alternative(name=f"{share:.0%} greedy", fault=Fault.TEMPERATURE, distribution=greedy(share)) for share in (0.02, 0.2, 1.0)),
    *(
        Alternative(name=f"{share:.0%} anything but the best", fault=Fault.IMPROBABLE, distribution=without_best(share))
        for share in (0.02, 0.15)
    ),
    Alternative(name="2% beyond the top tokens", fault=Fault.IMPROBABLE, distribution=remainder(0.02)),
)
"""Faults at any token, without a draft distribution: wrong temperature, greedy leaks, improbable tokens."""
