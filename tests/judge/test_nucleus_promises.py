"""What a run says of nuclei that would have been caught, against servers with such a nucleus, other texts and other noise."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pytest_specdec.judge.sampling import sensitivity
from pytest_specdec.stats import betting
from pytest_specdec.stats.bettors import OUTSIDE, PARAMS_IGNORED, TOP_P_SQUARED
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, requested

VOCABULARY, TOP_TOKENS, TOP_P, BARRIER, RUNS = 100, 20, 0.9, 15.4, 40
BARRIERS = dict.fromkeys([TOP_P_SQUARED, PARAMS_IGNORED, *OUTSIDE.values()], BARRIER)


def softmax(logits):
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)


def tokens_of(random, logits, limit):
    """Draw a token at each position from the most probable ones up to ``limit`` of mass."""
    mass = softmax(logits)
    order = np.argsort(-mass, axis=1)
    ranked = np.take_along_axis(mass, order, axis=1)
    ranked = np.where(ranked.cumsum(axis=1) - ranked < limit, ranked, 0.0).cumsum(axis=1)
    at = (ranked > random.random((len(mass), 1)) * ranked[:, -1:]).argmax(axis=1)
    return order[np.arange(len(mass)), at]


def run_of(seed, tokens, noise, *, limit=TOP_P, temperature=1.0):
    """Return the distribution of a run whose server cuts at ``limit`` of mass; with ``noise`` both logits are rounded to eighths."""
    random = np.random.default_rng(seed)
    logits = random.gamma(2.0, 1.5, size=(tokens, 1)) * random.standard_normal((tokens, VOCABULARY))
    server, scorer = (logits + noise * random.standard_normal(logits.shape) for _ in range(2))
    if noise:
        server, scorer = np.round(server * 8.0) / 8.0, np.round(scorer * 8.0) / 8.0
    chosen, logprobs = tokens_of(random, server / temperature, limit), np.log(softmax(scorer))
    ids = np.argsort(-logprobs, axis=1)[:, :TOP_TOKENS]
    raw = RawDistribution(
        ids=ids,
        logprobs=np.take_along_axis(logprobs, ids, axis=1),
        chosen=chosen,
        chosen_logprobs=logprobs[np.arange(tokens), chosen],
    )
    parameters = Processing(temperature=np.full(tokens, temperature), top_k=np.zeros(tokens, dtype=np.int64), top_p=np.full(tokens, TOP_P))
    return requested(raw, parameters, max(0.05, 2.0**0.5 * noise), 1e-4 if noise else 0.0, exact=not noise)


def chance(growths, seed, tokens, noise, size):
    """Return the probability that a healthy run names, its answers being of 24 tokens."""
    observed = SimpleNamespace(distribution=run_of(seed, tokens, noise), slots=SimpleNamespace(last=np.arange(tokens) % 24 == 23))
    return sensitivity._chance(dict(growths(observed, BARRIERS))[size], BARRIERS)


def count_alarms(paid):
    """Return how many of the RUNS raise an alarm, by the log payoffs ``paid`` of all their tokens."""
    return int((paid.reshape(RUNS, -1).cumsum(axis=1).max(axis=1) >= BARRIER).sum())


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("noise, part, tokens", [(0.0, 0.8, 360), (0.06, 0.9, 1080)], ids=["exact", "bf16.06"])
def test_a_narrower_nucleus_is_caught_as_often_as_is_said(noise, part, tokens):
    """By the scores alone 480 tokens of a world like the second promised 99 % and caught 91 of 120: half as many do not promise it."""
    assert chance(sensitivity._cut_growths, 1, tokens, noise, part) >= 0.99
    assert chance(sensitivity._cut_growths, 1, tokens // 2, noise, part) < 0.9
    faulty = run_of(2, RUNS * tokens, noise, limit=part * TOP_P)
    assert count_alarms(betting.at_outcome(faulty.narrower_payoffs, faulty)) >= RUNS - 2


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("noise, width, tokens", [(0.0, 0.05, 720), (0.06, 1.0, 1608)], ids=["exact", "bf16.06"])
def test_a_wider_nucleus_is_caught_as_often_as_is_said(noise, width, tokens):
    assert chance(sensitivity._width_growths, 1, tokens, noise, width) >= 0.99
    faulty = run_of(3, RUNS * tokens, noise, limit=min(TOP_P + width, 1.0))
    assert max(count_alarms(betting.violations(faulty, share)) for share in OUTSIDE) >= RUNS - 2


def test_a_hot_nucleus_is_not_bet_on_and_no_other_one_is_said_to_be_caught():
    """Engines that cut before the temperature leave less than top_p of the heated mass, without a fault."""
    hot = run_of(4, 480, 0.0, temperature=1.3)
    assert not hot.narrower_payoffs.any()
    assert chance_of_hot(hot) == dict.fromkeys((*sensitivity.CUTS, *sensitivity.WIDTHS[:-3], 1.0), 0.0)


def chance_of_hot(hot):
    observed = SimpleNamespace(distribution=hot, slots=SimpleNamespace(last=np.arange(480) % 24 == 23))
    growths = [*sensitivity._cut_growths(observed, BARRIERS), *sensitivity._width_growths(observed, BARRIERS)]
    return {size: round(sensitivity._chance(of_size, BARRIERS), 6) for size, of_size in growths}
