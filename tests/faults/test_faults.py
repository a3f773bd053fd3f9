"""The suite under test: each planted fault turns the families red that it concerns, and is named; the others stay green."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.reference.faults import FAULTS

ROOT = Path(__file__).parents[2]
CONFIG = """
engine: {kind: reference, model: target, args: {max-num-seqs: 32, max-model-len: 1024}}
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
      fault: ${SPECDEC_FAULT}
"""
"""Without idle layers: which tokens come out does not hang on them, only how long they take."""

ALL = ("greedy", "parameters", "sampling", "logprobs", "structured", "liveness")
CAUGHT = {
    "accept-all": {
        "greedy": "draft tokens accepted without verification",
        "parameters": "draft tokens accepted without verification",
        "sampling": "accept-all",
        "structured": "tokens that the grammar allows and the baseline would not choose",
    },
    "accept-all-unseeded": {"sampling": "accept-all"},
    "accept-all-late": {"sampling": "accept-all|lenient acceptance"},
    "lenient": {"sampling": "lenient acceptance"},
    "resample-from-p": {"sampling": "resample from p"},
    "recover-argmax": {"sampling": "recover by argmax"},
    "stale-bonus": {
        "greedy": "the token behind a fully accepted draft is not the target's",
        "parameters": "the token behind a fully accepted draft is not the target's",
        "sampling": "bonus out of place|at the bonus",
        "structured": "the server dies on",
    },
    "kv-off-by-one": {
        "greedy": "the KV cache is not rolled back",
        "parameters": "the KV cache is not rolled back",
        "sampling": "the KV cache is not rolled back|KV cache not rolled back",
        "logprobs": "reported log-probabilities or verifier numerics",
        "structured": "tokens that the grammar allows and the baseline would not choose",
    },
    "penalties-ignored": {"parameters": "penalties or biases are ignored at draft positions"},
    "report-draft-logprobs": {"logprobs": "reported log-probabilities of accepted draft tokens"},
    "die-on-json": {"liveness": "dies on request"},
    "near-tie": {"greedy": "near-ties fall on the other side", "parameters": "near-ties fall on the other side"},
    "cut-short": dict.fromkeys(ALL, "answers are cut short"),
    "stop-short": dict.fromkeys(ALL, "answers are cut short"),
    "past-the-end": dict.fromkeys(ALL, "answers go on after their end"),
    "wrong-finish": dict.fromkeys(ALL, "answers are cut short"),
    "die-in-company": {"greedy": "dies with several requests in flight"},
}
FAMILIES = {
    "die-on-json": ("greedy", "liveness"),
    "die-in-company": ("greedy", "liveness"),
    "accept-all-unseeded": ("greedy", "sampling"),
    "accept-all-late": ("greedy", "sampling"),
    "near-tie": ("greedy", "parameters", "liveness"),
}
"""Two families that both kill the server use up its restarts on the first of them. Of a fault at temperature 0 only, above 0 only, or in
long answers only, the families that it concerns and one that it spares."""
SMOKE = {"cut-short", "stop-short", "past-the-end", "wrong-finish"}
"""In every answer, so that few are enough."""


def run(fault: str, folder: Path) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return the exit code of the suites and the verdicts by family."""
    (folder / "faulty.yaml").write_text(CONFIG)
    families = FAMILIES.get(fault, ALL)
    suites = [str(ROOT / "suites" / family) for family in families]
    depth = ["--specdec-depth=smoke"] if fault in SMOKE else []
    options = [*depth, "--specdec-config", str(folder / "faulty.yaml"), "--specdec-run-dir", str(folder / "run"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suites, *options, "-q"],
        cwd=ROOT,
        env={**os.environ, "SPECDEC_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    document = json.loads((folder / "run" / "run.json").read_text())
    verdicts: dict[str, list[dict[str, str]]] = {family: [] for family in families}
    for judgement in document["judgements"]:
        verdicts[judgement["family"]].append(judgement["verdict"] or {"outcome": judgement["result"], "headline": "", "names": ""})
    return done.returncode, verdicts


def test_every_fault_has_its_row():
    assert set(CAUGHT) == set(FAULTS)


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_planted_fault_is_named_by_the_families_that_it_concerns(fault, tmp_path):
    code, verdicts = run(fault, tmp_path)
    red = {family for family, found in verdicts.items() if any(v["outcome"] in {"fail", "not speculating"} for v in found)}
    assert (code, red) == (1, set(CAUGHT[fault]))
    for family, words in CAUGHT[fault].items():
        said = " ".join(f"{v['names']} {v['headline']}" for v in verdicts[family] if v["outcome"] == "fail")
        assert any(word in said for word in words.split("|")), f"{family} says {said!r}"
