"""A config may gate the noise of the verify kernel; nothing else does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.tolerance import allowed_gap
from pytest_specdec.model.baseline import VERIFY_NOISE, Gate
from pytest_specdec.model.captured import ReportedDraws
from pytest_specdec.model.verdict import Finding, Outcome
from pytest_specdec.model.workload import Family
from tests.judge.captured_values import VARIANT, answer, calibration, captured, score

TOKENS = tuple(range(100, 160))
NOISE = 0.02
GATE = Gate(figure=VERIFY_NOISE, at_most=3.0, source="mine.yaml:4 gates.verify_noise")


def draws(times, *, log_sd=0.0, scorer=0.0, answers=32, jumps=0, seed=1):
    """Return answers of 64 tokens; each has its own noise scale, about ``times`` that of decode, and the scorer adds ``scorer``."""
    random = np.random.default_rng(seed)
    scales = NOISE * times * np.exp(log_sd * random.standard_normal(answers))
    deltas = scales[:, None] * random.standard_normal((answers, 64)) + scorer * random.standard_normal((answers, 64))
    deltas[:, :jumps] += 2.0
    ((_, at),) = calibration(1)
    return ReportedDraws(answers=tuple(tuple((at.logprob + float(delta), at) for delta in row) for row in deltas))


DECODE = draws(1.0)


def run(verify, *gates, wrong=None, decode=DECODE):
    """A run of one answer a prompt; ``verify``: times the noise of decoding that the verify kernel has."""
    answers = [answer(f"chat-{i:02}", TOKENS) for i in range(10)]
    scores = {arm: tuple(score(arm, each) for each in answers) for arm in (VARIANT, "control", "baseline")}
    if wrong:
        scores[VARIANT] = tuple(score(VARIANT, each, wrong.items()) for each in answers)
    given = captured("greedy", answers, answers, answers, scores=scores, alpha=1e-3, gates=gates)
    kernel = draws(verify, seed=2) if verify else ReportedDraws()
    return replace(given, calibration=decode, verify_calibration=kernel)


@pytest.mark.parametrize(
    "verify, gates, outcome",
    [
        (4.5, (), Outcome.PASS),
        (4.5, (GATE,), Outcome.FAIL),
        (3.0, (GATE,), Outcome.PASS),
        (3.2, (GATE,), Outcome.PASS),
        (1.0, (GATE,), Outcome.PASS),
        (4.5, (replace(GATE, at_most=5.0),), Outcome.PASS),
        (1.5, (replace(GATE, at_most=1.0),), Outcome.FAIL),
    ],
)
def test_a_kernel_surely_noisier_than_the_gate_fails_and_no_other(verify, gates, outcome):
    assert greedy.judge(run(verify, *gates)).outcome is outcome


def test_a_red_gate_says_what_was_found_what_is_allowed_and_where():
    verdict = greedy.judge(run(4.5, GATE))
    assert verdict.names == verdict.finding == Finding.TOO_NOISY
    assert verdict.figures["gated_verify_noise"] == pytest.approx(4.5, rel=0.06)
    assert 3.0 < verdict.figures["gated_verify_noise_low"] < 4.5
    assert f"{verdict.figures['gated_verify_noise']:.2f} times decode's noise" in verdict.headline
    assert "or more at 99.95%" in verdict.headline, "half of the share of 1e-3"
    assert "verify noise at most 3 (mine.yaml:4 gates.verify_noise)" in verdict.headline


def test_noise_that_an_answers_tokens_share_counts_once():
    """The kernel is exactly at the gate, and its answers differ in noise: a test of independent tokens called it above."""
    given = run(3.0, GATE, decode=draws(1.0, log_sd=0.5, seed=2944))
    verdict = greedy.judge(replace(given, verify_calibration=draws(3.0, log_sd=0.5, seed=3944)))
    assert verdict.figures["gated_verify_noise"] > 3.6, "far above the gate, by chance"
    assert verdict.outcome is Outcome.PASS


def test_a_scorers_noise_counts_in_both_kernels_and_a_ratio_is_said_to_be_the_lower_for_it():
    """Decode and scorer of .02: three times decode's noise measures as sqrt(10 / 2) times."""
    given = run(3.0, replace(GATE, at_most=1.5), decode=draws(1.0, scorer=NOISE))
    verdict = greedy.judge(replace(given, verify_calibration=draws(3.0, scorer=NOISE, seed=2)))
    assert verdict.figures["gated_verify_noise"] == pytest.approx(math.sqrt(10.0 / 2.0), rel=0.06)
    assert verdict.outcome is Outcome.FAIL
    lower = "the scorer's noise counts in both, so the true ratio is higher"
    assert lower in verdict.headline
    assert any(lower in line for line in verdict.evidence)
    met = greedy.judge(replace(given, gates=(GATE,)))
    assert any(lower in line for line in met.evidence)
    less = greedy.judge(replace(given, calibration=draws(3.0), verify_calibration=draws(1.0)))
    assert not any("true ratio" in line for line in less.evidence), "below one it is lower"


