"""Rare events are counted against those of peers: the level holds whatever the common rate is, round after round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.stats.excess import EventCount, alarm_at, log_evidence

ALPHA = 5e-5


def counted(events, tokens=1600, peer_events=0, peer_tokens=5200):
    return EventCount(events=events, tokens=tokens, peer_events=peer_events, peer_tokens=peer_tokens)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 12))
def test_the_mean_evidence_of_events_that_fall_as_tokens_do_is_one(tokens, peer_tokens, events):
    """Given all events, those of the arm are binomial with its share of the tokens."""
    w = tokens / (tokens + peer_tokens)
    chances = [math.comb(events, k) * w**k * (1.0 - w) ** (events - k) for k in range(events + 1)]
    paid = [math.exp(log_evidence([counted(k, tokens, events - k, peer_tokens)])) for k in range(events + 1)]
    assert sum(p * e for p, e in zip(chances, paid, strict=True)) == pytest.approx(1.0)


@pytest.mark.parametrize("rate", [2e-5, 2e-4, 2e-3, 2e-2])
def test_no_rate_that_arm_and_peers_share_raises_more_alarms_than_its_level_over_rounds(rate):
    rng = np.random.default_rng(7)
    alarms, level = 0, 0.01
    for _ in range(400):
        rounds = []
        for _ in range(4):
            rounds.append(counted(int(rng.binomial(1600, rate)), peer_events=int(rng.binomial(5200, rate))))
            if log_evidence(rounds) >= -math.log(level):
                alarms += 1
                break
    assert alarms <= 10, "P(Bin(400, .01) > 10) is below .003"


def test_evidence_adds_up_over_rounds_and_the_peers_events_take_from_it():
    one, two = log_evidence([counted(5)]), log_evidence([counted(5), counted(5)])
    assert two > 1.8 * one > 0.0
    assert log_evidence([counted(5, peer_events=2)]) < one
    assert log_evidence([]) == log_evidence([counted(0, tokens=0)]) == pytest.approx(0.0)


def test_the_alarm_comes_at_fewer_events_where_more_peers_have_none():
    assert [alarm_at(1600, 0, peers, ALPHA) for peers in (1600, 5200, 20_000)] == [16, 8, 5]
    assert alarm_at(1600, 3, 5200, ALPHA) > 8
    assert alarm_at(1, 0, 5200, ALPHA) is None
    assert alarm_at(1600, 0, 0, ALPHA) is None
