from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.model.transcript import Position
from pytest_specdec.stats.logprob_noise import INVALID_ABOVE, Calibration, calibrate


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum())


def noisy_pairs(sd, tokens, seed, scale=2.0, vocabulary=20, power=1.0, listed=20):
    """Tokens drawn from distributions over ``vocabulary``; both servers see the logits with noise of their own: ``sd`` between them."""
    rng = np.random.default_rng(seed)
    for _ in range(tokens):
        logits = rng.normal(0.0, scale, vocabulary)
        scored, reported = log_softmax(logits), log_softmax(power * logits + rng.normal(0.0, sd, vocabulary))
        order = np.argsort(-scored)[:listed]
        token = int(rng.choice(vocabulary, p=np.exp(reported)))
        top_tokens = tuple(int(i) for i in order)
        yield reported[token], Position(token_id=token, logprob=scored[token], top_ids=top_tokens, top_logprobs=tuple(scored[order]))


@pytest.mark.parametrize("sd", [0.01, 0.05, 0.1, 0.2])
def test_the_noise_between_two_servers_is_recovered(sd):
    found = calibrate(noisy_pairs(sd, 4000, seed=1))
    assert found.noise == pytest.approx(sd, rel=0.06)
    assert found.largest > sd


def test_equal_computations_have_no_noise():
    found = calibrate(noisy_pairs(0.0, 50, seed=2))
    assert (found.noise, found.largest) == (0.0, 0.0)
    assert found.valid


def test_certain_tokens_say_nothing_of_noise():
    sure = Position(token_id=1, logprob=-1e-6, top_ids=(1, 2), top_logprobs=(-1e-6, -14.0))
    found = calibrate([(-0.5, sure)])
    assert (found.noise, found.tokens, found.largest) == (None, 0, pytest.approx(0.5, abs=1e-5))
    assert calibrate([]).valid


def test_too_much_noise_is_not_valid():
    assert not calibrate(noisy_pairs(1.5 * INVALID_ABOVE, 500, seed=3)).valid


@pytest.mark.examples(2)
@pytest.mark.parametrize("listed", [5, 20])
@pytest.mark.parametrize("power, sd", [(1.01, 0.0), (0.98, 0.03), (1.06, 0.1)])
def test_a_scoring_bias_of_the_scores_is_measured(power, sd, listed):
    """Give or take what the selection of tokens by noise makes of it, -sd^2/4."""
    found = calibrate(noisy_pairs(sd, 4000, seed=4, power=power, listed=listed))
    assert found.scoring_bias == pytest.approx(power - 1.0 - sd**2 / 4, abs=0.05 * abs(power - 1.0) + 4.0 * found.scoring_bias_error)
    assert found.is_biased


@pytest.mark.parametrize("sd", [0.0, 0.05])
def test_a_scoring_bias_is_no_noise(sd):
    found = calibrate(noisy_pairs(sd, 4000, seed=4, power=0.94))
    assert found.noise == pytest.approx(sd, abs=0.004)
    assert found.largest > 0.2


def test_a_cold_draw_leans_by_its_noise_alone():
    """Which is why no scoring bias is measured of one."""
    random = np.random.default_rng(8)
    pairs = []
    for _ in range(3000):
        logits = random.normal(0.0, 2.0, 20)
        scored, reported = log_softmax(logits), log_softmax(logits + random.normal(0.0, 0.1, 20))
        order, token = np.argsort(-scored), int(reported.argmax())
        position = Position(token_id=token, logprob=scored[token], top_ids=tuple(order.tolist()), top_logprobs=tuple(scored[order]))
        pairs.append((reported[token], position))
    assert calibrate(pairs).is_biased
    assert not calibrate(pairs, unprocessed=False).is_biased


def test_what_is_not_finite_is_noise_and_no_scoring_bias():
    pairs = list(noisy_pairs(0.03, 400, seed=6))
    assert calibrate([*pairs, (math.nan, pairs[0][1])]) == calibrate(pairs)
    found = calibrate([*pairs, (-math.inf, pairs[0][1])])
    assert (found.noise, found.valid, found.is_biased) == (math.inf, False, False)
    never = replace(pairs[0][1], logprob=-math.inf)
    assert calibrate([*pairs, (-1.0, never)]).is_biased is False


@pytest.mark.examples(2)
@pytest.mark.parametrize("sd", [0.0, 0.03, 0.1, 0.2])
def test_noise_is_no_scoring_bias(sd):
    assert not [seed for seed in range(20) if calibrate(noisy_pairs(sd, 1000, seed=seed)).is_biased]


def test_more_noise_excuses_more_scoring_bias():
    """Tokens are drawn from the noisy distribution: at a noise of 0.2 that alone makes a slope of -0.01 or so."""
    assert not Calibration(noise=0.2, tokens=9000, largest=1.0, scoring_bias=-0.012, scoring_bias_error=0.0005).is_biased
    assert Calibration(noise=0.2, tokens=9000, largest=1.0, scoring_bias=-0.016, scoring_bias_error=0.0005).is_biased
    assert Calibration(noise=0.03, tokens=9000, largest=1.0, scoring_bias=-0.012, scoring_bias_error=0.0005).is_biased


def test_a_scoring_bias_is_not_guessed_from_a_handful_of_tokens():
    assert calibrate(noisy_pairs(0.0, 199, seed=5, power=1.2)).scoring_bias_error == np.inf
    assert calibrate(noisy_pairs(0.0, 400, seed=5, power=1.2)).is_biased


def test_noise_at_the_limit_is_not_too_much_by_luck():
    """An estimate falls above the limit every other time; half of such runs were invalid for nothing."""
    found = [calibrate(noisy_pairs(INVALID_ABOVE, 500, seed=seed)) for seed in range(12)]
    assert any(one.noise > INVALID_ABOVE for one in found)
    assert all(one.valid for one in found)
    assert all(one.noise_error == pytest.approx(INVALID_ABOVE / (2 * 500) ** 0.5, rel=0.6) for one in found)
