"""Sensitivity: which faults a run of the sampling judge would have shown, from its own distributions and token count.

A bettor bets on one fault: its log evidence grows with the tokens if the server has that fault, and raises an alarm at its barrier. The
faults are those of the catalogue (verify rules), leaks (a share of rejected draft tokens is emitted all the same), wrong temperatures, and
nuclei, the tokens that top_p leaves, too narrow or too wide. Distributions are [N, K+1]: N tokens, K top tokens and the remainder.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import ceil, inf, isfinite, log
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.verdicts import likely
from pytest_specdec.stats import betting
from pytest_specdec.stats.bettors import OUTSIDE, PARAMS_IGNORED, TOP_P_SQUARED, catalogue_tables
from pytest_specdec.stats.draft_distribution import SplitRemainder, overlap
from pytest_specdec.stats.fault_models import CATALOGUE, leak, temperature_tilt, tilt_name
from pytest_specdec.stats.power import EvidenceGrowth, growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.stats.betting import WealthProcess
    from pytest_specdec.stats.token_distribution import Floats
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["CONFIDENCE", "Sensitivity", "estimate_sensitivity"]

CONFIDENCE = 0.99
LEAKS = (*np.arange(0.01, 0.2, 0.01).tolist(), *np.arange(0.2, 1.0001, 0.05).tolist())
"""Leaks tried, 0..1: the share of rejected draft tokens that is emitted all the same; 1 is accept-all."""
_TYPICAL_LEAK = 0.2
"""One of them, reported even if a smaller one would have been caught: a size that readers can picture."""
CUTS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.5)
"""Parts of its mass that a nucleus cut too narrow keeps, the gentlest first."""
WIDTHS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
"""Masses by which a nucleus is too wide, the gentlest first; 1 is top-p ignored."""
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
    cuts: Mapping[float, float]
    """Probability by the part of its mass that a nucleus keeps, the gentlest first; empty without top_p."""
    widths: Mapping[float, float]
    """Probability by the mass that a nucleus has too much, the gentlest first; empty without top_p."""
    length: float
    """Runs like this one needed to show the easiest leak or wrong temperature with CONFIDENCE: at most 1 if this run is enough, inf if no
    number is."""
    untestable: str = ""
    """Reason that acceptance faults are not testable; empty when they are."""

    @property
    def smallest_leak(self) -> float | None:
        """The smallest leak caught with CONFIDENCE, as every larger one is.

        A leak is the share of rejected draft tokens that is emitted all the same, 0..1. None if even the largest would not be caught.
        """
        smallest = None
        # From the largest down to the first that is missed.
        for size in sorted(self.leaks, reverse=True):
            if self.leaks[size] < CONFIDENCE:
                break
            smallest = size
        return smallest

    @property
    def enough(self) -> bool:
        """True if at least one leak or wrong temperature would have been caught with CONFIDENCE."""
        return self.length <= 1.0

    @property
    def tokens_needed(self) -> int | None:
        """Sampled tokens like these needed to catch at least one leak or wrong temperature; None if no number is enough."""
        return ceil(self.tokens * self.length) if isfinite(self.length) else None

    @property
    def would_have_shown(self) -> tuple[str, ...]:
        """A line with its probability for each fault.

        The faults are those of the catalogue, wrong temperatures and wrong nuclei.
        """
        faults = {
            **self.faults,
            **{f"temperature {1 / power:.3g} times the requested one": chance for power, chance in self.tilts.items()},
            **{f"a nucleus cut to {part:.0%} of its mass": chance for part, chance in self.cuts.items()},
            **{_describe_width(width): chance for width, chance in self.widths.items()},
        }
        return tuple(f"caught in {chance:.1%} of such runs: {fault}" for fault, chance in faults.items())

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures for machines, by name; those of leaks only where they are known."""
        smallest = self.smallest_leak
        return {
            "promised_probability": CONFIDENCE,
            **({} if smallest is None else {"smallest_leak_ruled_out": smallest}),
            **({"leak_20_percent_shown": self.leaks[_TYPICAL_LEAK]} if self.leaks else {}),
        }

    def __str__(self) -> str:
        """Return the gentlest leak caught, else a temperature, then nuclei, then the untested faults."""
        caught = self._describe_caught_leaks() or self._describe_temperature()
        return f"{self.tokens:,} sampled tokens checked; {caught}{self._describe_cuts()}{self._describe_gaps()}"

    def _describe_caught_leaks(self) -> str:
        """Return the caught shares of wrongly emitted draft tokens, in words.

        Named is a leak of 20 %, a size that readers can picture, and the smallest caught if that is smaller. If that is larger, it alone is
        named. Empty if no share would be caught.
        """
        smallest = self.smallest_leak
        if smallest is None:
            return ""
        typical = _nearest(self.leaks, max(_TYPICAL_LEAK, smallest))
        text = f"emitting {typical:.0%} of the draft tokens that should be rejected would have been caught ({likely(self.leaks[typical])})"
        return text if smallest == typical else f"{text}, {smallest:.0%} too ({likely(self.leaks[smallest])})"

    def _describe_temperature(self) -> str:
        """Return the gentlest wrong temperature caught, in words.

        If none is caught with CONFIDENCE, it is the one caught most often. Temperatures are by the power of the distribution that each
        amounts to, ``1 / temperature``, the gentlest first.
        """
        sure = [power for power, chance in self.tilts.items() if chance >= CONFIDENCE]
        power = sure[0] if sure else max(self.tilts, key=lambda tilt: self.tilts[tilt])
        return f"a temperature {1 / power:.3g} times the requested one would have been caught ({likely(self.tilts[power])})"

    def _describe_cuts(self) -> str:
        """Return the gentlest narrower and wider nucleus caught, in words.

        Of a side on which none is surely caught it says so. ``cuts`` maps the part of its mass that a nucleus keeps to the chance that this
        fault is caught; ``widths`` does so for the mass that it has too much. Empty without top_p.
        """
        if not self.cuts:
            return ""
        part, width = _gentlest_caught(self.cuts), _gentlest_caught(self.widths)
        caught, missed = list[str](), list[str]()
        if part is None:
            missed.append("narrow")
        else:
            caught.append(f"a nucleus cut to {part:.0%} of its mass ({likely(self.cuts[part])})")
        if width is None:
            missed.append("wide")
        else:
            caught.append(f"{_describe_width(width)} ({likely(self.widths[width])})")
        clause = f"; at top_p also {', '.join(caught)}" if caught else ""
        return clause + (f"; not surely caught: a nucleus of top_p that is too {' or too '.join(missed)}" if missed else "")

    def _describe_gaps(self) -> str:
        """Return the acceptance faults missed by the run, in words; empty if none is."""
        # ``leaks`` maps the emitted share of rejected draft tokens, at most 1 for accept-all, to the chance that this is caught.
        if not self.leaks:
            return f"; lenient acceptance untested: draft distribution unknown ({self.untestable})"
        if self.smallest_leak is None:
            return f"; accept-all only in {likely(self.leaks[max(self.leaks)])} of such runs"
        return ""


