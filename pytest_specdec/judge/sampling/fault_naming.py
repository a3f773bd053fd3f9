"""Fault naming: which fault a lost bet points to.

Extent: whether what is wrong with tokens behind rejections is wrong with all others too. Two stories are held against each other, each with
the distribution that makes its tokens most probable. Neither has to hold: an alarm is taken for granted here.

Naming: which fault a lost bet points to. Bettors detect better than they name: with a one-hot draft, a lenient ratio and a resampled
residual are the same tilt of the draft token. Where windows are known a table of two figures decides:
is acceptance as often as expected, and is the recovered token ever the draft token that was rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.betting import TINY, at_outcome, stake_share, table
from pytest_specdec.stats.bettors import RATIO_OF_RAW, accepts_raw_ratio, chance_of, expected_payoffs, parent_name
from pytest_specdec.stats.draft_distribution import SplitRemainder, index_of, one_hot, overlap
from pytest_specdec.stats.fault_models import CATALOGUE, GENERIC, Fault, ratio
from pytest_specdec.stats.verify_slots import NO_DRAFT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.stats.betting import Bettor, WealthProcess
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, TokenDistribution
    from pytest_specdec.stats.verify_slots import Observed, SlotChances

__all__ = ["AT_A_STEP", "Acceptance", "FaultExtent", "acceptance", "extent", "name"]

UNDRAFTED = 1.0 / 8.0
"""The chance that what is wrong with every drafted token spares those for which nothing was drafted: another sampler may emit them."""
TELLING = 1.5
"""Standard deviations that must be due before the likelier story is taken: at 1.5 it is the wrong one of 7 in 100 runs."""
SHORT_ANSWERS, FAR_SHORT = 2.0, 3.0
"""Standard deviations by which less than due must be paid, where enough is due to tell and where not: there a fault that is everywhere is
likelier a priori."""
BOUNDS = ((-1.0, 20.0), (-10.0, 10.0))
"""Of what is added to the power and to the remainder's log weight: where the best token comes alone no power is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultExtent:
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
        short = SHORT_ANSWERS if self.due > TELLING * self.spread else FAR_SHORT
        return self.ahead < min(0.0, self.due - short * self.spread)


def extent(observed: Observed) -> FaultExtent:
    """Return the extent of what is wrong, the state being so in the step behind a rejection or in all of the answer's rest."""
    slot_chances = observed.slot_chances
    plain = slot_chances.at[:, NO_DRAFT].sum(axis=1)
    whole = _likeliest(observed.distribution, 1.0 - plain)
    held = (_held(observed.distribution, whole, behind, plain) for behind in (slot_chances.after_rejection, slot_chances.rejected_before))
    return max(held, key=lambda one: one.behind)


def _held(distribution: TokenDistribution, whole: Floats, behind: Floats, plain: Floats) -> FaultExtent:
    """Hold ``whole`` [N, K+1], the distribution of all tokens, against that of the tokens that are ``behind`` rejections.

    If ``whole`` is right, ``ahead`` gains in the mean the relative entropy of the two distributions at every token, given those before, and
    the variances add up. ``behind`` and ``plain`` are chances [N], the latter that nothing was drafted: no distribution is estimated from
    such tokens.
    """
    m = _likeliest(distribution, behind * (1.0 - plain))
    partly = stake_share(table(distribution, m), np.broadcast_to(behind[:, None], m.shape))
    gain = table(distribution, whole) - partly
    paid, due = at_outcome(gain, distribution), (whole * gain).sum(axis=1)
    undrafted = np.logaddexp(log(1.0 - UNDRAFTED) + float((plain * paid).sum()), log(UNDRAFTED))
    return FaultExtent(
        behind=float(at_outcome(partly, distribution).sum()),
        ahead=float(((1.0 - plain) * paid).sum() + undrafted),
        due=float(due.sum()),
        spread=sqrt(max(0.0, float(((whole * gain**2).sum(axis=1) - due**2).sum()))),
    )


