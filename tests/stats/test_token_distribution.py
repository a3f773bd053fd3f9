from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats.penalties import Adjustment
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, requested

RANDOM = np.random.default_rng(5)


def test_temperature_divides_the_noise_of_the_scores_like_the_logits():
    temperatures = np.array([0.5, 1.0, 2.0])
    asked = Processing(temperature=temperatures, top_k=np.zeros(3, dtype=np.int64), top_p=np.ones(3))
    distribution = requested(seen(RANDOM.normal(size=(3, 40)), [0, 1, 2]), asked, 0.1)
    assert distribution.noise == pytest.approx([0.2, 0.1, 0.05])


def softmax(logits):
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)


def processed(logits, temperature=1.0, top_k=0, top_p=1.0):
    """What an engine does, over the whole vocabulary: temperature, top-k, top-p."""
    distribution = softmax(logits / temperature)
    order = np.argsort(-distribution, axis=1, kind="stable")
    ranked = np.take_along_axis(distribution, order, axis=1)
    if top_k:
        ranked[:, top_k:] = 0.0
    ranked /= ranked.sum(axis=1, keepdims=True)
    ranked = np.where(ranked.cumsum(axis=1) - ranked < top_p, ranked, 0.0) if top_p < 1 else ranked
    back = np.zeros_like(distribution)
    np.put_along_axis(back, order, ranked / ranked.sum(axis=1, keepdims=True), axis=1)
    return back


def seen(logits, chosen, top_tokens=20):
    raw = np.log(softmax(logits))
    ids = np.argsort(-raw, axis=1, kind="stable")[:, :top_tokens]
    chosen = np.asarray(chosen)
    return RawDistribution(
        ids=ids,
        logprobs=np.take_along_axis(raw, ids, axis=1),
        chosen=chosen,
        chosen_logprobs=np.take_along_axis(raw, chosen[:, None], axis=1)[:, 0],
    )


def wish(n, temperature=1.0, top_k=0, top_p=1.0):
    return Processing(temperature=np.full(n, temperature), top_k=np.full(n, top_k, dtype=np.int64), top_p=np.full(n, top_p))


def coarse(distribution, ids):
    top_tokens = np.take_along_axis(distribution, ids, axis=1)
    return np.concatenate([top_tokens, 1.0 - top_tokens.sum(axis=1, keepdims=True)], axis=1)


LOGITS = 1.5 * RANDOM.normal(size=(200, 300))
SOME = RANDOM.integers(300, size=200)


def test_at_temperature_one_the_distribution_is_exact_with_the_remainder():
    raw = seen(LOGITS, SOME)
    distribution = requested(raw, wish(200))
    assert distribution.p == pytest.approx(coarse(softmax(LOGITS), raw.ids), abs=1e-9)
    assert distribution.core.all()
    assert not distribution.violation.any()
    assert distribution.chosen == pytest.approx(np.exp(raw.chosen_logprobs))


def test_a_token_outside_the_top_tokens_is_the_remainder():
    raw = seen(LOGITS, SOME)
    distribution = requested(raw, wish(200))
    for row in range(200):
        assert distribution.outcome[row] == (raw.ids[row].tolist().index(SOME[row]) if SOME[row] in raw.ids[row] else 20)


def test_the_remainder_is_at_least_as_probable_as_the_token_it_emitted():
    raw = RawDistribution(ids=np.array([[1, 2]]), logprobs=np.log([[0.7, 0.3]]), chosen=np.array([9]), chosen_logprobs=np.log([0.01]))
    assert requested(raw, wish(1)).p[0, 2] == pytest.approx(0.01 / 1.01)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
def test_under_another_temperature_the_distribution_among_the_top_tokens_is_exact(temperature):
    raw = seen(LOGITS, SOME)
    distribution = requested(raw, wish(200, temperature=temperature))
    among = np.take_along_axis(processed(LOGITS, temperature), raw.ids, axis=1)
    assert distribution.p[:, :-1] / distribution.p[:, :-1].sum(axis=1, keepdims=True) == pytest.approx(
        among / among.sum(axis=1, keepdims=True), abs=1e-9
    )
    assert distribution.core[:, :-1].all()
    assert not distribution.core[:, -1].any()
    assert distribution.p.sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 0.95])
