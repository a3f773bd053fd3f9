"""The bettors: which faults are bet on, on which tokens, and how the starting wealth is shared out.

Sparse: bettors on faults that only some answers have, as a cache hit, one slot of a batch or a mixed batch would bring them. A bettor on
all tokens loses in the sound answers what it earns in the faulty ones. These bettors give every answer the same small chance to be faulty
and begin their bets anew in each.

Pointwise: bets on a draft's law by the emitted token's own two probabilities, p(x) and q(x), wherever it lies in the vocabulary. What hangs
on q at tokens beyond the atoms is lost in one tail outcome. These bets look at the token itself, and need no more of q than lower bounds
that add up to one at most over the whole vocabulary. Of p they need an upper bound at the emitted token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import adaptive_bettors, betting, fault_models
from pytest_specdec.stats.betting import Bettor, seated
from pytest_specdec.stats.draft_distribution import Split, at_drafts, favourite, hidden_bonus, merged, one_hot, overlap
from pytest_specdec.stats.duplicates import HAZARDS, hazard
from pytest_specdec.stats.fault_models import BONUS, CATALOGUE, GENERIC, Alternative, Fault, Reuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_specdec.stats.token_distribution import Bools, Floats, Law
    from pytest_specdec.stats.verify_slots import Chances, Observed

__all__ = [
    "CHANCES",
    "RATIO_UNASKED",
    "accepts_unasked",
    "bettors",
    "catalogue_tables",
    "chance_of",
    "dues",
    "excess",
    "in_some_answers",
    "leak",
    "learners",
    "named",
    "refined",
    "sparse_bettors",
    "surrogate",
    "window",
    "within",
]

CHANCES = (0.02, 0.1, 0.3)
"""Shares of faulty answers that are bet on."""


def sparse_bettors(panel: Iterable[Bettor], last: Bools) -> Iterator[Bettor]:
    """Yield for each of ``panel`` and each pi of CHANCES who holds ``W = prod_r (1 - pi + pi E_r)`` after every token.

    E_r is the wealth of the bettor begun anew at answer r, as far as r has come; ``last`` [N] marks the ends of answers. Within r only the
    last factor moves. It is the mixture of a stake that is kept and one that is bet, so its mean given all that came before a token, r's
    own tokens and those of earlier answers, is at most what it was before it. W is a product of such factors, each from 1: a
    non-negative supermartingale, so that it may be looked at after every token, and mixed with others. Answers that were drawn at the same
    time are in no one's way: every bet is on the law of one token given its prefix, and whose answers come first is settled before any is.
    """
    for bettor in panel:
        for chance in CHANCES:
            yield in_some_answers(bettor, chance, last)


def in_some_answers(bettor: Bettor, chance: float, last: Bools) -> Bettor:
    """Return who bets as ``bettor`` does, begun anew at every answer, that the share ``chance`` of the answers is faulty."""
    held = np.logaddexp(np.log1p(-chance), np.log(chance) + within(bettor, last))
    paid = np.diff(held, prepend=0.0)
    starts = np.concatenate([[True], last[:-1]])
    paid[starts] = held[starts]
    return replace(bettor, name=f"{bettor.name}{_words(chance)}", log_payoffs=paid, chance=chance)


def named(bettor: Bettor) -> str:
    """Return the name of the bettor on all answers that ``bettor`` begins anew."""
    return bettor.name.removesuffix(_words(bettor.chance))


def _words(chance: float) -> str:
    return f", in {chance:.0%} of the answers"


def within(bettor: Bettor, last: Bools) -> Floats:
    """Return the log wealth [N] of ``bettor``, begun anew at every answer."""
    held = bettor.log_payoffs.cumsum()
    ends = np.concatenate([[0.0], held[last]])
    return np.asarray(held - ends[np.concatenate([[0], last[:-1].cumsum()])])


LEAST = 1e-5
"""Mass below which rounding decides what it is."""
MOST = 0.95
"""Largest share of a payoff that is staked on the token's own ratio."""


def leak(observed: Observed, share: float, table: Floats) -> Floats:
    """Return the log payoffs [N] of ``e = 1 - l + l q(x)/p(x)`` for the leak l = ``share``; those of ``table`` [N, K+1] under truncation.

    Its mean under p is ``1 - l + l sum_x p(x) q(x)/p'(x) <= 1 - l + l sum_x q(x) <= 1``, p' >= p being the bound and q the lower bounds. A
    token whose p is told as 0 pays ``1 - l``, the least there is. Divided by what noise in p makes of it, as in ``betting.table``.
    """
    law = observed.law
    listed = np.take_along_axis(table, law.outcome[:, None], axis=1)[:, 0]
    if observed.q is None or observed.q_chosen is None:
        return listed
    flat = (law.p[:, :-1] ** 2).sum(axis=1) - (law.p * observed.q)[:, :-1].sum(axis=1)
    widening = 1.0 + np.asarray(law.noise) ** 2 * share * np.maximum(0.0, flat)
    paid = np.log(1.0 - share + share * _ratio(law, observed.q_chosen)) - np.log(widening)
    return np.where(_bounded(law), paid, listed)