def _likeliest(distribution: TokenDistribution, chance: Floats) -> Floats:
    """Return the distribution m [N, K+1] of maximum likelihood if each outcome is drawn from ``(1 - c) p + c m``, c being ``chance`` [N].

    ``m ~ p^(1 + a)``, in the remainder times ``e^b``: a wrong temperature, and more or less in the remainder. Logits that are off at
    random, as those of another context are, have such a distribution in the mean, but for a few hundredths of a nat. Outcomes outside the
    core tell nothing.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - its import takes longer than most judgements, and only findings need it

    inside = distribution.core & (distribution.p > 0)
    p = np.where(inside, distribution.p, 0.0) / np.maximum(np.where(inside, distribution.p, 0.0).sum(axis=1, keepdims=True), TINY)
    bends = np.stack([_logs(distribution.p), np.broadcast_to(np.arange(p.shape[1]) == p.shape[1] - 1, p.shape)])
    then = np.stack([at_outcome(bend, distribution) for bend in bends])
    chance_inside = at_outcome(inside.astype(np.float64), distribution) * chance

    def bent(by: Floats) -> tuple[Floats, Floats]:
        m = p * np.exp(by[0] * bends[0] + by[1] * bends[1])
        total = np.maximum(m.sum(axis=1), TINY)
        return m / total[:, None], np.log(total)

    def surprise(by: Floats) -> tuple[float, Floats]:
        m, total = bent(by)
        less = np.maximum(1.0 - chance_inside + chance_inside * np.exp(by @ then - total), TINY)
        share = 1.0 - (1.0 - chance_inside) / less
        return -float(np.log(less).sum()), -np.asarray((share * (then - (m * bends).sum(axis=2))).sum(axis=1))

    return bent(minimize(surprise, np.zeros(2), jac=True, method="L-BFGS-B", bounds=BOUNDS).x)[0]


def _logs(p: Floats) -> Floats:
    """Return log-probabilities [N, K+1]; the remainder counts as many tokens, each half as probable as the last top token."""
    top_tokens = np.where(p[:, :-1] > 0, p[:, :-1], 1.0)
    return np.asarray(np.log(np.column_stack([top_tokens, top_tokens.min(axis=1) / 2.0])))


ENOUGH_SLOTS = 20
ENOUGH_REPEATS = 3
STANDARD_ERRORS = 3.0
AT_A_STEP = {Fault.LENIENT, Fault.RULE, Fault.RESIDUAL, Fault.BONUS}
"""What a verify step may do wrong; who is told no windows cannot tell one from the other."""
MARGIN = 0.03
"""What the estimate of the expected acceptance may be off: outside the listed tokens it is a mean over the emitted ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What became of the draft tokens."""

    slots: int
    """Draft tokens verified, those behind a rejection not counted."""
    accepted: int
    expected: float
    """Mean overlap of p and q at these slots, 0..1."""
    repeated: int | None
    """Rejections whose recovered token was the rejected draft token; None where the draft token is not known."""
    excess: Mapping[str, float]
    """By fault of the catalogue: how much more often than expected it would have accepted."""
    unsure: float = 0.0
    """Mean mass of outcomes whose probability is only estimated, 0..1: so much may ``expected`` be off."""
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
    def whole(self) -> bool:
        """Whether all were accepted although not all should have been."""
        return self.slots >= ENOUGH_SLOTS and self.accepted == self.slots and self.observed - self.expected > self._tolerance

    @property
    def _tolerance(self) -> float:
        return max(MARGIN, STANDARD_ERRORS * self.spread) + self.unsure

    def allows(self, bettor: Bettor) -> bool:
        """Whether ``bettor``'s fault would have left acceptance and recovered tokens as they were observed.

        A distribution that is wrong for another reason than the rule may have any acceptance. A wrong residual leaves acceptance alone, but
        makes the emitted tokens, by which some of the expectation is estimated, look more acceptable than they were.
        """
        if bettor.fault not in AT_A_STEP:
            return not self.repeats
        if self.repeated is not None and self.repeats != (bettor.name in REPEATING):
            return False
        less = self.expected + self.excess.get(bettor.name, 0.0) - self.observed
        return -self._tolerance <= less <= self._tolerance * (2.0 if bettor.fault is Fault.RESIDUAL else 1.0)

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
        if self.repeated is None:
            return text
        return f"{text}; the rejected draft token was emitted {self.repeated:,} times; expected 0"


def acceptance(observed: Observed) -> Acceptance | None:
    """Return what became of the draft tokens; None without the draft's distribution or without windows that the server told.

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
        unsure=float(np.where(observed.distribution.core[slots], 0.0, p).sum(axis=1).mean()),
        spread=float(np.sqrt((expected * (1.0 - expected)).sum()) / slots.sum()),
    )


def _excesses(observed: Observed, slots: Bools) -> dict[str, float]:
    assert observed.q is not None
    split = SplitRemainder.of(observed.distribution.p[slots], observed.q[slots])
    accepts = {one.name: one.accept(split.p, split.q) for one in CATALOGUE}
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


