"""Truncation: what noise moves across a boundary of top-p, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats import truncation
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import VIOLATION, Processing, requested

N, VOCABULARY, TOP_TOKENS = 8_000, 100, 20


def softmax(logits):
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)


def drawn(random, logits, temperature, top_p):
    mass = softmax(logits / temperature)
    order = np.argsort(-mass, axis=1)
    ranked = np.take_along_axis(mass, order, axis=1)
    ranked = np.where(ranked.cumsum(axis=1) - ranked < top_p, ranked, 0.0)
    below = (ranked / ranked.sum(axis=1, keepdims=True)).cumsum(axis=1) < random.random((N, 1))
    return np.take_along_axis(order, below.sum(axis=1, keepdims=True).clip(max=VOCABULARY - 1), axis=1)[:, 0]


def scored(logits, tokens):
    raw = np.log(softmax(logits))
    ids = np.argsort(-raw, axis=1)[:, :TOP_TOKENS]
    return RawDistribution(
        ids=ids,
        logprobs=np.take_along_axis(raw, ids, axis=1),
        chosen=tokens,
        chosen_logprobs=np.take_along_axis(raw, tokens[:, None], axis=1)[:, 0],
        vocabulary=VOCABULARY,
    )


def violations(noise, temperature, top_p, *, ignored=False, grid=0.0):
    """Return the rate of tokens beyond the margins, drawn under ``top_p`` or, where it is ``ignored``, from the whole distribution."""
    random = np.random.default_rng(4)
    logits = random.gamma(2.0, 1.5, size=(N, 1)) * random.standard_normal((N, VOCABULARY))
    server, scorer = (logits + noise * random.standard_normal(logits.shape) for _ in range(2))
    if grid:
        server, scorer = np.round(server / grid) * grid, np.round(scorer / grid) * grid
    tokens = drawn(random, server, temperature, 1.0 if ignored else top_p)
    asked = Processing(temperature=np.full(N, temperature), top_k=np.zeros(N, dtype=np.int64), top_p=np.full(N, top_p))
    distribution = requested(scored(scorer, tokens), asked, max(0.05, 2.0**0.5 * noise))
    return float(distribution.violation[np.arange(N), distribution.outcome].mean())


@pytest.mark.examples(3)
@pytest.mark.parametrize("noise, grid", [(0.0, 0.0), (0.03, 0.0), (0.1, 0.0), (0.06, 0.125)], ids=["exact", "g.03", "g.1", "bf16.06"])
@pytest.mark.parametrize("temperature, top_p", [(0.5, 0.4), (0.6, 0.9)])
def test_noise_puts_no_token_beyond_the_margins_of_a_cold_nucleus(noise, grid, temperature, top_p):
    assert violations(noise, temperature, top_p, grid=grid) <= VIOLATION


@pytest.mark.parametrize("noise, least", [(0.0, 0.08), (0.03, 0.08), (0.1, 0.01)], ids=["exact", "g.03", "g.1"])
def test_an_ignored_nucleus_shows_behind_the_margins(noise, least):
    """Of 192 tokens, as suites/parameters sends, four are enough at the share of a run."""
    assert violations(noise, 0.5, 0.4, ignored=True) > least


def test_the_margin_is_a_twentieth_of_mass_or_six_deviations_of_noise():
    warm = truncation.nucleus_margin(np.array([0.9]), np.array([1.0]), 0.05)
    assert (warm.least[0], warm.most[0]) == (pytest.approx(0.85), pytest.approx(0.95))
    cold = truncation.nucleus_margin(np.array([0.4]), np.array([0.5]), 0.05)
    assert cold.most[0] - 0.4 == pytest.approx(6 * 2**0.5 * 0.05 * 0.4 * 0.6 / 0.5, rel=0.1), "to first order"
    assert 0.0 < truncation.nucleus_margin(np.array([0.9]), np.array([0.5]), 0.2).most[0] < 1.0


@pytest.mark.parametrize("noise, most", [(0.0, 0.005), (0.05, 0.05)])
def test_exact_servers_leave_less_of_a_nucleus_untested(noise, most):
    boundary = truncation.nucleus_margin(np.array([0.9]), np.array([1.0]), noise, exact=not noise)
    assert (0.9 - boundary.least[0], boundary.most[0] - 0.9) == (pytest.approx(most), pytest.approx(most))


def narrower_wealth(noise, cut, seed, *, grid=0.0, tokens=1_100, jumps=0.0):
    """Return the path of the log wealth of the bet on top_p squared: .9 is asked for, the server draws under ``cut``."""
    random = np.random.default_rng(seed)
    logits = random.gamma(2.0, 1.5, size=(N, 1)) * random.standard_normal((N, VOCABULARY))
    server, scorer = (logits + noise * random.standard_normal(logits.shape) for _ in range(2))
    server = server + (random.random((N, 1)) < jumps) * random.standard_normal(logits.shape)
    if grid:
        server, scorer = np.round(server / grid) * grid, np.round(scorer / grid) * grid
    asked = Processing(temperature=np.ones(N), top_k=np.zeros(N, dtype=np.int64), top_p=np.full(N, 0.9))
    distribution = requested(scored(scorer, drawn(random, server, 1.0, cut)), asked, 0.05, 0.0 if not noise else max(jumps, 1e-4))
    paid = distribution.narrower_payoffs[np.arange(N), distribution.outcome]
    return paid[: N // tokens * tokens].reshape(-1, tokens).cumsum(axis=1)


WORLDS = {"exact": (0.0, 0.0, 0.0), "g.03": (0.03, 0.0, 0.0), "bf16.06": (0.06, 0.125, 0.0), "jumps": (0.02, 0.0, 2e-3)}


@pytest.mark.parametrize("world", WORLDS)
def test_a_nucleus_of_top_p_squared_pays_its_bettor_alone(world):
    """Seven runs of 1,100 tokens: a correct server's wealth stays low, and that of top_p squared raises the alarm in six."""
    noise, grid, jumps = WORLDS[world]
    right, wrong = (narrower_wealth(noise, cut, 5, grid=grid, jumps=jumps) for cut in (0.9, 0.81))
    assert right.max() < 5.0
    assert (wrong.max(axis=1) > 16.0).sum() >= 6


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("world", WORLDS)
def test_the_wealth_of_that_bettor_has_a_mean_of_one_at_most(world):
    noise, grid, jumps = WORLDS[world]
    ends = np.concatenate([narrower_wealth(noise, 0.9, seed, grid=grid, tokens=8, jumps=jumps)[:, -1] for seed in range(4)])
    mean, error = np.exp(ends).mean(), np.exp(ends).std() / len(ends) ** 0.5
    assert mean <= 1.0 + 3.0 * error


def test_a_top_p_of_0_leaves_the_most_probable_token():
    raw = scored(np.random.default_rng(2).standard_normal((N, VOCABULARY)), np.zeros(N, dtype=np.int64))
    none = Processing(temperature=np.ones(N), top_k=np.zeros(N, dtype=np.int64), top_p=np.zeros(N))
    distribution = requested(raw, none)
    assert (distribution.p[:, 0] == 1.0).all()
    assert not distribution.narrower_payoffs.any()
