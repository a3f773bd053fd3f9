"""A config may gate the noise of the verify kernel; nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.verify_noise import TOO_NOISY
from pytest_specdec.model.baseline import VERIFY_NOISE, Gate
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from tests.judge.captured_values import VARIANT, answer, calibration, captured, score

TOKENS = tuple(range(100, 160))
DECODE = calibration(4000, noise=0.02)
GATE = Gate(figure=VERIFY_NOISE, at_most=3.0, source="mine.yaml:4 gates.verify_noise")


def run(verify, *gates, wrong=None, decode=DECODE):
    """A run of one answer a prompt; ``verify``: times the noise of decoding that the verify kernel has."""
    answers = [answer(f"chat-{i:02}", TOKENS) for i in range(10)]
    scores = {arm: tuple(score(arm, each) for each in answers) for arm in (VARIANT, "control", "baseline")}
    if wrong:
        scores[VARIANT] = tuple(score(VARIANT, each, wrong.items()) for each in answers)
    given = captured("greedy", answers, answers, answers, scores=scores, alpha=1e-3, gates=gates)
    kernel = calibration(2000, noise=0.02 * verify, seed=2) if verify else ()
    return replace(given, calibration=decode, verify_calibration=kernel)


@pytest.mark.parametrize(
    "verify, gates, outcome",
    [
        (3.9, (), Outcome.PASS),
        (3.9, (GATE,), Outcome.FAIL),
        (3.0, (GATE,), Outcome.PASS),
        (3.2, (GATE,), Outcome.PASS),
        (1.0, (GATE,), Outcome.PASS),
        (3.9, (replace(GATE, at_most=5.0),), Outcome.PASS),
        (1.4, (replace(GATE, at_most=1.0),), Outcome.FAIL),
    ],
)
def test_a_kernel_surely_noisier_than_the_gate_fails_and_no_other(verify, gates, outcome):
    assert greedy.judge(run(verify, *gates)).outcome is outcome


def test_a_red_gate_says_what_was_found_what_is_allowed_and_where():
    verdict = greedy.judge(run(3.9, GATE))
    assert verdict.names == TOO_NOISY
    assert verdict.figures["gated_verify_noise"] == pytest.approx(3.9, rel=0.06)
    assert 3.0 < verdict.figures["gated_verify_noise_low"] < 3.9
    assert f"{verdict.figures['gated_verify_noise']:.2f} times decode's noise" in verdict.headline
    assert "or more at 99.95%" in verdict.headline, "half of the share of 1e-3"
    assert "verify noise at most 3 (mine.yaml:4 gates.verify_noise)" in verdict.headline


def test_a_noisy_kernel_beside_exact_decoding_fails_too():
    exact = calibration(4000, noise=1e-6)
    assert greedy.judge(run(3.9, GATE, decode=exact)).outcome is Outcome.FAIL
    assert greedy.judge(run(1e-3, GATE, decode=exact)).outcome is Outcome.PASS, "rounding beside rounding is no ratio"


def test_a_tail_of_the_verify_kernel_is_not_its_scale():
    tailed = replace(run(2.0, GATE), verify_calibration=calibration(2000, noise=0.04, jumps=60, jump=2.0, seed=2))
    assert greedy.judge(tailed).outcome is Outcome.PASS


def test_wrong_tokens_come_before_the_noise():
    wrong = dict.fromkeys(range(20), 4.0)
    verdict = greedy.judge(run(3.9, GATE, wrong=wrong))
    assert (verdict.outcome, "tokens wrong" in verdict.headline) == (Outcome.FAIL, True)


def test_a_gate_that_nothing_can_decide_is_named_by_the_pass():
    verdict = greedy.judge(run(0.0, GATE))
    assert verdict.outcome is Outcome.PASS
    assert "gate not decided: verify noise at most 3" in verdict.headline


def test_the_gate_is_greedys_alone_and_not_of_the_control():
    given = run(3.9, GATE)
    assert greedy.judge(replace(given, family=Family.STATE)).outcome is Outcome.PASS
    assert greedy.judge(replace(given.as_control(), verify_calibration=given.verify_calibration)).outcome is Outcome.PASS