TILTS = {one.name for one in GENERIC if one.fault is Fault.TEMPERATURE}
REPEATING = {one.name for one in CATALOGUE if one.repeats}
PREFILL_TOO = {Fault.TEMPERATURE, Fault.IMPROBABLE}
"""What is wrong with every token, one for which nothing was drafted included."""
EVERYWHERE = {Fault.TEMPERATURE, Fault.IMPROBABLE, Fault.LENIENT, Fault.RULE}
OUT_OF_PLACE = "bonus out of place"
SOMETIMES = ", in some answers only"
SOMEWHERE = ", at some of the draft tokens only"
DECISIVE = log(8.0)
"""By how much one bettor must be ahead of another that is the likelier a priori."""
SHORT = 2.0
"""Standard errors by which a fault must pay less where no draft was rejected than behind rejections before it is not everywhere."""


def name(book: WealthProcess, observed: Observed, seen: Acceptance | None) -> str:
    """Return the fault of the richest bettor that the table allows: its name where the draft's distribution backs it, else its family."""
    if seen.whole if seen is not None else _never_rejected(observed):
        return "accept-all"
    winner, book = book.winner, book.on_all_answers
    has_windows = bool(observed.slots.known.any()) and not observed.slots.implied
    if winner.chance and log(winner.weight) + winner.log_wealth - max(log(one.weight) + one.log_wealth for one in book.bettors) > DECISIVE:
        return f"{_describe_bettor(winner, told=has_windows)}{SOMETIMES}"
    if seen is None:
        first = _foremost(book.bettors, lambda bettor: log(bettor.weight) + bettor.log_wealth, observed)
        first = _at_a_step(first, observed, book.bettors)
    else:
        allowed = [bettor for bettor in book.bettors if seen.allows(bettor)]
        if not allowed and seen.repeats:
            return Fault.RESIDUAL.value
        first = _foremost(allowed or [book.winner], lambda bettor: bettor.log_wealth, observed)
        partly = max((bettor for bettor in book.bettors if seen.partly(bettor)), key=lambda bettor: bettor.log_wealth, default=first)
        if partly.log_wealth - first.log_wealth > DECISIVE:
            return f"{_describe_bettor(partly, told=has_windows)}{SOMEWHERE}"
    preferred = _prefer_repetition(_prefer_temperature(first, book, observed), book, observed)
    return _describe_bettor(preferred, told=has_windows)


def _describe_bettor(bettor: Bettor, *, told: bool) -> str:
    return _bettor_name(bettor) if told or bettor.fault not in AT_A_STEP else _describe_unreported(bettor)


def _describe_unreported(bettor: Bettor) -> str:
    """Return what there is to say of a wrong verify step whose windows nobody told: acceptance, recovery and bonus look alike."""
    return Fault.STEP.value if bettor.guessed else f"{Fault.STEP.value}, most like {parent_name(bettor)}"


def _never_rejected(observed: Observed) -> bool:
    slots = observed.slots.draft_slot & ~observed.slots.last
    return int(slots.sum()) >= ENOUGH_SLOTS and not bool(observed.slots.ended[slots].any())


def _foremost(bettors: Sequence[Bettor], held: Callable[[Bettor], float], observed: Observed) -> Bettor:
    """Return who holds most, those apart who bet behind rejections only.

    A fault that is everywhere pays before any rejection as behind it. Where it loses there, beyond chance, the state is wrong. Without the
    draft's distribution who holds most elsewhere has guessed, and early tokens differ from late ones by more than chance: then, and where
    the fault is one of some slots, the state has to be decisively ahead.
    """
    elsewhere = [bettor for bettor in bettors if bettor.fault is not Fault.STATE]
    state = max((bettor for bettor in bettors if bettor.fault is Fault.STATE), key=held, default=None)
    if state is None or not elsewhere:
        return max(bettors, key=held)
    first = max(elsewhere, key=held)
    ahead = held(state) - held(first) > DECISIVE
    if observed.q is None or first.fault not in EVERYWHERE:
        return state if ahead else first
    return state if _behind_only(state, first, observed, ahead=ahead) else first


def _behind_only(state: Bettor, first: Bettor, observed: Observed, *, ahead: bool) -> bool:
    """Return whether the fault that ``first`` bets on everywhere is behind rejections only, as ``state`` has it.

    What is wrong with every token has an extent, if a distribution of its kind explains the tokens at least as well as ``first``. Otherwise
    the state has to explain more of them, and ``first`` to be paid less where no draft was rejected; where places are chances a decisive
    lead will do.
    """
    if first.fault in PREFILL_TOO:
        fault_extent = extent(observed)
        if fault_extent.explained > first.log_wealth:
            return fault_extent.ends
    slot_chances = observed.slot_chances
    if ahead and not np.isin(slot_chances.at, (0.0, 1.0)).all():
        return True
    # Tokens of the prefill do not count: nothing was drafted for them, so they may be right under any fault.
    drafted, behind = 1.0 - _fill_first_slot(slot_chances), chance_of(state, observed)
    return state.log_wealth > first.log_wealth and _apart(first, observed, drafted * behind, drafted * (1.0 - behind)) > SHORT


