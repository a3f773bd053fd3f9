"""The bettors: the faults that are bet on, the tokens of each bet, and the shares of the starting wealth.

Bets on the emitted token's own two probabilities, p(x) and q(x), reach beyond the top tokens, for which a table has one remainder: they
need lower bounds of q that add up to one at most over the vocabulary, and an upper bound of p at the emitted token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import adaptive_bettors, betting, fault_models, jumps
from pytest_specdec.stats.betting import Bettor, Stretch, unit_bettor
from pytest_specdec.stats.draft_distribution import SplitRemainder, at_drafts, bonus_chance, favourite, merge_remainder, one_hot, overlap
from pytest_specdec.stats.duplicates import HAZARDS, scale_end_odds
from pytest_specdec.stats.fault_models import BONUS, CATALOGUE, GENERIC, Alternative, Fault, ReusedNumber
from pytest_specdec.stats.sparse_bettors import sparse_bettors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_specdec.stats.token_distribution import Bools, Floats, TokenDistribution
    from pytest_specdec.stats.verify_slots import Observed, SlotChances

__all__ = [
    "OUTSIDE",
    "PARAMS_IGNORED",
    "RATIO_OF_RAW",
    "TOP_P_SQUARED",
    "accepts_raw_ratio",
    "bettors",
    "catalogue_tables",
    "excess_stake",
    "expected_payoffs",
    "leak_payoffs",
    "refine_remainder",
    "state_stake",
    "surrogate_bettors",
    "window_bettors",
]

LEAST = 1e-5
"""Least mass that is not rounding."""
MOST = 0.95
"""Largest share of a payoff that is staked on the token's own ratio."""


def leak_payoffs(observed: Observed, share: float, table: Floats) -> Floats:
    """Return the log payoffs of a bet on leaked draft tokens.

    They are [N], of ``e = 1 - l + l q(x)/p(x)``, the leak l being ``share``. Under truncation, or without a draft distribution of single
    tokens, they are those of ``table`` [N, K+1]. The mean of e under p is ``1 - l + l sum_x p(x) q(x)/p'(x) <= 1 - l + l sum_x q(x) <= 1``,
    p' >= p being the bound and q the lower bounds. A token with p = 0 pays ``1 - l``, the least there is. Each payoff is divided by the
    mean that noise in p adds, as in ``betting.table``.
    """
    distribution = observed.distribution
    table_payoffs = np.take_along_axis(table, distribution.outcome[:, None], axis=1)[:, 0]
    if observed.q is None or observed.q_chosen is None:
        return table_payoffs
    flat = (distribution.p[:, :-1] ** 2).sum(axis=1) - (distribution.p * observed.q)[:, :-1].sum(axis=1)
    widening = 1.0 + np.asarray(distribution.noise) ** 2 * share * np.maximum(0.0, flat)
    paid = np.log(1.0 - share + share * _ratio(distribution, observed.q_chosen)) - np.log(widening)
    return np.where(_has_bound(distribution), betting.at_jumps(distribution, paid, observed.q, share), table_payoffs)


def refine_remainder(observed: Observed, stake: Floats) -> Floats:
    """Return a log factor for bets on q in the remainder.

    It is [N], of ``1 - l + l (q(x)/q') / (p(x)/p_remainder)``; 0 for top tokens. l is the ``stake`` [N], fixed before the token; q' bounds
    q's mass in the remainder from above: it is one less the mass of q on those top tokens at which it is exact. Given the remainder
    outcome, the mean of the factor under p is ``1 - l + l sum_x (p(x)/p_remainder) (q(x)/q') (p_remainder/p(x))``, which is ``1 - l + l
    sum_x q(x)/q' <= 1``, the sums over the remainder's tokens; so the product with any bet of mean one at most has a mean of one at most.
    It is used only if the remainder is a single outcome of known mass.
    """
    distribution, nothing = observed.distribution, np.zeros(observed.tokens)
    if observed.q is None or observed.q_chosen is None or observed.listed is None:
        return nothing
    mass = 1.0 - np.where(observed.listed, observed.q, 0.0)[:, :-1].sum(axis=1)
    in_remainder = (
        (distribution.outcome == distribution.p.shape[1] - 1) & distribution.core[:, -1] & _has_bound(distribution) & (mass > LEAST)
    )
    factor = 1.0 - stake + stake * _ratio(distribution, observed.q_chosen) * distribution.p[:, -1] / np.where(in_remainder, mass, 1.0)
    return np.where(in_remainder, np.log(np.where(in_remainder, factor, 1.0)), nothing)


