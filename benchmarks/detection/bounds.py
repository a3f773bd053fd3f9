"""Bounds: how far a fault moves the distribution, and how few tokens any valid test can need for it, exactly from the bank's p and q."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.simulation import accepts, moved, observe, trace_of
from pytest_specdec.stats.draft_distribution import SplitRemainder, merge_remainder
from pytest_specdec.stats.fault_models import verified_distribution

if TYPE_CHECKING:
    from benchmarks.bank import Bank
    from benchmarks.simulation import Rules
    from pytest_specdec.stats.token_distribution import Floats, TokenDistribution

__all__ = ["POWER", "Distance", "SlotDistributions", "bound", "distance", "distributions", "divergence", "slots"]

POWER = 0.99


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotDistributions:
    """The distribution of the emitted token under a fault, by slot, each [B, K+1], with how often a token stands there."""

    plain: Floats
    draft: Floats
    bonus: Floats
    shares: tuple[float, float, float]
    """Of plain, draft and bonus tokens; add up to one."""

    @property
    def mixed(self) -> Floats:
        """Distribution of a token at an unknown slot, [B, K+1]."""
        return sum(share * distribution for share, distribution in zip(self.shares, (self.plain, self.draft, self.bonus), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Between a fault's distribution and the right one, a mean over tokens, windows known and hidden."""

    variation: float
    """Total variation, windows known."""
    divergence: float
    """Kullback-Leibler divergence of the right distribution from the fault's in nats, windows known."""
    divergence_hidden: float


def distributions(bank: Bank, rules: Rules, *, k: int, tokens: int) -> SlotDistributions:
    """Return the distributions under ``rules``, which must not depend on what was emitted before, in answers of so many tokens."""
    p = bank.unasked if rules.forgets == "everywhere" else rules.target(bank.p, bank.q)
    split = SplitRemainder.of(p, bank.q)
    accept = accepts(bank, np.arange(len(bank)), rules, split)
    after = SplitRemainder.of(bank.unasked, bank.q).p if rules.forgets == "bonus" else rules.bonus(split.p, split.q)
    accepted = float((split.q * accept).sum(axis=1).mean())
    return SlotDistributions(
        plain=p,
        draft=merge_remainder(verified_distribution(split.q, accept, rules.replacement(split.p, split.q))),
        bonus=merge_remainder(_shifted(bank, rules, after)),
        shares=slots(accepted, k=k, tokens=tokens),
    )


def _shifted(bank: Bank, rules: Rules, distribution: Floats) -> Floats:
    to = moved(bank, rules.bonus_ids_off_by)
    if to is None:
        return distribution
    out = np.zeros_like(distribution)
    np.add.at(out, (np.arange(len(distribution))[:, None], to), distribution)
    return out


def slots(accepted: float, *, k: int, tokens: int) -> tuple[float, float, float]:
    """Return the shares of plain, draft and bonus tokens in an answer: the prefill's, then windows of k drafts and a bonus.

    Positions are drawn evenly and anew, so every draft token is accepted with the same chance ``accepted``.
    """
    at = np.zeros(k + 1)
    at[0] = 1.0
    draft = bonus = 0.0
    for _ in range(tokens - 1):
        draft += at[:k].sum()
        bonus += at[k]
        at = np.concatenate([[at[k] + (1.0 - accepted) * at[:k].sum()], accepted * at[:k]])
    return 1.0 / tokens, draft / tokens, bonus / tokens


def divergence(distribution: TokenDistribution, asked: Floats, m: Floats, *, truncated: bool) -> float:
    """Return the mean over positions of the least KL(m || r), in nats, of the distributions r that a correct server may have.

    Where nothing is cut off that is ``sum m ln(m/p)`` of the ``asked`` distribution p. Under truncation the judge grants the server any
    mass in the band between core and violations, and up to the bound to the violations: ``m(core) KL(m|core || p|core)`` and, where
    violations are too frequent, ``kl(m(violation) || bound)``.
    """
    if not truncated:
        return float(_kl(m, asked).mean())
    inside, p = np.where(distribution.core, m, 0.0), np.where(distribution.core, distribution.p, 0.0)
    mass, whole = inside.sum(axis=1, keepdims=True), p.sum(axis=1, keepdims=True)
    given = _kl(inside / np.where(mass > 0, mass, 1.0), p / np.where(whole > 0, whole, 1.0))
    outside = np.where(distribution.violation, m, 0.0).sum(axis=1)
    pair = np.stack([outside, 1.0 - outside], axis=1)
    bounds = np.stack([distribution.violation_bound, 1.0 - distribution.violation_bound], axis=1)
    too_often = np.where((outside > distribution.violation_bound) & distribution.violation.any(axis=1), _kl(pair, bounds), 0.0)
    return float((mass[:, 0] * given + too_often).mean())


def _kl(m: Floats, p: Floats) -> Floats:
    here = m > 0
    with np.errstate(divide="ignore"):
        return np.where(here, m * (np.log(np.where(here, m, 1.0)) - np.log(np.where(here, p, 1.0))), 0.0).sum(axis=1)


def distance(bank: Bank, found: SlotDistributions) -> Distance:
    """Return how far ``found`` is from the distribution that was asked for."""
    distribution = observe(bank, trace_of(np.arange(len(bank)), np.zeros(len(bank), dtype=np.int64)), k=1, windows=False).distribution
    truncated = bank.asked.top_p < 1.0
    each = tuple(zip(found.shares, (found.plain, found.draft, found.bonus), strict=True))
    return Distance(
        variation=float(sum(share * 0.5 * np.abs(m - bank.p).sum(axis=1).mean() for share, m in each)),
        divergence=sum(share * divergence(distribution, bank.p, m, truncated=truncated) for share, m in each),
        divergence_hidden=divergence(distribution, bank.p, found.mixed, truncated=truncated),
    )


def bound(divergence: float, alpha: float) -> float:
    """Return the least mean number of tokens of any sequential test of size ``alpha`` and power POWER (Wald 1945).

    ``kl(power || alpha) / KL``, kl of two Bernoulli distributions; the exponent is Chernoff and Stein's.
    """
    needed = POWER * log(POWER / alpha) + (1.0 - POWER) * log((1.0 - POWER) / (1.0 - alpha))
    return needed / divergence if divergence > 0 else inf