def _fill_first_slot(slot_chances: SlotChances) -> Floats:
    return np.asarray(slot_chances.at[:, NO_DRAFT].sum(axis=1))


def _at_a_step(first: Bettor, observed: Observed, bettors: Sequence[Bettor]) -> Bettor:
    """Return the richest of those that know what a step may do wrong, where ``first`` is not paid for the prefill's tokens.

    Windows that follow from the tokens are beside those of a server that emits what it rejected, so that it need not be the richest of all.
    """
    prefilled = _fill_first_slot(observed.slot_chances)
    known = [bettor for bettor in bettors if bettor.fault in AT_A_STEP and not bettor.guessed]
    rivals = [bettor for bettor in known if 2.0 * bettor.log_wealth > first.log_wealth]
    if not rivals or first.fault not in PREFILL_TOO or _apart(first, observed, 1.0 - prefilled, prefilled) <= STANDARD_ERRORS:
        return first
    return max(rivals, key=lambda bettor: bettor.log_wealth)


def _apart(bettor: Bettor, observed: Observed, here: Floats, there: Floats) -> float:
    """Return by how many standard errors ``bettor`` is paid more, of what is due to it, ``here`` than ``there``, shares of tokens [N].

    The ratio of payoffs to dues is one everywhere if its distribution is right, and the same everywhere if it is right but for its size;
    its error comes from the payoffs' spread about a common ratio (Cochran 1977, *Sampling Techniques*, section 6.3). Of a bettor without a
    distribution, who waits for rare tokens, a few tokens alone may lack them: its spread is that of both places together.
    """
    distribution, paid, both = expected_payoffs(observed, bettor), bettor.log_payoffs, here + there
    due = np.ones_like(paid) if distribution is None else distribution
    weights = [float((share * due).sum()) for share in (here, there)]
    if min(weights) <= 0.0:
        return 0.0
    ratios = [float((share * paid).sum()) / weight for share, weight in zip((here, there), weights, strict=True)]
    squares = (paid - due * float((both * paid).sum()) / sum(weights)) ** 2
    if distribution is None:
        squares = np.full_like(paid, float((both * squares).sum() / both.sum()))
    error = sqrt(sum(float((share**2 * squares).sum()) / weight**2 for share, weight in zip((here, there), weights, strict=True)))
    return (ratios[0] - ratios[1]) / error if error > 0.0 else 0.0


def _prefer_temperature(bettor: Bettor, book: WealthProcess, observed: Observed) -> Bettor:
    """Return the best on a wrong temperature for one on improbable tokens, where the former earned as much among the top tokens.

    Where the remainder is outside the core, what a temperature makes of it is seen by the latter only.
    """
    if bettor.fault is not Fault.IMPROBABLE or observed.distribution.core[:, -1].any():
        return bettor
    other = max((one for one in book.bettors if one.name in TILTS), key=lambda one: one.log_wealth, default=bettor)
    return other if other.log_wealth > DECISIVE else bettor


def _prefer_repetition(bettor: Bettor, book: WealthProcess, observed: Observed) -> Bettor:
    """Return the bettor on a token out of place for another on the bonus, where the token before once more is a likelier bonus.

    Of a token before that is not told nothing is expected; where it lies in the remainder, the remainder stands for it.
    """
    if bettor.fault is not Fault.BONUS:
        return bettor
    distribution, before = observed.distribution, observed.before
    again = np.where((before >= 0)[:, None], one_hot(index_of(before, observed.ids), distribution.p.shape[1]), distribution.p)
    paid = stake_share(at_outcome(table(distribution, again), distribution), observed.slot_chances.bonus)
    preferred = next((one for one in book.bettors if one.name == OUT_OF_PLACE), bettor)
    return preferred if float(paid.sum()) > bettor.log_wealth else bettor


def _bettor_name(bettor: Bettor) -> str:
    """Return the bettor's name where the draft's distribution backs it, its family's where it is a guess or an omnibus."""
    exact = bettor.fault in AT_A_STEP and not bettor.guessed
    return parent_name(bettor) if exact else bettor.fault.value
