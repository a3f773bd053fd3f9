"""Bets on the emitted token's own two probabilities: never favourable to a correct server, whatever lies beyond the top tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.stats import betting
from pytest_specdec.stats.bettors import bettors, window_bettors
from pytest_specdec.stats.draft_distribution import SplitRemainder, index_of, listed_outcomes, map_draft, one_hot
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.remainder_bets import excess_stake, leak_payoffs, refine_remainder
from pytest_specdec.stats.reused_numbers import ReusedNumber, accepts_once
from pytest_specdec.stats.token_distribution import Processing, requested
from pytest_specdec.stats.verify_slots import Observed, VerifySlots, join_slots, slots_from_windows

VOCABULARY, TOP_TOKENS = 40, 6


def told(distribution, tokens, top_tokens=TOP_TOKENS):
    """What a server with ``distribution`` [V] tells at each of ``tokens``, all in the same place."""
    ids = np.broadcast_to(np.argsort(-distribution)[:top_tokens], (len(tokens), top_tokens))
    return RawDistribution(
        ids=ids, logprobs=np.log(distribution)[ids], chosen=tokens, chosen_logprobs=np.log(distribution)[tokens], vocabulary=VOCABULARY
    )


def place(slot):
    """The place of a token, an answer of its own, in a window of three drafts."""
    return VerifySlots(
        slot=np.array([slot]),
        drafted=np.array([3]),
        after_rejection=np.zeros(1, dtype=bool),
        rejected_before=np.zeros(1, dtype=bool),
        ended=np.zeros(1, dtype=bool),
        last=np.ones(1, dtype=bool),
    )


def every_token(p, q, *, temperature=1.0, certain=False, slot=0):
    """A row for each token that might be emitted at one place, each an answer of its own."""
    every = np.arange(VOCABULARY)
    processing = Processing(temperature=np.full(VOCABULARY, temperature), top_k=np.zeros(VOCABULARY, dtype=int), top_p=np.ones(VOCABULARY))
    raw, draft = told(p, every), told(q, every)
    distribution, own = requested(raw, processing), requested(draft, processing)
    best = np.full(VOCABULARY, q.argmax())
    view = one_hot(index_of(best, raw.ids), TOP_TOKENS + 1) if certain else map_draft(own.p, draft.ids, raw.ids, distribution.p)
    top_tokens = np.column_stack([np.ones(raw.ids.shape, dtype=bool), np.zeros(VOCABULARY, dtype=bool)])
    return Observed(
        distribution=distribution,
        ids=raw.ids,
        q=view,
        drafted=np.ones(VOCABULARY, dtype=bool),
        slots=join_slots([place(slot)] * VOCABULARY),
        k=3,
        accepted_if_emitted=np.zeros(VOCABULARY),
        q_chosen=(best == every).astype(float) if certain else own.chosen_floor,
        accepted_if_drafted=np.ones(VOCABULARY),
        listed=top_tokens if certain else listed_outcomes(draft.ids, raw.ids),
        vocabulary=VOCABULARY,
    )


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([1.0, 0.6, 1.5]),
    certain=st.booleans(),
    flat=st.sampled_from([0.1, 0.5, 3.0]),
    slot=st.sampled_from([0, 3]),
)
def test_no_bettor_gains_on_average_over_a_whole_vocabulary(seed, temperature, certain, flat, slot):
    random = np.random.default_rng(seed)
    p, q = (random.dirichlet(np.full(VOCABULARY, flat)) + 1e-7 for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    truth = p ** (1.0 / temperature) / (p ** (1.0 / temperature)).sum()
    for one in bettors(every_token(p, q, temperature=temperature, certain=certain, slot=slot)):
        assert truth @ np.exp(one.log_payoffs) <= 1.0 + 5e-5, one.name


def test_a_leak_is_paid_by_the_tokens_own_ratio_beyond_the_top_tokens():
    random = np.random.default_rng(5)
    p, q = (random.dirichlet(np.full(VOCABULARY, 0.5)) for _ in range(2))
    seen = every_token(p, q)
    paid = np.exp(leak_payoffs(seen, 0.2, np.zeros(seen.distribution.p.shape)))
    assert paid == pytest.approx(0.8 + 0.2 * q / p, rel=2e-2)
    assert (paid <= 0.8 + 0.2 * q / p + 1e-12).all()


def test_a_token_of_no_probability_is_the_least_that_a_leak_is_paid_for():
    seen = every_token(np.full(VOCABULARY, 1 / VOCABULARY), np.full(VOCABULARY, 1 / VOCABULARY))
    seen.distribution.chosen_bound[:] = 0.0
    assert np.exp(leak_payoffs(seen, 0.2, np.zeros(seen.distribution.p.shape))) == pytest.approx(0.8)


def test_under_truncation_the_top_tokens_alone_tell():
    seen = every_token(np.full(VOCABULARY, 1 / VOCABULARY), np.full(VOCABULARY, 1 / VOCABULARY))
    seen.distribution.chosen_bound[:] = np.inf
    table = np.full(seen.distribution.p.shape, 0.7)
    assert leak_payoffs(seen, 0.2, table) == pytest.approx(0.7)
    assert not refine_remainder(seen, np.full(VOCABULARY, 0.5)).any()


def test_what_is_staked_on_the_remainder_follows_what_is_accepted_too_much():
    split = SplitRemainder(p=np.array([[0.5, 0.2, 0.0, 0.3]]), q=np.array([[0.2, 0.2, 0.0, 0.6]]))
    right = np.minimum(1.0, np.array([[2.5, 1.0, 1.0, 0.5]]))
    assert excess_stake(split, right) == pytest.approx(0.0)
    assert excess_stake(split, np.ones((1, 4))) == pytest.approx(0.475)
    assert excess_stake(split, np.array([[1.0, 1.0, 0.0, 0.0]])) == pytest.approx(0.0)


def test_a_certain_draft_beyond_the_top_tokens_is_staked_on_though_the_remainder_is_in_four_pieces():
    """The window's bettor spreads the remainder; a draft that is certain lies in the first of the four pieces."""
    p, q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.0, 0.0, 1.0]])
    two = SplitRemainder.of(p, q)
    four = two.spread()
    assert excess_stake(four, np.ones((1, 6)), parts=4) == pytest.approx(excess_stake(two, np.ones((1, 4))))
    assert excess_stake(four, np.ones((1, 6)), parts=4) > 0.4


