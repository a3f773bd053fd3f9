"""The suite under test: each planted fault turns the families red that its row names, by the words of its row; the others stay green."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_specdec.reference.faults import context, lengths
from pytest_specdec.reference.faults.catalogue import FAULTS, planted_in
from pytest_specdec.reference.faults.planted import ENDS, Place

ROOT = Path(__file__).parents[2]
ENGINE = "engine: {kind: reference, model: target, args: {max-num-seqs: 32, max-model-len: 1024}}\nvariants:\n"
"""Without idle layers: they change how long tokens take, never which tokens come out."""
VARIANT = """\
  {fault}:
    args:
      speculative-config: {{method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic{more}}}
      fault: {fault}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Faults, each planted in a variant of its own, that one run of the suites judges by one baseline."""

    faults: tuple[str, ...]
    families: tuple[str, ...] = ENDS
    depth: str = "standard"
    quick: bool = False
    """Whether CI has it too."""
    more: str = ""
    """Further keys of the speculative setting."""


SHORT_DRAFT = "draft-context-deadly"
RUNS = {
    "in every answer": Run(faults=("cut-short", "stop-short", "past-the-end", "wrong-finish"), depth="smoke", quick=True),
    "in what is said of an answer": Run(
        faults=(
            *("usage-counts-rejected", "usage-drops-last-window", "usage-forgets-prompt", "usage-total-with-drafts"),
            *("stop-at-limit", "finish-missing", "special-token-leaks", "ids-swapped"),
            *("window-edge-doubled", "window-edge-dropped", "window-edge-broken", "counters-accept-more", "counters-frozen"),
        ),
        families=("greedy", "invariants"),
        depth="smoke",
        quick=True,
    ),
    "in the drafts of a kind": Run(
        faults=(
            *("drafts-off-logprobs", "drafts-off-sampled", "drafts-off-grammar", "drafts-off-penalties", "drafts-off-unseeded"),
            *("drafts-off-long", "dead-drafts-long", "dead-drafts-logprobs"),
        ),
        families=("greedy", "speed"),
        depth="smoke",
        quick=True,
    ),
    "in the length of drafts": Run(faults=("shorter-drafts-in-company",), families=("greedy", "speed"), depth="smoke", quick=True),
    "when the server dies": Run(faults=("die-on-json", "die-in-company"), families=("greedy", "liveness")),
    "above temperature 0": Run(faults=("accept-all-unseeded", "accept-all-late", "one-number-a-window"), families=("greedy", "sampling")),
    "at temperature 0": Run(faults=("near-tie",), families=("greedy", "parameters", "liveness")),
    "between requests": Run(
        faults=(
            "prefix-without-parent",
            "prefix-partial-block",
            "prefix-off-by-one",
            "prefix-damaged-by-length",
            "warm-empty",
            "warm-accept-all",
            "warm-draft-ahead",
            "drafter-keeps-long-request",
            "prefix-defeated",
            "prefix-overcounted",
        ),
        families=("state",),
    ),
    "when memory runs out": Run(
        faults=(
            "preempted-token-lost",
            "preempted-token-repeated",
            "preempted-starts-over",
            "preempted-penalties-forgotten",
            "preempted-accept-all",
            "preempted-refused",
        ),
        families=("pressure",),
    ),
    "where answers end": Run(faults=tuple(row.id for row in lengths.ROWS), families=("greedy", "lengths")),
    "at the end of the context": Run(faults=tuple(row.id for row in context.ROWS if row.id != SHORT_DRAFT), families=("greedy", "context")),
    "behind the draft's context": Run(faults=(SHORT_DRAFT,), families=("context",), more=", max_model_len: 128"),
    "in the state": Run(faults=("kv-off-by-one", "penalties-ignored", "report-draft-logprobs")),
    "in a batch": Run(
        faults=(
            *("rows-swapped", "padding-leaks", "wrong-at-three", "most-accepted", "fewest-accepted"),
            *("first-temperature", "greedy-sampled", "penalties-for-all", "grammar-of-neighbour"),
            *("neighbours-target", "bonus-of-neighbour", "wrong-after-abort", "die-on-abort", "dead-drafts-under-load"),
        ),
        families=("concurrency",),
    ),
    "in random streams": Run(
        faults=("seed-ignored", "constant-stream", "unseeded-alike", "choices-alike", "stream-of-first-row", "seed-by-row"),
        families=("seeds",),
    ),
    "when the server hangs": Run(faults=("hang-on-logprobs", "hang-in-company"), families=("liveness", "concurrency")),
}
"""A fault that is in every answer shows in few. Of one at temperature 0 only, above 0 only or in long answers only, the families that it
concerns and one that it spares; two families that both kill the server would use up its restarts on the first of them."""
_ELSEWHERE = {fault for run in RUNS.values() for fault in run.faults}
RUNS["in the rule"] = Run(faults=tuple(fault for fault in planted_in(Place.REFERENCE) if fault not in _ELSEWHERE))


def judged(run: Run, folder: Path) -> tuple[int, dict[str, dict[str, list[dict[str, str]]]]]:
    """Return the exit code of the suites and the verdicts by fault and family."""
    (folder / "faulty.yaml").write_text(ENGINE + "".join(VARIANT.format(fault=fault, more=run.more) for fault in run.faults))
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
    verdicts: dict[str, dict[str, list[dict[str, str]]]] = {fault: {} for fault in run.faults}
    for judgement in document["judgements"]:
        verdict = judgement["verdict"] or {"outcome": judgement["result"], "headline": "", "names": ""}
        verdicts[judgement["pair"]].setdefault(judgement["family"], []).append(verdict)
    return done.returncode, verdicts


def red(verdicts: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    """Return the words of the failed verdicts by family that is red."""
    return {
        family: " ".join(f"{verdict['names']} {verdict['headline']}" for verdict in several if verdict["outcome"] == "fail")
        for family, several in verdicts.items()
        if any(verdict["outcome"] in {"fail", "not speculating"} for verdict in several)
    }


@pytest.mark.parametrize("where", [pytest.param(where, marks=pytest.mark.faults(quick=run.quick)) for where, run in RUNS.items()])
def test_planted_faults_turn_the_families_of_their_row_red_by_name(where, tmp_path):
    code, verdicts = judged(RUNS[where], tmp_path)
    surprises = {fault: FAULTS[fault].expected[Place.REFERENCE].surprises(red(verdicts[fault])) for fault in RUNS[where].faults}
    assert surprises == {fault: [] for fault in RUNS[where].faults}
    assert code == 1
