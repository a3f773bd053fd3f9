from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import pytest_specdec
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.report import junit
from pytest_specdec.report.run import JudgementResult, PytestOutcome, document

SCHEMA = json.loads((Path(pytest_specdec.__file__).parent / "files/schemas/run.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_a_schema():
    VALIDATOR.check_schema(SCHEMA)


def test_a_document_is_what_its_schema_says(make_run, verdicts, judged):
    error = judged(None, PytestOutcome.ERROR, pair="draft-k3", workload="w", family=Family.GREEDY, error="not captured: boom")
    found = document(make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.FAILED), error))
    VALIDATOR.validate(json.loads(json.dumps(found)))
    assert found["counts"] == {"pass": 1, "fail": 1, "no verdict": 1}
    assert found["red"]


def test_a_document_of_a_broken_capture_is_valid_too(make_run):
    found = document(make_run(environment=None, status=None, capabilities={}))
    VALIDATOR.validate(json.loads(json.dumps(found)))
    assert not found["judged"]


def test_a_figure_may_be_infinite(make_run, verdicts, judged):
    found = document(make_run(judged(replace(verdicts["greedy"], figures={"a": float("inf"), "b": float("nan"), "c": 1}))))
    VALIDATOR.validate(json.loads(json.dumps(found, allow_nan=False)))


def test_a_wrong_document_is_refused(make_run, verdicts, judged):
    found = json.loads(json.dumps(document(make_run(judged(verdicts["greedy"])))))
    found["judgements"][0]["verdict"]["outcome"] = "maybe"
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(found)


def test_a_failure_that_a_waiver_expects_is_counted_as_known(make_run, verdicts, judged):
    found = document(make_run(judged(verdicts["failed"], PytestOutcome.WAIVED)))
    VALIDATOR.validate(json.loads(json.dumps(found)))
    assert found["counts"] == {"known": 1}


def test_junit_properties_are_scalars_in_one_line(verdicts):
    found = dict(junit.properties(verdicts["failed"]))
    assert found["specdec.outcome"] == "fail"
    assert set(found) == {f"specdec.{name}" for name in ("outcome", "family", "pair", "workload", "headline")}
    assert all(value.isprintable() for value in found.values())


def judge(outcome, result, family=Family.GREEDY):
    verdict = Verdict(outcome=outcome, family=family, pair="draft-k3", workload="chat", headline="")
    return JudgementResult(nodeid="", pair="draft-k3", workload="chat", family=family, result=result, verdict=verdict)


@pytest.mark.parametrize(
    "results, clean",
    [
        ([judge(Outcome.PASS, PytestOutcome.PASSED)], True),
        ([judge(Outcome.PASS, PytestOutcome.PASSED, Family.SAMPLING)], True),
        ([judge(Outcome.PASS, PytestOutcome.PASSED), judge(Outcome.FAIL, PytestOutcome.FAILED, Family.LIVENESS)], False),
        ([judge(Outcome.PASS, PytestOutcome.PASSED), judge(Outcome.FAIL, PytestOutcome.WAIVED, Family.TOOLS)], False),
        ([judge(Outcome.PASS, PytestOutcome.PASSED), judge(Outcome.FAIL, PytestOutcome.FAILED, Family.SPEED)], True),
        ([judge(Outcome.FAIL, PytestOutcome.SKIPPED)], True),  # lossy: reported and not gated
        ([judge(Outcome.INCONCLUSIVE, PytestOutcome.SKIPPED)], False),
        ([judge(Outcome.PASS, PytestOutcome.PASSED, Family.STATE)], False),
        ([judge(Outcome.PASS, PytestOutcome.PASSED), judge(Outcome.SUSPICIOUS, PytestOutcome.FAILED, Family.SAMPLING)], False),
    ],
)
def test_a_variant_is_clean_where_its_tokens_were_judged_and_nothing_failed(make_run, results, clean):
    assert (make_run(*results).unclean == {}) is clean
