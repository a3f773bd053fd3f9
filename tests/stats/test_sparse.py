"""Bets on faults in some answers: begun anew at each, valid after every token, and sooner than bets on all of them."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats import bettors
from pytest_specdec.stats.betting import unweighted
from pytest_specdec.stats.fault_models import Fault


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
    found = list(bettors.sparse_bettors([unweighted("some", Fault.RULE, np.log(payoffs))], last))
    assert [one.chance for one in found] == list(bettors.FAULTY_SHARES)
    for one in found:
        assert np.exp(one.log_payoffs.cumsum()) == pytest.approx(held(payoffs, last, one.chance))


def test_every_token_pays_one_in_the_mean_given_those_before():
    """After any prefix, in the middle of an answer as at its head: a fair bet stays fair."""
    random = np.random.default_rng(4)
    for _ in range(50):
        before, last = random.uniform(0.2, 3.0, size=9), np.append(random.random(9) < 0.3, True)
        p = random.dirichlet(np.ones(4))
        payoffs = random.dirichlet(np.ones(4)) / p
        after = [
            next(iter(bettors.sparse_bettors([unweighted("some", Fault.RULE, np.log([*before, paid]))], last))).log_payoffs[-1]
            for paid in payoffs
        ]
        assert p @ np.exp(after) == pytest.approx(1.0)


def test_a_fault_in_one_answer_of_eight_shows_to_who_begins_anew():
    random = np.random.default_rng(7)
    last = np.arange(64 * 32) % 64 == 63
    faulty = np.repeat(np.arange(32) % 8 == 0, 64)
    # A bet that gains .15 nats a token under its fault and loses .15 where there is none.
    steps = np.where(faulty, 0.15, -0.15) + 0.5 * random.normal(size=len(last))
    bettor = unweighted("accept-all", Fault.LENIENT, steps)
    assert bettor.log_wealth < -100.0
    assert max(one.log_wealth for one in bettors.sparse_bettors([bettor], last)) > 5.0
