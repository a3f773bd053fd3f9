"""A quick part of benchmarks/speed_gate.py: the gate over several boots, by simulation with fixed seeds."""

from __future__ import annotations

import pytest

from benchmarks.speed_gate import Machine, several

RUNS = 1500


def in_turn(boot_sd, **machine):
    return Machine(boot_sd=boot_sd, pass_sd=0.02, in_turn=True, **machine)


def side_by_side(boot_sd, **machine):
    return Machine(boot_sd=boot_sd, pass_sd=0.05, in_turn=False, **machine)


@pytest.mark.parametrize("count", [2, 4, 6])
@pytest.mark.parametrize("boot_sd", [0.005, 0.02, 0.05])
def test_a_floor_that_is_reached_exactly_is_failed_in_fewer_than_one_of_two_hundred_runs(count, boot_sd):
    for machine in (in_turn(boot_sd), side_by_side(boot_sd)):
        found = several(count, machine, runs=RUNS)
        assert found["failed at the floor"] <= 0.005
        assert found["proven at the floor"] <= 0.06


def test_side_by_side_five_or_six_boots_see_a_tenth_through_passes_that_vary_by_five_percent():
    assert several(5, side_by_side(0.005), runs=RUNS)["failed at -10 %"] >= 0.93
    assert several(6, side_by_side(0.02), runs=RUNS)["failed at -10 %"] >= 0.93


def test_in_turn_four_boots_see_a_tenth_where_boots_vary_by_two_percent():
    assert several(4, in_turn(0.02), runs=RUNS)["failed at -10 %"] >= 0.93
    assert several(2, in_turn(0.02), runs=RUNS)["proven, gate 10 % below the truth"] >= 0.93


@pytest.mark.parametrize("machine", [{"drift": 0.05}, {"drift": 0.2}, {"wander": 0.05}], ids=str)
def test_a_machine_that_drifts_or_wanders_makes_intervals_wider_and_no_false_fails(machine):
    calm, found = (several(4, in_turn(0.005, **moves), runs=RUNS) for moves in ({}, machine))
    assert found["failed at the floor"] <= 0.005
    assert found["median width"] > calm["median width"]


def test_side_by_side_a_machine_that_is_faster_in_one_wave_than_in_another_changes_nothing():
    calm, found = (several(4, side_by_side(0.02, **moves), runs=200) for moves in ({}, {"wander": 0.1}))
    assert found == pytest.approx(calm)
