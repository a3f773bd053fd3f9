"""An engine that serves neither route to a score, end to end: nothing is concluded from strings; the verdict says what to set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "suites/greedy/test_greedy.py::test_every_token_is_the_baselines_choice[draft-k3]",
    "suites/sampling/test_sampling.py::test_tokens_are_drawn_from_the_baselines_distribution[draft-k3]",
)


@pytest.mark.faults(quick=True)
def test_an_engine_that_cannot_be_scored_is_inconclusive_though_its_texts_are_wrong(tmp_path):
    options = ["--specdec-config=reference-unscored", "--specdec-depth=smoke", f"--specdec-run-dir={tmp_path / 'run'}"]
    argv = [sys.executable, "-m", "pytest", *TESTS, *options, "-p", "no:cacheprovider"]
    environment = {**os.environ, "SPECDEC_FAULT": "kv-off-by-one"}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    verdicts = {one["family"]: one["verdict"] for one in document["judgements"]}
    assert {family: verdict["outcome"] for family, verdict in verdicts.items()} == dict.fromkeys(("greedy", "sampling"), "inconclusive")
    for verdict in verdicts.values():
        assert "(prompt_logprobs refused, continuations refused)" in verdict["headline"]
        assert verdict["settle"] == "leave out no-prompt-logprobs, or no-token-prompts"
    assert verdicts["greedy"]["figures"]["answers_equal"] < verdicts["greedy"]["figures"]["answers"]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "complete"
    assert "no-token-prompts" in done.stdout
    assert done.returncode == 1, "nothing could be judged"
