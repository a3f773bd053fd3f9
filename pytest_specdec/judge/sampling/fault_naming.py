"""Fault naming: the fault that the evidence of the betting test points to.

A bettor bets on one fault, and its wealth is the evidence for it. Bettors detect better than they name: with a draft certain of one token,
too lenient acceptance and a wrong recovered token (the one in a rejected draft token's place) both raise that token's probability. If the
verify windows, the tokens of each verify step, are known, two figures decide: whether draft tokens are accepted as often as expected, and
whether the recovered token is ever the draft token that was rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.sampling.fault_scope import fault_scope
from pytest_specdec.stats.betting import at_outcome, partial_stake, table
from pytest_specdec.stats.bettors import RATIO_OF_RAW, accepts_raw_ratio, expected_payoffs, state_stake
from pytest_specdec.stats.draft_distribution import SplitRemainder, index_of, one_hot, overlap
from pytest_specdec.stats.fault_models import CATALOGUE, GENERIC, Fault, ratio
from pytest_specdec.stats.sparse_bettors import parent_name
from pytest_specdec.stats.verify_slots import NO_DRAFT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.stats.betting import Bettor, WealthProcess
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints
    from pytest_specdec.stats.verify_slots import Observed, SlotChances

__all__ = ["AT_A_STEP", "Acceptance", "acceptance", "name"]

ENOUGH_SLOTS = 20
"""Verified draft tokens needed to call an arm accept-all."""
ENOUGH_REPEATS = 3
"""Rejected draft tokens that have to be emitted all the same to show a wrong residual."""
STANDARD_ERRORS = 3.0
"""Standard errors beyond which a figure differs from the expected one."""
AT_A_STEP = {Fault.LENIENT, Fault.RULE, Fault.RESIDUAL, Fault.BONUS}
"""Faults of a verify step. Without reported windows they cannot be distinguished."""
MARGIN = 0.03
"""Error that the expected acceptance may have: outside the listed tokens it is estimated by a mean over the emitted ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The acceptance of the draft tokens, observed and expected."""

    slots: int
    """Draft tokens verified; those after a rejection in their window are not."""
    accepted: int
    expected: float
    """Mean overlap of p and q at these slots, 0..1."""
    repeated: int | None
    """Rejections whose recovered token was the rejected draft token; None if the draft token is not known."""
    excess: Mapping[str, float]
    """By a bettor's name: mean acceptance under its fault, less the expected one; 0 for bettors that are not listed."""
    unsure: float = 0.0
    """Mean mass of outcomes whose probability is only estimated, 0..1: the error that ``expected`` may have by it."""
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
    def accepts_all(self) -> bool:
        """True if all draft tokens, ENOUGH_SLOTS or more, were accepted although some should not have been."""
        return self.slots >= ENOUGH_SLOTS and self.accepted == self.slots and self.observed - self.expected > self._tolerance

    @property
    def _tolerance(self) -> float:
        """The largest difference of observed and expected acceptance that counts as none."""
        return max(MARGIN, STANDARD_ERRORS * self.spread) + self.unsure

    def allows(self, bettor: Bettor) -> bool:
        """Return True if ``bettor``'s fault fits the acceptance of draft tokens.

        A fault outside the verify step fits unless rejected draft tokens are emitted as recovered ones. A fault at a verify step has to be
        one that emits them exactly if the server does, where that is known. And the acceptance expected under it has to be the observed one
        within the tolerance.
        """
        if bettor.fault not in AT_A_STEP:
            return not self.emits_rejected
        # REPEATING has the names of the bettors on faults that emit rejected draft tokens.
        if self.repeated is not None and self.emits_rejected != (bettor.name in REPEATING):
            return False
        # ``excess`` is what the fault adds to the acceptance of a correct server.
        expected_under_fault = self.expected + self.excess.get(bettor.name, 0.0)
        shortfall = expected_under_fault - self.observed
        # A wrong residual changes recovered tokens, not acceptance. But ``expected`` is estimated in part from emitted tokens, which it may
        # make look more acceptable than the drafts were.
        most = self._tolerance * (2.0 if bettor.fault is Fault.RESIDUAL else 1.0)
        return -self._tolerance <= shortfall <= most

    def allows_somewhere(self, bettor: Bettor) -> bool:
        """Return True if ``bettor``'s fault fits at some of the slots.

        It has to be a fault at a verify step. Acceptance has to differ from a correct server's beyond the tolerance, in the direction of
        the fault, but by less than if the fault were at every slot. If rejected draft tokens are emitted, it has to be a fault that emits
        them (REPEATING).
        """
        if bettor.fault not in AT_A_STEP or (self.emits_rejected and bettor.name not in REPEATING):
            return False
        # Acceptance beyond a correct server's: as observed, and under the fault at every slot.
        beyond, beyond_everywhere = self.observed - self.expected, self.excess.get(bettor.name, 0.0)
        has_direction = beyond * beyond_everywhere > 0.0
        return has_direction and self._tolerance < abs(beyond) < abs(beyond_everywhere) - self._tolerance

    @property
    def emits_rejected(self) -> bool:
        """True if ENOUGH_REPEATS or more recovered tokens are the rejected draft tokens.

        A correct server never recovers by the very token that the draft was certain of. False also if that is unknown.
        """
        return self.repeated is not None and self.repeated >= ENOUGH_REPEATS

    def __str__(self) -> str:
        text = f"{self.slots:,} draft tokens, {self.observed:.1%} accepted; expected {self.expected:.1%} +- {self.spread:.1%}"
        if self.repeated is None:
            return text
        return f"{text}; the rejected draft token was emitted {self.repeated:,} times; expected 0"


