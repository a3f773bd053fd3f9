"""The bettors: the faults that are bet on, the tokens of each bet, and the shares of the starting wealth.

A view m is the distribution that a bettor expects under its fault, in place of the correct p; q is the draft's. A slot is a token's place
in its verify step: a draft slot verifies a draft token, the bonus slot follows a draft accepted in full. A bet at some slots only is a
partial stake: its share of the wealth at a token is the probability that the token is at such a slot. Arrays are over N emitted tokens and
K top tokens with the remainder, all other tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import adaptive_bettors, betting, fault_models, reused_numbers
from pytest_specdec.stats.betting import Bettor, Stretch, unit_bettor
from pytest_specdec.stats.draft_distribution import SplitRemainder, at_drafts, bonus_chance, favourite, merge_remainder, one_hot, overlap
from pytest_specdec.stats.duplicates import HAZARDS, scale_end_odds
from pytest_specdec.stats.fault_models import BONUS, CATALOGUE, GENERIC, Alternative, Fault
from pytest_specdec.stats.remainder_bets import excess_stake, leak_payoffs, refined_payoffs
from pytest_specdec.stats.reused_numbers import ReusedNumber
from pytest_specdec.stats.sparse_bettors import sparse_bettors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_specdec.stats.token_distribution import Floats
    from pytest_specdec.stats.verify_slots import Observed, SlotChances

__all__ = [
    "OUTSIDE",
    "PARAMS_IGNORED",
    "RATIO_OF_RAW",
    "TOP_P_SQUARED",
    "accepts_raw_ratio",
    "bettors",
    "catalogue_tables",
    "expected_payoffs",
    "state_stake",
    "surrogate_bettors",
    "window_bettors",
]

SURROGATE = " of the baseline's favourite"
DRAWN = " of a token as the baseline draws it"


def surrogate_bettors(observed: Observed, slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield bettors on faults at guessed drafts of an unknown drafter.

    Two guesses are bet on. A draft is the baseline's best token, as of a greedy drafter that mostly agrees with the baseline; or it is a
    token drawn from p, as of one that is often wrong. ``slot_chances`` are those of ``observed``.
    """
    p = observed.distribution.p
    best = favourite(p)
    # The overlap sum min(p, q) is the probability that a correct server accepts a draft token.
    stake = _draft_slot_chances(observed, slot_chances, overlap(p, best))
    yield from _guessed_catalogue(observed, SURROGATE, lambda alternative: at_drafts(alternative, p, best), stake)
    # A draft token x is accepted with probability p(x), as q(x) is 1; with x drawn from p that is sum p^2 in the mean.
    stake = _draft_slot_chances(observed, slot_chances, np.asarray((p**2).sum(axis=1)))
    distinct, rows = np.unique(p, axis=0, return_inverse=True)  # a distribution that comes again is worked out once
    yield from _guessed_catalogue(observed, DRAWN, lambda alternative: _at_any_draft(alternative, distinct)[rows.reshape(-1)], stake)


def _guessed_catalogue(observed: Observed, suffix: str, view: Callable[[Alternative], Floats], stake: Floats) -> Iterator[Bettor]:
    """Yield a bettor for every fault of CATALOGUE, with guessed drafts.

    ``view`` returns a fault's view m [N, K+1] for these drafts, and ``stake`` [N] is the probability of a draft slot. ``suffix`` says in
    the bettors' names how the drafts are guessed.
    """
    for alternative in CATALOGUE:
        paid = betting.partial_stake(betting.bet(observed.distribution, view(alternative)), stake)
        yield unit_bettor(alternative.name + suffix, alternative.fault, paid, guessed=True, variation_of=(alternative.name,))


