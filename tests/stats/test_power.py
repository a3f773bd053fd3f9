from __future__ import annotations

from math import inf

import numpy as np
import pytest

from pytest_specdec.stats.power import EvidenceGrowth, first_passage, growth, overshoot


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
    one = growth(paid, truth, cap=3.0)
    assert (one.drift, one.variance, one.steps, one.third) == (0.5 + 1.5, 0.75 + 2.25, 2, 0.75 * 0.5**3 - 0.25 * 1.5**3)
    assert one.overshoot == overshoot(np.minimum(paid, 3.0)[[0, 2]], truth[[0, 2]])


def test_other_answers_have_other_drifts():
    """Two answers of two tokens pay 2 and 4 for certain: the sum over two others varies by twice the variance of 2."""
    paid, truth = np.array([[1.0], [1.0], [1.0], [3.0]]), np.ones((4, 1))
    last = np.array([False, True, False, True])
    assert growth(paid, truth, cap=9.0).variance == 0.0
    assert growth(paid, truth, cap=9.0, last=last).variance == pytest.approx(2.0 * 2.0)
    assert growth(paid[:2], truth[:2], cap=9.0, last=last[:2]).variance == 0.0, "one answer shows no spread"


@pytest.mark.parametrize("gain, shown", [(0.2, 1.0), (0.05, 0.0), (0.0, 0.0)])
def test_evidence_that_grows_by_certain_amounts_is_as_sure_as_its_sum(gain, shown):
    """Accept-all of a draft that is certain of its token: the emitted token, and with it the gain, is known beforehand."""
    truth = np.tile([1.0, 0.0], (100, 1))
    assert growth(np.tile([gain, -1.0], (100, 1)), truth, cap=9.0).chance_to_reach(9.0) == shown


@pytest.mark.parametrize(
    "steps, density, expected",
    [
        (np.linspace(-8.0, 8.0, 4001), lambda x: np.exp(-(x**2) / 2), 0.5826),
        (np.linspace(-20.0, 20.0, 8001), lambda x: np.exp(-abs(x)), 1.0),
        (np.linspace(0.0, 25.0, 8001), lambda x: np.exp(-x), 1.0),
        (np.array([-1.0, 1.0]), np.ones_like, 0.5),
    ],
    ids=["normal", "exponential both ways", "exponential", "one up or one down"],
)
def test_the_overshoot_of_walks_whose_ladder_is_known(steps, density, expected):
    """Half the mean square of a ladder step over its mean: what is left of an exponential step is exponential again."""
    chance = density(steps)
    assert overshoot(steps[None], (chance / chance.sum())[None]) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("paid", [np.zeros((0, 2)), np.full((3, 2), 0.3)], ids=["no bets", "a certain payoff"])
def test_what_does_not_move_overshoots_nothing(paid):
    assert overshoot(paid, np.full(paid.shape, 0.5)) == 0.0


def test_a_sum_skewed_to_the_right_passes_its_mean_less_often_and_levels_off_it_more_often():
    for level, order in ((13.0, 1), (10.0, -1), (7.0, 1)):
        left, straight, right = (first_passage(10.0, 4.0, level, third) for third in (-8.0, 0.0, 8.0))
        assert order * (right - straight) > 0 > order * (left - straight)


def test_so_many_times_the_tokens_are_so_many_times_the_moments():
    assert EvidenceGrowth(drift=2.0, variance=4.0, steps=100, third=1.0, overshoot=0.3).times(0.5) == EvidenceGrowth(
        drift=1.0, variance=2.0, steps=50, third=0.5, overshoot=0.3
    )


def test_the_length_asked_for_is_the_length_that_suffices():
    one = EvidenceGrowth(drift=2.0, variance=4.0, steps=100)
    length = one.length_for(10.0, 0.99)
    assert one.chance_to_reach(10.0, length=length) == pytest.approx(0.99, abs=1e-6)
    assert EvidenceGrowth(drift=2000.0, variance=4.0, steps=100).length_for(10.0, 0.99) < 0.01


def test_a_bettor_that_does_not_grow_never_settles_anything():
    assert EvidenceGrowth(drift=-1.0, variance=1.0, steps=10).length_for(10.0, 0.99) == inf
    assert EvidenceGrowth(drift=0.0, variance=0.0, steps=0).chance_to_reach(1.0) == 0.0


def test_a_motion_is_never_taken_for_steadier_than_the_formula_can_say():
    """Beyond the cap more skewness changes nothing; a motion away from the level keeps a chance in 0..1."""
    assert first_passage(10.0, 4.0, 8.0, 100.0) == first_passage(10.0, 4.0, 8.0, 1e6)
    assert 0.0 <= first_passage(-5.0, 4.0, 10.0, -1e4) <= first_passage(-5.0, 4.0, 10.0, 0.0) < 1e-6


def test_what_gains_in_small_steps_only_does_not_reach_a_far_level_at_all():
    """Its losses are rare and large: 30 deviations are beyond the most that it can gain."""
    assert first_passage(1.0, 1.0, 30.0, -3.0) == 0.0


@pytest.mark.parametrize(
    "p, m, tokens, margin",
    [
        (0.2, 0.3, 200, 0.01),
        (0.2, 0.3, 400, 0.01),
        (0.004, 0.016, 700, 0.02),
        (0.004, 0.016, 2200, 0.005),
        (0.01, 0.03, 900, 0.02),
        (0.002, 0.03, 400, 0.01),
        (0.002, 0.03, 700, 0.002),
        (0.05, 0.01, 900, 0.005),
    ],
)
def test_the_formula_is_the_walk_it_stands_for(p, m, tokens, margin):
    """A sum of payoffs, looked at after every step: even ones, and ones of which a few in a thousand pay everything or cost everything."""
    random = np.random.default_rng(3)
    paid = np.log([[m / p, (1 - m) / (1 - p)]])
    promised = growth(np.repeat(paid, tokens, axis=0), np.tile([[m, 1 - m]], (tokens, 1)), cap=8.0).chance_to_reach(8.0)
    passed = [
        (np.where(random.random((1000, tokens)) < m, paid[0, 0], paid[0, 1]).cumsum(axis=1).max(axis=1) >= 8.0).mean() for _ in range(20)
    ]
    assert promised == pytest.approx(np.mean(passed), abs=margin)
