"""The panel of bettors: on a guessed draft, and on faults in some answers only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.detection.faults import RULES
from benchmarks.simulation import RIGHT, simulate
from pytest_specdec.stats.betting import unit_bettor, wealth_process
from pytest_specdec.stats.bettors import (
    AT_THE_BONUS,
    DRAWN,
    PARAMS_IGNORED,
    SPARSE,
    SURROGATE,
    WITH_DRAFT_DISTRIBUTION,
    WITHOUT_DRAFT_DISTRIBUTION,
    bettors,
    surrogate_bettors,
)
from pytest_specdec.stats.draft_distribution import bonus_chance, one_hot
from pytest_specdec.stats.fault_models import CATALOGUE, Fault
from pytest_specdec.stats.sparse_bettors import FAULTY_FRACTIONS, sparse_bettors

BANK = zipf(np.random.default_rng(1), positions=12, vocabulary=64, top_tokens=8)
LN = np.log


def drawn(rules=RIGHT, *, bank=BANK, seed=0, answers=24, windows=True, known=False):
    seen = simulate(bank, rules, np.random.default_rng(seed), runs=1, answers=answers, tokens=16, k=3, windows=windows)
    return seen if known else replace(seen, q=None, accepted_if_emitted=None, listed=None, drafted=np.zeros(seen.tokens, dtype=bool))


def with_every_outcome(seen, at):
    """The same tokens, the one ``at`` being each outcome in turn."""
    here = np.arange(seen.tokens) == at
    return [
        replace(seen, distribution=replace(seen.distribution, outcome=np.where(here, one, seen.distribution.outcome)))
        for one in range(seen.distribution.p.shape[1])
    ]


def seats(seen):
    return tuple(surrogate_bettors(seen, seen.slot_chances))


@pytest.mark.parametrize("windows", [True, False])
def test_whatever_is_guessed_the_mean_payoff_is_one(windows):
    seen = drawn(windows=windows)
    seen = replace(seen, distribution=replace(seen.distribution, noise=0.0))
    at = int(np.flatnonzero(seen.slots.draft_slot | ~seen.slots.known)[20])
    paid = np.exp([[seat.log_payoffs[at] for seat in seats(one)] for one in with_every_outcome(seen, at)])
    assert seen.distribution.p[at] @ paid == pytest.approx(np.ones(paid.shape[1]))
    assert (paid.std(axis=0) > 1e-3).mean() > 0.8


def test_a_draft_that_nobody_knows_is_one_that_the_baseline_would_draw():
    """Recovering from p: of all tokens d that may have been drafted, d is accepted with p(d), else any is drawn from p."""
    seen = drawn()
    seen = replace(seen, distribution=replace(seen.distribution, noise=0.0))
    at = int(np.flatnonzero(seen.slots.draft_slot)[20])
    p = seen.distribution.p[at]
    m = p[-1] * p
    for d in range(len(p) - 1):
        m += p[d] * (p[d] * one_hot(np.array([d]), len(p))[0] + (1.0 - p[d]) * p)
    paid = [
        {seat.name: seat.log_payoffs[at] for seat in surrogate_bettors(one, one.slot_chances)}["resample from p" + DRAWN]
        for one in with_every_outcome(seen, at)
    ]
    assert np.exp(paid) == pytest.approx(0.05 + 0.95 * m / p)


def test_where_windows_are_hidden_the_guess_says_how_often_a_draft_stands_there():
    told, hidden = drawn(), drawn(windows=False)
    here, p = told.slots.draft_slot, told.distribution.p
    paid = [{one.name: np.exp(one.log_payoffs[here]) for one in surrogate_bettors(seen, seen.slot_chances)} for seen in (told, hidden)]
    for words, beta in ((DRAWN, (p**2).sum(axis=1)), (SURROGATE, p[:, :-1].max(axis=1))):
        known, guessed = (each["resample from p" + words] for each in paid)
        share = 1.0 - bonus_chance(beta, told.k)[here]
        assert guessed == pytest.approx(1.0 + share * (known - 1.0))


def test_who_sits_there_is_settled_by_what_is_known_of_the_draft():
    unknown = drawn()
    names = {seat.name for seat in bettors(unknown)}
    for one in CATALOGUE:
        assert {one.name + SURROGATE, one.name + DRAWN} <= names
    large = {seat.name for seat in bettors(drawn(known=True)) if seat.guessed or seat.name.endswith(AT_THE_BONUS)}
    assert large == {PARAMS_IGNORED + AT_THE_BONUS}, "what is ignored at the bonus alone shows to nobody else"
    assert all(seat.guessed for seat in seats(unknown))


@pytest.mark.parametrize("known, shares", [(True, WITH_DRAFT_DISTRIBUTION), (False, WITHOUT_DRAFT_DISTRIBUTION)])
def test_the_stakes_of_the_groups_add_up_to_one(known, shares):
    seen = drawn(known=known)
    if not known:
        seen = replace(seen, previous=np.zeros(seen.tokens, dtype=np.int64), contexts=np.arange(seen.tokens))
    seats = bettors(seen)
    everywhere = sum(seat.weight for seat in seats if not seat.faulty_fraction)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert everywhere == pytest.approx(1.0), "no group is without seats here"
    assert everywhere / sum(seat.weight for seat in seats) == pytest.approx(1.0 - SPARSE)


def of_heads_favourites():
    """A bank whose drafter is certain of one token, drawn from p: often not the baseline's best."""
    random = np.random.default_rng(5)
    bank = zipf(random, positions=200, vocabulary=64, top_tokens=8)
    best = (bank.p.cumsum(axis=1) > random.random((200, 1))).argmax(axis=1)
    return replace(bank, q=one_hot(np.minimum(best, bank.p.shape[1] - 2), bank.p.shape[1]))


