"""The panel: which bettors sit at the table, on which tokens each bets, and how the starting wealth is shared out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import alternatives, betting, guesses, pointwise, reused, sparse
from pytest_specdec.stats.alternatives import BONUS, CATALOGUE, GENERIC, Alternative, Fault
from pytest_specdec.stats.betting import Bettor, seated
from pytest_specdec.stats.drafts import Split, at_drafts, merged
from pytest_specdec.stats.duplicates import HAZARDS, hazard
from pytest_specdec.stats.reused import Reuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_specdec.stats.chances import Chances
    from pytest_specdec.stats.laws import Floats
    from pytest_specdec.stats.observed import Observed

__all__ = ["RATIO_UNASKED", "accepts_unasked", "bettors", "catalogue_tables", "chance_of", "dues", "window"]

UNASKED = "temperature, top-k and top-p ignored"
AT_THE_BONUS = " at the bonus"
RATIO_UNASKED = "ratio without temperature, top-k and top-p"
REUSED = {
    Reuse.DRAFT.value: reused.decided_by_the_draft,
    Reuse.RECOVERY.value: reused.recovered_by_the_rejection,
}
STATEWISE: tuple[tuple[str, Callable[[Chances], Floats]], ...] = (
    (" right after a rejection", lambda stands: stands.after_rejection),
    (" once a draft was rejected", lambda stands: stands.rejected_before),
)

WITH_DRAFT_LAW = {
    "catalogue": 0.45,
    "window": 0.11,
    "generic": 0.15,
    "order": 0.07,
    "bonus": 0.11,
    "state": 0.06,
    "answers": 0.05,
}
WITHOUT_DRAFT_LAW = {
    "surrogate": 0.31,
    "generic": 0.15,
    "order": 0.11,
    "bonus": 0.08,
    "bonus at large": 0.07,
    "state": 0.12,
    "learned": 0.11,
    "answers": 0.05,
}
"""Shares of the starting wealth by group, equal within a group; a group without seats is left out.

Who sits at the table is settled by the set-up (a draft law, windows), never by what was emitted: a panel chosen afterwards would be no bet.
"""
SPARSE = 0.25
"""Share that is staked on faults in some answers only, by the bettors of SOMETIMES; the groups share the rest."""
SOMETIMES = frozenset({"catalogue", "surrogate", "generic", "bonus", "learned"})
"""Groups whose bettors bet on some answers too."""


def bettors(observed: Observed) -> tuple[Bettor, ...]:
    """Return everybody who bets on ``observed``, weights not yet scaled."""
    shares = WITHOUT_DRAFT_LAW if observed.q is None else WITH_DRAFT_LAW
    generic, stands = tuple(_generic(observed)), observed.stands
    groups = {
        **(_of_the_draft(observed) if observed.q is not None else _of_guesses(observed, generic, stands)),
        "generic": generic,
        "order": tuple(_order(observed, stands)),
        "bonus": tuple(_bonus(observed, stands)),
        "state": tuple(_state(observed, generic, stands)),
        "answers": tuple(_answers(observed)),
    }
    panel = {name: [replace(bettor, weight=shares[name] / len(group)) for bettor in group] for name, group in groups.items()}
    everybody = [bettor for group in panel.values() for bettor in group]
    some = tuple(sparse.bettors([bettor for name in groups if name in SOMETIMES for bettor in panel[name]], observed.places.last))
    stake = SPARSE / (1.0 - SPARSE) * sum(bettor.weight for bettor in everybody) / sum(bettor.weight for bettor in some)
    return (*everybody, *(replace(bettor, weight=stake * bettor.weight) for bettor in some))


def _of_the_draft(observed: Observed) -> dict[str, tuple[Bettor, ...]]:
    """Return who bets where the draft's law is known."""
    return {"catalogue": tuple(_catalogue(observed)), "window": tuple(window(observed))}


