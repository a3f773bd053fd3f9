"""Two samples of noise: what is lawful beside the baseline, on correct servers of several kinds and on faulty ones."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats.noise_comparison import (
    BOUNDED,
    HALF_PRECISION,
    SINGLE_PRECISION,
    LogprobSample,
    compare,
    detectable_noise,
    jump_limit,
    scale,
    tolerated_factor,
)

ALPHA, TOKENS = 4.5e-6, 800
HEALTHY = {
    "exact": {},
    "g.03": {"prefill": 0.03, "kernel": 0.03},
    "g.1": {"prefill": 0.1, "kernel": 0.1},
    "mt3.03": {"prefill": 0.03, "kernel": 0.03, "tails": True},
    "mt3.1": {"prefill": 0.1, "kernel": 0.1, "tails": True},
    "out1e-4": {"prefill": 0.02, "kernel": 0.02, "jumps": 1e-4},
    "out1e-3": {"prefill": 0.02, "kernel": 0.02, "jumps": 1e-3},
    "boot.1": {"prefill": 0.02, "kernel": 0.02, "boot": 0.1},
    "bf16.03": {"prefill": 0.03, "kernel": 0.03, "grid": 0.0625},
    "ver2x": {"prefill": 0.02, "kernel": 0.04},
    "ver3x": {"prefill": 0.02, "kernel": 0.06},
    "ver3x with tails": {"prefill": 0.02, "kernel": 0.06, "tails": True},
    "ver3x, out1e-3": {"prefill": 0.02, "kernel": 0.06, "jumps": 1e-3},
    "ver.1": {"prefill": 0.02, "kernel": 0.1},
}


def contexts(random):
    """Probabilities of the tokens, and the weights that their choices have."""
    chances = random.beta(0.5, 0.7, size=TOKENS)
    return chances, np.clip((1.0 - chances) ** 2 * (1.0 + random.random(TOKENS)), 1e-4, None)


def sample(random, *, prefill=0.0, kernel=0.0, tails=False, jumps=0.0, boot=0.0, grid=0.0, fault=None):
    chances, weights = contexts(random)

    def noise(sd):
        wide = np.abs(random.standard_t(3, size=TOKENS)) if tails else 1.0
        return sd * wide * random.standard_normal(TOKENS)

    deltas = noise(prefill) + noise(kernel) + 2.0**0.5 * boot * random.standard_normal(TOKENS)
    deltas += (random.random(TOKENS) < 2.0 * jumps) * random.standard_normal(TOKENS)
    deltas *= np.sqrt(weights)
    deltas = np.round(deltas / grid) * grid if grid else deltas
    if fault is not None:
        deltas = deltas + fault(random) * np.sqrt(weights)
    heavy, middling = weights > 0.05, (chances > 0.02) & (chances < 0.98)
    return LogprobSample(squares=deltas[heavy] ** 2 / weights[heavy], distances=np.abs(deltas[middling]))


def red(world, random, fault=None):
    numerics = HEALTHY[world]
    decode = {**numerics, "kernel": numerics.get("prefill", 0.0)}
    found = compare(sample(random, **numerics, fault=fault), sample(random, **decode), HALF_PRECISION)
    return min(found.p_noise, found.p_jumps) <= ALPHA


@pytest.mark.examples(5)
@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("world", HEALTHY)
def test_no_correct_server_is_red(world):
    random = np.random.default_rng(1)
    assert sum(red(world, random) for _ in range(60)) == 0


FAULTS = {
    "the value of the token before, at a third": lambda random: (random.random(TOKENS) < 0.33) * 1.5 * random.standard_normal(TOKENS),
    "the draft's value, at accepted tokens": lambda random: (random.random(TOKENS) < 0.6) * 0.6 * random.standard_normal(TOKENS),
    "a quantised verifier": lambda random: 0.35 * random.standard_normal(TOKENS),
}


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("world", ["exact", "g.03", "g.1", "mt3.1", "out1e-3", "ver3x"])
@pytest.mark.parametrize("fault", FAULTS)
def test_values_of_another_token_and_another_model_are_red(world, fault):
    random = np.random.default_rng(2)
    assert sum(red(world, random, FAULTS[fault]) for _ in range(12)) == 12


@pytest.mark.parametrize("world", ["exact", "g.03", "out1e-3", "ver3x", "bf16.03"])
def test_a_value_off_at_a_sixth_of_the_tokens_is_red(world):
    """As at bonus tokens alone: fewer than lie beyond the larger quantile, and by less than a jump."""
    random = np.random.default_rng(7)
    assert sum(red(world, random, lambda r: 0.8 * (r.random(TOKENS) < 0.17)) for _ in range(12)) == 12


def test_exact_servers_have_a_lower_limit():
    assert (jump_limit(0.0, SINGLE_PRECISION, exact=True), jump_limit(0.01, SINGLE_PRECISION, exact=True)) == (0.08, pytest.approx(0.16))


def test_a_verifier_that_is_wrong_behind_a_position_is_red():
    """One token in five, by a nat."""
    random = np.random.default_rng(3)
    late = [
        red(world, random, lambda r: (np.arange(TOKENS) % 50 > 39) * r.standard_normal(TOKENS)) for world in ("g.03", "out1e-3", "ver3x")
    ]
    assert all(late)


@pytest.mark.parametrize("prefill, kernel, times", [(0.02, 0.02, 1.0), (0.02, 0.06, 3.0), (0.02, 0.1, 5.0)])
def test_the_verify_kernels_noise_is_told_beside_decodes(prefill, kernel, times):
    random = np.random.default_rng(4)
    mine, theirs = (
        LogprobSample(squares=(prefill**2 + own**2) * random.standard_normal(4_000) ** 2, distances=()) for own in (kernel, prefill)
    )
    found = compare(mine, theirs, HALF_PRECISION)
    assert found.kernel == pytest.approx(times, rel=0.1)
    assert compare(mine, LogprobSample(squares=[0.0] * 400, distances=()), HALF_PRECISION).kernel is None


def test_a_few_jumps_do_not_move_a_scale():
    random = np.random.default_rng(5)
    squares = (0.05 * random.standard_normal(4_000)) ** 2
    assert scale(squares) == pytest.approx(0.05, rel=0.05)
    squares[::100] = 1.0
    assert scale(squares) == pytest.approx(0.05, rel=0.07)
    assert scale([]) == 0.0


def test_the_factor_is_bounded_by_what_a_noisy_baseline_leaves():
    assert [round(tolerated_factor(granted), 2) for granted in (0.0, 0.02, 0.0625, 0.1, 0.5)] == [BOUNDED, BOUNDED, BOUNDED, 2.5, 1.3]
    assert (jump_limit(0.0, SINGLE_PRECISION), jump_limit(0.04, HALF_PRECISION)) == (0.5, pytest.approx(0.64))


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_what_would_have_shown_does(noise):
    random = np.random.default_rng(6)

    def squares(sd):
        return (sd * random.standard_normal(400)) ** 2

    promised = detectable_noise(400, squares(noise), HALF_PRECISION, ALPHA)
    assert promised < (0.4 if noise else 0.12)
    found = 0
    for _ in range(60):
        one = compare(
            LogprobSample(squares=squares(promised), distances=()), LogprobSample(squares=squares(noise), distances=()), HALF_PRECISION
        )
        found += one.p_noise <= ALPHA
    assert found >= 57
