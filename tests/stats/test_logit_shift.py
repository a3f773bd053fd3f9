"""The shift between two servers' distributions, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_specdec.model.transcript import Position
from pytest_specdec.stats import logit_shift
from pytest_specdec.stats.logit_shift import ERROR, measure

HALF = math.log(0.5)


def position(logprob=HALF):
    """A position whose own token has probability 1/2, as has the only other one: its weight is 1/2."""
    return Position(token_id=0, logprob=logprob, top_ids=(0, 1), top_logprobs=(logprob, math.log(1.0 - math.exp(logprob))))


def prompts(draws, per_prompt):
    """Pairs with differences of the drawn logits: a difference of sd s sqrt(weight) is what logit noise of sd s makes."""
    deltas = np.asarray(draws).reshape(-1, per_prompt) * math.sqrt(0.5)
    return [[(position().logprob + delta, position()) for delta in row] for row in deltas]


def test_the_shift_is_the_standard_deviation_of_the_logits_difference():
    pairs = prompts(np.random.default_rng(1).normal(0.0, 0.05, 200 * 25), 25)
    shift, noise = measure(pairs), measure(pairs, largest=True)
    assert shift.nats < 0.05 < noise.nats, "the smaller and the larger of two estimates"
    assert (shift.nats, noise.nats) == pytest.approx((0.05, 0.05), rel=0.15)
    assert shift.low < shift.nats < shift.high
    assert (shift.prompts, shift.positions) == (200, 5000)


def test_limits_need_twelve_prompts():
    draws = np.random.default_rng(2).normal(0.0, 0.05, 12)
    assert measure(prompts(draws[:11], 1)) is None
    shift = measure(prompts(draws, 1))
    assert (shift.low, shift.high) == pytest.approx(
        (np.abs(draws).min() / math.sqrt(0.4549364), np.abs(draws).max() / math.sqrt(0.4549364))
    )
    assert 0.5**12 <= ERROR < 0.5**11


def test_rare_jumps_do_not_move_it():
    rng = np.random.default_rng(3)
    draws = rng.normal(0.0, 0.03, 100 * 25)
    jumping = np.where(rng.random(draws.size) < 0.02, 2.0, draws)
    assert measure(prompts(jumping, 25)).nats == pytest.approx(measure(prompts(draws, 25)).nats, rel=0.1)


def test_tokens_too_certain_to_show_noise_are_left_out():
    certain = [[(0.0, Position(token_id=0, logprob=-1e-9, top_ids=(0,), top_logprobs=(-1e-9,)))]]
    assert measure(certain * 20) is None


@pytest.mark.parametrize("draw", [
    pytest.param(lambda rng, n: rng.normal(0.0, 1.0, n), marks=pytest.mark.statistics),
    pytest.param(lambda rng, n: rng.standard_t(3, n), marks=pytest.mark.statistics),
    pytest.param(lambda rng, n: rng.standard_cauchy(n), marks=pytest.mark.statistics),
], ids=["normal", "t3", "cauchy"])  # fmt: skip
def test_each_limit_errs_as_seldom_as_stated(draw, monkeypatch):
    """At a level that 2,000 simulations can see: the limits are those of order statistics, whatever the distribution."""
    monkeypatch.setattr(logit_shift, "ERROR", 0.05)
    rng = np.random.default_rng(4)
    true = math.sqrt(np.median(draw(rng, 400_000) ** 2) / 0.4549364)
    wrong = np.zeros(2)
    for _ in range(2000):
        shift = measure(prompts(draw(rng, 30), 1))
        wrong += (shift.low > true, shift.high < true)
    assert all(wrong / 2000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000))


def test_prompts_beyond_a_shift_are_counted_by_their_own():
    rng = np.random.default_rng(6)
    near, far = prompts(rng.normal(0.0, 0.03, 7 * 25), 25), prompts(rng.normal(0.0, 1.0, 3 * 25), 25)
    assert logit_shift.count_beyond([*near, *far], 0.1) == logit_shift.Beyond(prompts=3, compared=10)


def test_a_prompt_of_one_position_is_not_beyond_by_noise():
    """One position of 20 is beyond twice the standard deviation, which over a prompt of many positions is one of thousands."""
    draws = np.random.default_rng(8).normal(0.0, 0.03, 400)
    assert logit_shift.count_beyond(prompts(draws, 1), 0.06).prompts == 0
    assert logit_shift.count_beyond(prompts(draws * 10.0, 1), 0.06).prompts > 100


def test_the_upper_limit_of_many_short_prompts_covers_the_shift():
    """The smaller of two estimates is too small, by more than the limits of 1,000 prompts are apart."""
    shift = measure(prompts(np.random.default_rng(9).normal(0.0, 0.05, 1000 * 12), 12))
    assert (shift.nats < 0.05, shift.high > 0.05) == (True, True)