def test_below_temperature_one_the_remainder_is_bounded(temperature):
    raw = seen(LOGITS, SOME)
    distribution = requested(raw, wish(200, temperature=temperature))
    truth = processed(LOGITS, temperature)
    assert (coarse(truth, raw.ids)[:, -1] <= distribution.violation_bound).all()
    assert distribution.violation[:, -1].all()
    assert (truth[np.arange(200), SOME] <= distribution.chosen_bound + 1e-12).all()


def test_above_temperature_one_nothing_bounds_the_remainder():
    assert not requested(seen(LOGITS, SOME), wish(200, temperature=1.5)).violation.any()


@pytest.mark.parametrize(
    "asked", [{"top_k": 8}, {"top_p": 0.8}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 12, "top_p": 0.85}, {"top_k": 50, "top_p": 0.6}]
)
def test_inside_the_core_the_truncated_distribution_is_exact_up_to_one_factor(asked):
    raw = seen(LOGITS, SOME)
    distribution = requested(raw, wish(200, **asked))
    truth = coarse(processed(LOGITS, **asked), raw.ids)
    mine, theirs = np.where(distribution.core, distribution.p, 0.0), np.where(distribution.core, truth, 0.0)
    assert mine / mine.sum(axis=1, keepdims=True) == pytest.approx(theirs / theirs.sum(axis=1, keepdims=True), abs=1e-9)
    assert distribution.core[:, 0].all()
    assert not (distribution.core & distribution.violation).any()
    assert np.where(distribution.violation, truth, 0.0).max() < 1e-12


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_top_k_leaves_two_ranks_and_some_logits_on_either_side_alone(temperature, noise):
    raw = seen(LOGITS, SOME)
    distribution = requested(raw, wish(200, top_k=8, temperature=temperature), noise)
    above = raw.logprobs - raw.logprobs[:, 7:8]
    margin = max(0.6, 6 * np.sqrt(2) * noise)
    rank = np.arange(20)
    assert (distribution.core[:, :-1] == ((rank < 6) & (above >= margin) | (rank == 0))).all()
    assert (distribution.violation[:, :-1] == ((rank >= 10) & (above <= -margin))).all()
    assert (distribution.violation[:, -1] == distribution.violation[:, -2]).all()
    assert distribution.violation.any() == (noise == 0.0)
    assert distribution.p[0, 8:].tolist() == [0.0] * 13


def test_a_flat_distribution_has_no_safe_rank():
    """With 0.1 logit noise two ranks of equal tokens are nothing: 30 of 200 healthy runs alarmed by ranks alone."""
    flat = RawDistribution(
        ids=np.arange(20)[None, :], logprobs=np.log(np.full((1, 20), 0.05)), chosen=np.array([0]), chosen_logprobs=np.log([0.05])
    )
    distribution = requested(flat, wish(1, top_k=8))
    assert np.flatnonzero(distribution.core[0]).tolist() == [0]
    assert not distribution.violation.any()


@pytest.mark.parametrize("top_k, core, violations", [(1, 1, 18), (2, 1, 17), (18, 16, 1), (19, 17, 0), (40, 19, 0)])
def test_top_k_at_the_edges_of_the_top_tokens(top_k, core, violations):
    steep = 1.0 * np.arange(30)[::-1][None, :]
    distribution = requested(seen(steep, [0]), wish(1, top_k=top_k))
    assert (int(distribution.core.sum()), int(distribution.violation.sum())) == (core, violations)


def steps(mass):
    mass = np.array(mass)
    return RawDistribution(
        ids=np.arange(len(mass))[None, :], logprobs=np.log(mass)[None, :], chosen=np.array([0]), chosen_logprobs=np.log(mass[:1])
    )


