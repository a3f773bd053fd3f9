from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.linalg import hadamard

from pytest_specdec.model.baseline import BOOT_SD
from pytest_specdec.stats.boot_spread import boot_spread
from pytest_specdec.stats.proportions import Interval
from pytest_specdec.stats.speedup import HODGES_LEHMANN_FROM, BootLevels, across_blocks, across_boots, mean_levels, within_one_boot

LOGS = st.lists(st.floats(-1, 1).map(lambda value: round(value, 12)), min_size=2, max_size=20)
"""No two of them closer than a clock tells: what is left of three equal values of 1e-93 is rounding."""
PASSES = (0.50, 0.51, 0.49, 0.50)


def mixture(distance, spread, shares, passes):
    """The chance of one side beyond ``distance``, the integral over sigma written out on a fine grid of its own."""
    sigma = np.geomspace(1e-5, 80 * spread.stated_sd, 40_000)
    within = np.var(passes, ddof=1) / len(passes)
    boot = sigma**2 + within / shares
    edge = 5 * spread.stated_sd
    prior = np.where(sigma <= edge, sigma, 1e-3 * edge**2 / sigma)  # per octave
    weights = prior * boot ** (-spread.freedom / 2) * np.exp(-spread.squares / (2 * boot))
    variance = shares * sigma**2 + within
    tails = stats.t.sf(distance / np.sqrt(variance), (len(passes) - 1) * (variance / within) ** 2)
    return float((weights * tails).sum() / weights.sum())


@pytest.mark.parametrize("apart", [(0.04,), (0.04, 0.01, -0.06), (0.01,) * 9, ()])
def test_limits_are_those_of_a_mixture_over_all_deviations_that_boots_may_have(apart):
    spread = boot_spread(apart)
    found = across_boots(PASSES, spread, baseline_boots=2)
    assert (spread.squares, spread.freedom) == pytest.approx((sum(d**2 / 2 for d in apart), len(apart)))
    for error in (0.025, 0.00125):
        distance = found.log_ratio - math.log(found.at_least(error))
        assert distance == pytest.approx(math.log(found.at_most(error)) - found.log_ratio)
        assert found.tail_probabilities(distance)[0] == pytest.approx(error, rel=1e-3)
        assert mixture(distance, spread, 1.5, PASSES) == pytest.approx(error, rel=0.15)


def test_without_a_control_one_boot_of_the_baseline_counts_and_the_prior_alone_says_how_boots_vary():
    found = across_boots(PASSES, boot_spread(()), baseline_boots=1)
    assert found.relative_variance == 2.0
    assert found.at_least(0.025) < across_boots(PASSES, boot_spread((0.0,)), baseline_boots=2).at_least(0.025)
    assert 2 * BOOT_SD < boot_spread(()).sd < 4 * BOOT_SD


def test_another_deviation_can_be_stated_and_what_is_measured_soon_outweighs_it():
    assert boot_spread((), 0.1).sd == pytest.approx(boot_spread((), 0.05).sd * 2)
    for stated in (0.02, 0.03, 0.1):
        for sd in (0.005, 0.02, 0.08):
            assert boot_spread((sd * math.sqrt(2),) * 10, stated).sd == pytest.approx(sd, rel=0.35)


def test_runs_of_a_file_tell_of_boots_too_and_one_lucky_run_of_them_little():
    calm = boot_spread((), runs=(0.5, 0.51, 0.49, 0.5, 0.52, 0.48, 0.5, 0.51, 0.49))
    lucky = boot_spread((), runs=(0.65, 0.51, 0.49, 0.5, 0.52, 0.48, 0.5, 0.51, 0.49))
    apart = boot_spread((), runs=(0.5, 0.6, 0.4, 0.55, 0.45, 0.6, 0.4, 0.55, 0.45))
    assert calm.sd < 0.03
    assert lucky.sd == pytest.approx(calm.sd, rel=0.5)
    assert apart.sd > 3 * calm.sd
    assert boot_spread((), runs=(0.5,)) == boot_spread(())


def test_passes_that_vary_are_not_taken_for_boots():
    """A control a percent off where passes leave a percent open says nothing of boots; where they are still it does."""
    calm, noisy = (boot_spread((0.014,) * 9).weights(variance) for variance in (0.0, 1e-4))
    assert sum(calm[:9]) < sum(noisy[:9])