def _of_guesses(observed: Observed, generic: Iterable[Bettor], stands: Chances) -> dict[str, tuple[Bettor, ...]]:
    """Return who bets where it is not."""
    return {
        "surrogate": tuple(guesses.surrogate(observed, stands)),
        "bonus at large": tuple(_bonus_at_large(observed, generic, stands)),
        "learned": tuple(guesses.learners(observed)),
    }


def catalogue_tables(observed: Observed) -> Iterator[tuple[Alternative, Floats, Floats]]:
    """Yield every fault of the catalogue with its law and its bettor's log payoffs, both [N, K+1]; none without a draft law."""
    if observed.q is None:
        return
    p, share = observed.law.p, (observed.stands.draft * observed.drafted)[:, None]
    for one in CATALOGUE:
        m = at_drafts(one, p, observed.q)
        yield one, share * m + (1.0 - share) * p, betting.weighed(betting.table(observed.law, m), share)


def dues(observed: Observed, bettor: Bettor) -> Floats | None:
    """Return what ``bettor`` is paid per token in the mean if its own law is right, [N] log payoffs; None where its law is no table."""
    for one, law, table in catalogue_tables(observed):
        if one.name == bettor.name:
            return np.asarray((law * table).sum(axis=1))
    for one in GENERIC:
        if one.name == bettor.name:
            m = one.law(observed.law.p, observed.law.p)
            return np.asarray((m * betting.table(observed.law, m)).sum(axis=1))
    return None


def chance_of(bettor: Bettor, observed: Observed) -> Floats:
    """Return the share of its wealth that a bettor on the state stakes, [N]; KeyError of any other bettor."""
    for words, chance in STATEWISE:
        if bettor.name.endswith(words):
            return chance(observed.stands)
    raise KeyError(bettor.name)


def accepts_unasked(observed: Observed) -> Floats:
    """Return the acceptance probabilities [N, K+2], on split outcomes, of a rule that takes the ratio of the laws before anything asked."""
    assert observed.q_unasked is not None
    split = Split.of(observed.law.unasked, observed.q_unasked)
    return alternatives.ratio(split.p, split.q)


def _catalogue(observed: Observed) -> Iterator[Bettor]:
    if observed.q is None:
        return
    split = Split.of(observed.law.p, observed.q)
    share = observed.stands.draft * observed.drafted

    def paid(m: Floats, accept: Floats) -> Floats:
        finer = pointwise.refined(observed, pointwise.excess(split, accept))
        return betting.weighed(betting.bet(observed.law, m) + finer, share)

    for one in CATALOGUE:
        m = at_drafts(one, observed.law.p, observed.q)
        if one.leak is None:
            yield seated(one.name, one.fault, paid(m, one.accept(split.p, split.q)))
        else:
            leaked = pointwise.leak(observed, one.leak, betting.table(observed.law, m))
            yield seated(one.name, one.fault, betting.weighed(leaked, share))
    unasked = observed.law.p if observed.q_unasked is None else _ruled(split, accepts_unasked(observed))
    yield seated(RATIO_UNASKED, Fault.RULE, paid(unasked, alternatives.ratio(split.p, split.q)))


def window(observed: Observed) -> Iterator[Bettor]:
    """Yield who bets that one number decides on all drafts of a window, on a tail in parts that the draft likes more or less."""
    if observed.q is None:
        return
    split = Split.of(observed.law.p, observed.q).spread()
    accept = reused.accepts_once(split, observed)
    finer = pointwise.refined(observed, 2.0 * pointwise.excess(split, accept))
    share = observed.stands.draft * observed.drafted
    yield seated(Reuse.WINDOW.value, Fault.ORDER, betting.weighed(betting.bet(observed.law, _ruled(split, accept, 4)) + finer, share))


def _ruled(split: Split, accept: Floats, parts: int = 2) -> Floats:
    """Return the law [N, K+1] of a server that accepts with chances ``accept``, the tail in so many ``parts``, and recovers rightly."""
    return merged(alternatives.verified(split.q, accept, alternatives.residual(split.p, split.q)), parts)