def refined(observed: Observed, stake: Floats) -> Floats:
    """Return by what log factor [N] a bet on q at the tail outcome is multiplied: ``1 - l + l (q(x)/q') / (p(x)/p_tail)``; 0 elsewhere.

    l is the ``stake`` [N], settled before the token; q' bounds q's mass in the tail from above: one less what q has on atoms where it is
    exact. Given the tail outcome, the mean of the factor under p is ``1 - l + l sum_x (p(x)/p_tail) (q(x)/q') (p_tail/p(x))``, which is
    ``1 - l + l sum_x q(x)/q' <= 1``, the sums over the tail's tokens; so the product with any bet of mean one at most has a mean of one at
    most. Only where the tail is a single outcome of known mass.
    """
    law, nothing = observed.law, np.zeros(observed.tokens)
    if observed.q is None or observed.q_chosen is None or observed.listed is None:
        return nothing
    mass = 1.0 - np.where(observed.listed, observed.q, 0.0)[:, :-1].sum(axis=1)
    here = (law.outcome == law.p.shape[1] - 1) & law.core[:, -1] & _bounded(law) & (mass > LEAST)
    factor = 1.0 - stake + stake * _ratio(law, observed.q_chosen) * law.p[:, -1] / np.where(here, mass, 1.0)
    return np.where(here, np.log(np.where(here, factor, 1.0)), nothing)


def excess(split: Split, accept: Floats) -> Floats:
    """Return half the share [N] of the draft tokens that a correct server rejects and ``accept`` [N, K+2] accepts, 0..MOST / 2.

    About so much of what a fault emits beyond the atoms follows q, for most faults accept no more than some multiple of p; nothing does
    where no draft is accepted there.
    """
    overlap = np.minimum(split.p, split.q).sum(axis=1)
    more = (split.q * accept).sum(axis=1) - overlap
    share = 0.5 * np.clip(more / np.maximum(1.0 - overlap, LEAST), 0.0, MOST)
    return np.where((accept[:, -2:] * split.q[:, -2:]).sum(axis=1) > 0.0, share, 0.0)


def _bounded(law: Law) -> Bools:
    """Return where p of any token has a bound, [N]: a matter of what the request asks for."""
    return np.asarray(np.isfinite(law.chosen_bound))


def _ratio(law: Law, q: Floats) -> Floats:
    """Return ``q(x)/p(x)`` [N]; 0 where p is told as 0, or not bounded."""
    known = np.isfinite(law.chosen_bound) & (law.chosen_bound > 0)
    return np.where(known, q / np.where(known, law.chosen_bound, 1.0), 0.0)


SURROGATE = " of the baseline's favourite"
DRAWN = " of a token as the baseline draws it"


def surrogate(observed: Observed, stands: Chances) -> Iterator[Bettor]:
    """Bet as if the drafter always proposed the baseline's best token, and as if it proposed one that the baseline would draw.

    Best guesses at a greedy drafter whose law is unknown: the first where it mostly agrees with the baseline, the second where it is often
    wrong, nobody knows how.
    """
    p = observed.law.p
    best = favourite(p)
    share = _guessed(observed, stands, overlap(p, best))
    yield from _guessed_catalogue(observed, SURROGATE, lambda one: at_drafts(one, p, best), share)
    share = _guessed(observed, stands, np.asarray((p**2).sum(axis=1)))
    apart, rows = np.unique(p, axis=0, return_inverse=True)  # a law that comes again is worked out once
    yield from _guessed_catalogue(observed, DRAWN, lambda one: _at_any_draft(one, apart)[rows.reshape(-1)], share)


def _guessed_catalogue(observed: Observed, words: str, law: Callable[[Alternative], Floats], share: Floats) -> Iterator[Bettor]:
    """Bet on every fault of the catalogue by its ``law`` [N, K+1], with a ``share`` [N] of the wealth."""
    for one in CATALOGUE:
        paid = betting.weighed(betting.bet(observed.law, law(one)), share)
        yield seated(one.name + words, one.fault, paid, guessed=True)


