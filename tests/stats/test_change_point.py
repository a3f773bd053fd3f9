"""Change points: what is one, what is none, and the size and power of the test by simulation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.stats.change_point import LEAST, find_change_points

ALPHA = 0.01
NIGHTS = {"normal": lambda rng, n: rng.normal(size=n), "heavy": lambda rng, n: rng.standard_t(2, size=n)}
NIGHTS["tied"] = lambda rng, n: rng.normal(size=n).round()
NIGHTS["one far off"] = lambda rng, n: np.where(np.arange(n) == rng.integers(n), 1000.0, rng.normal(size=n))


def steady(count, seed=1, spread=0.03):
    return np.random.default_rng(seed).normal(0.0, spread, count)


def indices(values):
    return [point.index for point in find_change_points(values, ALPHA)]


def test_a_step_is_where_it_is():
    (point,) = find_change_points([*steady(40), *(steady(20, 2) + 0.3)], ALPHA)
    assert (point.earliest, point.index, point.latest) == (40, 40, 40)


def test_a_loss_that_was_mended_is_two_steps():
    assert indices([*steady(40), *(steady(8, 2) - 0.3), *steady(40, 3)]) == [40, 48]


def test_a_staircase_has_all_of_its_steps():
    assert indices(np.concatenate([steady(25, seed) + 0.4 * seed for seed in range(4)])) == [25, 50, 75]


@pytest.mark.parametrize("place", [0, 1, 30, 58, 59])
def test_one_bad_night_is_no_step_and_hides_none(place):
    lone = steady(60)
    lone[place] = 50.0
    assert indices(lone) == []
    assert indices([*lone, *(steady(20, 2) - 0.3)])[-1] == 60


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 400, list(steady(LEAST - 1)), [0.0] * 5 + [9.0] * (LEAST - 6)])
def test_few_or_equal_values_have_no_step(values):
    assert indices(values) == []


def test_equal_values_may_step():
    """Wrong tokens, which are 0 until they are not: more than half are equal, so that there is no spread to measure by."""
    assert indices([0.0] * 30 + [3.0, 4.0, 3.0, 5.0]) == [30]


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_places_are_in_order_inside_the_series_and_the_same_in_another_unit(values):
    points = find_change_points(values, 0.2)
    edges = [0, *(point.index for point in points), len(values)]
    assert all(after - before >= 2 for before, after in pairwise(edges) if points)
    assert all(point.earliest <= point.index <= point.latest for point in points)
    assert [point.index for point in find_change_points([value * 4.0 for value in values], 0.2)] == edges[1:-1]


def false_alarms(draw, count, runs):
    rng = np.random.default_rng(count)
    return sum(bool(find_change_points(draw(rng, count), ALPHA)) for _ in range(runs)) / runs


@pytest.mark.examples(4)
@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("count", [5, 10, 20, 60])
@pytest.mark.parametrize("nights", NIGHTS)
def test_a_series_without_a_step_is_marked_once_in_a_hundred_at_most(nights, count):
    """With 400 series each, more than 12 come once in 3,000 such tests; `python -m benchmarks.trend` has the table."""
    assert false_alarms(NIGHTS[nights], count, 400) <= 12 / 400


@pytest.mark.statistics
@pytest.mark.parametrize("count", [200, 400])
@pytest.mark.parametrize("nights", NIGHTS)
def test_a_long_series_without_a_step_is_marked_as_seldom(nights, count):
    assert false_alarms(NIGHTS[nights], count, 400) <= 12 / 400


@pytest.mark.examples(2)
@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("after, least", [(3, 0.7), (5, 0.95), (7, 0.97)])
def test_a_loss_of_a_tenth_at_a_spread_of_three_hundredths_is_marked_after_three_runs(after, least):
    rng = np.random.default_rng(3)
    located = 0
    for _ in range(200):
        values = rng.normal(0.0, 0.03, 60 + after)
        values[60:] += np.log(0.9)
        located += any(point.earliest <= 60 <= point.latest for point in find_change_points(values, ALPHA))
    assert located / 200 >= least


@pytest.mark.statistics
def test_a_series_with_a_step_gets_no_second_one():
    rng = np.random.default_rng(4)
    series = [[*rng.normal(size=40), *(rng.normal(size=20) + 6.0)] for _ in range(400)]
    assert sum(len(find_change_points(values, ALPHA)) > 1 for values in series) <= 12
