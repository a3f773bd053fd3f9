"""Default sampling parameters: two servers' tokens without a stated temperature tell whether both draw alike."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats import default_parameters
from pytest_specdec.stats.default_parameters import GRID, compare, log_evidence, log_likelihoods
from pytest_specdec.stats.raw_distribution import RawDistribution

VOCABULARY, TOP_TOKENS = 60, 20


def raw(rng, tokens, *, temperature=1.0, top_k=0, top_p=1.0, noise=0.0):
    """Tokens of a server with these parameters, and the scores of another one, which lists the most probable ones only."""
    logits = rng.normal(0.0, 2.0, (tokens, VOCABULARY))
    drawn = logits / temperature
    order = np.argsort(-drawn, axis=1)
    ranked = np.exp(np.take_along_axis(drawn, order, axis=1))
    ranked[:, top_k or VOCABULARY :] = 0.0
    ranked /= ranked.sum(axis=1, keepdims=True)
    ranked[ranked.cumsum(axis=1) - ranked >= top_p] = 0.0
    ranked /= ranked.sum(axis=1, keepdims=True)
    ranks = (ranked.cumsum(axis=1) < rng.random((tokens, 1))).sum(axis=1)
    chosen = order[np.arange(tokens), np.minimum(ranks, VOCABULARY - 1)]
    scored = logits + rng.normal(0.0, 1.0, logits.shape) * noise
    logprobs = scored - np.log(np.exp(scored).sum(axis=1, keepdims=True))
    ids = np.argsort(-logprobs, axis=1)[:, :TOP_TOKENS]
    return RawDistribution(
        ids=ids,
        logprobs=np.take_along_axis(logprobs, ids, axis=1),
        chosen=chosen,
        chosen_logprobs=logprobs[np.arange(tokens), chosen],
        vocabulary=VOCABULARY,
    )


@pytest.mark.examples(2)
@pytest.mark.parametrize("before, after, words", [
    ({}, {"temperature": 0.6}, ("temperature 1", "temperature 0.6")),
    ({"temperature": 0.7}, {}, ("temperature 0.7", "temperature 1")),
    ({"temperature": 0.6, "top_k": 20}, {"temperature": 1.0}, ("temperature 0.6", "temperature 1")),
    ({}, {"top_k": 10}, ("temperature 1", "temperature 1.1, top_k 10")),
])  # fmt: skip
def test_other_defaults_are_evidence_and_are_named(before, after, words):
    rng = np.random.default_rng(3)
    found = compare(raw(rng, 300, **before), raw(rng, 300, **after))
    assert found.log_evidence > np.log(1e3)
    assert str(found.old).startswith(words[0])
    assert str(found.new).startswith(words[1])
    assert (found.old_tokens, found.new_tokens) == (300, 300)


def largest_evidence(tokens, noise=0.0, **defaults):
    """The largest evidence of pairs of healthy runs, of 150 tokens each."""
    values = log_likelihoods(raw(np.random.default_rng(5), tokens, noise=noise, **defaults))
    runs = values.reshape(len(GRID), tokens // 150, 150).sum(axis=2)
    return max(log_evidence(runs[:, run], runs[:, run + 1]) for run in range(0, runs.shape[1], 2))


def test_equal_defaults_between_those_of_the_grid_raise_no_alarm_under_noise():
    assert largest_evidence(1_500, noise=0.1, temperature=0.65) < np.log(1e2)


@pytest.mark.statistics
@pytest.mark.parametrize("defaults", [{}, {"temperature": 0.65}, {"top_p": 0.92}, {"temperature": 0.7, "top_k": 20, "top_p": 0.8}])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_fifty_pairs_of_healthy_runs_stay_below_a_tenth_of_the_alarm(defaults, noise):
    assert largest_evidence(15_000, noise, **defaults) < np.log(1e2)


def test_the_weights_of_the_grid_are_those_of_one_mixture():
    assert default_parameters._weights().sum() == pytest.approx(1.0)
