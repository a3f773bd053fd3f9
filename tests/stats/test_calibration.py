from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.model.score import Position
from pytest_specdec.stats.calibration import INVALID_ABOVE, calibrate


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum())


def noisy_pairs(sd, tokens, seed, scale=2.0, vocabulary=20):
    """Tokens drawn from laws over ``vocabulary``; both servers see the logits with noise of their own: ``sd`` between them."""
    rng = np.random.default_rng(seed)
    for _ in range(tokens):
        logits = rng.normal(0.0, scale, vocabulary)
        scored, reported = log_softmax(logits), log_softmax(logits + rng.normal(0.0, sd, vocabulary))
        order = np.argsort(-scored)
        token = int(rng.choice(vocabulary, p=np.exp(reported)))
        atoms = tuple(int(i) for i in order)
        yield reported[token], Position(token_id=token, logprob=scored[token], atom_ids=atoms, atom_logprobs=tuple(scored[order]))


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
    sure = Position(token_id=1, logprob=-1e-6, atom_ids=(1, 2), atom_logprobs=(-1e-6, -14.0))
    found = calibrate([(-0.5, sure)])
    assert (found.noise, found.tokens, found.largest) == (None, 0, pytest.approx(0.5, abs=1e-5))
    assert calibrate([]).valid


def test_too_much_noise_is_not_valid():
    assert not calibrate(noisy_pairs(1.5 * INVALID_ABOVE, 500, seed=3)).valid
