from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_specdec.stats import proportions

COUNTS = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS, COUNTS)
def test_the_two_rate_test_is_fishers(mine, theirs):
    (a, n), (b, m) = mine, theirs
    expected = stats.fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
    assert proportions.greater_than_other(a, n, b, m) == pytest.approx(expected, abs=1e-12)


def test_the_two_rate_test_keeps_its_size():
    rng = np.random.default_rng(7)
    mine, theirs = rng.binomial(300, 0.02, 4000), rng.binomial(500, 0.02, 4000)
    p_values = [proportions.greater_than_other(int(a), 300, int(b), 500) for a, b in zip(mine, theirs, strict=True)]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05


def test_without_trials_there_is_no_evidence():
    assert proportions.greater_than_other(0, 0, 3, 9) == proportions.greater_than_other(3, 9, 0, 0) == 1.0


@given(COUNTS, st.floats(1e-9, 1) | st.just(0.0))
def test_the_tail_of_a_known_rate_is_binomial(mine, rate):
    hits, trials = mine
    expected = math.fsum(stats.binom.pmf(range(hits, trials + 1), trials, rate))
    assert proportions.greater_than_rate(hits, trials, rate) == pytest.approx(expected, abs=1e-9)


def test_a_rate_that_is_all_but_nothing_makes_any_hit_incredible():
    assert proportions.greater_than_rate(1, 600, 5e-324) < 1e-300
    assert proportions.greater_than_rate(0, 600, 5e-324) == 1.0


def test_unequal_rates_have_a_lighter_tail_than_their_mean():
    rng = np.random.default_rng(3)
    each = rng.beta(0.3, 5.0, 400)
    hits = (rng.random((20_000, 400)) < each).sum(axis=1)
    bound = [proportions.greater_than_rate(h, 400, float(each.mean())) for h in range(401)]
    level = next(h for h in range(401) if bound[h] <= 0.05)
    assert (hits >= level).mean() <= 0.05


@pytest.mark.parametrize(
    "function, arguments",
    [(proportions.greater_than_other, (3, 2, 0, 1)), (proportions.limits, (-1, 2)), (proportions.greater_than_rate, (1, 2, 1.5))],
    ids=["more hits than trials", "fewer than none", "no rate"],
)
def test_impossible_counts_are_errors(function, arguments):
    with pytest.raises(ValueError, match=r"hits in|lies in"):
        function(*arguments)


@given(COUNTS, st.sampled_from([0.9, 0.95, 0.99]))
def test_limits_invert_the_binomial_tails(mine, confidence):
    hits, trials = mine
    limits = proportions.limits(hits, trials, confidence)
    tail = (1 - confidence) / 2
    assert hits / trials in limits
    assert limits.low == 0.0 or stats.binom.sf(hits - 1, trials, limits.low) == pytest.approx(tail, rel=1e-6)
    assert limits.high == 1.0 or stats.binom.cdf(hits, trials, limits.high) == pytest.approx(tail, rel=1e-6)


def test_limits_of_nothing_are_everything():
    assert (proportions.limits(0, 0).low, proportions.limits(0, 0).high) == (0.0, 1.0)


@pytest.mark.parametrize("trials", [1, 10, 300, 10_000])
def test_ruling_out_is_the_exact_rule_of_three(trials):
    rate = proportions.ruled_out(trials, 0.95)
    assert (1 - rate) ** trials == pytest.approx(0.05)
    assert trials < 100 or rate == pytest.approx(3 / trials, rel=0.01)
    assert proportions.ruled_out(trials) > rate


def test_no_trial_rules_nothing_out():
    assert proportions.ruled_out(0) == 1.0


def test_a_rate_may_be_so_many_times_the_others_and_no_more():
    assert proportions.greater_than_times(18, 18, 0, 36, 2) < 1e-9
    assert (
        proportions.greater_than_times(0, 18, 0, 36, 2)
        == proportions.greater_than_times(5, 5, 0, 0, 2)
        == proportions.greater_than_times(0, 0, 5, 5, 2)
        == 1.0
    )
    assert proportions.greater_than_times(12, 18, 14, 36, 2) > 0.1, "12 of 18 are what twice 14 of 36 comes to"
    assert (
        proportions.greater_than_times(12, 18, 14, 36, 3)
        > proportions.greater_than_times(12, 18, 14, 36, 2)
        > proportions.greater_than_times(12, 18, 14, 36, 1)
    )


@pytest.mark.examples(4)
@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4, 0.6, 0.9])
@pytest.mark.parametrize("level", [0.05, 1e-3])
def test_the_size_of_the_test_of_so_many_times_is_exact(rate, level):
    """Over all outcomes of 12 and 20 trials."""
    mine, theirs = 1.0 - (1.0 - rate) ** 2, rate
    size = sum(
        stats.binom.pmf(x, 12, mine) * stats.binom.pmf(y, 20, theirs)
        for x in range(13)
        for y in range(21)
        if proportions.greater_than_times(x, 12, y, 20, 2) <= level
    )
    assert size <= level * 1.01, "the least favourable rate is looked for on a grid"


def test_many_times_as_readily_leave_no_rate_that_cannot_be_computed():
    assert proportions.greater_than_times(18, 18, 9, 18, 12.5) > 0.01
    assert 0.001 < proportions.greater_than_times(18, 18, 0, 18, 12.5) < 0.01
