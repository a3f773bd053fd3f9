"""Faults that only the traffic of production has: requests without seeds, and long answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
engine: {kind: reference, model: target, args: {max-num-seqs: 16, max-model-len: 512}}
placement: %s
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
      fault: "${SPECDEC_FAULT}"
"""
TESTS = """
import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import CODE


def workload(name, **asked):
    return CODE.sampled(temperature=1.0, requests=12, concurrency=12, name=name, **asked)


SEEDED = workload("a-seeded", max_tokens=40)
UNSEEDED = workload("b-unseeded", max_tokens=40, seeded=False)
LONG = workload("c-long", max_tokens=128)


@pytest.mark.specdec(SEEDED, family="sampling")
def test_seeded(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))


@pytest.mark.specdec(UNSEEDED, family="sampling")
def test_unseeded(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))


@pytest.mark.specdec(LONG, family="sampling")
def test_long(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))
"""


def verdicts(fault, folder, placement="in-turn"):
    """Return the outcome of each workload, in words."""
    (folder / "traffic.yaml").write_text(CONFIG % placement)
    (folder / "test_traffic_of_three_kinds.py").write_text(TESTS)
    options = ["--specdec-config", "traffic.yaml", "--specdec-depth", "smoke", "--specdec-run-dir", "run", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_traffic_of_three_kinds.py", *options],
        cwd=folder,
        env={**os.environ, "SPECDEC_FAULT": fault, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    run = folder / "run" / "run.json"
    assert run.exists(), done.stdout + done.stderr
    said = {one["workload"]: one["verdict"]["outcome"] for one in json.loads(run.read_text())["judgements"]}
    return ", ".join(f"{name[2:]} {outcome}" for name, outcome in sorted(said.items()))


UNSEEDED_ONLY = "seeded pass, unseeded fail, long pass"


@pytest.mark.chaos("requests without seeds keep every draft while no seeded one is in flight", expected=UNSEEDED_ONLY, quick=True)
def test_a_fault_of_unseeded_requests_is_red_in_turn(tmp_path, seen):
    seen(verdicts("accept-all-unseeded", tmp_path))


@pytest.mark.chaos("the same with servers side by side", expected=UNSEEDED_ONLY)
def test_a_fault_of_unseeded_requests_is_red_side_by_side(tmp_path, seen):
    seen(verdicts("accept-all-unseeded", tmp_path, "side-by-side"))


@pytest.mark.chaos("every draft is kept from the 65th token of an answer on", expected="seeded pass, unseeded pass, long fail")
def test_a_fault_that_begins_late_is_red_in_long_answers(tmp_path, seen):
    seen(verdicts("accept-all-late", tmp_path))