def _at_any_draft(alternative: Alternative, p: Floats) -> Floats:
    """Return a fault's distribution [N, K+1] for a random greedy draft.

    The draft is certain of one token, drawn from ``p`` [N, K+1]: the result is the mean of the fault's distributions over these drafts. A
    draft in the remainder changes nothing, since its token is unknown.
    """
    # A fault's function takes p over K+2 outcomes, the remainder in two pieces. Every draft in the top tokens gives the same pieces, so
    # that they are taken from one that is certain of the first.
    split_p = SplitRemainder.of(p, one_hot(np.zeros(len(p), dtype=np.int64), p.shape[1])).p
    mixed = np.zeros_like(split_p)
    certain_drafts = np.eye(p.shape[1] - 1, split_p.shape[1])  # a row for each top token
    for top_token, q in enumerate(certain_drafts):
        mixed += p[:, top_token : top_token + 1] * alternative.distribution(split_p, np.broadcast_to(q, split_p.shape))
    return np.asarray(p[:, -1:] * p + merge_remainder(mixed))


def _draft_slot_chances(observed: Observed, slot_chances: SlotChances, beta: Floats) -> Floats:
    """Return the probability [N] that each token is at a draft slot.

    It is that of ``slot_chances`` for tokens of known windows, and for all tokens if the draft's distribution is known. Otherwise it is
    guessed from ``beta`` [N], the probability that a draft token is accepted there.
    """
    # The chances of acceptance are computed from the draft's distribution, and are None without it.
    has_draft_distribution = observed.accepted_if_emitted is not None
    # The last of k + 1 slots is the bonus. A step gets to it with probability beta^k, by k accepted draft tokens.
    guess = 1.0 - bonus_chance(beta, observed.k)
    return np.where(observed.slots.known | has_draft_distribution, slot_chances.draft, guess)