def acceptance(observed: Observed) -> Acceptance | None:
    """Return the observed and expected acceptance of the draft tokens.

    A draft slot is a token's place at which a draft token was verified. A correct server accepts there with probability ``sum min(p, q)``,
    p being the baseline's distribution and q the draft's, the sum over all tokens. The last token of an answer is left out, since a limit
    may have cut its verify window.

    Returns None without the draft's distribution, without a draft slot, or without reported windows: windows computed from the drafts are
    those of a correct server and so no evidence.
    """
    slots = observed.slots.draft_slot & observed.drafted & ~observed.slots.last
    if observed.q is None or observed.accepted_if_emitted is None or observed.listed is None or observed.slots.implied or not slots.any():
        return None
    p, q = observed.distribution.p[slots], observed.q[slots]  # [M, K+1], for M draft slots
    # A window that ends at a draft slot ends because the draft token there was rejected.
    rejected, accepted_if_emitted = observed.slots.ended[slots], observed.accepted_if_emitted[slots]
    # If the draft is certain of its token, it is known which one was drafted, and q at every token; else q only at the ``listed`` ones.
    certain = bool((q.max(axis=1) == 1.0).all())
    expected = (
        overlap(p, q)
        if certain
        else _estimate_overlap(p, q, observed.listed[slots], observed.distribution.outcome[slots], accepted_if_emitted)
    )
    # With a certain draft, ``accepted_if_emitted`` is 1 exactly if the emitted token is the draft token.
    return Acceptance(
        slots=int(slots.sum()),
        accepted=int((~rejected).sum()),
        expected=float(expected.mean()),
        repeated=int((rejected & (accepted_if_emitted == 1.0)).sum()) if certain else None,
        excess=_excesses(observed, slots),
        # Mass outside the core, the outcomes of known probability.
        unsure=float(np.where(observed.distribution.core[slots], 0.0, p).sum(axis=1).mean()),
        # Standard deviation of the mean: the variances of single acceptances add up.
        spread=float(np.sqrt((expected * (1.0 - expected)).sum()) / slots.sum()),
    )


