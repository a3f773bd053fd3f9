"""An engine that serves neither route to a score, from end to end: green where it is sound, red where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPEN = "suites/sampling/test_sampling.py::test_tokens_are_drawn_from_the_baselines_law[draft-k3]"
LABEL = "smoke test: tokens cannot be scored (prompt_logprobs refused, continuations refused)"


@pytest.mark.parametrize("fault, code, outcome", [("", 0, "pass"), ("accept-all", 1, "fail")])
def test_an_engine_that_cannot_be_scored_gets_a_smoke_test(fault, code, outcome, tmp_path):
    options = ["--specdec-config=reference-unscored", f"--specdec-run-dir={tmp_path / 'run'}", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SPECDEC_FAULT": fault}
    argv = [sys.executable, "-m", "pytest", OPEN, *options]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    (judgement,) = document["judgements"]
    verdict = judgement["verdict"]
    assert (done.returncode, verdict["outcome"]) == (code, outcome), done.stdout
    assert verdict["headline"].startswith(LABEL)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "complete"
    if outcome == "pass":
        assert f"all-sampled: {LABEL}: over 56 answers" in done.stdout
