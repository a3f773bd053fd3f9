"""Sensitivity: which faults a run of the sampling judge would have shown, from its own distributions and token count."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isfinite, log
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.verdicts import likely
from pytest_specdec.stats import betting
from pytest_specdec.stats.bettors import catalogue_tables
from pytest_specdec.stats.draft_distribution import SplitRemainder, overlap
from pytest_specdec.stats.fault_models import CATALOGUE, leak, temperature_tilt, tilt_name
from pytest_specdec.stats.power import EvidenceGrowth, growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.stats.betting import WealthProcess
    from pytest_specdec.stats.token_distribution import Floats
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["CONFIDENCE", "Sensitivity", "promise"]

CONFIDENCE = 0.99
LEAKS = (*np.arange(0.01, 0.2, 0.01).tolist(), *np.arange(0.2, 1.0001, 0.05).tolist())
"""Leaks tried, 0..1: the share of rejected draft tokens that is emitted all the same; 1 is accept-all."""
POWERS = (1.07, 0.93, 1.25, 0.8, 2.0, 0.5)
"""Wrong temperatures tried, as powers of the requested distribution, the gentlest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Probabilities that faults would have been caught."""

    tokens: int
    leaks: Mapping[float, float]
    """Probability by leak; empty without the draft's distribution."""
    faults: Mapping[str, float]
    """Probability by fault of the catalogue; empty without the draft's distribution."""
    tilts: Mapping[float, float]
    """Probability by wrong temperature, as a power of the requested distribution, the gentlest first."""
    length: float
    """Runs like this one that would show the grossest of these faults with CONFIDENCE; at most 1 where one does, inf where none can."""
    untestable: str = ""
    """Reason that acceptance faults are not testable; empty when they are."""

    @property
    def smallest_leak(self) -> float | None:
        """The smallest leak from which on every larger one would have shown with CONFIDENCE."""
        shown = None
        for share in sorted(self.leaks, reverse=True):
            if self.leaks[share] < CONFIDENCE:
                break
            shown = share
        return shown

    @property
    def enough(self) -> bool:
        """Whether any fault would have been caught with CONFIDENCE."""
        return self.length <= 1.0

    @property
    def tokens_needed(self) -> int | None:
        """Sampled tokens like these that would settle it; None when no number would."""
        return ceil(self.tokens * self.length) if isfinite(self.length) else None

    @property
    def would_have_shown(self) -> tuple[str, ...]:
        """A line for each fault of the catalogue and each wrong temperature."""
        faults = {**self.faults, **{f"temperature {1 / power:.3g} times the requested one": chance for power, chance in self.tilts.items()}}
        return tuple(f"caught in {chance:.1%} of such runs: {fault}" for fault, chance in faults.items())

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures for machines, by name."""
        smallest = self.smallest_leak
        return {
            "promised_probability": CONFIDENCE,
            **({} if smallest is None else {"smallest_leak_ruled_out": smallest}),
            **({"leak_20_percent_shown": self.leaks[0.2]} if self.leaks else {}),
        }

    def __str__(self) -> str:
        """Say which fault would have been caught, the gentlest that a run should catch first."""
        return f"{self.tokens:,} sampled tokens checked; {self._draft_faults() or self._temperature()}{self._gaps()}"

    def _draft_faults(self) -> str:
        smallest = self.smallest_leak
        if smallest is None:
            return ""
        named = _nearest(self.leaks, max(0.2, smallest))
        text = f"emitting {named:.0%} of the draft tokens that should be rejected would have been caught ({likely(self.leaks[named])})"
        return text if smallest == named else f"{text}, {smallest:.0%} too ({likely(self.leaks[smallest])})"

    def _temperature(self) -> str:
        sure = [power for power, chance in self.tilts.items() if chance >= CONFIDENCE]
        power = sure[0] if sure else max(self.tilts, key=lambda one: self.tilts[one])
        return f"a temperature {1 / power:.3g} times the requested one would have been caught ({likely(self.tilts[power])})"

    def _gaps(self) -> str:
        """Say which acceptance faults the run would have missed."""
        if not self.leaks:
            return f"; lenient acceptance untested: draft distribution unknown ({self.untestable})"
        if self.smallest_leak is None:
            return f"; accept-all only in {likely(self.leaks[max(self.leaks)])} of such runs"
        return ""


def _nearest(leaks: Iterable[float], share: float) -> float:
    return min(leaks, key=lambda one: abs(one - share))


def promise(observed: Observed, book: WealthProcess, log_barrier: float, untestable: str) -> Sensitivity:
    """Return what this run would have shown.

    Each fault is followed by the one bettor that would see it best, its share of the starting wealth charged (stats/power.py has the
    approximation). The distributions are those at the prefixes that the run went through: what the fault would have changed of them is left
    out, but for the share of draft slots, which falls where more is accepted.
    """
    whole = sum(bettor.weight for bettor in book.bettors)
    barriers = {bettor.name: log_barrier - log(bettor.weight / whole) for bettor in book.bettors}
    leaking = dict(_leaking(observed, barriers))
    failing = dict(_failing(observed, barriers))
    tilting = dict(_tilting(observed, barriers))
    return Sensitivity(
        tokens=observed.tokens,
        leaks={share: _chance(growths, barriers) for share, growths in leaking.items()},
        faults={words: _chance(growths, barriers) for words, growths in failing.items()},
        tilts={power: _chance(growths, barriers) for power, growths in tilting.items()},
        length=min(_length(growths, barriers) for growths in (*leaking.values(), *tilting.values())),
        untestable=untestable,
    )


def _failing(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[str, dict[str, EvidenceGrowth]]]:
    if observed.q is None:
        return
    split, right = SplitRemainder.of(observed.distribution.p, observed.q), overlap(observed.distribution.p, observed.q)
    for one, truth, table in catalogue_tables(observed):
        slots = _slots(observed, (split.q * one.accept(split.p, split.q)).sum(axis=1), right)
        yield one.name, {one.name: growth(table, truth, barriers[one.name]).times(slots)}


def _leaking(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[float, dict[str, EvidenceGrowth]]]:
    if observed.q is None:
        return
    leaky = [one for one in CATALOGUE if one.leak is not None]
    bets = sorted((one.leak, one.name, table) for one, _, table in catalogue_tables(observed, leaky) if one.leak is not None)
    share = (observed.slot_chances.draft * observed.drafted)[:, None]
    p, overlapping = observed.distribution.p, overlap(observed.distribution.p, observed.q)
    for size in LEAKS:
        slots = _slots(observed, overlapping + size * (1.0 - overlapping), overlapping)
        truth = share * leak(size)(p, observed.q) + (1.0 - share) * p
        yield round(size, 2), {words: growth(table, truth, barriers[words]).times(slots) for words, table in _next_to(size, bets)}


def _next_to(size: float, bets: Sequence[tuple[float, str, Floats]]) -> Iterable[tuple[str, Floats]]:
    """Yield name and payoffs of the bettors on the leaks just below and above ``size``: no other bettor on a leak sees it better."""
    above = next((at for at, (leak, *_) in enumerate(bets) if leak >= size), len(bets) - 1)
    for _, words, table in bets[max(0, above - 1) : above + 1]:
        yield words, table


def _slots(observed: Observed, accepted: Floats, right: Floats) -> float:
    """Return by what factor draft slots become rarer where draft tokens are ``accepted`` [N] so often instead of as is ``right`` [N].

    A window of k drafts has ``sum_{j<k} a^j`` draft slots of ``sum_{j<=k} a^j`` tokens, a being the mean acceptance.
    """
    chance = observed.slot_chances.draft * observed.drafted
    if not chance.any():
        return 1.0
    shares = []
    for rate in (accepted, right):
        powers = float(np.average(rate, weights=chance)) ** np.arange(observed.k + 1)
        shares.append(float(powers[:-1].sum() / powers.sum()))
    return shares[0] / shares[1]


def _tilting(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[float, dict[str, EvidenceGrowth]]]:
    for power in POWERS:
        m = temperature_tilt(power)(observed.distribution.p, observed.distribution.p)
        words = tilt_name(power)
        yield power, {words: growth(betting.table(observed.distribution, m), m, barriers[words])}


def _chance(growths: Mapping[str, EvidenceGrowth], barriers: Mapping[str, float]) -> float:
    return max(one.chance_to_reach(barriers[words]) for words, one in growths.items())


def _length(growths: Mapping[str, EvidenceGrowth], barriers: Mapping[str, float]) -> float:
    return min((one.length_for(barriers[words], CONFIDENCE) for words, one in growths.items() if one.drift > 0), default=inf)