def test_the_median_of_earlier_runs_is_uncertain_too():
    found = across_boots(PASSES, boot_spread((0.04,) * 5), baseline_boots=2)
    widths = [found.at_most(0.001), *(found.against_median(runs).at_most(0.001) for runs in (1000, 10, 1))]
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(widths[1], rel=1e-3)
    assert found.against_median(2).standard_error == pytest.approx(found.standard_error * math.sqrt(1 + math.pi / 4))


@given(LOGS, st.sampled_from([1e-4, 0.02, 0.3]), st.lists(st.floats(-1, 1), max_size=6))
def test_limits_widen_with_what_boots_do_and_with_what_is_asked(values, sd, apart):
    found = across_boots(values, boot_spread(apart, sd), baseline_boots=2)
    assert found.at_most(0.001) >= found.at_most(0.025) >= found.ratio >= found.at_least(0.025) >= found.at_least(0.001)
    worse = across_boots(values, boot_spread((*apart, 3.0), sd), baseline_boots=2)
    assert worse.standard_error >= found.standard_error


def test_one_slow_pass_of_many_moves_the_centre_little():
    calm = [0.5] * (HODGES_LEHMANN_FROM - 1)
    assert across_boots([*calm, -0.5], boot_spread(()), baseline_boots=1).log_ratio == pytest.approx(0.5)
    assert across_boots([*calm[:-1], -0.5], boot_spread(()), baseline_boots=1).log_ratio == pytest.approx(0.5 - 1 / 9)


def test_one_pass_has_no_interval():
    with pytest.raises(ValueError, match="needs two passes, not 1"):
        across_boots([0.1], boot_spread(()), baseline_boots=2)
    with pytest.raises(ValueError, match="needs two passes a block, not \\[2, 1\\]"):
        across_blocks([[0.1, 0.2], [0.1]], [levels((0.1, 0.2), (0.0, 0.1, 0.2))], boot_spread(()), baseline_boots=[2, 2])


@given(LOGS, st.floats(-1, 1), st.lists(st.floats(-1, 1), max_size=3), st.sampled_from([0.005, 0.03]))
def test_one_block_between_two_boots_of_the_baseline_is_a_run_of_one_boot(passes, d, earlier, sd):
    alone = across_boots(passes, boot_spread((d, *earlier), sd), baseline_boots=2)
    block = across_blocks([passes], [levels([alone.log_ratio + d / 2], [0.0, d])], boot_spread(earlier, sd), baseline_boots=[2])
    for name in ("log_ratio", "relative_variance", "within_variance", "within_freedom", "passes", "passes_sd"):
        assert getattr(block, name) == pytest.approx(getattr(alone, name), abs=1e-9)
    assert (block.boots.squares, block.boots.freedom) == pytest.approx((alone.boots.squares, alone.boots.freedom), abs=1e-9)


def levels(speculative, baseline):
    return BootLevels(speculative=tuple(map(float, speculative)), baseline=tuple(map(float, baseline)))


@pytest.mark.parametrize("faster", [0.0, 0.4])
def test_side_by_side_the_speed_of_a_wave_is_no_speed_of_a_boot(faster):
    """Waves of a variant and a baseline, the first with the control: least squares with a level for each wave, written out."""
    mine, base = np.array([0.60, 0.55, 0.68]), [np.array([0.0, 0.03]), np.array([-0.02]), np.array([0.05])]
    waves = [levels([m + faster * i], b + faster * i) for i, (m, b) in enumerate(zip(mine, base, strict=True))]
    logs = np.concatenate([mine, *base])
    design = np.zeros((7, 4))  # the levels of three waves, and the log-ratio
    for row, wave in enumerate((0, 1, 2, 0, 0, 1, 2)):
        design[row, wave], design[row, 3] = 1.0, row < 3
    solution, squares, *_ = np.linalg.lstsq(design, logs, rcond=None)
    found = across_blocks([[0.6, 0.6]] * 3, waves, boot_spread(()), baseline_boots=[2, 1, 1])
    assert found.log_ratio == pytest.approx(solution[3])
    assert (found.boots.squares, found.boots.freedom) == pytest.approx((squares[0], 7 - 4))
    assert found.relative_variance == pytest.approx(np.linalg.inv(design.T @ design)[3, 3])
    speculative, baseline = mean_levels(waves)
    assert speculative - baseline == pytest.approx(found.log_ratio)