def _excesses(observed: Observed, slots: Bools) -> dict[str, float]:
    """Return each fault's mean acceptance less that of a correct server.

    Callers ensure that the draft's distribution q is known. The means are over the draft ``slots``, a mask [N], and over draft tokens drawn
    from q. They are by the name of the fault's bettor, for each fault at a draft slot (CATALOGUE) and, if q before sampling parameters is
    known, for acceptance by the ratio of the raw distributions.
    """
    assert observed.q is not None
    # The remainder is split into the token that a draft is certain of, and the rest: [M, K+2], for M draft slots.
    split = SplitRemainder.of(observed.distribution.p[slots], observed.q[slots])
    accepts = {alternative.name: alternative.accept(split.p, split.q) for alternative in CATALOGUE}
    if observed.q_raw is not None:
        accepts[RATIO_OF_RAW] = accepts_raw_ratio(observed)[slots]  # split in the same way
    correct = ratio(split.p, split.q)  # min(1, p/q)
    return {name: float((split.q * (accept - correct)).sum(axis=1).mean()) for name, accept in accepts.items()}


def _estimate_overlap(p: Floats, q: Floats, listed: Bools, outcome: Ints, accepted_if_emitted: Floats) -> Floats:
    """Return the expected acceptance [M] of drafts with a partly known distribution.

    At M draft slots ``p`` and ``q`` are [M, K+1], over the baseline's K top tokens and the remainder; ``listed`` marks where q is exact.
    Over these outcomes the acceptance is ``sum min(p, q)``. Of the others only the total masses are known. Since ``min(p, q)`` is p times
    ``min(1, q/p)``, their part is taken to be their mass p times a mean of that ratio. The mean is over emitted tokens (``outcome`` [M])
    that are not listed; ``accepted_if_emitted`` [M] has the ratio of each.
    """
    exact_part = np.where(listed, np.minimum(p, q), 0.0).sum(axis=1)
    # Where the draft has no mass on other tokens, these have no part.
    drafts_others = np.where(listed, 0.0, q).sum(axis=1) > 0
    p_of_others = np.where(drafts_others, np.where(listed, 0.0, p).sum(axis=1), 0.0)
    emits_other = drafts_others & ~np.take_along_axis(listed, outcome[:, None], axis=1)[:, 0]
    mean_ratio = float(accepted_if_emitted[emits_other].mean()) if emits_other.any() else 0.0
    return np.asarray(exact_part + p_of_others * mean_ratio)


TILTS = {alternative.name for alternative in GENERIC if alternative.fault is Fault.TEMPERATURE}
"""Names of the generic bettors on temperature or truncation."""
REPEATING = {alternative.name for alternative in CATALOGUE if alternative.repeats}
"""Names of the bettors on faults that may emit the rejected draft token as the recovered one."""
PREFILL_TOO = {Fault.TEMPERATURE, Fault.IMPROBABLE}
"""Faults of all tokens, those for which nothing was drafted included."""
EVERYWHERE = {Fault.TEMPERATURE, Fault.IMPROBABLE, Fault.LENIENT, Fault.RULE}
"""Faults of all drafted tokens."""
OUT_OF_PLACE = "bonus out of place"
SOMETIMES = ", in some answers only"
SOMEWHERE = ", at some of the draft tokens only"
DECISIVE = log(8.0)
"""Log wealth by which a bettor must be ahead of another that is the likelier a priori."""
SHORT = 2.0
"""Standard errors by which a bettor must be paid less before any rejection than after one, to show that its fault is not on all tokens."""


