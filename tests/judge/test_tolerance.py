"""Counts of tokens beyond the tolerance, over the rounds of simulated servers that have no fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge.tolerance import REPEAT_AT, allowed_gap
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.stats.excess import EventCount
from tests.judge.captured_values import answer, calibration, captured

SHARE = 2.1e-6
"""Of one test of a structured workload."""
COMPARED, CALIBRATED = 3000, 2048
"""Tokens of an arm's documents, and of the calibration."""
SERVERS = 2000


def a_tolerance(*, between_boots):
    """Numbers that are not exact, over the tokens of two boots that answer alike."""
    allowed = allowed_gap(captured("structured", [answer()], [answer()], calibration=calibration(CALIBRATED, noise=0.02)), [0.0] * COMPARED)
    return replace(allowed, open_at=REPEAT_AT, between_boots=between_boots)


def is_red(allowed, rate, draw):
    """Whether a server without a fault is red, by its documents or by rounds of them; its kernels jump at ``rate``, and its boots alike."""
    allowed = replace(allowed, peer_events=int(draw.binomial(CALIBRATED, rate)))
    events, rounds = int(draw.binomial(COMPARED, rate)), []
    while not allowed.is_wrong(events, COMPARED, SHARE, rounds):
        if not allowed.is_open(events, COMPARED, rounds):
            return False
        rounds.append(EventCount(events=int(draw.binomial(COMPARED, rate)), tokens=COMPARED, peer_events=0, peer_tokens=COMPARED))
    assert len(rounds) <= ROUNDS
    return True


@pytest.mark.parametrize("rate, red_beside_boots", [(1e-3, 0.02), (2e-3, 0.12), (4e-3, 0.25)])
def test_no_jump_rate_of_boots_that_compute_alike_makes_a_server_red(rate, red_beside_boots):
    draw, beside_calibration, beside_boots = np.random.default_rng(7), a_tolerance(between_boots=True), a_tolerance(between_boots=False)
    assert not sum(is_red(beside_calibration, rate, draw) for _ in range(SERVERS))
    assert np.mean([is_red(beside_boots, rate, draw) for _ in range(SERVERS)]) == pytest.approx(red_beside_boots, abs=0.02)


def test_a_pass_claims_no_more_than_the_calibration_lets_be_an_alarm():
    assert a_tolerance(between_boots=True).ruled_out(COMPARED, SHARE) > 1.3 * a_tolerance(between_boots=False).ruled_out(COMPARED, SHARE)


@pytest.mark.parametrize("lengths", [[2] * 40, [*range(1, 21)] * 3, [500] * 6])
def test_answers_too_short_for_an_alarm_by_themselves_are_counted_together(lengths):
    """Of answers of two tokens several have to be wrong; each is by itself, and then throughout."""
    draw, allowed, total = np.random.default_rng(3), a_tolerance(between_boots=False), sum(lengths)
    share = allowed.ruled_out_answers(lengths, total, SHARE)
    events = (draw.random((4000, len(lengths))) < share) @ np.array(lengths)
    caught = {count: allowed.is_wrong(int(count), total, SHARE) for count in np.unique(events)}
    assert np.mean([caught[count] for count in events]) >= 0.985
    assert allowed.ruled_out_answers([1], total, SHARE) == 1.0
