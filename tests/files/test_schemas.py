"""The published schemas say what the writers write; benchmarks/schemas.py makes them from the values themselves."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from pytest_specdec.files import run_documents, transcripts, yaml
from pytest_specdec.gates import baseline_file
from pytest_specdec.model.baseline import Gate, PromptLength

NUMBERS = {"transcript": 2, "score": 2, "plan": 2, "baseline": 2}
KINDS = tuple(NUMBERS)


def schema(kind):
    return json.loads(resources.files("pytest_specdec.files").joinpath("schemas", f"{kind}.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_one_and_is_named_after_what_the_files_say(kind, transcript):
    Draft202012Validator.check_schema(schema(kind))
    name = f"urn:pytest-specdec:{kind}:{NUMBERS[kind]}"
    assert schema(kind)["$id"] == name
    assert json.dumps(schema(kind)).count(f'"const": "{name}"') == 1


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]


def test_every_line_of_a_transcript_is_valid(directory, transcript):
    transcripts.write(directory, transcript("v"))
    for line in lines(directory.transcript("v", "greedy-mixed")):
        Draft202012Validator(schema("transcript")).validate(line)


def test_every_line_of_scores_is_valid(directory, scores):
    transcripts.write_scores(directory, "baseline", "v", "w", scores("v"))
    for line in lines(directory.scores("baseline", "v", "w")):
        Draft202012Validator(schema("score")).validate(line)


def test_a_plan_is_valid(directory, plan):
    run_documents.write_plan(directory, plan)
    Draft202012Validator(schema("plan")).validate(json.loads(directory.plan.read_text()))


def test_a_baseline_file_is_valid(tmp_path, environment):
    path = tmp_path / f"{environment.machine}.yaml"
    speed = Gate(figure="speedup", at_least=1.5, log_ratios=(0.4, 0.5), reason="median", accepted_regression="a new driver")
    lengths = {"chat-00": PromptLength(tokens_per_step=2.5, steps=40, request="0" * 8)}
    length = Gate(figure="acceptance_length", digest="0" * 16, runs=1, lengths=lengths, key={"model": "m", "flags": "0" * 12})
    baseline_file.write(path, environment, [speed, length])
    Draft202012Validator(schema("baseline")).validate(yaml.load(path.read_text(), str(path)).data)


@pytest.mark.parametrize("line", [{}, {"schema": "urn:pytest-specdec:transcript:2"}, {"request_id": "a", "colour": "red"}])
def test_the_schemas_refuse_what_is_something_else(line):
    for kind in KINDS:
        assert not Draft202012Validator(schema(kind)).is_valid(line)
