"""The graded schemas: schemas by their own meta-schema, grammars that compile, and answers that can be short."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pytest_specdec.model.grammar import GrammarKind
from pytest_specdec.prompts.graded_schemas import GRADED, Grade
from specdec_reference.grammar import Grammars

TOKENIZER = Path(__file__).parents[2] / "specdec_reference/checkpoints/target/tokenizer.json"
KEYWORDS = (
    *("enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "pattern", "format", "minimum", "maximum", "exclusiveMinimum"),
    *("additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "prefixItems", "minProperties", "maxProperties"),
)


@pytest.fixture(scope="module")
def grammars():
    return Grammars(TOKENIZER, (0,))


def test_there_are_more_than_60_and_a_dozen_of_each_grade():
    assert len(GRADED) >= 60
    assert min(Counter(one.grade for one in GRADED).values()) >= 12
    assert [one.grade for one in GRADED[:4]] == list(Grade)


def test_names_are_distinct_and_fit_every_engines_rule_for_names():
    names = [one.name for one in GRADED]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", name) for name in names)


def test_each_is_a_schema():
    for one in GRADED:
        Draft202012Validator.check_schema(one.schema)
    assert not [one.name for one in GRADED if one.bound["json_schema"]["schema"] is not one.schema]


def test_each_compiles(grammars):
    assert not [one.name for one in GRADED if not grammars.compile(GrammarKind.JSON, one.schema)]


def test_each_keyword_is_in_some_schema():
    schemas = [repr(one.schema) for one in GRADED]
    assert not [keyword for keyword in KEYWORDS if not any(f"'{keyword}':" in schema for schema in schemas)]


def bounded(schema):
    """Whether no text and no list of a schema can go on for ever; recursion ends by chance."""
    if isinstance(schema, list):
        return all(map(bounded, schema))
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if kind == "string" and not schema.keys() & {"maxLength", "enum", "pattern", "format", "const"}:
        return False
    if kind == "array" and "maxItems" not in schema:
        return False
    return all(map(bounded, schema.values()))


def test_answers_to_each_can_end_soon():
    assert not [one.name for one in GRADED if not bounded(one.schema)]
