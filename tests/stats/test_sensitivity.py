from __future__ import annotations

from math import inf

import numpy as np
import pytest

from pytest_specdec.stats.sensitivity import Growth, first_passage, growth


@pytest.mark.parametrize(
    "drift, variance, barrier, chance",
    [
        (0.0, 1.0, 1.0, 2 * 0.15865525393145707),
        (2.0, 1.0, 2.0, 0.5 + np.exp(8.0) * 3.16712418e-05),
        (5.0, 0.0, 4.0, 1.0),
        (3.0, 0.0, 4.0, 0.0),
        (3.0, 1.0, inf, 0.0),
    ],
    ids=["reflection principle", "at the level", "certain", "never", "unreachable"],
)
def test_first_passage_of_a_brownian_motion(drift, variance, barrier, chance):
    assert first_passage(drift, variance, barrier) == pytest.approx(chance, rel=1e-6)


def test_growth_is_three_moments_token_by_token_capped():
    paid = np.array([[1.0, -1.0], [0.0, 0.0], [9.0, 0.0]])
    truth = np.array([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
    assert growth(paid, truth, cap=3.0) == Growth(drift=0.5 + 1.5, variance=0.75 + 2.25, steps=2, third=0.75 * 0.5**3 - 0.25 * 1.5**3)


def test_a_skewed_sum_passes_a_level_at_its_mean_less_often_than_a_straight_one():
    """A Pearson III sum of skewness 2 is an exponential one: its mean is passed with chance 1/e."""
    straight, skewed = (first_passage(10.0, 4.0, 10.0, third) for third in (0.0, 2.0 * 8.0))
    mirrored = straight - 0.5
    assert skewed == pytest.approx(np.exp(-1.0) + mirrored)
    assert first_passage(10.0, 4.0, 10.0, -2.0 * 8.0) == pytest.approx(1.0 - np.exp(-1.0) + mirrored)


def test_so_many_times_the_tokens_are_so_many_times_the_moments():
    assert Growth(drift=2.0, variance=4.0, steps=100, third=1.0).times(0.5) == Growth(drift=1.0, variance=2.0, steps=50, third=0.5)


def test_the_length_asked_for_is_the_length_that_suffices():
    one = Growth(drift=2.0, variance=4.0, steps=100)
    length = one.length_for(10.0, 0.99)
    assert one.shown(10.0, length=length) == pytest.approx(0.99, abs=1e-6)
    assert Growth(drift=2000.0, variance=4.0, steps=100).length_for(10.0, 0.99) < 0.01


def test_a_bettor_that_does_not_grow_never_settles_anything():
    assert Growth(drift=-1.0, variance=1.0, steps=10).length_for(10.0, 0.99) == inf
    assert Growth(drift=0.0, variance=0.0, steps=0).shown(1.0) == 0.0


def test_the_formula_is_the_walk_it_stands_for():
    """A sum of skewed payoffs, checked after every step, against the promised chance of reaching the level."""
    random = np.random.default_rng(3)
    p, m = 0.2, 0.3
    paid = np.log([[m / p, (1 - m) / (1 - p)]])
    promised = growth(np.repeat(paid, 200, axis=0), np.tile([[m, 1 - m]], (200, 1)), cap=6.0).shown(6.0)
    walks = np.where(random.random((4000, 200)) < m, paid[0, 0], paid[0, 1]).cumsum(axis=1)
    observed = (walks.max(axis=1) >= 6.0).mean()
    assert 0.2 < promised < 0.8
    assert observed == pytest.approx(promised, abs=0.03)
