"""Acceptance over many prompts, judged where the answers are not timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.acceptance.length import acceptance_length
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import answer, captured


def drawn(prompts=20, steps=40, mean=0.7, seed=3, k=3):
    """Windows of prompts whose chances of acceptance differ: each has its own, all of its steps share it."""
    rng = np.random.default_rng(seed)
    chances = rng.beta(mean * 12, (1 - mean) * 12, prompts)
    return [tuple(int(1 + np.cumprod(rng.random(k) < chance).sum()) for _ in range(steps)) for chance in chances]


def seen(windows, *asked, alpha=1.25e-3, **fields):
    mine = [answer(f"chat-{i:02}", range(sum(each)), windows=(1, *each, 1)) for i, each in enumerate(windows)]
    base = [answer(f"chat-{i:02}", range(sum(each))) for i, each in enumerate(windows)]
    gates = tuple(Gate(figure="acceptance_length", at_least=at_least, source="tiny.yaml:9 gates.acceptance_length") for at_least in asked)
    return captured("speed", mine, base, base, gates=gates, alpha=alpha, **fields)


@pytest.mark.parametrize(
    "asked, outcome, words",
    [
        (1.5, Outcome.PASS, "gate met"),
        (3.9, Outcome.FAIL, "gate missed"),
        (2.5, Outcome.NOT_DECIDED, "contains the gate"),
        (2.86, Outcome.NOT_DECIDED, "below the gate"),
    ],
)
def test_a_gate_is_decided_by_the_limits_over_prompts(asked, outcome, words):
    verdict = speed.judge(seen(drawn(), asked))
    assert verdict.outcome is outcome
    assert words in verdict.headline
    assert f"acceptance length at least {asked:g} (tiny.yaml:9 gates.acceptance_length)" in verdict.headline
    assert "20 prompts; 3 draft tokens" in verdict.short[-2]
    assert "2.50 tokens per step" in verdict.short[-1]
    assert bool(verdict.settle) == (outcome is Outcome.NOT_DECIDED)
    assert verdict.figures["acceptance_length_low"] < verdict.figures["acceptance_length"] < verdict.figures["acceptance_length_high"]


def test_too_few_prompts_decide_nothing():
    verdict = speed.judge(seen(drawn(prompts=6), 3.9))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "6 prompts are too few" in verdict.headline
    assert "20 prompts or more" in verdict.settle


def test_without_a_gate_the_length_is_told_and_nothing_is_claimed():
    verdict = speed.judge(seen(drawn()))
    assert (verdict.outcome, verdict.rules_out) == (Outcome.PASS, "")
    assert "no gate" in verdict.headline


def test_counters_alone_have_no_limits():
    given = seen(drawn(), 1.5)
    hidden = tuple(replace(each, choices=(replace(each.choice, windows=None),)) for each in given.speculative.answers)
    verdict = speed.judge(replace(given, speculative=replace(given.speculative, answers=hidden)))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "verify steps" in verdict.headline
    assert "verify steps" in verdict.settle


def test_the_control_has_nothing_to_accept():
    assert speed.judge(seen(drawn(), 3.9).as_control()).outcome is Outcome.PASS


def test_nothing_drafted_is_not_speculating():
    assert speed.judge(seen(drawn(), 1.5, counters=SpecCounters())).outcome is Outcome.NOT_SPECULATING


def length_of(run):
    return acceptance_length(run.speculative, run.workload)


def test_the_length_is_tokens_over_steps_and_prompts_are_its_units():
    found = length_of(seen([(4,) * 30, (1, 1)]))
    assert found.tokens == pytest.approx(122 / 32)
    assert found.prompts == 2
    alone = length_of(seen([(4,) * 30]))
    assert (alone.tokens, alone.standard_error, alone.at_least(0.1)) == (4.0, None, 0.0)


def test_requests_with_one_prompt_are_one_unit():
    run = seen([(4,) * 30, (1, 1)] * 20)
    first, second = (request.body for request in run.workload.requests[:2])
    same = tuple(replace(request, body={**(second if i % 2 else first), "seed": i}) for i, request in enumerate(run.workload.requests))
    found, apart = length_of(replace(run, workload=replace(run.workload, requests=same))), length_of(run)
    assert (found.prompts, apart.prompts) == (2, 40)
    assert found.tokens == apart.tokens
    assert found.standard_error == pytest.approx(length_of(seen([(4,) * 30, (1, 1)])).standard_error)


@pytest.mark.statistics
def test_limits_over_prompts_cover_as_often_as_they_say():
    """At nominal 2.5 % a side over 20 prompts; steps as units would miss several times as often."""
    truth = length_of(seen(drawn(prompts=4000, seed=1))).tokens
    found = [length_of(seen(drawn(seed=seed))) for seed in range(300)]
    missed = [not each.at_least(0.025) <= truth <= each.at_most(0.025) for each in found]
    assert np.mean(missed) < 0.09


@pytest.mark.parametrize("accepted, outcome", [(1, Outcome.NOT_SPECULATING), (7, Outcome.NOT_SPECULATING), (8, Outcome.PASS)])
def test_a_drafter_of_which_hardly_anything_is_accepted_is_none(accepted, outcome):
    given = seen(drawn())
    counted = replace(given.speculative, counters=SpecCounters(drafts=800, draft_tokens=2400, accepted_tokens=accepted))
    verdict = speed.judge(replace(given, speculative=counted))
    assert verdict.outcome is outcome
    assert verdict.headline.startswith("hardly any draft token accepted") is (outcome is Outcome.NOT_SPECULATING)