def test_one_number_for_a_window_is_paid_by_the_ratio_of_a_certain_draft_beyond_the_top_tokens():
    """The second draft of a window is accepted, a token of 0.2 % beyond the top tokens, after one of a ratio of 5 %."""
    p = np.arange(1.0, VOCABULARY + 1.0)
    seen = every_token(p / p.sum(), np.where(np.arange(VOCABULARY) == 1, 1.0, 1e-9), certain=True)
    seen.slots.slot[1], seen.slots.last[0] = 1, False
    seen.accepted_if_drafted[0] = 0.05
    (live,) = window_bettors(seen)
    assert live.log_payoffs[1] > np.log(50.0)


@pytest.mark.parametrize("drafted", [1, 20, VOCABULARY - 1])
def test_one_number_for_a_window_is_not_favourable_to_a_correct_server_behind_a_lucky_draft(drafted):
    """Every token stands after a draft of a ratio of 5 %, but for the first, which is never emitted."""
    p = np.concatenate([[1e-9], np.arange(2.0, VOCABULARY + 1.0)])
    p /= p.sum()
    seen = every_token(p, np.where(np.arange(VOCABULARY) == drafted, 1.0, 1e-9), certain=True, slot=1)
    seen.slots.last[:], seen.accepted_if_drafted[:] = False, 0.05
    (live,) = window_bettors(seen)
    assert live.log_payoffs[1:].max() > 0.1
    assert p @ np.exp(live.log_payoffs) <= 1.0 + 5e-5


def test_one_number_for_a_window_accepts_by_the_least_ratio_so_far():
    slots = slots_from_windows((1, 4), 5, lambda _start: 3)
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.8, 0.1, 0.1])
    seen = every_token(np.full(VOCABULARY, 1 / VOCABULARY), np.full(VOCABULARY, 1 / VOCABULARY))
    distribution = seen.distribution
    short = Observed(
        distribution=type(distribution)(
            **{
                name: value[:5] if isinstance(value := getattr(distribution, name), np.ndarray) else value
                for name in distribution.__slots__
            }
        ),
        ids=seen.ids[:5],
        q=None,
        drafted=np.ones(5, dtype=bool),
        slots=slots,
        k=3,
        accepted_if_emitted=np.ones(5),
        accepted_if_drafted=np.array([1.0, 0.5, 0.8, 0.2, 1.0]),
    )
    split = SplitRemainder(p=np.tile(np.insert(p, 2, 0.0), (5, 1)), q=np.tile(np.insert(q, 2, 0.0), (5, 1)))
    assert accepts_once(split, short)[:, 0] == pytest.approx([0.25, 0.25, 0.5, 0.5, 1.0])


def test_one_number_for_a_window_has_a_seat():
    seen = every_token(np.full(VOCABULARY, 1 / VOCABULARY), np.full(VOCABULARY, 1 / VOCABULARY))
    assert ReusedNumber.WINDOW.value in {one.name for one in bettors(seen)}
    assert betting.wealth_process(bettors(seen)).bettors
