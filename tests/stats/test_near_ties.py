from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pytest_specdec.stats import near_ties
from pytest_specdec.stats.near_ties import MOST_OF_A_PROMPT, FlipNoise, GreedyTokens, sigma_of, wealth


def payoffs(gaps, sigma):
    """Return the null distribution and what every bettor pays, by candidate, at one token."""
    table = np.array([gaps])
    noise = FlipNoise(sigma=sigma, tail=np.linspace(0.0, 3.0 * sigma, 20))
    null = noise.chances(table)
    of = GreedyTokens(gaps=table, chosen=np.zeros(1, dtype=np.int64), prompts=np.zeros(1, dtype=np.int64))
    for flips in near_ties._alternatives(of, null, noise):
        bold = near_ties._raise_to_null(null, flips)
        yield null[0], np.array([near_ties._log_payoffs(null, bold, np.array([j]))[0] for j in range(-1, len(gaps))])


@given(
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6).map(sorted),
    st.sampled_from([0.02, 0.05, 0.2]),
    arrays(float, 7, elements=st.floats(0.0, 1.0)),
)
def test_no_distribution_of_the_null_hypothesis_is_paid_more_than_it_stakes(below, sigma, share):
    """Flips at any rates up to those of the null distribution, the rest on the best token or on one that is not listed."""
    gaps = [0.0, *below]
    for null, logs in payoffs(gaps, sigma):
        if null.sum() >= near_ties._MOST_NULL:
            continue
        unlisted, paid = math.exp(logs[0]), np.exp(logs[1:])
        assert (paid[1:] >= paid[0] - 1e-12).all()
        assert unlisted == pytest.approx(paid[0])
        distribution = null * share[: len(null)]
        distribution[0] = 1.0 - distribution[1:].sum()
        assert (distribution * paid).sum() <= 1.0 + 1e-9


def drawn(rng, tokens, sd, fault=0.0, t3=False):
    """A server whose logits are off by noise; ``fault``: the rate at which a candidate within 0.2 nats is taken for the best."""
    gaps = np.sort(np.abs(rng.normal(0.0, 2.0, (tokens, 4))), axis=1)
    gaps = np.column_stack([np.zeros(tokens), gaps])
    noise = sd * (rng.standard_t(3, gaps.shape) / math.sqrt(3.0) if t3 else rng.normal(size=gaps.shape))
    chosen = (-gaps + noise).argmax(axis=1)
    near = (gaps[:, 1] <= 0.2) & (rng.random(tokens) < fault)
    return GreedyTokens(gaps=gaps, chosen=np.where(near, 1, chosen), prompts=np.arange(tokens) // 24)


def test_healthy_noise_raises_no_alarm_and_a_relaxed_acceptance_does():
    rng = np.random.default_rng(5)
    healthy = [wealth(drawn(rng, 800, 0.03), FlipNoise(sigma=0.05)).alarms(1e-3) for _ in range(200)]
    relaxed = [wealth(drawn(rng, 800, 0.03, fault=0.5), FlipNoise(sigma=0.05)).alarms(1e-3) for _ in range(20)]
    assert (sum(healthy), sum(relaxed)) == (0, 20)


def test_unlisted_tokens_and_single_candidates_win_nothing():
    lonely = GreedyTokens(gaps=np.zeros((5, 1)), chosen=np.zeros(5, dtype=np.int64), prompts=np.arange(5))
    assert wealth(lonely, FlipNoise(sigma=0.05)).peak == 0.0
    unlisted = GreedyTokens(gaps=np.array([[0.0, 0.4]] * 9), chosen=np.full(9, -1), prompts=np.arange(9))
    assert wealth(unlisted, FlipNoise(sigma=0.05)).peak == 0.0
    none = np.zeros(0, dtype=np.int64)
    assert wealth(GreedyTokens(gaps=np.zeros((0, 1)), chosen=none, prompts=none), FlipNoise(sigma=0.05)).peak == 0.0


def test_one_prompt_is_never_enough_for_an_alarm_and_three_are():
    """Each holds five tokens 0.3 nats below the best, which noise of 0.05 explains once in 10,000."""

    def evidence(prompts):
        tokens = 5 * prompts
        flipped = GreedyTokens(gaps=np.array([[0.0, 0.3]] * tokens), chosen=np.ones(tokens, dtype=np.int64), prompts=np.arange(tokens) // 5)
        return wealth(flipped, FlipNoise(sigma=0.05))

    assert evidence(1).peak == pytest.approx(math.log(MOST_OF_A_PROMPT))
    assert [evidence(prompts).alarms(6.7e-6) for prompts in (1, 2, 3)] == [False, False, True]


def test_answers_that_one_prefill_left_noisier_raise_no_alarm():
    """One of fifty has ten times the noise throughout; without the cap some of these runs alarm."""
    rng = np.random.default_rng(6)

    def alarms_in_a_run(most):
        choices = drawn(rng, 800, np.where(rng.random(34) < 0.02, 0.2, 0.02)[np.arange(800) // 24, None])
        return wealth(choices, FlipNoise(sigma=0.05), most).alarms(6.7e-6)

    assert sum(alarms_in_a_run(MOST_OF_A_PROMPT) for _ in range(200)) == 0
    assert sum(alarms_in_a_run(math.inf) for _ in range(200)) > 0


def test_the_granted_noise_is_what_is_measured_with_a_margin_and_a_floor():
    assert sigma_of(0.0, 0.05) == 0.05
    assert sigma_of(0.1, 0.05) == pytest.approx(1.3 * math.sqrt(2.0) * 0.1)
