"""Fault naming: the fault that best explains tokens which do not follow the baseline's distribution.

Detecting a fault is easier than naming it: with a one-hot draft a lenient ratio and a resampled residual are the same tilt of the draft
token. Where windows are known, two figures decide: is acceptance as often as expected, and is a rejected draft token ever emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.betting import at_outcome, table, weighed
from pytest_specdec.stats.bettors import RATIO_OF_RAW, accepts_raw_ratio, named
from pytest_specdec.stats.draft_distribution import SplitRemainder, index_of, one_hot, overlap
from pytest_specdec.stats.fault_models import CATALOGUE, GENERIC, Fault, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.stats.betting import Bettor, WealthProcess
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["AT_A_STEP", "Acceptance", "acceptance", "name"]

ENOUGH_SLOTS = 20
ENOUGH_REPEATS = 3
STANDARD_ERRORS = 3.0
AT_A_STEP = {Fault.LENIENT, Fault.RULE, Fault.RESIDUAL, Fault.BONUS}
"""Faults of a verify step; without windows they cannot be told apart."""
MARGIN = 0.03
"""Error granted to the expected acceptance: outside the listed tokens it is a mean over the emitted ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Accepted draft tokens, observed and expected."""

    slots: int
    """Draft tokens verified, those behind a rejection not counted."""
    accepted: int
    expected: float
    """Mean overlap of p and q at these slots, 0..1."""
    repeated: int | None
    """Rejections whose recovered token was the rejected draft token; None where the draft token is not known."""
    excess: Mapping[str, float]
    """By fault of the catalogue: how much more often than expected it would have accepted."""
    spread: float = 0.0
    """Standard deviation of the accepted share under a correct rule.

    Accepted less expected, summed over the slots, is a martingale: every draft token is accepted with chance beta given the tokens before,
    so the variances ``beta (1 - beta)`` add up.
    """

    @property
    def observed(self) -> float:
        """Accepted share of the verified draft tokens, 0..1."""
        return self.accepted / self.slots

    @property
    def _tolerance(self) -> float:
        return max(MARGIN, STANDARD_ERRORS * self.spread)

    def allows(self, bettor: Bettor) -> bool:
        """Whether ``bettor``'s fault would have left acceptance and recovered tokens as they were observed.

        A distribution that is wrong for another reason than the rule may have any acceptance, but repeats no rejected draft token.
        """
        if bettor.fault not in AT_A_STEP:
            return not self.repeats
        if self.repeated is not None and self.repeats != (bettor.name in REPEATING):
            return False
        return abs(self.expected + self.excess.get(bettor.name, 0.0) - self.observed) <= self._tolerance

    def partly(self, bettor: Bettor) -> bool:
        """Whether ``bettor``'s fault at some of the slots would leave acceptance as observed: off, but less so than everywhere."""
        if bettor.fault not in AT_A_STEP or (self.repeats and bettor.name not in REPEATING):
            return False
        off, everywhere = self.observed - self.expected, self.excess.get(bettor.name, 0.0)
        return abs(off) > self._tolerance and off * everywhere > 0.0 and abs(off) < abs(everywhere) - self._tolerance

    @property
    def repeats(self) -> bool:
        """Whether recovered tokens are the rejected draft tokens more often than by chance: a sound residual gives them no mass."""
        return self.repeated is not None and self.repeated >= ENOUGH_REPEATS

    def __str__(self) -> str:
        text = f"{self.slots:,} draft tokens, {self.observed:.1%} accepted; expected {self.expected:.1%} +- {self.spread:.1%}"
        return text if self.repeated is None else f"{text}; the rejected draft token was emitted {self.repeated:,} times; expected 0"


def acceptance(observed: Observed) -> Acceptance | None:
    """Return what became of the draft tokens; None without the draft's distribution or without windows from the server.

    Expected is ``sum min(p, q)`` over the tokens that both distributions list. Of the rest only the masses are known: there ``p(rest)``
    times the mean of ``min(1, q(x)/p(x))`` over the emitted tokens of the rest, each known exactly. A draft that is certain of a token in
    the tail overlaps by half the last top token. The last token of an answer is left out: a limit may have cut its window.
    """
    slots = observed.slots.draft_slot & observed.drafted & ~observed.slots.last
    if observed.q is None or observed.accepted_if_emitted is None or observed.listed is None or observed.slots.implied or not slots.any():
        return None
    p, q = observed.distribution.p[slots], observed.q[slots]
    rejected, accepted_if_emitted = observed.slots.ended[slots], observed.accepted_if_emitted[slots]
    certain = bool((q.max(axis=1) == 1.0).all())
    expected = (
        overlap(p, q) if certain else _overlap(p, q, observed.listed[slots], observed.distribution.outcome[slots], accepted_if_emitted)
    )
    return Acceptance(
        slots=int(slots.sum()),
        accepted=int((~rejected).sum()),
        expected=float(expected.mean()),
        repeated=int((rejected & (accepted_if_emitted == 1.0)).sum()) if certain else None,
        excess=_excesses(observed, slots),
        spread=float(np.sqrt((expected * (1.0 - expected)).sum()) / slots.sum()),
    )