def _describe_width(width: float) -> str:
    return "an ignored top_p" if width == WIDTHS[-1] else f"a nucleus {width:.2g} of mass too wide"


def _gentlest_caught(chances: Mapping[float, float]) -> float | None:
    """Return the gentlest size caught with CONFIDENCE, as every severer one is.

    ``chances`` has the chance of being caught by size of the fault, from the gentlest to the severest. None if the severest is not caught.
    """
    caught_from_severest = takewhile(lambda size: chances[size] >= CONFIDENCE, reversed(chances))
    return next(reversed([*caught_from_severest]), None)


def _nearest(leaks: Iterable[float], size: float) -> float:
    return min(leaks, key=lambda leak: abs(leak - size))


def estimate_sensitivity(observed: Observed, wealth: WealthProcess, log_barrier: float, untestable: str) -> Sensitivity:
    """Return the probabilities of this run catching each fault.

    ``log_barrier`` is the natural log of the evidence at which the alarm is raised, ``untestable`` the reason that acceptance faults are
    not testable. For each fault only the bettor that would see it best is followed; stats/power.py has the approximation. The distributions
    are those after this run's own prefixes, although a fault would have led to others.
    """
    # The alarm is raised by the mean of all bettors' wealth: one with a small share of its weight has to grow by more to reach it alone.
    total_weight = sum(bettor.weight for bettor in wealth.bettors)
    barriers = {bettor.name: log_barrier - log(bettor.weight / total_weight) for bettor in wealth.bettors}
    leaks = dict(_leak_growths(observed, barriers))
    faults = dict(_catalogue_growths(observed, barriers))
    tilts = dict(_temperature_growths(observed, barriers))
    return Sensitivity(
        tokens=observed.tokens,
        leaks={size: _chance(growths, barriers) for size, growths in leaks.items()},
        faults={name: _chance(growths, barriers) for name, growths in faults.items()},
        tilts={power: _chance(growths, barriers) for power, growths in tilts.items()},
        cuts={part: _chance(growths, barriers) for part, growths in _cut_growths(observed, barriers)},
        widths={width: _chance(growths, barriers) for width, growths in _width_growths(observed, barriers)},
        length=min(_runs_needed(growths, barriers) for growths in (*leaks.values(), *tilts.values())),
        untestable=untestable,
    )


