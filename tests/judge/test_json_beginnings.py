"""Beginnings of JSON documents under a schema: what no continuation can make valid, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from pytest_specdec.judge.structured.json_beginnings import breaches
from pytest_specdec.judge.structured.json_documents import of_schema

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "mood": {"enum": ["good", "bad", 7]},
        "kind": {"const": "cat"},
        "age": {"type": "integer", "minimum": 10},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
        "inner": {"$ref": "#/$defs/point"},
        "any": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["z"]}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}},
}
DOCUMENTS = st.fixed_dictionaries(
    {"name": st.text(max_size=6), "age": st.integers(10, 10**9)},
    optional={
        "mood": st.sampled_from(["good", "bad", 7]),
        "kind": st.just("cat"),
        "on": st.booleans(),
        "tags": st.lists(st.text(max_size=3), min_size=2, max_size=3),
        "inner": st.fixed_dictionaries({"x": st.floats(allow_nan=False, allow_infinity=False)}),
        "any": st.text(max_size=3) | st.fixed_dictionaries({"z": st.none()}),
    },
)


def rules(text, schema=SCHEMA):
    return [error.validator for error in breaches(Draft202012Validator(schema), text)]


@settings(max_examples=20)
@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 2]))
def test_every_beginning_of_a_valid_document_may_go_on(document, ascii_only, indent):
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    assert not [text[:end] for end in range(len(text)) if rules(text[:end])]


@pytest.mark.parametrize("text, rule", [
    ('{"age": "', "type"),
    ('{"age": tr', "type"),
    ('{"on": 1', "type"),
    ('{"name": {', "type"),
    ('{"age": 3,', "minimum"),
    ('{"nick": "A', "additionalProperties"),
    ('{"inner": {}', "required"),
    ('{"inner": {"y": [', "additionalProperties"),
    ('{"tags": ["a"],', "minItems"),
    ('{"tags": ["a", "b", "c", "', "maxItems"),
    ('{"tags": ["a", 1, ', "type"),
    ('{"name": "Augusta', "maxLength"),
    ('{"mood": "bat', "enum"),
    ('{"mood": "good ', "enum"),
    ('{"kind": "d', "const"),
    ('{"any": {}', "anyOf"),
    ('{"any": 1, ', "anyOf"),
])  # fmt: skip
def test_a_beginning_that_no_continuation_saves_breaks_its_rule(text, rule):
    assert rules(text) == [rule]


@pytest.mark.parametrize("text", [
    "", "{", '{"nick', '{"nick"', '{"nick":', '{"age": 1', '{"age": -', '{"tags": ["a"', '{"inner": {', '{"any": {"y": 1', '{"mood": "',
    '{"mood": 7', '{"name": "\\ud83d', '{"name": "Augus\\', '{"age": 3', '{"name": "Ada", "age": {"a": 1}'[:20],
])  # fmt: skip
def test_what_may_still_become_valid_breaks_none(text):
    assert not rules(text)


def test_a_key_that_comes_again_is_the_one_that_is_open():
    schema = {"properties": {"a": {"required": ["x"]}}}
    assert not rules('{"a": {"x": 1}, "b": {}, "a": {', schema)
    assert rules('{"a": {}, "b": {', schema) == ["required"]


def test_rules_that_hang_on_what_may_still_come_are_left_open():
    schema = {"if": {"required": ["b"]}, "else": {"properties": {"a": {"type": "integer"}}}}
    assert not rules('{"a": "text", ', schema)


@pytest.mark.parametrize("number", ["1" * 301, "-" + "1" * 301, "1e999", "-1e999"])
def test_numbers_beyond_floats_break_no_rule_and_no_reader(number):
    kind = "number" if "e" in number else "integer"
    schema = {"properties": {"n": {"type": kind, "multipleOf": 0.5 if "e" in number else 1}}}
    assert not rules(f'{{"n": {number}, ', schema)
    assert not of_schema(schema).read(f'{{"n": {number}}}', cut=False).fault


@pytest.mark.parametrize("fraction, broken", [(".0", False), (".5", True)])
def test_a_fraction_beyond_floats_is_no_integer_and_stops_no_reader(fraction, broken):
    document = f'{{"n": -{"1" * 400}{fraction}}}'
    assert bool(of_schema({"properties": {"n": {"type": "integer"}}}).read(document, cut=False).fault) is broken
    assert of_schema({"properties": {"n": {"type": "number", "multipleOf": 0.01}}}).read(document, cut=False)
