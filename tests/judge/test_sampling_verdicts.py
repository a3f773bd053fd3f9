"""What evidence makes of a sampling verdict: an alarm, a suspicion, or an alarm that the control excuses."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from pytest_specdec.judge import sampling
from pytest_specdec.judge.sampling.control import ControlComparison
from pytest_specdec.judge.sampling.verdict import is_suspicious
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.control_difference import ControlDifference
from tests.judge import toy_speculation

ALPHA = 1e-4


@pytest.mark.parametrize(
    "peak, end, expected",
    [(3_300, 3_300, False), (3_400, 3_400, True), (9_900, 9_900, True), (3_400, 1.1, True), (3_400, 0.9, False), (0.5, 0.5, False)],
)
def test_suspicion_begins_at_a_third_of_the_alarms_odds_and_ends_when_all_of_it_is_given_back(peak, end, expected):
    assert is_suspicious(log(peak), log(end), ALPHA) is expected


@pytest.mark.examples(2)
@pytest.mark.parametrize("short_by, outcome", [(-0.1, Outcome.FAIL), (0.1, "suspicious"), (0.4, "suspicious"), (0.5, Outcome.PASS)])
def test_sampling_is_suspicious_short_of_its_alarm(short_by, outcome):
    captured = toy_speculation.captured("model", "leak", answers=56)
    found = sampling.judge(captured).figures["log10_wealth"]
    verdict = sampling.judge(replace(captured, alpha=10 ** -(found + short_by)))
    assert verdict.outcome == outcome


def test_a_suspicious_verdict_says_how_far_it_is_and_what_settles_it():
    captured = toy_speculation.captured("model", "leak", answers=56)
    found = sampling.judge(captured).figures["log10_wealth"]
    alpha = 10 ** -(found + 0.4)
    verdict = sampling.judge(replace(captured, alpha=alpha))
    assert "acceptance leak of 20%" in verdict.headline
    assert f"10^{found:.1f} (alarm at {1.0 / alpha:,.0f})" in verdict.headline
    assert "--specdec-continue" in verdict.settle
    assert not verdict.rules_out
    assert not verdict.red
    assert verdict.cell.endswith(f"10^{found:.1f}")


def test_the_promise_carries_the_curve_of_the_evidence_and_what_was_bet_on():
    promise = sampling.judge(toy_speculation.captured("model", "leak", answers=56)).promise
    assert len(promise.curve) > 20
    assert max(promise.curve) == pytest.approx(promise.log10_wealth, abs=0.01)
    assert promise.curve[0] < 0.5 < promise.curve[-1]
    assert promise.best_bettor == "acceptance too lenient"


@pytest.mark.parametrize(
    "score, control_peak, holds",
    [
        pytest.param(1.0, 0.0, True, id="a control that earned nothing excuses nothing, however few bets both made"),
        pytest.param(1.0, log(9.9), True, id="nor one whose bet came to less than ten"),
        pytest.param(1.0, log(10.1), False, id="the same bet pays on the control as well"),
        pytest.param(4.0, log(10.1), True, id="it pays clearly better on the variant"),
    ],
)
def test_a_veto_needs_wealth_of_the_controls_own(score, control_peak, holds):
    difference = ControlDifference(arm=0.1 * score, control=0.0, error=0.1, answers=40)
    assert ControlComparison(name="tilt", difference=difference, needed=2.5, control_peak=control_peak).holds is holds