def contrasts(count):
    """Blocks S_i - (B_i + B_(i+1)) / 2, then differences B_(i+1) - B_i, as rows over S_1 … S_N, B_1 … B_(N+1)."""
    rows = np.zeros((2 * count, 2 * count + 1))
    for i in range(count):
        rows[i, i] = 1.0
        rows[i, count + i : count + i + 2] = -0.5
        rows[count + i, count + i : count + i + 2] = (-1.0, 1.0)
    return rows


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_boots_on_one_scale_give_what_the_covariance_of_blocks_that_share_a_boot_gives(count):
    """Generalised least squares over the blocks and the differences between the boots around them, their covariance written out."""
    rng = np.random.default_rng(count)
    logs = np.concatenate([rng.normal(0.6, 0.03, count), rng.normal(0.0, 0.03, count + 1)])
    shares = contrasts(count)
    covariance, read = shares @ shares.T, shares @ logs
    if count > 1:
        assert (covariance[0, 0], covariance[0, 1]) == (1.5, 0.25)
    weights = np.linalg.solve(covariance, np.repeat([1.0, 0.0], count))
    variance = 1.0 / weights[:count].sum()
    log_ratio = variance * weights @ read
    residual = read - log_ratio * np.repeat([1.0, 0.0], count)
    squares = residual @ np.linalg.solve(covariance, residual)
    boots = levels(logs[:count] - logs[count], logs[count:] - logs[count])
    found = across_blocks([[0.6, 0.6]] * count, [boots], boot_spread(()), baseline_boots=[2] * count)
    assert found.log_ratio == pytest.approx(log_ratio)
    assert (found.boots.squares, found.boots.freedom) == pytest.approx((squares, 2 * count - 1))
    assert found.relative_variance == pytest.approx(variance)


def test_boots_that_differ_widen_the_interval_and_more_boots_narrow_it():
    def width(count, apart):
        all_ = [apart * (-1) ** i for i in range(2 * count + 1)]
        boots = levels([0.5 + level for level in all_[1::2]], all_[::2])
        found = across_blocks([PASSES] * count, [boots], boot_spread(()), baseline_boots=[2] * count)
        return found.at_least(0.025) / found.ratio

    assert width(6, 0.0) > width(4, 0.0) > width(2, 0.0) > width(1, 0.0)
    uneven, even = (
        across_blocks([PASSES] * 2, [boots], boot_spread(()), baseline_boots=[2, 2])
        for boots in (levels([0.5, 0.7], [0.0, 0.1, -0.1]), levels([0.6, 0.6], [0.0, 0.0, 0.0]))
    )
    assert uneven.boots.sd > even.boots.sd


@pytest.mark.parametrize(
    "beside, groups",
    [
        ([[0, 1]], [([0], [0, 1])]),
        ([[0, 1], [1, 2]], [([0, 1], [0, 1, 2])]),
        ([[i, i + 1] for i in range(4)], [(range(4), range(5))]),
        ([[0, 1], [2], [3]], [([0], [0, 1]), ([1], [2]), ([2], [3])]),
        ([[0, 1, 2]] * 2, [([0, 1], [0, 1, 2])]),
    ],
    ids=["one block", "two in turn", "four in turn", "side by side", "two engines"],
)
def test_passes_vary_the_ratio_as_those_of_every_boot_do(beside, groups):
    """Passes of independent boots, each of variance s^2: the centre of a boot has s^2 / P, and the ratio that times its shares."""
    passes = hadamard(16)[1:] * 0.02
    mine, base = passes[: len(beside)], passes[len(beside) :]
    blocks = [one - base[near].mean(axis=0) for one, near in zip(mine, beside, strict=True)]
    boots = [levels(np.zeros(len(ours)), np.zeros(len(theirs))) for ours, theirs in groups]
    found = across_blocks([list(block) for block in blocks], boots, boot_spread(()), baseline_boots=list(map(len, beside)))
    assert found.within_variance == pytest.approx(found.relative_variance * 0.02**2 * 16 / 15 / 16)


def test_an_interval_holds_its_ends():
    assert 1.0 in Interval(low=1.0, high=2.0, confidence=0.95)
    assert 2.1 not in Interval(low=1.0, high=2.0, confidence=0.95)


def test_errors_without_boots_are_those_of_the_passes():
    passes = within_one_boot([0.1, 0.2, 0.15])
    assert passes.tail_probabilities(passes.log_ratio - math.log(passes.at_least(0.025))) == pytest.approx((0.025,))
