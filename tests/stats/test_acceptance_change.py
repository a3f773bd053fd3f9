"""Acceptance against stored runs: the size and the power of the paired comparison, and what it says that it would find."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from benchmarks.acceptance_gate import CHANCES, Cell, lengths
from pytest_specdec.stats.acceptance_change import MARGIN, POWER, compare


def test_a_difference_is_of_the_same_prompts():
    stored = [1.5, 2.0, 2.5, 3.0]
    seen = compare(stored, [length - 0.2 for length in stored])
    assert (seen.stored, seen.now, seen.prompts) == (2.25, pytest.approx(2.05), 4)
    assert seen.relative == pytest.approx(-0.2 / 2.25)
    assert seen.standard_error == pytest.approx(0.0, abs=1e-12)
    assert (seen.is_lower(1e-3), seen.is_higher(1e-3)) == (True, False)


def test_limits_are_those_of_students_t_over_prompts():
    seen = compare([2.0] * 4, [2.1, 2.3, 1.9, 2.1])
    assert seen.relative == pytest.approx(0.05)
    assert seen.standard_error == pytest.approx(0.0816497, rel=1e-5)
    half = 3.182446 * 0.0816497 / 2.0
    assert (seen.at_least(0.025), seen.at_most(0.025)) == (pytest.approx(0.05 - half, rel=1e-5), pytest.approx(0.05 + half, rel=1e-5))


@pytest.mark.parametrize(
    "change, lower, higher", [(-0.029, False, False), (0.029, False, False), (-0.031, True, False), (0.031, False, True)]
)
def test_a_change_within_the_margin_is_none(change, lower, higher):
    seen = compare([2.0, 3.0], [2.0 + 2.5 * change, 3.0 + 2.5 * change])
    assert (seen.is_lower(1e-3), seen.is_higher(1e-3)) == (lower, higher)
    assert seen.detectable(1e-3) == pytest.approx(MARGIN)


def test_one_prompt_has_no_spread():
    with pytest.raises(ValueError, match="two prompts, not 1"):
        compare([2.0], [2.0])


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize(
    "prompts, steps, drop, least, most",
    [(50, 20, 0.16, 0.97, 1.0), (50, 40, 0.085, 0.3, 0.65), (100, 40, 0.085, 0.91, 0.99), (100, 40, 0.16, 1.0, 1.0)],
)
def test_a_drop_is_found_as_often_as_published(prompts, steps, drop, least, most):
    """At alpha 0.001 with the margin of 3 %; `python -m benchmarks.acceptance_gate` has the whole table."""
    assert least <= Cell(prompts=prompts, steps=steps).found(-drop, runs=300)[0] / 300 <= most


@pytest.mark.statistics(quick=True)
def test_healthy_drafters_and_those_at_the_margin_alarm_less_often_than_nominal():
    """At a share of 0.02, 0.01 a tail: of 1,500 runs 15 at the margin by expectation, and hardly any without a change."""
    cell = Cell(prompts=50, steps=20, alpha=0.02)
    assert sum(cell.found(0.0, runs=1500)) <= 2
    at_margin = cell.found(-MARGIN, runs=1500)
    assert at_margin[0] <= 28
    assert at_margin[1] == 0


@pytest.mark.statistics(quick=True)
def test_a_higher_acceptance_is_found_too():
    assert Cell(prompts=100, steps=40).found(0.1, runs=100) == (0, 100)


@pytest.mark.statistics(quick=True)
def test_the_smallest_loss_that_is_said_to_be_found_is_found():
    """A loss as large as the comparison of two healthy runs names is found in at least 99 of 100 runs."""
    rng = np.random.default_rng(5)
    chances = rng.beta(*CHANCES, 100)
    said = np.mean([compare(lengths(rng, chances, 40), lengths(rng, chances, 40)).detectable(1e-3) for _ in range(50)])
    assert Cell(prompts=100, steps=40).found(-float(said), runs=300)[0] >= 291


@pytest.mark.parametrize("prompts, steps", [(10, 400), (30, 40)])
def test_the_loss_that_one_run_names_is_found_in_another(prompts, steps):
    """Student's t shifted by the estimated standard error promised the same, and was right in 84 and 96 of 100 runs."""
    rng, runs, caught = np.random.default_rng(7), 800, 0
    for _ in range(runs):
        chances = rng.beta(*CHANCES, prompts)
        loss = compare(lengths(rng, chances, steps), lengths(rng, chances, steps)).detectable(5e-4)
        stored = np.array(lengths(rng, chances, steps))
        caught += compare(list(stored), list(np.array(lengths(rng, chances, steps)) - loss * stored.mean())).is_lower(5e-4)
    assert caught >= 0.98 * runs


@pytest.mark.parametrize("prompts", [2, 10, 100, 1000])
@pytest.mark.parametrize("alpha", [1e-2, 5e-4, 1e-6])
def test_the_power_at_the_loss_that_is_said_is_the_power_that_is_said(prompts, alpha):
    """By drawing both runs' spreads, where the package takes evenly spaced quantiles of them."""
    seen = compare([2.0] * prompts, [2.0 + 0.1 * (-1.0) ** i for i in range(prompts)])
    rng, degrees = np.random.default_rng(3), prompts - 1
    quantile = (seen.at_most(alpha / 2.0) - seen.relative) * seen.stored / seen.standard_error
    multiple = (seen.detectable(alpha) - MARGIN) * seen.stored / seen.standard_error
    named, judged = np.sqrt(rng.chisquare(degrees, (2, 400_000)) / degrees)
    assert np.mean(ndtr(multiple * named - quantile * judged)) == pytest.approx(POWER, abs=5e-4)


def test_no_more_than_all_acceptance_is_lost():
    assert compare([2.0, 3.0], [2.0, 3.0]).largest_loss == pytest.approx(0.6)