def test_top_p_leaves_a_band_of_mass_on_either_side_alone():
    falling = steps([0.16, 0.15, 0.13, 0.12, 0.11, 0.09, 0.08, 0.06, 0.05, 0.05])
    distribution = requested(falling, wish(1, top_p=0.5), noise=0.0)
    assert np.flatnonzero(distribution.core[0]).tolist() == [0, 1, 2]
    assert np.flatnonzero(distribution.violation[0]).tolist() == [4, 5, 6, 7, 8, 9, 10], "0.56 of mass before token 4"


def test_tokens_that_noise_may_have_put_in_another_order_are_no_violation_of_top_p():
    """Of ten equal tokens a server keeps any five."""
    assert np.flatnonzero(requested(steps([0.1] * 10), wish(1, top_p=0.5)).violation[0]).tolist() == []


def test_a_nucleus_wider_than_the_top_tokens_bets_among_top_tokens_only():
    distribution = requested(seen(0.1 * LOGITS, SOME), wish(200, top_p=0.9))
    assert not distribution.core[:, -1].any()
    assert not distribution.violation.any()
    assert distribution.p.sum(axis=1) == pytest.approx(1.0)


def test_positions_with_fewer_top_tokens_than_others_have_no_mass_in_the_gap():
    raw = RawDistribution(
        ids=np.array([[4, 7, -1]]),
        logprobs=np.array([[np.log(0.75), np.log(0.25), -np.inf]]),
        chosen=np.array([7]),
        chosen_logprobs=np.log([0.25]),
    )
    distribution = requested(raw, wish(1))
    assert distribution.core[0].tolist() == [True, True, False, True]
    assert distribution.p[0, :2] == pytest.approx([0.75, 0.25], abs=1e-5)


def test_information_is_the_variance_of_the_surprise():
    raw = RawDistribution(
        ids=np.array([[1, 2]] * 2),
        logprobs=np.log([[0.8, 0.2], [0.999999, 1e-6]]),
        chosen=np.array([1, 1]),
        chosen_logprobs=np.log([0.8, 0.99]),
    )
    distribution = requested(raw, wish(2))
    assert distribution.information == pytest.approx(0.8 * 0.2 * np.log(4) ** 2, abs=1e-2)
    assert repr(distribution) == "<Distribution of 2 tokens over 2 top tokens>"


def test_a_certain_position_informs_of_nothing():
    certain = RawDistribution(
        ids=np.array([[1, 2]]), logprobs=np.array([[0.0, -50.0]]), chosen=np.array([1]), chosen_logprobs=np.array([0.0])
    )
    assert requested(certain, wish(1)).information < 1e-3


@pytest.mark.parametrize("scoring_bias", [-0.06, 0.1])
def test_a_distribution_that_leans_is_one_at_another_temperature(scoring_bias):
    """What the request asks for is done to the distribution to the power 1 + lean, a bias of its own size included."""
    logits = np.log([[0.5, 0.2, 0.15, 0.1, 0.05]])
    biases = np.array([[0.0, 1.0, 0.0, 0.0, -0.5]])
    none = np.zeros((1, 5), dtype=np.bool_)
    moved = Adjustment(
        top_tokens=biases, unsure=none, chosen=biases[:, 1], chosen_unsure=none[:, 0], elsewhere=none[:, 0], upwards=none[:, 0]
    )
    raw = RawDistribution(ids=np.arange(5)[None], logprobs=logits, chosen=np.array([1]), chosen_logprobs=logits[:, 1], vocabulary=5)
    asked = Processing(temperature=np.array([0.7]), top_k=np.array([0]), top_p=np.array([1.0]), adjustment=moved)
    weights = np.exp(((1.0 + scoring_bias) * logits + biases) / 0.7)[0]
    found = requested(raw, asked.adapt_to_bias(scoring_bias))
    assert found.p[0, :5] == pytest.approx(weights / weights.sum(), abs=1e-5)
    assert found.chosen[0] == pytest.approx(weights[1] / weights.sum(), abs=1e-5)