PARAMS_IGNORED = "temperature, top-k and top-p ignored"
TOP_P_SQUARED = "top_p squared"
OUTSIDE = {share: f"{share:.1%} outside what temperature, top-k and top-p leave" for share in (0.001, 0.01, 0.1)}
"""Names of the bettors on cut-off tokens, by their share of the tokens."""
AT_THE_BONUS = " at the bonus"
RATIO_OF_RAW = "ratio without temperature, top-k and top-p"
REUSED = {
    ReusedNumber.DRAFT.value: reused_numbers.decided_by_the_draft,
    ReusedNumber.RECOVERY.value: reused_numbers.recovered_by_the_rejection,
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
    """Return all bettors on ``observed``, with their weights.

    A weight is a bettor's share of the starting wealth. The draft's distribution, if known, decides the groups of bettors on all answers
    and their shares; within a group they are equal. The sparse bettors, on some answers only, repeat those of the groups in SOMETIMES and
    are scaled to the share SPARSE of all weights. An empty group leaves its share to all others: only ratios of weights count
    (:func:`betting.wealth_process`).
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
        "bonus at large": tuple(_generic_at_bonus(observed, generic, slot_chances)),
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
    """Return the mean log payoffs [N] of ``bettor`` under its own fault.

    None unless it is, by its name, the bettor on a fault of CATALOGUE or GENERIC at all answers. None also for a fault of CATALOGUE without
    a draft distribution.
    """
    # One fault at most has this name.
    for _, distribution, table in catalogue_tables(observed, (alternative for alternative in CATALOGUE if alternative.name == bettor.name)):
        return np.asarray((distribution * table).sum(axis=1))
    for alternative in GENERIC:
        if alternative.name == bettor.name:
            # These faults do not depend on q: p stands in for it.
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

    A leak emits a rejected draft token all the same: it is bet on by the emitted token's own q over p. Other faults are bet on by a view on
    outcomes, together with a bet on single tokens of the remainder, larger the more the fault wrongly accepts (``excess_stake``). The last
    bettor is for a server that accepts by the ratio of raw distributions, before sampling parameters; its view is p, which is no bet, if
    the draft's is unknown. Yields nothing without a draft distribution.
    """
    if observed.q is None:
        return
    split = SplitRemainder.of(observed.distribution.p, observed.q)
    at_draft_slot = observed.slot_chances.draft * observed.drafted
    for alternative in CATALOGUE:
        m = at_drafts(alternative, observed.distribution.p, observed.q)
        if alternative.leak is None:
            stake_in_remainder = excess_stake(split, alternative.accept(split.p, split.q))
            paid = refined_payoffs(observed, m, stake_in_remainder)
        else:
            paid = leak_payoffs(observed, alternative.leak, betting.table(observed.distribution, m))
        yield unit_bettor(alternative.name, alternative.fault, betting.partial_stake(paid, at_draft_slot))
    m = observed.distribution.p if observed.q_raw is None else _emitted_distribution(split, accepts_raw_ratio(observed))
    # The stake is that of the correct rule, 0: nothing is staked on single tokens of the remainder.
    paid = refined_payoffs(observed, m, excess_stake(split, fault_models.ratio(split.p, split.q)))
    yield unit_bettor(RATIO_OF_RAW, Fault.RULE, betting.partial_stake(paid, at_draft_slot))


def window_bettors(observed: Observed) -> Iterator[Bettor]:
    """Yield the bettor on one random number for a whole window.

    A server with this fault accepts all drafts of a verify step by one number: too many of them, since each accepted one shows that the
    number is small. Yields nothing without a draft distribution.
    """
    if observed.q is None:
        return
    # Pieces of the remainder, of different ratios p/q: the token that the draft is certain of, and three parts of all others.
    pieces = 4
    split = SplitRemainder.of(observed.distribution.p, observed.q).spread()
    accept = reused_numbers.accepts_once(split, observed)
    # ``excess_stake`` is half of what is wrongly accepted; this bettor stakes all of it.
    paid = refined_payoffs(observed, _emitted_distribution(split, accept, pieces), 2.0 * excess_stake(split, accept, pieces))
    at_draft_slot = observed.slot_chances.draft * observed.drafted
    yield unit_bettor(ReusedNumber.WINDOW.value, Fault.ORDER, betting.partial_stake(paid, at_draft_slot))


def _emitted_distribution(split: SplitRemainder, accept: Floats, parts: int = 2) -> Floats:
    """Return the emitted tokens' distribution for acceptance by ``accept``.

    It is [N, K+1]; rejected tokens are replaced correctly. The remainder of ``split`` and ``accept`` has ``parts`` pieces.
    """
    return merge_remainder(fault_models.verified_distribution(split.q, accept, fault_models.residual(split.p, split.q)), parts)


def _generic_bettors(observed: Observed) -> Iterator[Bettor]:
    """Yield bettors on faults at any token, which need no draft distribution.

    They are on wrong sampling parameters, ignored ones, a share of tokens drawn evenly from the vocabulary, a nucleus of top_p squared,
    and a share of tokens that the parameters cut off.
    """
    distribution = observed.distribution
    for alternative in GENERIC:
        # These faults do not depend on q: p stands in for it.
        m = alternative.distribution(distribution.p, distribution.p)
        yield unit_bettor(alternative.name, alternative.fault, betting.bet(distribution, m))
    yield unit_bettor(PARAMS_IGNORED, Fault.TEMPERATURE, betting.raw_payoffs(distribution))
    for share in (0.005, 0.1, 0.4):
        paid = betting.pointwise(distribution, share, vocabulary=observed.size)
        yield unit_bettor(f"{share:.1%} drawn evenly", Fault.IMPROBABLE, paid)
    yield unit_bettor(TOP_P_SQUARED, Fault.TEMPERATURE, betting.at_outcome(distribution.narrower_payoffs, distribution))
    for cut_off_share, name in OUTSIDE.items():
        yield unit_bettor(name, Fault.TEMPERATURE, betting.violations(distribution, cut_off_share))


def _order_bettors(observed: Observed, slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield bettors on emitted tokens depending on their token ids.

    Random numbers used twice cause it in a server that draws tokens by inverse CDF, in the order of ids. The first bettors are on late ids
    or on early ones, by ``theta``, the strength of the tilt (reused_numbers.id_order). The others, of REUSED, are each on one way of using
    a number twice and need the draft's distribution.
    """
    for theta in (-0.9, -0.3, -0.1, 0.1, 0.3, 0.9):
        direction = "late" if theta > 0 else "early"
        m = reused_numbers.id_order(observed.distribution.p, observed.ids, theta)
        yield unit_bettor(f"{direction} token ids by {abs(theta):g}", Fault.ORDER, betting.bet(observed.distribution, m))
    if observed.q is not None:
        for reuse, distribution in REUSED.items():
            m = distribution(observed.distribution.p, observed.q, observed.ids, observed.size)
            paid = betting.partial_stake(betting.bet(observed.distribution, m), slot_chances.draft * observed.drafted)
            yield unit_bettor(reuse, Fault.ORDER, paid)


def _bonus_bettors(observed: Observed, slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield bettors on faults at bonus slots only.

    The stake at each token is the probability of a bonus slot. Yields nothing if no slots are known, from windows or from the draft's
    distribution q. Without q, faults that depend on it are left out, and ignored parameters are left to :func:`_generic_at_bonus`.
    """
    if not observed.slots_known:
        return
    p = observed.distribution.p
    for alternative in BONUS:
        if not alternative.draft:  # it does not depend on q, which p stands in for
            m, stake = alternative.distribution(p, p), slot_chances.bonus
        elif observed.q is not None:
            # ``drafted`` marks the tokens at which q is known: nothing is staked at others.
            m, stake = alternative.distribution(p, observed.q), slot_chances.bonus * observed.drafted
        else:
            continue
        paid = betting.partial_stake(betting.bet(observed.distribution, m), stake)
        yield unit_bettor(alternative.name, alternative.fault, paid)
    if observed.q is not None:
        paid = betting.partial_stake(betting.raw_payoffs(observed.distribution), slot_chances.bonus)
        yield unit_bettor(PARAMS_IGNORED + AT_THE_BONUS, Fault.BONUS, paid, variation_of=(PARAMS_IGNORED,))


def _generic_at_bonus(observed: Observed, generic: Iterable[Bettor], slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield the ``generic`` bettors again, betting at bonus slots only.

    The caller uses them only if the draft's distribution is unknown. The stake is the probability of a bonus slot, by ``slot_chances``,
    those of ``observed``. Yields nothing if slots are unknown.
    """
    if not observed.slots_known:
        return
    for bettor in generic:
        paid = betting.partial_stake(bettor.log_payoffs, slot_chances.bonus)
        yield unit_bettor(bettor.name + AT_THE_BONUS, Fault.BONUS, paid, variation_of=(bettor.name,))


def _state_bettors(observed: Observed, generic: Iterable[Bettor], slot_chances: SlotChances) -> Iterator[Bettor]:
    """Yield the ``generic`` bettors again, betting after rejections only.

    There are two for each, since a stale cache entry is overwritten by the next step or stays for the rest of the answer. Yields nothing if
    slots are unknown.
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
    """Yield bettors on whole answers: on ends, repeated answers and penalties.

    ``mishandled`` has the views of servers that ignore penalties or apply them twice, by name.
    """
    # A bettor without inputs does not bet, but keeps its share: more bettors after a run is continued would be another bet.
    nothing, distribution = np.zeros(observed.tokens), observed.distribution
    for factor in HAZARDS:
        paid = nothing if observed.ends is None else betting.bet(distribution, scale_end_odds(distribution.p, observed.ends, factor))
        yield unit_bettor(f"end of sequence {factor:g} times as probable", Fault.ENDING, paid)
    paid = nothing if observed.copies is None else betting.bet(observed.distribution, observed.copies)
    yield unit_bettor("an answer given again", Fault.DEPENDENCE, paid)
    for name, m in observed.mishandled.items():
        yield unit_bettor(name, Fault.PENALTIES, betting.bet(observed.distribution, m))
