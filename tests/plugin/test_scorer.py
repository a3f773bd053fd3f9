"""A scorer: the tokens of an engine that cannot be scored, judged by another server of the same weights."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NGRAM = "speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}"
CONFIG = """
engine: {{kind: reference, model: target, args: {{no-prompt-logprobs: true, no-token-prompts: true}}}}
variants:
{variants}
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


def judged(folder, model, **faults):
    """Capture and judge a variant for each of ``faults``, by its name; return the verdicts by the name of the variant."""
    variants = "\n".join(f"  {name}: {{args: {{{fault}{NGRAM}}}}}" for name, fault in faults.items())
    (folder / "test_it.py").write_text(SUITE, encoding="utf-8")
    (folder / "unscored.yaml").write_text(CONFIG.format(model=model, variants=variants), encoding="utf-8")
    args = ("--rootdir=.", "--specdec-config=unscored.yaml", "--specdec-depth=smoke", "--specdec-run-dir=run", "-p", "no:cacheprovider")
    subprocess.run([sys.executable, "-m", "pytest", *args], cwd=folder, capture_output=True, check=False)
    judgements = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["judgements"]
    return {one["pair"]: one["verdict"] for one in judgements}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    return judged(tmp_path_factory.mktemp("scorer"), "target", healthy="", faulty="fault: accept-all, ")


def test_tokens_that_the_engine_cannot_score_are_judged_by_the_scorer(verdicts):
    assert verdicts["healthy"]["outcome"] == "pass"
    assert "scored by a further server of the same weights: reference target" in verdicts["healthy"]["evidence"]


def test_a_fault_is_found_through_the_scorer(verdicts):
    assert verdicts["faulty"]["outcome"] == "fail"


@pytest.mark.nightly
def test_a_scorer_of_other_weights_fails_the_control_not_the_engine(tmp_path):
    verdict = judged(tmp_path, "draft", healthy="")["healthy"]
    assert verdict["outcome"] == "invalid"
    assert "the scorer serves other weights" in verdict["headline"]
