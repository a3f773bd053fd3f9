"""A quick part of benchmarks/speed_gate.py: the gate over several boots, by simulation with fixed seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.speed_gate import SHOWN, Machine, coverage, series_rows, several

RUNS = 400


def in_turn(boot_sd, **machine):
    return Machine(boot_sd=boot_sd, pass_sd=0.02, in_turn=True, **machine)


def side_by_side(boot_sd, **machine):
    return Machine(boot_sd=boot_sd, pass_sd=0.05, in_turn=False, **machine)


@pytest.mark.examples(2)
@pytest.mark.parametrize("count", [2, 4, 6])
@pytest.mark.parametrize("boot_sd", [0.005, 0.02, 0.05])
def test_a_floor_that_is_reached_exactly_is_failed_in_fewer_than_one_of_two_hundred_runs(count, boot_sd):
    for machine in (in_turn(boot_sd), side_by_side(boot_sd)):
        found = several(count, machine, runs=RUNS)
        assert found["failed at the floor"] <= 0.005
        assert found["proven at the floor"] <= 0.02
        assert found["covered"] >= 0.92


def test_side_by_side_five_or_six_boots_see_a_tenth_through_passes_that_vary_by_five_percent():
    """Less often than when boots were held to vary by 3 %, whatever they did: that was right by luck where they do."""
    assert several(5, side_by_side(0.005), runs=RUNS)["failed at -10 %"] >= 0.85
    assert several(6, side_by_side(0.02), runs=RUNS)["failed at -10 %"] >= 0.7


def test_in_turn_four_boots_see_a_tenth_where_boots_vary_by_two_percent():
    assert several(4, in_turn(0.02), runs=RUNS)["failed at -10 %"] >= 0.7
    assert several(4, in_turn(0.02), runs=RUNS)["proven, gate 10 % below the truth"] >= 0.93


@pytest.mark.examples(2)
@pytest.mark.parametrize("count", [2, 4, 6])
def test_in_turn_the_interval_over_the_passes_alone_holds_95_percent(count):
    """Boots that are alike: blocks that share one are not independent, and the pooled variance over all passes held 92 to 94 %."""
    rng = np.random.default_rng(11)
    found = (replace(in_turn(0.0).estimate(rng, count), relative_variance=0.0) for _ in range(4000))
    held = [one.tail_probabilities(abs(one.log_ratio))[0] > SHOWN for one in found]
    assert 0.942 <= np.mean(held) <= 0.958


@pytest.mark.parametrize("machine", [{"drift": 0.05}, {"drift": 0.2}, {"wander": 0.05}], ids=str)
def test_a_machine_that_drifts_or_wanders_makes_intervals_wider_and_no_false_fails(machine):
    calm, found = (several(4, in_turn(0.005, **moves), runs=RUNS) for moves in ({}, machine))
    assert found["failed at the floor"] <= 0.005
    assert found["median width"] > calm["median width"]


def test_side_by_side_a_machine_that_is_faster_in_one_wave_than_in_another_changes_nothing():
    calm, found = (several(4, side_by_side(0.02, **moves), runs=200) for moves in ({}, {"wander": 0.1}))
    assert found == pytest.approx(calm)


@pytest.mark.examples(2)
@pytest.mark.parametrize("boot_sd", [0.0, 0.02, 0.05, 0.1])
def test_intervals_hold_what_they_say_whatever_boots_vary_by(boot_sd):
    """A first run, which cannot tell, holds more; after ten runs it is 95 %. The table is benchmarks/speed_gate.py's."""
    first, later = (coverage(boot_sd=boot_sd, earlier=earlier, runs=400) for earlier in (0, 10))
    assert first["coverage"] >= 0.93
    assert 0.92 <= later["coverage"] <= 0.998
    assert max(first["false proven"], later["false proven"]) <= 0.02


@pytest.mark.parametrize("boot_sd, found", [(0.02, 0.85), (0.05, 0.1)])
def test_after_ten_runs_a_fifth_less_is_found_and_a_lucky_first_run_is_soon_forgotten(boot_sd, found):
    floors, losses, lucky = series_rows(boot_sd=boot_sd, count=40)
    assert float(losses["loss of 20%"]) >= found
    assert float(floors["failed, of all runs"]) <= 0.005
    assert float(lucky["run 6"]) >= 0.8
