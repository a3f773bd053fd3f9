from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats.betting import Bettor
from pytest_specdec.stats.control_difference import Earnings, counterpart, difference, least_score
from pytest_specdec.stats.fault_models import Fault


def earned(random, answers, mean, *, tokens=40, together=0.0):
    lengths = random.integers(tokens // 2, tokens, size=answers)
    paid = np.concatenate([mean + together * random.normal() + 0.3 * random.normal(size=length) for length in lengths])
    paid = np.log(np.maximum(1.0 + paid, 0.05))
    last = np.zeros(len(paid), dtype=np.bool_)
    last[lengths.cumsum() - 1] = True
    return Earnings(log_payoffs=paid, last=last)


def test_a_bias_that_both_arms_share_cancels():
    random = np.random.default_rng(1)
    scores = [difference(earned(random, 40, 0.2), earned(random, 40, 0.2)).score for _ in range(300)]
    assert abs(np.mean(scores)) < 0.2
    assert np.std(scores) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("together", [0.0, 0.2])
def test_the_error_is_right_where_tokens_of_an_answer_hang_together(together):
    random = np.random.default_rng(2)
    p_values = [
        difference(earned(random, 30, 0.0, together=together), earned(random, 30, 0.0, together=together)).p_value for _ in range(600)
    ]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.027)


def test_a_fault_of_one_arm_stands_out():
    random = np.random.default_rng(3)
    found = difference(earned(random, 40, 0.05), earned(random, 40, -0.01))
    assert (found.answers, found.score > 4.0, found.p_value < 1e-4) == (80, True, True)


def test_one_answer_has_no_spread():
    random = np.random.default_rng(4)
    assert difference(earned(random, 1, 5.0), earned(random, 9, 0.0)).score == 0.0


def test_tokens_without_a_bet_are_not_counted():
    random = np.random.default_rng(5)
    everywhere = earned(random, 40, 0.1)
    here = random.integers(4, size=len(everywhere.last)) == 0
    some = Earnings(log_payoffs=np.where(here, everywhere.log_payoffs, 0.0), last=everywhere.last)
    assert abs(difference(some, everywhere).score) < 3.0


def test_nothing_bet_is_no_difference():
    still = Earnings(log_payoffs=np.zeros(4), last=np.array([False, True, False, True]))
    assert difference(still, still).score == 0.0


def test_a_copy_for_some_places_is_held_against_its_original():
    seats = tuple(
        Bettor(name=name, fault=Fault.IMPROBABLE, weight=1.0, log_payoffs=np.zeros(1)) for name in ("2% greedy", "2% greedy more", "x")
    )
    wins = Bettor(name="2% greedy at the bonus", fault=Fault.IMPROBABLE, weight=1.0, log_payoffs=np.zeros(1))
    assert counterpart(wins, seats) is seats[0]
    assert counterpart(Bettor(name="accept-all", fault=Fault.IMPROBABLE, weight=1.0, log_payoffs=np.zeros(1)), seats) is None


def test_more_is_needed_against_a_control_that_speaks_against_its_own_scores():
    assert least_score(0.0) < least_score(np.log(10.0)) == least_score(50.0)