def _catalogue_growths(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[str, dict[str, EvidenceGrowth]]]:
    """Yield each fault of the catalogue with its bettor's growth of evidence.

    The growth is over a run like this one, and ``barriers`` the log evidence for an alarm, both by the bettor's name. Such a fault shows at
    draft slots only: a server that accepts more has fewer of them, and the growth is scaled to their number. Nothing is yielded without the
    draft's distribution.
    """
    if observed.q is None:
        return
    split, acceptance = SplitRemainder.of(observed.distribution.p, observed.q), overlap(observed.distribution.p, observed.q)
    for alternative, distribution, log_payoffs in catalogue_tables(observed):
        accepted = (split.q * alternative.accept(split.p, split.q)).sum(axis=1)  # mean over draft tokens drawn from q
        evidence = growth(log_payoffs, distribution, barriers[alternative.name])
        yield alternative.name, {alternative.name: evidence.times(_slot_factor(observed, accepted, acceptance))}


def _leak_growths(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[float, dict[str, EvidenceGrowth]]]:
    """Yield each leak with the growth of evidence of its nearest bettors.

    ``barriers`` has the log evidence for an alarm by the bettor's name. There are more leaks than bettors on one, so those on the next
    smaller and on the next larger leak are taken. The growth is scaled to the number of draft slots, of which a leaky server has fewer.
    Nothing is yielded without the draft's distribution.
    """
    if observed.q is None:
        return
    leaky = [fault for fault in CATALOGUE if fault.leak is not None]
    bets = sorted((fault.leak, fault.name, paid) for fault, _, paid in catalogue_tables(observed, leaky) if fault.leak is not None)
    at_draft_slot = (observed.slot_chances.draft * observed.drafted)[:, None]  # chances
    p, acceptance = observed.distribution.p, overlap(observed.distribution.p, observed.q)
    for size in LEAKS:
        factor = _slot_factor(observed, acceptance + size * (1.0 - acceptance), acceptance)
        # The distribution of the emitted tokens under the leak, which changes draft slots only.
        truth = at_draft_slot * leak(size)(p, observed.q) + (1.0 - at_draft_slot) * p
        yield round(size, 2), {name: growth(paid, truth, barriers[name]).times(factor) for name, paid in _nearest_bets(size, bets)}


def _nearest_bets(size: float, bets: Sequence[tuple[float, str, Floats]]) -> Iterable[tuple[str, Floats]]:
    """Yield name and payoffs of the bettors on the leaks next to ``size``.

    ``bets`` has leak, bettor's name and log payoffs [N, K+1], by rising leak. The bettors are the one on the next smaller leak and the one
    on the next larger or equal leak: no other one sees this leak better.
    """
    above = next((at for at, (leak, *_) in enumerate(bets) if leak >= size), len(bets) - 1)
    for _, name, log_payoffs in bets[max(0, above - 1) : above + 1]:
        yield name, log_payoffs


