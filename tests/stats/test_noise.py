"""The noise of a kernel: a scale that no tail moves, and how rarely it jumps."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from pytest_specdec.stats.noise import answer_scales, boot_noise, is_noisier, kernel_noise, noise_ratio
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


def scales(random, times, log_sd, *, answers=32, degrees=None):
    """Robust scales of answers of 64 tokens, each with a noise of its own about ``times``."""
    draw = random.standard_normal if degrees is None else functools.partial(random.standard_t, degrees)
    deviations = times * np.exp(log_sd * random.standard_normal(answers))[:, None] * draw(size=(answers, 64))
    return np.median(np.abs(deviations), axis=1) / 0.6745


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "log_sd, other_log_sd, degrees",
    [(0.0, 0.0, None), (0.3, 0.3, None), (0.5, 0.5, None), (0.5, 0.0, None), (0.0, 0.5, None), (0.3, 0.3, 3)],
)
def test_a_ratio_exactly_at_its_limit_lies_above_it_as_rarely_as_stated(log_sd, other_log_sd, degrees):
    """600 pairs of kernels, one three times as noisy, whose answers have a noise of their own: half a nat is a factor of 1.6."""
    random = np.random.default_rng(7)
    above = {0.05: 0, 7e-6: 0}
    for _ in range(600):
        kernel, other = scales(random, 3.0, log_sd, degrees=degrees), scales(random, 1.0, other_log_sd, degrees=degrees)
        for error in above:
            above[error] += noise_ratio(kernel, other, error).low > 3.0
    assert 12 <= above[0.05] <= 48, "5 % of 600 are 30"
    assert above[7e-6] == 0


@pytest.mark.parametrize(
    "times, log_sd, least, most", [(4.0, 0.0, 0.97, 1.0), (5.0, 0.3, 0.6, 0.9), (6.0, 0.3, 0.97, 1.0), (9.0, 0.5, 0.97, 1.0)]
)
def test_a_kernel_beyond_a_gate_of_three_is_seen_as_often_as_the_docs_say(times, log_sd, least, most):
    random = np.random.default_rng(7)
    ratios = [noise_ratio(scales(random, times, log_sd), scales(random, 1.0, log_sd), 7e-6) for _ in range(200)]
    assert least <= np.mean([each.low > 3.0 for each in ratios]) <= most
    assert np.median([each.ratio for each in ratios]) == pytest.approx(times, rel=0.05)


def test_a_limit_on_the_centre_of_few_scales_is_that_of_the_published_signed_ranks():
    """For 10 values the chance of at most 10 is .0420, of at most 11 .0527 (Hollander, Wolfe and Chicken 2014, table A.4)."""
    ratio = noise_ratio(np.exp(np.arange(10.0)), np.exp(np.zeros(10)), 0.05)
    assert math.log(ratio.ratio / ratio.low) == pytest.approx(4.5 - sorted(averages_of(10))[10])


def averages_of(values):
    return [(one + another) / 2 for one in range(values) for another in range(one, values)]


def test_answers_too_short_have_no_scale_and_tokens_without_a_number_none():
    few, enough = calibration(15, noise=0.02), calibration(64, noise=0.02)
    ((_, at),) = calibration(1)
    assert len(answer_scales([few, enough])) == 1
    assert answer_scales([(*enough, (math.nan, at), (-math.inf, at))]) == answer_scales([enough])
    assert answer_scales([enough])[0] == pytest.approx(0.02, rel=0.4)


def test_a_ratio_of_too_few_answers_is_none_and_of_rounding_is_one():
    random = np.random.default_rng(7)
    quiet, few = scales(random, 1e-6, 0.0), scales(random, 1.0, 0.0, answers=4)
    assert noise_ratio(few, quiet, 0.05) is None
    assert noise_ratio(few, quiet, 0.0625) is not None, "four of four lie on one side with a chance of a sixteenth"
    assert noise_ratio(few[:0], quiet, 0.05) is None
    ratio = noise_ratio(scales(random, 1e-5, 0.0), quiet, 0.05)
    assert (ratio.ratio, ratio.low) == (1.0, 1.0)


def test_what_a_boot_keeps_lies_within_its_limits_and_is_not_seen_where_there_is_none():
    """Between two boots the noise is that of two calls of one and what each of them keeps."""
    random = np.random.default_rng(11)
    call, kept = 0.02, 0.05
    another = [boot_noise(scales(random, math.hypot(call, kept, kept), 0.3), scales(random, call, 0.3)) for _ in range(300)]
    assert all(each is not None for each in another)
    assert np.median([each.boot for each in another]) == pytest.approx(kept, rel=0.05)
    assert np.median([each.call for each in another]) == pytest.approx(call, rel=0.05)
    assert np.mean([each.low <= kept <= each.high for each in another]) >= 0.97
    alike = [boot_noise(scales(random, call, 0.3), scales(random, call, 0.3)) for _ in range(300)]
    assert np.mean([each is not None for each in alike]) <= 0.02
    assert boot_noise(scales(random, call, 0.3), np.array([])) is None


@pytest.mark.parametrize("log_sd", [
    *(pytest.param(log_sd, marks=pytest.mark.statistics) for log_sd in (0.0, 0.1, 0.2)),
    pytest.param(0.3, marks=pytest.mark.statistics(quick=True)),
])  # fmt: skip
def test_a_kernel_as_noisy_as_a_limit_is_hardly_ever_a_tenth_above_it(log_sd):
    """At the limit itself 1 % are; one a half above it always is."""
    random = np.random.default_rng(13)
    at = [scales(random, 0.1, log_sd) for _ in range(3000)]
    assert np.mean([is_noisier(each, 0.1) for each in at]) <= 0.015
    assert not any(is_noisier(each, 1.1 * 0.1) for each in at)
    assert all(is_noisier(scales(random, 0.15, log_sd), 1.1 * 0.1) for _ in range(100))


def test_too_few_answers_show_no_kernel_to_be_noisier():
    assert not is_noisier(scales(np.random.default_rng(13), 9.0, 0.1, answers=4), 0.1)
