"""The noise of a kernel: a scale that no tail moves, and how rarely it jumps."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.stats.noise import kernel_noise
from tests.judge.captured_values import calibration


def test_a_tail_and_wrong_numbers_hardly_move_the_scale():
    plain, jumping = (kernel_noise(calibration(3000, noise=0.02, jumps=jumps)).scale for jumps in (0, 150))
    assert jumping == pytest.approx(plain, rel=0.1)
    assert kernel_noise(calibration(150, noise=0.02)).scale is None, "too few to tell"


def test_only_rounding_makes_a_server_exact():
    assert kernel_noise(calibration(400, noise=0.0)).exact
    assert kernel_noise(calibration(400, noise=0.002)).exact
    assert not kernel_noise(calibration(400, noise=0.02)).exact
    assert not kernel_noise(calibration(400, noise=0.0, jumps=1)).exact
    assert not kernel_noise(calibration(100)).exact, "too few to tell"


def test_jumps_are_counted_with_an_upper_limit():
    count = kernel_noise(calibration(2000, noise=0.01, jumps=3)).beyond(0.25)
    assert (count.jumps, count.tokens, count.rate) == (3, 2000, 0.0015)
    assert 0.0015 < count.most < 0.0055
    assert kernel_noise(calibration(2000, noise=0.01)).beyond(0.25).most == pytest.approx(1 - 0.01 ** (1 / 2000), rel=0.01)
    assert kernel_noise([]).beyond(0.25).rate == 0.0


def test_an_infinite_difference_is_a_jump_and_one_that_is_no_number_is_nothing():
    ((_, at),) = calibration(1)
    found = kernel_noise([*calibration(300), (-math.inf, at), (math.nan, at)])
    assert found.beyond(1.0).jumps == 1
    assert len(found.deviations) == 301
