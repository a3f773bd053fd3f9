"""A model that reasons, end to end, with it on and off: documents are found after the reasoning, and so is a planted fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "suites" / "configs" / "reference-reasoning.yaml"
HEALTHY = """\
  healthy:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
"""


def transcripts(run, arm):
    for path in (run / "transcripts" / arm).glob("json-structured*.jsonl"):
        yield from map(json.loads, path.read_text(encoding="utf-8").removesuffix("\n").split("\n")[1:])


BOTH = "[{enable_thinking: true}, {enable_thinking: false}]"


@pytest.mark.parametrize("template, thinking", [(BOTH, {True, False}), ("{enable_thinking: false}", {False})])
@pytest.mark.faults
def test_documents_of_a_model_that_reasons_are_judged_and_a_fault_in_them_is_seen(tmp_path, template, thinking):
    text = CONFIG.read_text().replace("variants:\n", f"variants:\n{HEALTHY}")
    assert BOTH in text
    (tmp_path / "reasoning.yaml").write_text(text.replace(BOTH, template))
    options = [f"--specdec-config={tmp_path / 'reasoning.yaml'}", "--specdec-depth=smoke", f"--specdec-run-dir={tmp_path / 'run'}"]
    argv = [sys.executable, "-m", "pytest", "suites/structured", "suites/greedy", *options, "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SPECDEC_FAULT": "accept-all"}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    judgements = json.loads((tmp_path / "run" / "run.json").read_text())["judgements"]
    outcomes = {(one["pair"], one["workload"]): one["verdict"]["outcome"] for one in judgements}
    assert {outcome for (pair, _), outcome in outcomes.items() if pair == "healthy"} == {"pass"}, done.stdout
    assert (outcomes["draft-k3", "all-greedy"], outcomes["draft-k3", "json-structured"]) == ("fail", "fail")
    answers = [answer for answer in transcripts(tmp_path / "run", "healthy") if answer["choices"]]
    assert {bool(answer["choices"][0]["reasoning"]) for answer in answers} == thinking
    assert {answer["usage"]["reasoning_tokens"] is not None for answer in answers} == thinking
