"""The panel: which bettors sit at the table, on which tokens each bets, and how the starting wealth is shared out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats import alternatives, betting, learned, reused
from pytest_specdec.stats.alternatives import BONUS, CATALOGUE, GENERIC, Alternative, Fault
from pytest_specdec.stats.betting import Bettor
from pytest_specdec.stats.chances import Chances, chances
from pytest_specdec.stats.drafts import Split, favourite, hidden_bonus, merged, overlap
from pytest_specdec.stats.draws import Reuse
from pytest_specdec.stats.duplicates import HAZARDS, hazard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_specdec.stats.laws import Bools, Floats, Ints, Law
    from pytest_specdec.stats.places import Places

__all__ = ["RATIO_UNASKED", "Observed", "accepts_unasked", "bettors", "catalogue_tables", "chance_of", "dues"]

WIDEST_VOCABULARY = 2**18
"""Taken for the vocabulary's size where it is unknown: a size that is too large costs power and never validity."""
SURROGATE = " of the baseline's favourite"
UNASKED = "temperature, top-k and top-p ignored"
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
    "catalogue": 0.43,
    "surrogate": 0.04,
    "generic": 0.17,
    "order": 0.08,
    "bonus": 0.09,
    "bonus at large": 0.04,
    "state": 0.10,
    "answers": 0.05,
}
WITHOUT_DRAFT_LAW = {
    "surrogate": 0.29,
    "generic": 0.165,
    "order": 0.105,
    "bonus": 0.08,
    "bonus at large": 0.07,
    "state": 0.12,
    "learned": 0.13,
    "answers": 0.04,
}
"""Shares of the starting wealth by group (facts/statistics.md section 2), equal within a group; a group without seats is left out.

Who sits at the table is settled by the set-up (a draft law, windows), never by what was emitted: a panel chosen afterwards would be no bet.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """N emitted tokens with everything that was known before each of them."""

    law: Law
    ids: Ints
    """[N, K], the atoms' token ids."""
    q: Floats | None
    """[N, K+1], the draft's law on the same outcomes; None where it is not known at all."""
    drafted: Bools
    """[N], where ``q`` is known and there was a draft, or would be if a window began here."""
    places: Places
    k: int
    """Draft tokens per verify step."""
    kept: Floats | None = None
    """[N], ``min(1, q(x)/p(x))`` of the emitted token: the chance that a correct server had accepted it as a draft; None with ``q``."""
    listed: Bools | None = None
    """[N, K+1], outcomes at which ``q`` is exact; None with ``q``."""
    q_unasked: Floats | None = None
    """[N, K+1], the draft's law where nothing that the request asks for is done; None with ``q``."""
    vocabulary: int = 0
    """0 where unknown."""
    previous: Ints | None = None
    """[N], the token id before each, -1 for an answer's first; None where the order of tokens tells nothing."""
    contexts: Ints | None = None
    """[N], the same number where prompt and answer so far are the same; None with ``previous``."""
    fresh: Bools | None = None
    """[N], where the answer is a draw of its own: one to a seed that comes again may repeat another; None with ``previous``."""
    ends: Bools | None = None
    """[N, K+1], outcomes that end an answer; None where they are not known."""
    copies: Floats | None = None
    """[N, K+1], the law of a server that may give an earlier answer to the same prompt again; None where no prompt comes twice."""
    mishandled: Mapping[str, Floats] = field(default_factory=dict)
    """Laws [N, K+1] of a server that ignores penalties and biases or applies them twice, by name; empty where none are asked for."""

    @property
    def tokens(self) -> int:
        """How many."""
        return len(self.law.outcome)

    @property
    def stands(self) -> Chances:
        """Where in their windows the tokens stand, as far as windows or the draft's law tell."""
        return chances(self.places, self.kept, self.drafted, self.k)

    @property
    def slots_told(self) -> bool:
        """Whether anything tells where tokens stand."""
        return self.q is not None or bool(self.places.known.any())

    @property
    def size(self) -> int:
        """The vocabulary's size, or what is taken for it."""
        return max(self.vocabulary or WIDEST_VOCABULARY, int(self.ids.shape[1]) + 1)


def bettors(observed: Observed) -> tuple[Bettor, ...]:
    """Return everybody who bets on ``observed``, weights not yet scaled."""
    shares = WITHOUT_DRAFT_LAW if observed.q is None else WITH_DRAFT_LAW
    generic, stands = tuple(_generic(observed)), observed.stands
    groups = {
        "catalogue": tuple(_catalogue(observed)),
        "surrogate": tuple(_surrogate(observed, stands)),
        "generic": generic,
        "order": tuple(_order(observed, stands)),
        "bonus": tuple(_bonus(observed, stands)),
        "bonus at large": tuple(_bonus_at_large(observed, generic, stands)),
        "state": tuple(_state(observed, generic, stands)),
        "learned": tuple(_learned(observed)),
        "answers": tuple(_answers(observed)),
    }
    return tuple(replace(bettor, weight=shares[name] / len(group)) for name, group in groups.items() for bettor in group)


def catalogue_tables(observed: Observed) -> Iterator[tuple[Alternative, Floats, Floats]]:
    """Yield every fault of the catalogue with its law and its bettor's log payoffs, both [N, K+1]; none without a draft law."""
    if observed.q is None:
        return
    p, share = observed.law.p, (observed.stands.draft * observed.drafted)[:, None]
    for one in CATALOGUE:
        m = _at_drafts(one, p, observed.q)
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


