"""A scorer: the tokens of an engine that cannot be scored, judged by another server of the same weights."""

from __future__ import annotations

import json

import pytest

CONFIG = """
engine: {{kind: reference, model: target, args: {{no-prompt-logprobs: true, no-token-prompts: true}}}}
variants:
  ngram-k3: {{args: {{{fault}speculative-config: {{method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}}}}}}
scorer: {{kind: reference, model: {model}}}
"""
SUITE = """
import pytest
from pytest_specdec import judge
from pytest_specdec.prompts import ALL

GREEDY = ALL.greedy(max_tokens=48, take={"smoke": 8})

@pytest.mark.specdec(GREEDY, family="greedy")
def test_greedy(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))
"""


@pytest.fixture
def judged(pytester):
    def _judged(model="target", fault=""):
        pytester.makepyfile(SUITE)
        pytester.path.joinpath("unscored.yaml").write_text(CONFIG.format(model=model, fault=fault), encoding="utf-8")
        pytester.runpytest_subprocess("--specdec-config=unscored.yaml", "--specdec-depth=smoke", "--specdec-run-dir=run")
        (judgement,) = json.loads((pytester.path / "run" / "run.json").read_text())["judgements"]
        return judgement

    return _judged


def test_tokens_that_the_engine_cannot_score_are_judged_by_the_scorer(judged):
    verdict = judged()["verdict"]
    assert verdict["outcome"] == "pass"
    assert "scored by a further server of the same weights: reference target" in verdict["evidence"]


def test_a_fault_is_found_through_the_scorer(judged):
    assert judged(fault="fault: accept-all, ")["verdict"]["outcome"] == "fail"


def test_a_scorer_of_other_weights_fails_the_control_not_the_engine(judged):
    verdict = judged(model="draft")["verdict"]
    assert verdict["outcome"] == "invalid"
    assert "the scorer serves other weights" in verdict["headline"]
