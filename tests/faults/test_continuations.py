"""The suite under test where scores come by one-token continuations: a healthy variant is green, one that accepts every draft red."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
engine: {kind: reference, model: target, args: {prompt-logprobs: false, max-num-seqs: 32, max-model-len: 512}}
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
      fault: "${SPECDEC_FAULT}"
"""
TESTS = """
from dataclasses import replace

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Request, Route, Workload

WORDS = ("def add(a, b):", "one two three one two three one", "import os", "The list of names is", "for line in file:", "class Node:",
         "She said that", "return self.", "The first of these", "if not found:", "Once upon a time", "x = [1, 2, 3]")


def workload(name, count, **body):
    asked = (Request(id=f"{name}-{i}", route=Route.COMPLETIONS, body={"prompt": WORDS[i % 12], "ignore_eos": True, **body, "seed": i})
             for i in range(count))
    return Workload(name=name, version=1, requests=tuple(asked), concurrency=16)


GREEDY = workload("few", 9, temperature=0.0, max_tokens=24)
SAMPLED = replace(workload("few-drawn", 14, temperature=1.0, max_tokens=28), draft_scored=True)


@pytest.mark.specdec(GREEDY, family="greedy")
def test_greedy(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))


@pytest.mark.specdec(SAMPLED, family="sampling")
def test_sampled(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))
"""


@pytest.mark.parametrize("fault", ["", "accept-all"])
@pytest.mark.faults
def test_a_healthy_variant_is_green_and_one_that_accepts_everything_red(fault, tmp_path):
    (tmp_path / "continued.yaml").write_text(CONFIG)
    (tmp_path / "test_few.py").write_text(TESTS)
    options = ["--specdec-config", "continued.yaml", "--specdec-depth", "smoke", "--specdec-run-dir", "run", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_few.py", *options],
        cwd=tmp_path,
        env={**os.environ, "SPECDEC_FAULT": fault, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "SCORES BY ONE-TOKEN CONTINUATIONS" in done.stdout
    verdicts = [judgement["verdict"] for judgement in json.loads((tmp_path / "run" / "run.json").read_text())["judgements"]]
    wanted = "fail" if fault else "pass"
    assert {verdict["family"]: verdict["outcome"] for verdict in verdicts} == {"greedy": wanted, "sampling": wanted}
    assert done.returncode == bool(fault)
    assert all(any("scored by one-token continuations" in line for line in verdict["evidence"]) for verdict in verdicts)