def _at_drafts(one: Alternative, p: Floats, q: Floats) -> Floats:
    split = Split.of(p, q)
    return merged(one.law(split.p, split.q))


def _seated(name: str, fault: Fault, log_payoffs: Floats, *, guessed: bool = False) -> Bettor:
    return Bettor(name=name, fault=fault, weight=1.0, log_payoffs=log_payoffs, guessed=guessed)


def _bet(observed: Observed, m: Floats) -> Floats:
    return betting.at_outcome(betting.table(observed.law, m), observed.law)


def _catalogue(observed: Observed) -> Iterator[Bettor]:
    if observed.q is None:
        return
    for one, _, table in catalogue_tables(observed):
        yield _seated(one.name, one.fault, betting.at_outcome(table, observed.law))
    split = Split.of(observed.law.p, observed.q)
    unasked = observed.law.p if observed.q_unasked is None else _ruled(split, accepts_unasked(observed))
    share = observed.stands.draft * observed.drafted
    yield _seated(RATIO_UNASKED, Fault.RULE, betting.weighed(_bet(observed, unasked), share))


def _ruled(split: Split, accept: Floats) -> Floats:
    """Return the law [N, K+1] of a server that accepts with chances ``accept`` [N, K+2] and recovers rightly."""
    return merged(alternatives.verified(split.q, accept, alternatives.residual(split.p, split.q)))


def _surrogate(observed: Observed, stands: Chances) -> Iterator[Bettor]:
    """Bet as if the drafter always proposed the baseline's best token: the best single guess at a greedy drafter whose law is unknown."""
    p = observed.law.p
    q = favourite(p)
    guess = 1.0 - hidden_bonus(overlap(p, q), observed.k, np.ones(len(p), dtype=np.bool_))
    share = np.where(observed.places.known | (observed.kept is not None), stands.draft, guess)
    for one in CATALOGUE:
        paid = betting.weighed(_bet(observed, _at_drafts(one, p, q)), share)
        yield _seated(one.name + SURROGATE, one.fault, paid, guessed=True)


def _generic(observed: Observed) -> Iterator[Bettor]:
    for one in GENERIC:
        yield _seated(one.name, one.fault, _bet(observed, one.law(observed.law.p, observed.law.p)))
    yield _seated(UNASKED, Fault.TEMPERATURE, betting.unasked(observed.law))
    for share in (0.005, 0.1, 0.4):
        yield _seated(f"{share:.1%} drawn evenly", Fault.TAIL, betting.pointwise(observed.law, share, observed.size))
    for share in (0.001, 0.01, 0.1):
        name = f"{share:.1%} outside what temperature, top-k and top-p leave"
        yield _seated(name, Fault.TEMPERATURE, betting.violations(observed.law, share))


def _order(observed: Observed, stands: Chances) -> Iterator[Bettor]:
    for theta in (-0.9, -0.3, -0.1, 0.1, 0.3, 0.9):
        words = "late" if theta > 0 else "early"
        yield _seated(
            f"{words} token ids by {abs(theta):g}", Fault.ORDER, _bet(observed, alternatives.id_order(observed.law.p, observed.ids, theta))
        )
    if observed.q is not None:
        for reuse, law in REUSED.items():
            m = law(observed.law.p, observed.q, observed.ids, observed.size)
            yield _seated(reuse, Fault.ORDER, betting.weighed(_bet(observed, m), stands.draft * observed.drafted))


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
        yield _seated(one.name, one.fault, betting.weighed(_bet(observed, one.law(p, q)), chance))


def _bonus_at_large(observed: Observed, generic: Iterable[Bettor], stands: Chances) -> Iterator[Bettor]:
    if not observed.slots_told:
        return
    for one in generic:
        yield _seated(one.name + " at the bonus", Fault.BONUS, betting.weighed(one.log_payoffs, stands.bonus))


def _state(observed: Observed, generic: Iterable[Bettor], stands: Chances) -> Iterator[Bettor]:
    """Bet behind rejections only: a stale cache entry may be overwritten by the next step, or stay for the rest of the answer."""
    if not observed.slots_told:
        return
    for one in generic:
        for words, chance in STATEWISE:
            yield _seated(one.name + words, Fault.STATE, betting.weighed(one.log_payoffs, chance(stands)))


def _learned(observed: Observed) -> Iterator[Bettor]:
    """Bet on what earlier tokens tell of a drafter whose law is not known; with the law there is nothing to learn."""
    if observed.q is None and observed.previous is not None:
        own = np.ones(observed.tokens, dtype=np.bool_) if observed.fresh is None else observed.fresh
        for one in learned.log_payoffs(observed, contexts=observed.contexts, previous=observed.previous):
            yield replace(one, log_payoffs=np.where(own, one.log_payoffs, 0.0))


def _answers(observed: Observed) -> Iterator[Bettor]:
    """Bet on what hangs on the answer so far: when it ends, whether it is an earlier answer again, what is counted of its tokens."""
    # Who knows nothing keeps the stake: a panel that grew when a run is continued would be another bet.
    nothing = np.zeros(observed.tokens)
    for factor in HAZARDS:
        paid = nothing if observed.ends is None else _bet(observed, hazard(observed.law.p, observed.ends, factor))
        yield _seated(f"end of sequence {factor:g} times as probable", Fault.ENDING, paid)
    paid = nothing if observed.copies is None else _bet(observed, observed.copies)
    yield _seated("an answer given again", Fault.DEPENDENCE, paid)
    for name, m in observed.mishandled.items():
        yield _seated(name, Fault.PENALTIES, _bet(observed, m))
