"""Servers of several processes under test: a healthy stack is green, and a fault of its router or of one rank is red by its words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.files import yaml
from specdec_reference.faults.catalogue import FAULTS, planted_in
from specdec_reference.faults.planted import Place

ROOT = Path(__file__).parents[2]
DRAFT = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
ROUTER = ("{program}", "-m", "specdec_reference.router", "--host", "{host}", "--port", "{port.router}")
RANKS = ("--to", "http://{host}:{port.rank-0}", "--to", "http://{host}:{port.rank-1}", "{args}")
GREEN = ("greedy", "state")
"""The families that a healthy stack is judged by here; the state of one with two caches is one that a lawful server may have."""


def write_config(path, fault, bad):
    """Write the config of two ranks behind a router, the variant's fault in the processes ``bad`` alone."""
    keep = {name: {} if name in bad else {"args": {"fault": None}} for name in ("rank-0", "rank-1", "router")}
    config = {
        "engine": {"kind": "reference", "model": "target", "args": {"max-num-seqs": 32, "max-model-len": 1024}},
        "stack": [
            {"name": "rank-0", "kind": "engine", "counted": True, **keep["rank-0"]},
            {"name": "rank-1", "kind": "engine", "counted": True, **keep["rank-1"]},
            {"name": "router", "command": [*ROUTER, *RANKS], "asked": True, **keep["router"]},
        ],
        "variants": {"draft-k3": {"args": {"speculative-config": DRAFT, **({"fault": fault} if fault else {})}}},
    }
    path.write_text(yaml.dump(config))


def judge(folder, families, fault="", bad=()):
    """Return the verdicts of the variant by family: the first red one, or any."""
    write_config(folder / "stack.yaml", fault, bad)
    suites = [str(ROOT / "suites" / family) for family in families]
    options = ["--specdec-config", str(folder / "stack.yaml"), "--specdec-depth", "smoke", "--specdec-run-dir", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suites, *options, "-k", "not answers_come_sooner", "-p", "no:cacheprovider", "-q", "-n", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    (folder / "log").write_text(done.stdout + done.stderr)
    by_family = {}
    for judgement in json.loads((folder / "run" / "run.json").read_text())["judgements"]:
        verdict = judgement["verdict"]
        if verdict is not None and (verdict["outcome"] in {"fail", "not speculating"} or verdict["family"] not in by_family):
            by_family[verdict["family"]] = verdict
    return by_family


@pytest.mark.faults(quick=True)
def test_a_healthy_stack_is_green_and_its_ranks_are_stored(tmp_path):
    verdicts = judge(tmp_path, GREEN)
    assert {family: verdict["outcome"] for family, verdict in verdicts.items()} == dict.fromkeys(GREEN, "pass")
    header = json.loads((tmp_path / "run" / "transcripts" / "draft-k3" / "all-greedy.jsonl").read_text().splitlines()[0])
    assert [rank["name"] for rank in header["ranks"]] == ["rank-0", "rank-1"]
    assert sum(rank["counters"]["drafts"] for rank in header["ranks"]) == header["counters"]["drafts"] > 0


@pytest.mark.parametrize("name", planted_in(Place.STACK))
@pytest.mark.faults
def test_a_fault_of_a_stack_is_red_by_the_words_of_its_row(name, tmp_path):
    row = FAULTS[name]
    expected = row.expected[Place.STACK]
    bad = ("router",) if not row.of_rank else ("rank-0", "rank-1") if row.every_rank else ("rank-1",)
    verdicts = judge(tmp_path, expected.red, fault=row.of_rank or name, bad=bad)
    red = {family: v["names"] + v["headline"] for family, v in verdicts.items() if v["outcome"] in {"fail", "not speculating"}}
    assert expected.surprises(red) == []
