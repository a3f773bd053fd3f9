from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.simulation import RIGHT, simulate
from pytest_specdec.stats import betting, jumps
from pytest_specdec.stats.betting import table
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, requested

RATE = 1e-3


def pair(seed=0, n=400, outcomes=6):
    """Distributions and views, some nearly equal, some far apart."""
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(outcomes, 0.3), n) + 1e-12
    p /= p.sum(axis=1, keepdims=True)
    m = p * np.exp(random.normal(size=p.shape) * random.uniform(0.0, 6.0, (n, 1)))
    return m / m.sum(axis=1, keepdims=True), p


def at_jumps(m, p, rate):
    return m / p * np.exp(jumps.least_favourable(m, p, np.full(len(p), rate)))


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1])
def test_the_mean_payoff_is_one_at_most_wherever_a_jump_goes(rate):
    m, p = pair()
    paid = at_jumps(m, p, rate)
    worst = (1.0 - rate) * (p * paid).sum(axis=1) + rate * paid.max(axis=1)
    assert worst == pytest.approx(1.0)
    assert (m / p).max() > 2.0 / rate**0.5  # uncapped bets would earn by jumps


def test_a_mild_bet_loses_next_to_nothing_and_a_wild_one_all_beyond_the_cap():
    p = np.array([[0.5, 0.49, 0.01], [1.0 - 1e-8 - 1e-9, 1e-8, 1e-9]])
    m = np.array([[0.6, 0.38, 0.02], [0.99, 0.009, 0.001]])
    paid = at_jumps(m, p, 1e-4)
    assert paid[0, :2] == pytest.approx((m / p)[0, :2], rel=2e-4)
    assert paid[0, 2] == pytest.approx(2.0, rel=0.02)
    assert paid[1, 1:].max() == pytest.approx(0.01 / 1e-4, rel=1e-3)


def certain_tokens(jump_rate, temperature=0.6):
    """Peaked distributions of which the least probable top token is emitted, as a jump would bring it."""
    p = np.array([[1.0 - 2e-9, 1e-9, 5e-10]])
    raw = RawDistribution(ids=np.array([[1, 2]]), logprobs=np.log(p[:, :2]), chosen=np.array([2]), chosen_logprobs=np.log(p[:, 1]))
    asked = Processing(temperature=np.array([temperature]), top_k=np.array([0]), top_p=np.array([1.0]))
    return requested(raw, asked, 0.0, jump_rate)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_one_impossible_token_pays_as_ever_without_jumps_and_a_hundredfold_with_them(temperature):
    exact, jumping = certain_tokens(0.0, temperature), certain_tokens(1e-4, temperature)
    view = np.array([[0.5, 0.5, 0.0]])
    for pay in (lambda one: betting.bet(one, view), lambda one: betting.pointwise(one, 0.4, 50_000), lambda one: raw(one, view)):
        assert pay(exact)[0] > np.log(1000.0)
        assert pay(jumping)[0] == pytest.approx(np.log(100.0))


def raw(distribution, view):
    return betting.raw_payoffs(replace(distribution, raw=view, chosen_raw=view[:, 1]))


@pytest.mark.parametrize("rank", [-2, -1])
def test_no_bettor_of_the_panel_is_paid_more_than_the_cap(rank):
    bank = zipf(np.random.default_rng(1), positions=40, vocabulary=4096, top_tokens=8)
    seen = simulate(bank, RIGHT, np.random.default_rng(2), runs=1, answers=8, tokens=16, k=3)
    rare = np.full(seen.tokens, seen.distribution.p.shape[1] + rank)
    seen = replace(seen, q_chosen=np.full(seen.tokens, 1e-3))
    distribution = replace(seen.distribution, outcome=rare, chosen_bound=np.full(seen.tokens, 1e-9), jump_rate=RATE)
    panel = [one for one in bettors(replace(seen, distribution=distribution)) if not one.faulty_fraction]
    assert max(one.log_payoffs.max() for one in panel) <= np.log(10.0) + 1e-9
    wild = bettors(replace(seen, distribution=replace(distribution, jump_rate=0.0)))
    assert max(one.log_payoffs.max() for one in wild) > np.log(100.0)


def test_a_jump_beyond_the_nucleus_counts_into_the_bound_of_violations():
    p = np.array([[0.6, 0.3, 0.08, 0.015, 0.005]])
    raw_p = RawDistribution(ids=np.array([[1, 2, 3, 4]]), logprobs=np.log(p[:, :4]), chosen=np.array([4]), chosen_logprobs=np.log(p[:, 3]))
    asked = Processing(temperature=np.array([1.0]), top_k=np.array([0]), top_p=np.array([0.7]))
    view = np.array([[0.5, 0.3, 0.0, 0.002, 0.0]])
    for rate in (0.0, 1e-4):
        distribution = requested(raw_p, asked, 0.0, rate)
        assert distribution.violation[0, 3]
        bound = 1e-4 + rate
        assert np.exp(betting.violations(distribution, 0.005)[0]) == pytest.approx(0.995 + 0.005 / bound, rel=0.01)
        assert np.exp(table(distribution, view, 0.0)[0, 3]) == pytest.approx(0.05 + 0.95 * 0.002 / 0.802 / bound, rel=0.01)


def test_without_jumps_nothing_is_capped():
    assert jumps.log_largest(0.0) == np.inf
    assert np.exp(jumps.log_largest(1e-4)) == pytest.approx(100.0)
    assert np.exp(jumps.log_largest(0.5)) == pytest.approx(10.0)
