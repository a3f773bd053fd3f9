"""Whole runs through the doubles of engines that need a GPU: a healthy variant is green, and a planted fault red and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.doubles import configs
from tests.faults.test_continuations import TESTS

ROOT = Path(__file__).parents[2]
HEALTHY = pytest.mark.faults
QUICK = pytest.mark.faults(quick=True)


@pytest.mark.parametrize(
    "engine,env,fault",
    [
        pytest.param("sglang", {}, "", marks=HEALTHY, id="sglang"),
        pytest.param("sglang", {"SGLANG_DOUBLE_NO_SPEC_DETAILS": "1"}, "", marks=HEALTHY, id="sglang-without-details"),
        pytest.param("sglang", {}, "accept-all", marks=QUICK, id="sglang-accept-all"),
        pytest.param("vllm-0.7", {}, "", marks=HEALTHY, id="vllm-0.7"),
        pytest.param("vllm-0.6", {}, "accept-all", marks=HEALTHY, id="vllm-0.6-accept-all"),
        pytest.param("arctic", {}, "", marks=HEALTHY, id="arctic"),
        pytest.param("arctic", {}, "accept-all", marks=HEALTHY, id="arctic-accept-all"),
    ],
)
def test_a_double_is_green_and_with_a_planted_fault_red(engine, env, fault, tmp_path):
    config = configs.write(engine, tmp_path)
    (tmp_path / "test_few.py").write_text(TESTS)
    options = ["--specdec-config", str(config), "--specdec-depth", "smoke", "--specdec-run-dir", "run", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_few.py", *options],
        cwd=tmp_path,
        env={**os.environ, **env, "SPECDEC_FAULT": fault, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    verdicts = [judgement["verdict"] for judgement in json.loads((tmp_path / "run" / "run.json").read_text())["judgements"]]
    wanted = "fail" if fault else "pass"
    assert {verdict["family"]: verdict["outcome"] for verdict in verdicts} == {"greedy": wanted, "sampling": wanted}, done.stdout
    assert done.returncode == bool(fault)
    if fault:
        assert fault in next(verdict for verdict in verdicts if verdict["family"] == "sampling")["headline"]
    elif engine == "sglang":
        counted = transcript(tmp_path / "run" / "transcripts" / "draft-k3" / "few.jsonl")["counters"]
        assert counted["drafts"] > 0
        assert bool(counted["accepted_per_position"]) is not bool(env), "the metrics have no counts by position, answers have"


def transcript(path: Path) -> dict:
    """Return what stands at the head of a transcript's file."""
    return json.loads(path.read_text(encoding="utf-8").splitlines()[0])
