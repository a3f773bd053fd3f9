"""Output formats: read off each spelling that a request may have."""

from __future__ import annotations

import json

import pytest
from jsonschema.exceptions import SchemaError

from pytest_specdec.judge.structured.output_formats import formats
from pytest_specdec.model.workload import Request, Route

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def the_format(**body):
    return formats([Request(id="r", route=Route.CHAT, body=body)]).get("r")


@pytest.mark.parametrize("body, feature", [
    ({"response_format": {"type": "json_object"}}, "json_object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, "json_schema"),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema"),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema"),
    ({"structured_outputs": {"json_object": True}}, "json_object"),
    ({"structured_outputs": {"regex": "a+"}}, "regex"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "choice"),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar"),
    ({"guided_json": SCHEMA}, "json_schema"),
    ({"guided_regex": "a+"}, "regex"),
    ({"guided_choice": ["a"]}, "choice"),
    ({"guided_grammar": 'root ::= "a"'}, "grammar"),
])  # fmt: skip
def test_each_spelling_is_read(body, feature):
    assert the_format(**body).feature == feature


@pytest.mark.parametrize("body", [
    {},
    {"response_format": {"type": "text"}},
    {"structured_outputs": {}},
    {"structured_outputs": {"choice": "yes"}},
    {"structured_outputs": {"regex": 7}},
    {"structured_outputs": {"regex": "(["}},
])  # fmt: skip
def test_what_binds_nothing_here_has_no_format(body):
    assert the_format(**body) is None


def test_a_wrong_schema_is_an_error():
    with pytest.raises(SchemaError):
        the_format(guided_json={"type": "objekt"})


@pytest.mark.parametrize("rules, value, rare", [
    ({"type": "string", "format": "date"}, 7, False),
    ({"type": "string", "pattern": "^a$"}, "b", True),
    ({"type": "integer", "minimum": 3}, 2, True),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", True),
    ({"enum": [1, 2]}, 3, False),
    ({"type": "array", "prefixItems": [{"type": "integer"}]}, ["x"], True),
    ({"type": "object", "properties": {"pattern": {"type": "integer"}}}, {"pattern": "x"}, False),
])  # fmt: skip
def test_a_rule_that_engines_leave_out_in_silence_is_a_rare_one(rules, value, rare):
    reading = the_format(guided_json={"type": "object", "properties": {"a": rules}}).read(json.dumps({"a": value}), cut=False)
    assert (bool(reading.fault), reading.rare) == (True, rare)