def test_too_few_answers_decide_no_gate():
    """Smoke depth asks for 12: even if all were above, chance would do it more often than the share allows."""
    verdict = greedy.judge(replace(run(9.0, GATE), verify_calibration=draws(9.0, answers=10)))
    assert verdict.outcome is Outcome.PASS
    assert "gate not decided: verify noise at most 3" in verdict.headline


def test_a_noisy_kernel_beside_exact_decoding_fails_too():
    exact = draws(5e-5)
    assert greedy.judge(run(3.9, GATE, decode=exact)).outcome is Outcome.FAIL
    assert greedy.judge(run(1e-3, GATE, decode=exact)).outcome is Outcome.PASS, "rounding beside rounding is no ratio"


def test_a_tail_of_the_verify_kernel_is_not_its_scale():
    tailed = replace(run(2.0, GATE), verify_calibration=draws(2.0, jumps=2, seed=2))
    assert greedy.judge(tailed).outcome is Outcome.PASS


def test_wrong_tokens_come_before_the_noise():
    wrong = dict.fromkeys(range(20), 4.0)
    verdict = greedy.judge(run(4.5, GATE, wrong=wrong))
    assert (verdict.outcome, "tokens wrong" in verdict.headline) == (Outcome.FAIL, True)


def test_a_gate_that_nothing_can_decide_is_named_by_the_pass():
    verdict = greedy.judge(run(0.0, GATE))
    assert verdict.outcome is Outcome.PASS
    assert "gate not decided: verify noise at most 3" in verdict.headline


def test_the_gate_is_greedys_alone_and_not_of_the_control():
    given = run(4.5, GATE)
    assert greedy.judge(replace(given, family=Family.STATE)).outcome is Outcome.PASS
    assert greedy.judge(replace(given.as_control(), verify_calibration=given.verify_calibration)).outcome is Outcome.PASS


def test_a_kernel_noisier_than_any_lawful_one_excuses_no_token():
    """A fault that garbles what is reported would else widen the tolerance by which its own tokens are judged."""
    wrong = dict.fromkeys(range(20), 6.0 * 8.0 * NOISE)
    assert greedy.judge(run(4.5, wrong=wrong)).outcome is Outcome.FAIL
    assert greedy.judge(run(9.0, wrong=wrong)).outcome is Outcome.FAIL
    within = dict.fromkeys(range(20), 4.0 * 8.0 * NOISE)
    assert "wrong" not in greedy.judge(run(4.5, wrong=within)).headline.replace("0 of", "")
    assert "tokens wrong" in greedy.judge(run(9.0, wrong=within)).headline


@pytest.mark.parametrize("boots, granted", [(("control",), NOISE), (("baseline", "control"), 0.15)])
def test_within_one_boot_what_two_boots_differ_by_is_granted_to_the_variant(boots, granted):
    """Boots that add .1 nats each differ by .14, and by .158 in one run of 250: of that an attached baseline shows nothing."""
    given = replace(run(5.5, decode=draws(0.7)), capabilities={}, scored_by=boots)
    assert allowed_gap(given, ()).noise == pytest.approx(granted, rel=0.05)
