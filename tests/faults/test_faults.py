"""The suite under test: each planted fault turns the families red that it concerns, and is named; the others stay green."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_specdec.reference.faults import FAULTS

ROOT = Path(__file__).parents[2]
ENGINE = "engine: {kind: reference, model: target, args: {max-num-seqs: 32, max-model-len: 1024}}\nvariants:\n"
"""Without idle layers: which tokens come out does not hang on them, only how long they take."""
VARIANT = """\
  {fault}:
    args:
      speculative-config: {{method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}}
      fault: {fault}
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Faults, each planted in a variant of its own, that one run of the suites judges by one baseline."""

    faults: tuple[str, ...]
    families: tuple[str, ...] = ALL
    depth: str = "standard"
    quick: bool = False
    """Whether CI has it too."""


RUNS = {
    "in every answer": Run(faults=("cut-short", "stop-short", "past-the-end", "wrong-finish"), depth="smoke", quick=True),
    "when the server dies": Run(faults=("die-on-json", "die-in-company"), families=("greedy", "liveness")),
    "above temperature 0": Run(faults=("accept-all-unseeded", "accept-all-late"), families=("greedy", "sampling")),
    "at temperature 0": Run(faults=("near-tie",), families=("greedy", "parameters", "liveness")),
    "in the rule": Run(faults=("accept-all", "lenient", "resample-from-p", "recover-argmax", "stale-bonus")),
    "in the state": Run(faults=("kv-off-by-one", "penalties-ignored", "report-draft-logprobs")),
}
"""A fault that is in every answer shows in few. Of one at temperature 0 only, above 0 only or in long answers only, the families that it
concerns and one that it spares; two families that both kill the server would use up its restarts on the first of them."""


def captured(run: Run, folder: Path) -> tuple[int, dict[str, dict[str, list[dict[str, str]]]]]:
    """Return the exit code of the suites and the verdicts by fault and family."""
    (folder / "faulty.yaml").write_text(ENGINE + "".join(VARIANT.format(fault=fault) for fault in run.faults))
    suites = [str(ROOT / "suites" / family) for family in run.families]
    options = ["--specdec-depth", run.depth, "--specdec-config", str(folder / "faulty.yaml"), "--specdec-run-dir", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suites, *options, "-p", "no:cacheprovider", "-q"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "SPECDEC_FAULT"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    document = json.loads((folder / "run" / "run.json").read_text())
    verdicts: dict[str, dict[str, list[dict[str, str]]]] = {fault: {family: [] for family in run.families} for fault in run.faults}
    for judgement in document["judgements"]:
        told = judgement["verdict"] or {"outcome": judgement["result"], "headline": "", "names": ""}
        verdicts[judgement["pair"]][judgement["family"]].append(told)
    return done.returncode, verdicts


def seen(fault: str, verdicts: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    """Return what the families say that are red: the words expected where they say them, else all that they say."""
    red = {}
    for family, found in verdicts.items():
        if any(one["outcome"] in {"fail", "not speculating"} for one in found):
            said = " ".join(f"{one['names']} {one['headline']}" for one in found if one["outcome"] == "fail")
            expected = CAUGHT[fault].get(family, "")
            red[family] = expected if expected and any(words in said for words in expected.split("|")) else said
    return red


@pytest.mark.faults(quick=True)
def test_every_fault_is_in_one_run():
    assert set(CAUGHT) == set(FAULTS)
    assert sorted(fault for run in RUNS.values() for fault in run.faults) == sorted(FAULTS)


@pytest.mark.parametrize("where", [pytest.param(where, marks=pytest.mark.faults(quick=run.quick)) for where, run in RUNS.items()])
def test_planted_faults_are_named_by_the_families_that_they_concern(where, tmp_path):
    code, verdicts = captured(RUNS[where], tmp_path)
    assert {fault: seen(fault, verdicts[fault]) for fault in RUNS[where].faults} == {fault: CAUGHT[fault] for fault in RUNS[where].faults}
    assert code == 1
