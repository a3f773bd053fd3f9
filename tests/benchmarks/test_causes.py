"""Causes over the matrix of planted faults, as benchmarks/results/sensitivity.json holds what was found of each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.verdict import Outcome, SharedCheck, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.report.causes import find_causes
from pytest_specdec.report.run import JudgementResult, PytestOutcome

MATRIX = Path(__file__).parents[2] / "benchmarks/results/sensitivity.json"
CHECKS = {
    SharedCheck.SERVER: r"the server (dies|hangs|answers 5xx|refuses)|scattered failures",
    SharedCheck.DRAFTING: r"nothing drafted|no draft token (accepted|rejected)|speculation unknown",
    SharedCheck.ENDING: r"(answers are cut short|answers go on after their end|the finish_reason is wrong"
    r"|usage counts other tokens than were answered|the same tokens are given as another text)$",
}
"""The shared checks by the names that they give: the matrix stores names alone."""
MOST_CAUSES, LEAST_LED = 1.3, 0.95


def failure_of(index, entry):
    name, family = entry["name"], Family(entry["family"])
    check = next((check for check, pattern in CHECKS.items() if re.match(pattern, name)), None)
    verdict = Verdict(outcome=Outcome.FAIL, family=family, pair="draft-k3", workload="w", headline=name, names=name, check=check)
    return JudgementResult(nodeid=str(index), pair="draft-k3", workload="w", family=family, result=PytestOutcome.FAILED, verdict=verdict)


@pytest.fixture(scope="module")
def cells():
    """Of each cell with a named failure: its failures as found, and its causes."""
    whole = []
    for cell in json.loads(MATRIX.read_text(encoding="utf-8"))["cells"]:
        failures = [one for one in cell["findings"] if one["name"]]
        if failures:
            whole.append((failures, find_causes([failure_of(index, one) for index, one in enumerate(failures)], FAMILIES)))
    return whole


def test_a_fault_has_few_causes(cells):
    assert len(cells) > 600
    assert sum(len(causes) for _, causes in cells) / len(cells) <= MOST_CAUSES


def test_the_leading_name_is_the_faults_own(cells):
    led = [
        failures[int(causes[0].leader.nodeid)]["name"] in {one["name"] for one in failures if one["found"] == "caught"}
        for failures, causes in cells
    ]
    assert sum(led) / len(led) >= LEAST_LED