def _slot_factor(observed: Observed, accepted: Floats, right: Floats) -> float:
    """Return the share of draft slots under a fault, over the correct share.

    At a draft slot a draft token is verified: only there such a fault shows. ``accepted`` [N] is the chance of acceptance under the fault,
    ``right`` [N] that of a correct server. With k draft tokens per step and the mean acceptance a, ``sum_{j<k} a^j`` of the
    ``sum_{j<=k} a^j`` tokens of a verify step are at draft slots. A fault that accepts more has fewer of them. Returns 1 without any.
    """
    chance = observed.slot_chances.draft * observed.drafted
    if not chance.any():
        return 1.0
    shares = []
    for rate in (accepted, right):
        powers = float(np.average(rate, weights=chance)) ** np.arange(observed.k + 1)
        shares.append(float(powers[:-1].sum() / powers.sum()))
    return shares[0] / shares[1]


def _temperature_growths(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[float, dict[str, EvidenceGrowth]]]:
    """Yield each wrong temperature, as a power of p, with the growth of evidence by bettor: there is one for each."""
    for power in POWERS:
        # The distribution at this temperature: the tokens' and what the bettor bets on. It does not depend on the second argument, q.
        tilted = temperature_tilt(power)(observed.distribution.p, observed.distribution.p)
        name = tilt_name(power)
        yield power, {name: growth(betting.table(observed.distribution, tilted), tilted, barriers[name])}


def _cut_growths(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[float, dict[str, EvidenceGrowth]]]:
    """Yield each narrower nucleus with its bettor's growth of evidence.

    A server with such a fault cuts at a part of the requested top_p. The bettor is the one on top_p squared; ``barriers`` has the log
    evidence for an alarm. Nothing is yielded without top_p.
    """
    distribution, top_p = observed.distribution, observed.distribution.top_p
    if top_p is None:
        return
    for part in CUTS:
        truth = top_p.cut_at(part * top_p.limit, distribution.p)  # ``limit`` is each request's top_p
        # With the ends of answers, ``last``, the growth allows for the variance between answers.
        yield part, {TOP_P_SQUARED: growth(distribution.narrower_payoffs, truth, barriers[TOP_P_SQUARED], observed.slots.last)}


def _width_growths(observed: Observed, barriers: Mapping[str, float]) -> Iterable[tuple[float, dict[str, EvidenceGrowth]]]:
    """Yield each wider nucleus with its bettors' growth of evidence.

    A server with such a fault cuts at more than the requested top_p, or not at all. The bettors are those on cut-off tokens, by the share
    of such tokens that they expect (OUTSIDE), and on ignored parameters. Nothing is yielded without top_p.
    """
    distribution, top_p = observed.distribution, observed.distribution.top_p
    if top_p is None:
        return
    tables = {name: betting.violation_table(distribution, share) for share, name in OUTSIDE.items()}
    tables[PARAMS_IGNORED] = betting.table(distribution, distribution.raw)
    # A width is tried only if every request's nucleus has room for it, besides the last one: no cut at all.
    widest = 1.0 - float(top_p.limit[top_p.limit < 1.0].max())
    for width in (*(width for width in WIDTHS if width < widest), WIDTHS[-1]):
        truth = top_p.cut_at(top_p.limit + width, distribution.p)
        yield width, {name: growth(paid, truth, barriers[name], observed.slots.last) for name, paid in tables.items()}


def _chance(growths: Mapping[str, EvidenceGrowth], barriers: Mapping[str, float]) -> float:
    """Return the chance that a fault is caught in this run, by the best of its bettors."""
    return max(evidence.chance_to_reach(barriers[name]) for name, evidence in growths.items())


def _runs_needed(growths: Mapping[str, EvidenceGrowth], barriers: Mapping[str, float]) -> float:
    """Return the number of runs like this one that catch a fault with CONFIDENCE, maybe a fraction.

    It is that of the best of the fault's bettors: ``barriers`` has the log evidence that each needs for an alarm. It is inf if none gains.
    """
    # A drift is the mean log evidence of a run.
    return min((evidence.length_for(barriers[name], CONFIDENCE) for name, evidence in growths.items() if evidence.drift > 0), default=inf)
