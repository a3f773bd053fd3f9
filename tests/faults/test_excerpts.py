"""The run in a repro's folder: judged alone, each finding of a real capture is the verdict that the run came to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.sensitivity.suite_run import SuiteRun, planted
from pytest_specdec.files import captured, codec, excerpt, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import registry
from specdec_reference.faults.catalogue import FAULTS

if TYPE_CHECKING:
    from pytest_specdec.model.verdict import Verdict

FAMILIES = ("greedy", "logprobs", "sampling", "state", "structured")
PLANTED = ("accept-all", "prompt-logprobs-shifted")


def judged_alone(directory: RunDirectory) -> Verdict:
    """Return the verdict of the one judgement of an excerpt."""
    plan = run_documents.read_plan(directory)
    (judgement,) = plan.judgements
    judge = registry.judge_of(plan.rows[judgement.family])
    return judge(captured.read(directory, plan, judgement, (), captured.read_calibrations(directory, plan, judgement.pair)))


@pytest.mark.faults
def test_an_excerpt_has_the_verdict_of_its_run(tmp_path):
    suite = SuiteRun(name="faulty", variants={fault: planted(FAULTS[fault]) for fault in PLANTED}, depth="smoke", families=FAMILIES)
    run = RunDirectory.open(suite.capture(tmp_path))
    plan = run_documents.read_plan(run)
    document = json.loads(run.run.read_text())
    verdicts = [entry["verdict"] for entry in document["judgements"] if entry["verdict"] and entry["verdict"]["outcome"] == "fail"]
    assert {verdict["family"] for verdict in verdicts} == set(FAMILIES)
    others = []
    for number, verdict in enumerate(verdicts):
        key = verdict["pair"], verdict["workload"], verdict["family"]
        planned = next(one for one in plan.judgements if (one.pair, one.workload, one.family) == key)
        target = RunDirectory(tmp_path / f"excerpt-{number}")
        excerpt.write(run, plan, planned, target)
        if codec.encode(judged_alone(target)) != verdict:
            others.append(key)
    assert others == []