def name(wealth: WealthProcess, observed: Observed, seen: Acceptance | None) -> str:
    """Return the fault's name, by the best bettor consistent with acceptance.

    ``wealth`` has all bettors on the ``observed`` tokens, and ``seen`` is the acceptance in these; if that is unknown, ``seen`` is None and
    all bettors are eligible. The first of these gives the name:

    1. Accept-all, if all draft tokens, ENOUGH_SLOTS or more, were accepted: bettors on lenient rules gain by it too.
    2. A fault in some answers only, if the best bettor is on that, and ahead of all bettors on every answer by a factor of 8: a fault in
       all answers is likelier a priori.
    3. A wrong residual, if rejected draft tokens are emitted and no bettor is consistent with acceptance.
    4. A fault at some draft tokens only, if a bettor on that is ahead of the best consistent one by a factor of 8, for the same reason.
    5. The best bettor's fault, or that of another bettor on the same effect, by the three functions ``_prefer_...``.
    """
    if seen.accepts_all if seen is not None else _never_rejected(observed):
        return "accept-all"
    # ``implied`` windows are not reported, but computed from the drafts.
    has_windows = bool(observed.slots.known.any()) and not observed.slots.implied
    sparse, on_all_answers = _find_sparse_winner(wealth), wealth.without_sparse_bettors  # a sparse bettor is on some answers only
    if sparse is not None:
        return f"{_describe_bettor(sparse, has_windows=has_windows)}{SOMETIMES}"
    if seen is None:
        # Without acceptance, a bettor's share of the starting wealth tells how likely its fault is a priori.
        best = _pick_richest(on_all_answers.bettors, _final_log_share, observed)
        best = _prefer_step_fault(best, observed, on_all_answers.bettors)
    else:
        allowed = [bettor for bettor in on_all_answers.bettors if seen.allows(bettor)]
        if not allowed and seen.emits_rejected:
            return Fault.RESIDUAL.value
        best = _pick_richest(allowed or [on_all_answers.winner], lambda bettor: bettor.log_wealth, observed)
        partial = _find_partial_fault(on_all_answers.bettors, seen, best)
        if partial is not None:
            return f"{_describe_bettor(partial, has_windows=has_windows)}{SOMEWHERE}"
    preferred = _prefer_repetition(_prefer_temperature(best, on_all_answers, observed), on_all_answers, observed)
    return _describe_bettor(preferred, has_windows=has_windows)


def _final_log_share(bettor: Bettor) -> float:
    """Return the log of a bettor's part of the mixture at the end: its wealth times its starting share."""
    return log(bettor.weight) + bettor.log_wealth


def _find_sparse_winner(wealth: WealthProcess) -> Bettor | None:
    """Return the winner if it bets on some answers only, else None.

    Such a bettor has a ``faulty_fraction``, and has to be ahead of all bettors on every answer by a factor of 8.
    """
    if not wealth.winner.faulty_fraction:
        return None
    best_on_all_answers = max(map(_final_log_share, wealth.without_sparse_bettors.bettors))
    return wealth.winner if _final_log_share(wealth.winner) - best_on_all_answers > DECISIVE else None


def _find_partial_fault(bettors: Sequence[Bettor], seen: Acceptance, best: Bettor) -> Bettor | None:
    """Return the best bettor on a fault at some draft tokens only, else None.

    Its fault fits the acceptance at some of the slots, and it has to be ahead by a factor of 8 of ``best``, the bettor chosen otherwise.
    """
    # Without such a bettor ``best`` stands in for it, and is not ahead of itself.
    partial = max((bettor for bettor in bettors if seen.allows_somewhere(bettor)), key=lambda bettor: bettor.log_wealth, default=best)
    return partial if partial.log_wealth - best.log_wealth > DECISIVE else None


def _describe_bettor(bettor: Bettor, *, has_windows: bool) -> str:
    """Return the name of a bettor's fault, as exactly as it is known.

    A bettor's ``fault`` is a family of faults, as "improbable tokens", and its name says which one. The family is named outside the verify
    step, and if the bettor guesses at the draft. A fault at a verify step can only be told from others there by reported windows
    (``has_windows``).
    """
    family = bettor.fault.value
    if bettor.fault not in AT_A_STEP:
        return family
    if not has_windows:
        return _describe_unreported(bettor)
    return family if bettor.guessed else parent_name(bettor)


def _describe_unreported(bettor: Bettor) -> str:
    """Return the name of a wrong verify step without reported windows.

    Faults of acceptance, recovered and bonus tokens cannot be distinguished then. The nearest of these faults is added, unless the bettor
    guesses at the draft.
    """
    return Fault.STEP.value if bettor.guessed else f"{Fault.STEP.value}, most like {parent_name(bettor)}"


def _never_rejected(observed: Observed) -> bool:
    """Return True if known windows have 20 draft tokens or more and rejected none.

    A window that ends at a draft slot ends by a rejection. An answer's last token is left out, since a limit may have cut its window.
    """
    slots = observed.slots.draft_slot & ~observed.slots.last
    return int(slots.sum()) >= ENOUGH_SLOTS and not bool(observed.slots.ended[slots].any())