def excess_stake(split: SplitRemainder, accept: Floats, parts: int = 2) -> Floats:
    """Return the stake in the remainder: half the share of wrongly accepted drafts.

    It is [N], 0..MOST / 2: half the fraction of the draft tokens rejected by a correct server that ``accept``, on the outcomes of
    ``split``, accepts. About so much of the tokens that a fault emits beyond the top tokens follows q, since most faults accept no more
    than some multiple of p. It is 0 if no draft in the remainder, which has ``parts`` pieces, is accepted.
    """
    rightly_accepted = np.minimum(split.p, split.q).sum(axis=1)
    wrongly_accepted = (split.q * accept).sum(axis=1) - rightly_accepted
    fraction = 0.5 * np.clip(wrongly_accepted / np.maximum(1.0 - rightly_accepted, LEAST), 0.0, MOST)
    return np.where((accept[:, -parts:] * split.q[:, -parts:]).sum(axis=1) > 0.0, fraction, 0.0)


def _has_bound(distribution: TokenDistribution) -> Bools:
    """Return a mask [N] of tokens with a bound on p, by the request alone."""
    return np.asarray(np.isfinite(distribution.chosen_bound))


def _ratio(distribution: TokenDistribution, q: Floats) -> Floats:
    """Return ``q(x)/p(x)`` [N], 0 if p is 0 or unbounded."""
    bounded = np.isfinite(distribution.chosen_bound) & (distribution.chosen_bound > 0)
    return np.where(bounded, q / np.where(bounded, distribution.chosen_bound, 1.0), 0.0)


SURROGATE = " of the baseline's favourite"
DRAWN = " of a token as the baseline draws it"


