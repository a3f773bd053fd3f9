"""Whole runs through the double of trtllm-serve: a healthy variant is green, and one that keeps every draft red.

Every token is scored by a request of its own, so that a run takes a minute: these are no unit tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.engines.doubles.serving import trtllm_serve
from tests.engines.test_trtllm_double import config_of

ROOT = Path(__file__).parents[2]
TESTS = """
from dataclasses import replace

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Request, Route, Workload

WORDS = ("Write a function that adds.", "Say one two three four times.", "List three names.", "What is a class?", "Count to ten.",
         "Write a for loop.", "Who are you?", "Return a tuple.", "Is it found?", "Tell me a story.", "Name a colour.", "Write JSON.")


def workload(name, count, **body):
    asked = (Request(id=f"{name}-{i}", route=Route.CHAT,
                     body={"messages": [{"role": "user", "content": WORDS[i % 12]}], "ignore_eos": True, **body, "seed": i})
             for i in range(count))
    return Workload(name=name, version=1, requests=tuple(asked), concurrency=16)


GREEDY = workload("few", GREEDY_REQUESTS, temperature=0.0, max_tokens=24)
SAMPLED = workload("few-drawn", SAMPLED_REQUESTS, temperature=1.0, max_tokens=28)


@pytest.mark.specdec(GREEDY, family="greedy")
def test_greedy(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))


@pytest.mark.specdec(SAMPLED, family="sampling")
def test_sampled(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))
"""


@pytest.mark.parametrize(
    "release,fault",
    [
        pytest.param("1.3.0", "", marks=pytest.mark.faults(quick=True)),
        pytest.param("1.2.0", "", marks=pytest.mark.faults),
        pytest.param("1.3.0", "accept-all", marks=pytest.mark.faults(quick=True)),
    ],
)
def test_a_whole_run_is_green_and_one_with_a_fault_red(tmp_path, release, fault):
    config_of(tmp_path, trtllm_serve(tmp_path, release))
    greedy, sampled = (3, 6) if fault else (9, 14)  # a red run shows at once what a green one has to collect
    (tmp_path / "test_few.py").write_text(TESTS.replace("GREEDY_REQUESTS", str(greedy)).replace("SAMPLED_REQUESTS", str(sampled)))
    options = ["--specdec-config", "double.yaml", "--specdec-depth", "smoke", "--specdec-run-dir", "run", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_few.py", *options],
        cwd=tmp_path,
        env={**os.environ, "SPECDEC_FAULT": fault, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    verdicts = [judgement["verdict"] for judgement in json.loads((tmp_path / "run" / "run.json").read_text())["judgements"]]
    # So few tokens of a server that keeps every draft show first of all that none was rejected.
    wanted = {"greedy": "fail", "sampling": "not speculating"} if fault else {"greedy": "pass", "sampling": "pass"}
    assert {verdict["family"]: verdict["outcome"] for verdict in verdicts} == wanted, done.stdout[-3000:]
    assert bool(fault) == ("no draft token rejected" in verdicts[-1]["headline"])
    assert done.returncode == bool(fault)
    assert "note: not tested: /v1/chat/completions" in done.stdout
    options = [yaml.safe_load(path.read_text()) for path in (tmp_path / "run" / "servers").glob("*.yaml")]
    assert {"speculative_config" in each for each in options} == {True, False}