def test_a_head_that_errs_is_seen_sooner_than_by_the_baselines_favourite():
    seen = drawn(RULES["resample-from-p"], bank=of_heads_favourites(), answers=128)
    held = {
        words: max(seat.log_wealth for seat in surrogate_bettors(seen, seen.slot_chances) if seat.name.endswith(words))
        for words in (SURROGATE, DRAWN)
    }
    assert held[DRAWN] > LN(1000)
    assert held[DRAWN] > 1.5 * held[SURROGATE]


def test_correct_servers_do_not_alarm():
    high = []
    for seed in range(60):
        seen = drawn(seed=seed, answers=32)
        high.append(wealth_process(seats(seen)).peak)
    assert max(high) < LN(1000)
    assert np.mean(np.array(high) > LN(20)) <= 0.1


def held(payoffs, last, chance):
    """``prod_r (1 - pi + pi E_r)`` after every token, worked out answer by answer."""
    whole, inside, found = 1.0, 1.0, []
    for paid, end in zip(payoffs, last, strict=True):
        inside *= paid
        found.append(whole * (1.0 - chance + chance * inside))
        if end:
            whole, inside = found[-1], 1.0
    return found


def test_wealth_is_a_product_over_answers_of_a_stake_kept_and_one_bet():
    payoffs, last = np.array([2.0, 3.0, 0.5, 0.25, 4.0, 5.0]), np.array([False, True, False, False, True, False])
    found = list(sparse_bettors([unit_bettor("some", Fault.RULE, np.log(payoffs))], last))
    assert [one.faulty_fraction for one in found] == list(FAULTY_FRACTIONS)
    for one in found:
        assert np.exp(one.log_payoffs.cumsum()) == pytest.approx(held(payoffs, last, one.faulty_fraction))


def test_every_token_pays_one_in_the_mean_given_those_before():
    """After any prefix, in the middle of an answer as at its head: a fair bet stays fair."""
    random = np.random.default_rng(4)
    for _ in range(50):
        before, last = random.uniform(0.2, 3.0, size=9), np.append(random.random(9) < 0.3, True)
        p = random.dirichlet(np.ones(4))
        payoffs = random.dirichlet(np.ones(4)) / p
        after = [
            next(iter(sparse_bettors([unit_bettor("some", Fault.RULE, np.log([*before, paid]))], last))).log_payoffs[-1] for paid in payoffs
        ]
        assert p @ np.exp(after) == pytest.approx(1.0)


def test_a_fault_in_one_answer_of_eight_shows_to_who_begins_anew():
    random = np.random.default_rng(7)
    last = np.arange(64 * 32) % 64 == 63
    faulty = np.repeat(np.arange(32) % 8 == 0, 64)
    # A bet that gains .15 nats a token under its fault and loses .15 where there is none.
    steps = np.where(faulty, 0.15, -0.15) + 0.5 * random.normal(size=len(last))
    bettor = unit_bettor("accept-all", Fault.LENIENT, steps)
    assert bettor.log_wealth < -100.0
    assert max(one.log_wealth for one in sparse_bettors([bettor], last)) > 5.0