def _at_any_draft(one: Alternative, p: Floats) -> Floats:
    """Return the law [N, K+1] behind a draft that is certain of a token which was drawn from ``p``: nobody knows which of the tail's."""
    mixed = p[:, -1:] * p
    for atom in range(p.shape[1] - 1):
        mixed += p[:, atom : atom + 1] * at_drafts(one, p, one_hot(np.full(len(p), atom), p.shape[1]))
    return np.asarray(mixed)


def _guessed(observed: Observed, stands: Chances, beta: Floats) -> Floats:
    """Return the chances [N] of a draft slot, from a guess at the overlap ``beta`` [N] where nothing tells of the windows."""
    guess = 1.0 - hidden_bonus(beta, observed.k, np.ones(observed.tokens, dtype=np.bool_))
    return np.where(observed.places.known | (observed.kept is not None), stands.draft, guess)


def learners(observed: Observed) -> Iterator[Bettor]:
    """Bet on what earlier tokens tell of a drafter whose law is not known."""
    if observed.previous is not None:
        yield from adaptive_bettors.log_payoffs(observed, contexts=observed.contexts, previous=observed.previous)


UNASKED = "temperature, top-k and top-p ignored"
AT_THE_BONUS = " at the bonus"
RATIO_UNASKED = "ratio without temperature, top-k and top-p"
REUSED = {
    Reuse.DRAFT.value: fault_models.decided_by_the_draft,
    Reuse.RECOVERY.value: fault_models.recovered_by_the_rejection,
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
    some = tuple(sparse_bettors([bettor for name in groups if name in SOMETIMES for bettor in panel[name]], observed.places.last))
    stake = SPARSE / (1.0 - SPARSE) * sum(bettor.weight for bettor in everybody) / sum(bettor.weight for bettor in some)
    return (*everybody, *(replace(bettor, weight=stake * bettor.weight) for bettor in some))


def _of_the_draft(observed: Observed) -> dict[str, tuple[Bettor, ...]]:
    """Return who bets where the draft's law is known."""
    return {"catalogue": tuple(_catalogue(observed)), "window": tuple(window(observed))}


def _of_guesses(observed: Observed, generic: Iterable[Bettor], stands: Chances) -> dict[str, tuple[Bettor, ...]]:
    """Return who bets where it is not."""
    return {
        "surrogate": tuple(surrogate(observed, stands)),
        "bonus at large": tuple(_bonus_at_large(observed, generic, stands)),
        "learned": tuple(learners(observed)),
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
    return fault_models.ratio(split.p, split.q)


def _catalogue(observed: Observed) -> Iterator[Bettor]:
    if observed.q is None:
        return
    split = Split.of(observed.law.p, observed.q)
    share = observed.stands.draft * observed.drafted

    def paid(m: Floats, accept: Floats) -> Floats:
        finer = refined(observed, excess(split, accept))
        return betting.weighed(betting.bet(observed.law, m) + finer, share)

    for one in CATALOGUE:
        m = at_drafts(one, observed.law.p, observed.q)
        if one.leak is None:
            yield seated(one.name, one.fault, paid(m, one.accept(split.p, split.q)))
        else:
            leaked = leak(observed, one.leak, betting.table(observed.law, m))
            yield seated(one.name, one.fault, betting.weighed(leaked, share))
    unasked = observed.law.p if observed.q_unasked is None else _ruled(split, accepts_unasked(observed))
    yield seated(RATIO_UNASKED, Fault.RULE, paid(unasked, fault_models.ratio(split.p, split.q)))


def window(observed: Observed) -> Iterator[Bettor]:
    """Yield who bets that one number decides on all drafts of a window, on a tail in parts that the draft likes more or less."""
    if observed.q is None:
        return
    split = Split.of(observed.law.p, observed.q).spread()
    accept = fault_models.accepts_once(split, observed)
    finer = refined(observed, 2.0 * excess(split, accept))
    share = observed.stands.draft * observed.drafted
    yield seated(Reuse.WINDOW.value, Fault.ORDER, betting.weighed(betting.bet(observed.law, _ruled(split, accept, 4)) + finer, share))


def _ruled(split: Split, accept: Floats, parts: int = 2) -> Floats:
    """Return the law [N, K+1] of a server that accepts with chances ``accept``, the tail in so many ``parts``, and recovers rightly."""
    return merged(fault_models.verified(split.q, accept, fault_models.residual(split.p, split.q)), parts)


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
            betting.bet(observed.law, fault_models.id_order(observed.law.p, observed.ids, theta)),
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
