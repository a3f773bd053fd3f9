"""A decline over time: exact chances, no more alarms than stated, and the falls that have to be seen."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from pytest_specdec.stats.decline import decline, inversion_p_value, theil_sen_slope


def inversions(values):
    return sum(later < earlier for at, earlier in enumerate(values) for later in values[at + 1 :])


def test_the_chance_of_inversions_is_that_over_all_permutations():
    counts = [inversions(one) for one in permutations(range(6))]
    for most in (0, 1, 7, 12, 15, 16):
        assert inversion_p_value(6, most) == pytest.approx(sum(count >= most for count in counts) / len(counts))


@pytest.mark.parametrize("levels", [2, 1000])
def test_no_more_alarms_than_stated_also_with_ties(levels):
    random = np.random.default_rng(7)
    alarms = sum(decline(random.integers(levels, size=14).tolist()).p_value <= 0.05 for _ in range(600))
    assert alarms <= 45  # 30 expected at most, 3 standard deviations of 5


@pytest.mark.parametrize("fall", [[0.5 - 0.004 * at for at in range(60)], [0.5] * 50 + [0.0] * 10, [0.5] * 8 + [0.02] * 52])
def test_a_slow_fall_and_a_late_end_are_seen_through_noise(fall):
    random = np.random.default_rng(3)
    for _ in range(5):
        assert decline([value + 0.02 * random.standard_normal() for value in fall]).p_value < 3e-7


def test_the_end_that_lies_below_is_counted_and_compared_with_all_before():
    fall = decline([0.5, 0.6] * 15 + [0.1] * 12)
    assert (fall.end, fall.first, fall.last) == (12, pytest.approx(0.55), 0.1)
    assert decline([0.5] * 40).p_value == 1.0


def test_one_wild_value_leaves_the_slope_alone():
    assert theil_sen_slope([0, 1, 2, 3, 4], [0.0, 2.0, 4.0, 600.0, 8.0]) == pytest.approx(2.0)
    assert theil_sen_slope([1.0], [5.0]) == 0.0
