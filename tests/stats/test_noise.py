"""The noise of a kernel: a scale that no tail moves, and how rarely it jumps."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from pytest_specdec.stats.noise import KernelNoise, kernel_noise, noise_ratio
from tests.judge.captured_values import calibration


def kernel(differences):
    """A kernel whose tokens show these differences of one logit, nats."""
    of_logit = np.sort(np.abs(differences))
    scale = float(np.median(of_logit)) / 0.6745 if len(of_logit) >= 200 else None
    return KernelNoise(scale=scale, deviations=of_logit, of_logit=of_logit)


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


@pytest.mark.parametrize("degrees", [None, 3])
def test_a_ratio_exactly_at_its_limit_lies_above_it_as_rarely_as_stated(degrees):
    """300 pairs of kernels, one twice as noisy, in normal noise and in tails of three degrees."""
    random = np.random.default_rng(7)
    draw = random.standard_normal if degrees is None else functools.partial(random.standard_t, degrees)
    above = sum(noise_ratio(kernel(0.04 * draw(size=2000)), kernel(0.02 * draw(size=4000)), 0.05).low > 2.0 for _ in range(300))
    assert 3 <= above <= 30, "5 % of 300 are 15"


def test_a_ratio_of_too_few_tokens_is_none_and_of_rounding_is_one():
    random = np.random.default_rng(7)
    quiet, few = kernel(1e-6 * random.standard_normal(400)), kernel(random.standard_normal(100))
    assert noise_ratio(few, quiet, 0.05) is None
    ratio = noise_ratio(kernel(1e-5 * random.standard_normal(400)), quiet, 0.05)
    assert (ratio.ratio, ratio.low) == (1.0, 1.0)
