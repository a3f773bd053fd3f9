"""The simulated runs that size and power of the comparison of baselines are measured with."""

from __future__ import annotations

from benchmarks.upgrade_pairs.simulated import PLANTED, is_noisier, make_record
from benchmarks.worlds.numerics import WORLDS
from pytest_specdec.judge.baseline_change import BaselineRelation, compare
from pytest_specdec.model.workload import Depth


def test_two_runs_of_one_noisy_server_are_the_same_and_planted_weights_are_not():
    old, again = (make_record("bf16.03", number, Depth.SMOKE) for number in range(2))
    assert compare(old, again).relation is BaselineRelation.SAME
    change = compare(old, make_record("bf16.03", 2, Depth.SMOKE, planted=PLANTED["0.3"]))
    assert (change.relation, change.is_worse, change.shift.high > 0.3) == (BaselineRelation.CHANGED, True, True)


def test_truth_is_the_planted_noise_with_a_band_where_either_answer_is_right():
    assert is_noisier(WORLDS["exact"], WORLDS["g.01"]) is True
    assert is_noisier(WORLDS["g.01"], WORLDS["exact"]) is False
    assert is_noisier(WORLDS["bf16.03"], WORLDS["bf16.03"]) is False
    assert is_noisier(WORLDS["bf16.03"], WORLDS["g.1"]) is None