def _pick_richest(bettors: Sequence[Bettor], measure: Callable[[Bettor], float], observed: Observed) -> Bettor:
    """Return the best bettor by ``measure``, one on stale state only on proof.

    ``measure`` returns the log of a bettor's wealth, or of its share of all wealth. A bettor on stale state bets on tokens after rejections
    only, as if the KV cache was not rolled back. It gains by a fault of all tokens as well, so that to be the richest is no proof.
    """
    others = [bettor for bettor in bettors if bettor.fault is not Fault.STATE]
    on_state = max((bettor for bettor in bettors if bettor.fault is Fault.STATE), key=measure, default=None)
    if on_state is None or not others:
        return max(bettors, key=measure)
    other = max(others, key=measure)
    is_ahead = measure(on_state) - measure(other) > DECISIVE  # by a factor of 8
    # A fault of some kind of slots is likelier a priori. Without the draft's distribution, other bettors guess at the draft.
    if observed.q is None or other.fault not in EVERYWHERE:
        return on_state if is_ahead else other
    # The other one is on a fault of all drafted tokens: it is compared where nothing was rejected before.
    return on_state if _is_after_rejections_only(on_state, other, observed, is_ahead=is_ahead) else other


def _is_after_rejections_only(on_state: Bettor, on_all: Bettor, observed: Observed, *, is_ahead: bool) -> bool:
    """Return True if the fault is on tokens after rejections only.

    ``on_state`` bets on that, ``on_all`` on a fault of all drafted tokens; ``is_ahead`` says that the former is ahead by a factor of 8. The
    first that applies decides:

    1. :func:`fault_scope`, for a fault that tokens without a draft would have too, if its fit explains the tokens better than ``on_all``.
    2. ``is_ahead`` if it is True, where slots are known as chances only.
    3. Otherwise ``on_state`` has to be the richer one, and ``on_all`` to be paid less for drafted tokens without a rejection before them.
    """
    if on_all.fault in PREFILL_TOO:
        scope = fault_scope(observed)
        # Both are log likelihood ratios to a correct server.
        if scope.explained > on_all.log_wealth:
            return scope.is_after_rejections
    slot_chances = observed.slot_chances
    has_known_slots = bool(np.isin(slot_chances.at, (0.0, 1.0)).all())
    if is_ahead and not has_known_slots:
        return True
    # The stake of ``on_state`` is the chance that a token is after a rejection. The prefill's do not count: nothing was drafted for them,
    # so they may be right under any fault.
    drafted, after_rejection = 1.0 - _chances_of_no_draft(slot_chances), state_stake(on_state, observed)
    return (
        on_state.log_wealth > on_all.log_wealth
        and _payoff_difference(on_all, observed, drafted * after_rejection, drafted * (1.0 - after_rejection)) > SHORT
    )


def _chances_of_no_draft(slot_chances: SlotChances) -> Floats:
    """Return the chance [N] that nothing was drafted for a token, as for the prefill's."""
    return np.asarray(slot_chances.at[:, NO_DRAFT].sum(axis=1))


def _prefer_step_fault(first: Bettor, observed: Observed, bettors: Sequence[Bettor]) -> Bettor:
    """Return a bettor on a verify-step fault in place of ``first``, or ``first``.

    ``first`` is replaced if it bets on a fault of all tokens, and surely gains less at tokens without a verify step than at the others.
    Such is an answer's first token, which the prefill emits: a fault of verify steps spares it.
    """
    if first.fault not in PREFILL_TOO:
        return first
    # Half of the log wealth of ``first`` is enough. Windows may be inferred from the tokens, as those of a correct server. They are wrong
    # for a server that emits rejected tokens, so that a bettor on this fault loses wealth. Bettors that only guess the draft do not count.
    rivals = [
        bettor for bettor in bettors if bettor.fault in AT_A_STEP and not bettor.guessed and 2.0 * bettor.log_wealth > first.log_wealth
    ]
    if not rivals:
        return first
    without_step = _chances_of_no_draft(observed.slot_chances)  # [N], 1 for the prefill's tokens
    excess_at_steps = _payoff_difference(first, observed, 1.0 - without_step, without_step)  # in standard errors
    if excess_at_steps <= STANDARD_ERRORS:
        return first
    return max(rivals, key=lambda bettor: bettor.log_wealth)


