"""Servers that end their answers wrongly: nothing is wrong with any token, and a comparison of strings would see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
engine: {kind: reference, model: target, args: {max-num-seqs: 32, max-model-len: 1024}}
variants:
  ngram-k3:
    args:
      speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4, prompt_lookup_min: 2}
      fault: ${SPECDEC_FAULT}
"""


def greedy(fault, folder, depth="smoke"):
    """Return the verdict of the greedy suite on the reference engine with ``fault``, in a few words."""
    (folder / "faulty.yaml").write_text(CONFIG)
    options = ["--specdec-config", str(folder / "faulty.yaml"), "--specdec-run-dir", str(folder / "run"), f"--specdec-depth={depth}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(ROOT / "suites/greedy"), *options, "-p", "no:cacheprovider", "-q"],
        cwd=folder,
        env={**os.environ, "SPECDEC_FAULT": fault, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (judgement,) = json.loads((folder / "run" / "run.json").read_text())["judgements"]
    verdict = judgement["verdict"]
    return f"{verdict['outcome']}: {verdict['names']}, exit {done.returncode}"


@pytest.mark.chaos("every answer is cut short, as if at its limit", expected="fail: answers are cut short, exit 1", quick=True)
def test_answers_cut_short(tmp_path, seen):
    seen(greedy("cut-short", tmp_path))


@pytest.mark.chaos("answers go on after their end of sequence", expected="fail: answers go on after their end, exit 1", quick=True)
def test_answers_that_go_on(tmp_path, seen):
    seen(greedy("past-the-end", tmp_path))


@pytest.mark.chaos("every answer stops early, as if of itself", expected="fail: answers are cut short, exit 1")
def test_answers_that_stop_early(tmp_path, seen):
    seen(greedy("stop-short", tmp_path))


@pytest.mark.chaos("finish_reason is 'length' whatever ended the answer", expected="fail: answers are cut short, exit 1")
def test_a_limit_that_was_not_reached_is_called(tmp_path, seen):
    seen(greedy("wrong-finish", tmp_path))