def _generic(observed: Observed) -> Iterator[Bettor]:
    for one in GENERIC:
        yield seated(one.name, one.fault, betting.bet(observed.law, one.law(observed.law.p, observed.law.p)))
    yield seated(UNASKED, Fault.TEMPERATURE, betting.unasked(observed.law))
    for share in (0.005, 0.1, 0.4):
        yield seated(f"{share:.1%} drawn evenly", Fault.TAIL, betting.pointwise(observed.law, share, observed.size))
    for share in (0.001, 0.01, 0.1):
        name = f"{share:.1%} outside what temperature, top-k and top-p leave"
        yield seated(name, Fault.TEMPERATURE, betting.violations(observed.law, share))


def _order(observed: Observed, stands: Chances) -> Iterator[Bettor]:
    for theta in (-0.9, -0.3, -0.1, 0.1, 0.3, 0.9):
        words = "late" if theta > 0 else "early"
        yield seated(
            f"{words} token ids by {abs(theta):g}",
            Fault.ORDER,
            betting.bet(observed.law, alternatives.id_order(observed.law.p, observed.ids, theta)),
        )
    if observed.q is not None:
        for reuse, law in REUSED.items():
            m = law(observed.law.p, observed.q, observed.ids, observed.size)
            yield seated(reuse, Fault.ORDER, betting.weighed(betting.bet(observed.law, m), stands.draft * observed.drafted))


def _bonus(observed: Observed, stands: Chances) -> Iterator[Bettor]:
    """Bet at bonus slots only; where windows are hidden and q is known, everywhere, by the chance of a bonus."""
    if not observed.slots_told:
        return
    p = observed.law.p
    for one in BONUS:
        if observed.q is None and one.draft:
            continue
        q = p if observed.q is None else observed.q
        chance = stands.bonus * observed.drafted if one.draft else stands.bonus
        yield seated(one.name, one.fault, betting.weighed(betting.bet(observed.law, one.law(p, q)), chance))
    if observed.q is not None:
        yield seated(UNASKED + AT_THE_BONUS, Fault.BONUS, betting.weighed(betting.unasked(observed.law), stands.bonus))


def _bonus_at_large(observed: Observed, generic: Iterable[Bettor], stands: Chances) -> Iterator[Bettor]:
    """Bet on any generic fault at bonus slots only, where the draft's law is not known: with it the bonus has bettors enough."""
    if not observed.slots_told:
        return
    for one in generic:
        yield seated(one.name + AT_THE_BONUS, Fault.BONUS, betting.weighed(one.log_payoffs, stands.bonus))


def _state(observed: Observed, generic: Iterable[Bettor], stands: Chances) -> Iterator[Bettor]:
    """Bet behind rejections only: a stale cache entry may be overwritten by the next step, or stay for the rest of the answer."""
    if not observed.slots_told:
        return
    for one in generic:
        for words, chance in STATEWISE:
            yield seated(one.name + words, Fault.STATE, betting.weighed(one.log_payoffs, chance(stands)))


def _answers(observed: Observed) -> Iterator[Bettor]:
    """Bet on what hangs on the answer so far: when it ends, whether it is an earlier answer again, what is counted of its tokens."""
    # Who knows nothing keeps the stake: a panel that grew when a run is continued would be another bet.
    nothing = np.zeros(observed.tokens)
    for factor in HAZARDS:
        paid = nothing if observed.ends is None else betting.bet(observed.law, hazard(observed.law.p, observed.ends, factor))
        yield seated(f"end of sequence {factor:g} times as probable", Fault.ENDING, paid)
    paid = nothing if observed.copies is None else betting.bet(observed.law, observed.copies)
    yield seated("an answer given again", Fault.DEPENDENCE, paid)
    for name, m in observed.mishandled.items():
        yield seated(name, Fault.PENALTIES, betting.bet(observed.law, m))