def surrogate_bettors(observed: Observed, slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield bettors on faults at guessed drafts of an unknown drafter.

    They bet as if drafts were the baseline's best tokens, or its draws: the first fits a greedy drafter that mostly agrees with the
    baseline, the second one that is often wrong.
    """
    p = observed.distribution.p
    best = favourite(p)
    stake = _draft_slot_chances(observed, slot_chances, overlap(p, best))
    yield from _guessed_catalogue(observed, SURROGATE, lambda alternative: at_drafts(alternative, p, best), stake)
    stake = _draft_slot_chances(observed, slot_chances, np.asarray((p**2).sum(axis=1)))
    distinct, rows = np.unique(p, axis=0, return_inverse=True)  # a distribution that comes again is worked out once
    yield from _guessed_catalogue(observed, DRAWN, lambda alternative: _at_any_draft(alternative, distinct)[rows.reshape(-1)], stake)


def _guessed_catalogue(observed: Observed, suffix: str, distribution: Callable[[Alternative], Floats], stake: Floats) -> Iterator[Bettor]:
    """Yield a bettor for every fault at guessed draft slots.

    ``distribution`` returns a fault's emitted tokens [N, K+1] with these drafts; ``stake`` [N] is the fraction of the wealth that is bet;
    ``suffix`` ends the bettors' names.
    """
    for alternative in CATALOGUE:
        paid = betting.partial_stake(betting.bet(observed.distribution, distribution(alternative)), stake)
        yield unit_bettor(alternative.name + suffix, alternative.fault, paid, guessed=True, variation_of=(alternative.name,))


def _at_any_draft(alternative: Alternative, p: Floats) -> Floats:
    """Return a fault's distribution [N, K+1] for a random greedy draft.

    The draft is certain of one token, drawn from ``p`` [N, K+1]. A draft in the remainder changes nothing, since its token is unknown.
    """
    split = SplitRemainder.of(p, one_hot(np.zeros(len(p), dtype=np.int64), p.shape[1])).p  # the same, whichever top token is certain
    mixed = np.zeros_like(split)
    for top_token, certain in enumerate(np.eye(p.shape[1] - 1, split.shape[1])):
        mixed += p[:, top_token : top_token + 1] * alternative.distribution(split, np.broadcast_to(certain, split.shape))
    return np.asarray(p[:, -1:] * p + merge_remainder(mixed))


def _draft_slot_chances(observed: Observed, slot_chances: SlotChances, beta: Floats) -> Floats:
    """Return the probabilities [N] of a draft slot for each token.

    For unknown windows without a draft distribution they are guessed from ``beta`` [N], the probability of acceptance.
    """
    guess = 1.0 - bonus_chance(beta, observed.k)
    return np.where(observed.slots.known | (observed.accepted_if_emitted is not None), slot_chances.draft, guess)


PARAMS_IGNORED = "temperature, top-k and top-p ignored"
TOP_P_SQUARED = "top_p squared"
OUTSIDE = {share: f"{share:.1%} outside what temperature, top-k and top-p leave" for share in (0.001, 0.01, 0.1)}
"""Names of the bettors on cut-off tokens, by their share of the tokens."""
AT_THE_BONUS = " at the bonus"
RATIO_OF_RAW = "ratio without temperature, top-k and top-p"
REUSED = {
    ReusedNumber.DRAFT.value: fault_models.decided_by_the_draft,
    ReusedNumber.RECOVERY.value: fault_models.recovered_by_the_rejection,
}

WITH_DRAFT_DISTRIBUTION = {
    "catalogue": 0.45,
    "window": 0.11,
    "generic": 0.15,
    "order": 0.07,
    "bonus": 0.11,
    "state": 0.06,
    "answers": 0.05,
}
WITHOUT_DRAFT_DISTRIBUTION = {
    "surrogate": 0.31,
    "generic": 0.15,
    "order": 0.11,
    "bonus": 0.08,
    "bonus at large": 0.07,
    "state": 0.12,
    "learned": 0.11,
    "answers": 0.05,
}
"""Shares of the starting wealth by group, equal within a group; an empty group is left out.

The set-up alone (a draft distribution, windows) decides the panel, never an emitted token: bettors chosen afterwards would be no bet.
"""
SPARSE = 0.25
"""Share of the starting wealth of the bettors on some answers only, those of SOMETIMES; the groups share the rest."""
SOMETIMES = frozenset({"catalogue", "surrogate", "generic", "bonus", "learned"})
"""Groups whose bettors bet on some answers too."""


def bettors(observed: Observed) -> tuple[Bettor, ...]:
    """Return all bettors on ``observed``, of weights to be scaled later.

    Their groups and weights depend on whether the draft's distribution is known.
    """
    shares = WITHOUT_DRAFT_DISTRIBUTION if observed.q is None else WITH_DRAFT_DISTRIBUTION
    generic, slot_chances = tuple(_generic_bettors(observed)), observed.slot_chances
    groups = {
        **(_groups_with_q(observed) if observed.q is not None else _groups_without_q(observed, generic, slot_chances)),
        "generic": generic,
        "order": tuple(_order_bettors(observed, slot_chances)),
        "bonus": tuple(_bonus_bettors(observed, slot_chances)),
        "state": tuple(_state_bettors(observed, generic, slot_chances)),
        "answers": tuple(_answer_bettors(observed)),
    }
    panel = {name: [replace(bettor, weight=shares[name] / len(group)) for bettor in group] for name, group in groups.items()}
    on_all = [bettor for group in panel.values() for bettor in group]
    on_some = tuple(sparse_bettors([bettor for name in groups if name in SOMETIMES for bettor in panel[name]], observed.slots.last))
    scale = SPARSE / (1.0 - SPARSE) * sum(bettor.weight for bettor in on_all) / sum(bettor.weight for bettor in on_some)
    return (*on_all, *(replace(bettor, weight=scale * bettor.weight) for bettor in on_some))


def _groups_with_q(observed: Observed) -> dict[str, tuple[Bettor, ...]]:
    """Return the groups of bettors that need the draft's distribution."""
    return {"catalogue": tuple(_catalogue_bettors(observed)), "window": tuple(window_bettors(observed))}


def _groups_without_q(observed: Observed, generic: Iterable[Bettor], slot_chances: SlotChances) -> dict[str, tuple[Bettor, ...]]:
    """Return the groups of bettors used without the draft's distribution.

    They stand in for those of :func:`_groups_with_q`. "surrogate" guesses that drafts are the baseline's best tokens or its draws, "bonus
    at large" bets on the generic faults at bonus slots only, and "learned" estimates the drafter from earlier tokens.
    """
    return {
        "surrogate": tuple(surrogate_bettors(observed, slot_chances)),
        "bonus at large": tuple(_bonus_at_large(observed, generic, slot_chances)),
        "learned": adaptive_bettors.adaptive_panel(observed),
    }


def catalogue_tables(observed: Observed, faults: Iterable[Alternative] = CATALOGUE) -> Iterator[tuple[Alternative, Floats, Floats]]:
    """Yield each fault with its distribution and a bettor's log payoffs.

    Both are [N, K+1], for every outcome. At each token the fault counts, and the bettor stakes, by the probability of a draft slot. Yields
    nothing without a draft distribution.
    """
    if observed.q is None:
        return
    p, stake = observed.distribution.p, (observed.slot_chances.draft * observed.drafted)[:, None]
    for alternative in faults:
        m = at_drafts(alternative, p, observed.q)
        yield alternative, stake * m + (1.0 - stake) * p, betting.partial_stake(betting.table(observed.distribution, m), stake)


def expected_payoffs(observed: Observed, bettor: Bettor) -> Floats | None:
    """Return the mean log payoffs of ``bettor`` under its own fault.

    They are [N]. None for a bettor that is not of the catalogue or the generic faults.
    """
    for _, distribution, table in catalogue_tables(observed, (alternative for alternative in CATALOGUE if alternative.name == bettor.name)):
        return np.asarray((distribution * table).sum(axis=1))
    for alternative in GENERIC:
        if alternative.name == bettor.name:
            m = alternative.distribution(observed.distribution.p, observed.distribution.p)
            return np.asarray((m * betting.table(observed.distribution, m)).sum(axis=1))
    return None


def state_stake(bettor: Bettor, observed: Observed) -> Floats:
    """Return the stake [N] of a bettor on the state, a fraction of its wealth."""
    assert bettor.stretch is not None, "no other bettor has one"
    return _stake_on(bettor.stretch, observed.slot_chances)


def accepts_raw_ratio(observed: Observed) -> Floats:
    """Return the acceptance probabilities [N, K+2] by raw q and p.

    Raw means before sampling parameters. The remainder is split in two (:class:`SplitRemainder`).
    """
    assert observed.q_raw is not None
    split = SplitRemainder.of(observed.distribution.raw, observed.q_raw)
    return fault_models.ratio(split.p, split.q)


def _catalogue_bettors(observed: Observed) -> Iterator[Bettor]:
    """Yield a bettor for each fault at draft slots.

    The last one is for a server that accepts by the ratio of raw distributions. Yields nothing without a draft distribution.
    """
    if observed.q is None:
        return
    split = SplitRemainder.of(observed.distribution.p, observed.q)
    stake = observed.slot_chances.draft * observed.drafted

    def payoffs(m: Floats, accept: Floats) -> Floats:
        return betting.partial_stake(_refined_payoffs(observed, m, excess_stake(split, accept)), stake)

    for alternative in CATALOGUE:
        m = at_drafts(alternative, observed.distribution.p, observed.q)
        if alternative.leak is None:
            yield unit_bettor(alternative.name, alternative.fault, payoffs(m, alternative.accept(split.p, split.q)))
        else:
            leaked = leak_payoffs(observed, alternative.leak, betting.table(observed.distribution, m))
            yield unit_bettor(alternative.name, alternative.fault, betting.partial_stake(leaked, stake))
    raw = observed.distribution.p if observed.q_raw is None else _emitted_distribution(split, accepts_raw_ratio(observed))
    yield unit_bettor(RATIO_OF_RAW, Fault.RULE, payoffs(raw, fault_models.ratio(split.p, split.q)))


def window_bettors(observed: Observed) -> Iterator[Bettor]:
    """Yield the bettor on one random number for a whole window.

    A server with this fault accepts all drafts of a verify step by one number. The remainder is split by the draft's preference. Yields
    nothing without a draft distribution.
    """
    if observed.q is None:
        return
    split = SplitRemainder.of(observed.distribution.p, observed.q).spread()
    accept = fault_models.accepts_once(split, observed)
    stake = observed.slot_chances.draft * observed.drafted
    paid = _refined_payoffs(observed, _emitted_distribution(split, accept, 4), 2.0 * excess_stake(split, accept, 4))
    yield unit_bettor(ReusedNumber.WINDOW.value, Fault.ORDER, betting.partial_stake(paid, stake))


def _refined_payoffs(observed: Observed, m: Floats, stake: Floats) -> Floats:
    """Return the log payoffs [N] of ``m``, refined in the remainder.

    They are capped at the largest payoff that jumps allow. ``stake`` is that of :func:`refine_remainder`.
    """
    most = jumps.log_largest(observed.distribution.jump_rate)
    return np.minimum(betting.bet(observed.distribution, m) + refine_remainder(observed, stake), most)


def _emitted_distribution(split: SplitRemainder, accept: Floats, parts: int = 2) -> Floats:
    """Return the emitted tokens' distribution for acceptance by ``accept``.

    It is [N, K+1]; rejected tokens are replaced correctly. The remainder of ``split`` and ``accept`` has ``parts`` pieces.
    """
    return merge_remainder(fault_models.verified_distribution(split.q, accept, fault_models.residual(split.p, split.q)), parts)


def _generic_bettors(observed: Observed) -> Iterator[Bettor]:
    """Yield bettors on faults at any token, which need no draft distribution.

    They are on wrong or ignored sampling parameters, improbable tokens and tokens cut off by the parameters.
    """
    for alternative in GENERIC:
        m = alternative.distribution(observed.distribution.p, observed.distribution.p)
        yield unit_bettor(alternative.name, alternative.fault, betting.bet(observed.distribution, m))
    yield unit_bettor(PARAMS_IGNORED, Fault.TEMPERATURE, betting.raw_payoffs(observed.distribution))
    for share in (0.005, 0.1, 0.4):
        yield unit_bettor(f"{share:.1%} drawn evenly", Fault.IMPROBABLE, betting.pointwise(observed.distribution, share, observed.size))
    paid = betting.at_outcome(observed.distribution.narrower_payoffs, observed.distribution)
    yield unit_bettor(TOP_P_SQUARED, Fault.TEMPERATURE, paid)
    for share, name in OUTSIDE.items():
        yield unit_bettor(name, Fault.TEMPERATURE, betting.violations(observed.distribution, share))


def _order_bettors(observed: Observed, slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield bettors on emitted tokens depending on their token ids.

    Random numbers used twice cause it. Each bets on late ids or on early ones, by ``theta`` (fault_models.id_order); those on one way of
    using a number twice need the draft's distribution.
    """
    for theta in (-0.9, -0.3, -0.1, 0.1, 0.3, 0.9):
        direction = "late" if theta > 0 else "early"
        yield unit_bettor(
            f"{direction} token ids by {abs(theta):g}",
            Fault.ORDER,
            betting.bet(observed.distribution, fault_models.id_order(observed.distribution.p, observed.ids, theta)),
        )
    if observed.q is not None:
        for reuse, distribution in REUSED.items():
            m = distribution(observed.distribution.p, observed.q, observed.ids, observed.size)
            yield unit_bettor(
                reuse, Fault.ORDER, betting.partial_stake(betting.bet(observed.distribution, m), slot_chances.draft * observed.drafted)
            )


def _bonus_bettors(observed: Observed, slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield bettors on faults at bonus slots only.

    If windows are unknown but q is known, the stake at each token is the probability of a bonus slot. Yields nothing if both are unknown.
    """
    if not observed.slots_known:
        return
    p = observed.distribution.p
    for alternative in BONUS:
        if observed.q is None and alternative.draft:
            continue
        q = p if observed.q is None else observed.q
        chance = slot_chances.bonus * observed.drafted if alternative.draft else slot_chances.bonus
        yield unit_bettor(
            alternative.name,
            alternative.fault,
            betting.partial_stake(betting.bet(observed.distribution, alternative.distribution(p, q)), chance),
        )
    if observed.q is not None:
        yield unit_bettor(
            PARAMS_IGNORED + AT_THE_BONUS,
            Fault.BONUS,
            betting.partial_stake(betting.raw_payoffs(observed.distribution), slot_chances.bonus),
            variation_of=(PARAMS_IGNORED,),
        )


def _bonus_at_large(observed: Observed, generic: Iterable[Bettor], slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield the ``generic`` bettors again, betting at bonus slots only.

    They are for an unknown draft distribution; with a known one the bonus has bettors of its own. Yields nothing if slots are unknown.
    """
    if not observed.slots_known:
        return
    for bettor in generic:
        paid = betting.partial_stake(bettor.log_payoffs, slot_chances.bonus)
        yield unit_bettor(bettor.name + AT_THE_BONUS, Fault.BONUS, paid, variation_of=(bettor.name,))


def _state_bettors(observed: Observed, generic: Iterable[Bettor], slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield the ``generic`` bettors again, betting after rejections only.

    There are two for each, since a stale cache entry is overwritten by the next step or stays for the rest of the answer.
    """
    if not observed.slots_known:
        return
    for bettor in generic:
        for stretch in Stretch:
            paid = betting.partial_stake(bettor.log_payoffs, _stake_on(stretch, slot_chances))
            on_state = unit_bettor(f"{bettor.name} {stretch.value}", Fault.STATE, paid, variation_of=(bettor.name,))
            yield replace(on_state, stretch=stretch)


def _stake_on(stretch: Stretch, slot_chances: SlotChances) -> Floats:
    """Return the probabilities [N] that a token is of a stretch."""
    return slot_chances.after_rejection if stretch is Stretch.AFTER_REJECTION else slot_chances.rejected_before


def _answer_bettors(observed: Observed) -> Iterator[Bettor]:
    """Yield bettors on whole answers: on ends, repeated answers and penalties."""
    # A bettor without inputs does not bet, but keeps its share: more bettors after a run is continued would be another bet.
    nothing, distribution = np.zeros(observed.tokens), observed.distribution
    for factor in HAZARDS:
        paid = nothing if observed.ends is None else betting.bet(distribution, scale_end_odds(distribution.p, observed.ends, factor))
        yield unit_bettor(f"end of sequence {factor:g} times as probable", Fault.ENDING, paid)
    paid = nothing if observed.copies is None else betting.bet(observed.distribution, observed.copies)
    yield unit_bettor("an answer given again", Fault.DEPENDENCE, paid)
    for name, m in observed.mishandled.items():
        yield unit_bettor(name, Fault.PENALTIES, betting.bet(observed.distribution, m))