def _excesses(observed: Observed, slots: Bools) -> dict[str, float]:
    assert observed.q is not None
    split = SplitRemainder.of(observed.distribution.p[slots], observed.q[slots])
    accepts = {fault.name: fault.accept(split.p, split.q) for fault in CATALOGUE}
    if observed.q_raw is not None:
        accepts[RATIO_OF_RAW] = accepts_raw_ratio(observed)[slots]
    right = ratio(split.p, split.q)
    return {name: float((split.q * (accept - right)).sum(axis=1).mean()) for name, accept in accepts.items()}


def _overlap(p: Floats, q: Floats, listed: Bools, outcome: Ints, accepted_if_emitted: Floats) -> Floats:
    open_slots = np.where(listed, 0.0, q).sum(axis=1) > 0
    rest = np.where(open_slots, np.where(listed, 0.0, p).sum(axis=1), 0.0)
    emitted = open_slots & ~np.take_along_axis(listed, outcome[:, None], axis=1)[:, 0]
    share = float(accepted_if_emitted[emitted].mean()) if emitted.any() else 0.0
    return np.asarray(np.where(listed, np.minimum(p, q), 0.0).sum(axis=1) + rest * share)


TILTS = {fault.name for fault in GENERIC if fault.fault is Fault.TEMPERATURE}
REPEATING = {fault.name for fault in CATALOGUE if fault.repeats}
OUT_OF_PLACE = "bonus out of place"
SOMETIMES = ", in some answers only"
SOMEWHERE = ", at some of the draft tokens only"
DECISIVE = log(8.0)
"""Log wealth by which a fault of some tokens must lead one of all tokens, which is likelier a priori."""


def name(book: WealthProcess, observed: Observed, seen: Acceptance | None) -> str:
    """Return the fault of the richest bettor that acceptance allows: its name where the draft's distribution backs it, else its family."""
    if seen is None and _never_rejected(observed):
        return "accept-all"
    winner, book = book.winner, book.on_all_answers
    told = bool(observed.slots.known.any()) and not observed.slots.implied
    if winner.chance and _weighted(winner) - max(map(_weighted, book.bettors)) > DECISIVE:
        return f"{_words(winner, told=told)}{SOMETIMES}"
    if seen is None:
        first = max(book.bettors, key=_weighted)
    else:
        allowed = [bettor for bettor in book.bettors if seen.allows(bettor)]
        if not allowed and seen.repeats:
            return Fault.RESIDUAL.value
        first = _richest(allowed, book.winner)
        partly = _richest([bettor for bettor in book.bettors if seen.partly(bettor)], first)
        if partly.log_wealth - first.log_wealth > DECISIVE:
            return f"{_words(partly, told=told)}{SOMEWHERE}"
    return _words(_repeated(_tempered(first, book, observed), book, observed), told=told)


def _weighted(bettor: Bettor) -> float:
    return log(bettor.weight) + bettor.log_wealth


def _richest(bettors: list[Bettor], default: Bettor) -> Bettor:
    return max(bettors, key=lambda bettor: bettor.log_wealth, default=default)


def _words(bettor: Bettor, *, told: bool) -> str:
    """Return the bettor's name where the draft's distribution backs it, its family's where it is a guess or stands for many faults.

    Without windows from the server acceptance, recovery and bonus look alike: a fault of a verify step is called just that.
    """
    if bettor.fault not in AT_A_STEP:
        return bettor.fault.value
    if told:
        return bettor.fault.value if bettor.guessed else named(bettor)
    return Fault.STEP.value if bettor.guessed else f"{Fault.STEP.value}, most like {named(bettor)}"


def _never_rejected(observed: Observed) -> bool:
    slots = observed.slots.draft_slot & ~observed.slots.last
    return int(slots.sum()) >= ENOUGH_SLOTS and not bool(observed.slots.ended[slots].any())


def _tempered(bettor: Bettor, book: WealthProcess, observed: Observed) -> Bettor:
    """Return the best on a wrong temperature for one on improbable tokens, where the former earned as much among the top tokens.

    Where the remainder is outside the core, what a temperature makes of it is seen by the latter only.
    """
    if bettor.fault is not Fault.IMPROBABLE or observed.distribution.core[:, -1].any():
        return bettor
    tilt = _richest([rival for rival in book.bettors if rival.name in TILTS], bettor)
    return tilt if tilt.log_wealth > DECISIVE else bettor


def _repeated(bettor: Bettor, book: WealthProcess, observed: Observed) -> Bettor:
    """Return the bettor on a token out of place for another on the bonus, where the token before once more is a likelier bonus.

    Of a token before that is not known nothing is expected; where it lies in the remainder, the remainder stands for it.
    """
    if bettor.fault is not Fault.BONUS:
        return bettor
    distribution, before = observed.distribution, observed.before
    again = np.where((before >= 0)[:, None], one_hot(index_of(before, observed.ids), distribution.p.shape[1]), distribution.p)
    paid = weighed(at_outcome(table(distribution, again), distribution), observed.slot_chances.bonus)
    out_of_place = next((rival for rival in book.bettors if rival.name == OUT_OF_PLACE), bettor)
    return out_of_place if float(paid.sum()) > bettor.log_wealth else bettor