def _payoff_difference(bettor: Bettor, observed: Observed, here: Floats, there: Floats) -> float:
    """Return the standard errors by which ``bettor`` is paid more ``here``.

    ``here`` and ``there`` are two places: the chance of each token [N] to be in it. Compared is the sum of log payoffs over that expected
    under the bettor's fault. This ratio is one in both places if the fault is as the bettor takes it, and the same in both if only its size
    is another. Its error comes from the payoffs' spread about a common ratio (Cochran 1977, *Sampling Techniques*, section 6.3). Returns 0
    if no payoff is expected in one of the places.
    """
    expected, paid, both = expected_payoffs(observed, bettor), bettor.log_payoffs, here + there
    due = np.ones_like(paid) if expected is None else expected  # if unknown, as much at every token
    due_sums = [float((chance * due).sum()) for chance in (here, there)]
    if min(due_sums) <= 0.0:
        return 0.0
    ratios = [float((chance * paid).sum()) / due_sum for chance, due_sum in zip((here, there), due_sums, strict=True)]
    # Squared distances of the payoffs from those due, times the ratio of both places together.
    squares = (paid - due * float((both * paid).sum()) / sum(due_sums)) ** 2
    if expected is None:
        # Such a bettor waits for rare tokens. A place may have none by chance: the mean over both places then stands for its spread.
        squares = np.full_like(paid, float((both * squares).sum() / both.sum()))
    squared_errors = (float((chance**2 * squares).sum()) / due_sum**2 for chance, due_sum in zip((here, there), due_sums, strict=True))
    error = sqrt(sum(squared_errors))
    return (ratios[0] - ratios[1]) / error if error > 0.0 else 0.0


def _prefer_temperature(bettor: Bettor, wealth: WealthProcess, observed: Observed) -> Bettor:
    """Return the best bettor on temperature instead of one on improbable tokens.

    A wrong temperature also changes the remainder, all tokens outside the top ones. If the probability of that is only estimated, as
    outside the core, it pays a bettor on improbable tokens alone. The other one is then returned if it gained a factor of 8 among the top
    tokens, otherwise ``bettor`` itself.
    """
    knows_remainder = bool(observed.distribution.core[:, -1].any())
    if bettor.fault is not Fault.IMPROBABLE or knows_remainder:
        return bettor
    on_temperature = max((tilt for tilt in wealth.bettors if tilt.name in TILTS), key=lambda tilt: tilt.log_wealth, default=bettor)
    return on_temperature if on_temperature.log_wealth > DECISIVE else bettor


def _prefer_repetition(bettor: Bettor, wealth: WealthProcess, observed: Observed) -> Bettor:
    """Return the bettor on an out-of-place bonus instead of another on the bonus.

    The bonus is the target's token after a fully accepted draft. One taken at the wrong place repeats the token before it: if a bet on
    that is paid more than ``bettor``, the bettor named OUT_OF_PLACE is returned, otherwise ``bettor``.
    """
    if bettor.fault is not Fault.BONUS:
        return bettor
    distribution, before = observed.distribution, observed.before  # ``before`` has the id before each token, below 0 if unknown
    # Certain of the token before; of the whole remainder if that is no top token. p itself is no bet, where that token is unknown.
    certain = one_hot(index_of(before, observed.ids), distribution.p.shape[1])
    repetition = np.where((before >= 0)[:, None], certain, distribution.p)
    # Log payoffs of a bet on it at the emitted tokens, as far as these are in bonus slots.
    paid = partial_stake(at_outcome(table(distribution, repetition), distribution), observed.slot_chances.bonus)
    preferred = next((candidate for candidate in wealth.bettors if candidate.name == OUT_OF_PLACE), bettor)
    return preferred if float(paid.sum()) > bettor.log_wealth else bettor
