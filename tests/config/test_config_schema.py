"""The schema, the dataclasses and the translated words say the same."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from pytest_specdec.config import config, validate
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.golden import Thinking
from pytest_specdec.model.workload import Family

SCHEMA = json.loads(resources.files("pytest_specdec.config").joinpath("schema.json").read_text(encoding="utf-8"))
PROPERTIES = SCHEMA["properties"]
PROMPT = json.loads(resources.files("pytest_specdec.config").joinpath("prompt.schema.json").read_text(encoding="utf-8"))
"""Of a line of a prompts file."""


def names(cls):
    return {field.name for field in fields(cls)}


@pytest.mark.parametrize("schema", [SCHEMA, PROMPT])
def test_a_schema_is_one(schema):
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "properties, cls, derived",
    [
        (
            PROPERTIES.keys() - {"engines", "matrix"},  # engines: engine, and old; matrix: many configs
            config.Config,
            {"name", "path", "text", "golden", "upgrade", "old", "lines"},
        ),
        (
            SCHEMA["$defs"]["build"]["properties"],
            config.EngineSettings,
            {"kind", "api_key", "url", "metrics_url", "served_as", "headers", "body", "environment"},
        ),
        (PROPERTIES["engine"]["properties"], config.EngineSettings, set()),
        (SCHEMA["$defs"]["overlay"]["properties"], config.Overlay, set()),
        (SCHEMA["$defs"]["variant"]["properties"], config.VariantSettings, {"name"}),
        (PROPERTIES["limits"]["properties"], config.Limits, set()),
        (PROPERTIES["gates"]["properties"]["acceptance_length"]["properties"]["golden"]["properties"], config.GoldenSettings, set()),
        (PROPERTIES["reasoning"]["properties"], config.Reasoning, set()),
        (PROPERTIES["endurance"]["properties"], config.Endurance, set()),
    ],
)
def test_the_schema_has_exactly_the_fields_of_the_config(properties, cls, derived):
    assert set(properties) == names(cls) - derived


def test_the_closed_sets_are_those_of_the_model():
    assert PROPERTIES["allow_inconclusive"]["items"]["anyOf"][0]["enum"] == list(Family)
    assert PROPERTIES["placement"]["enum"] == list(config.Placement)
    figures = PROPERTIES["gates"]["properties"]
    assert set(figures["speedup"]["properties"]) | set(figures["acceptance_length"]["properties"]) <= names(Gate)
    assert figures["acceptance_length"]["properties"]["golden"]["properties"]["thinking"]["enum"] == list(Thinking)


def described(schema, path=()):
    for name, part in schema.get("properties", {}).items():
        described_here = part.get("description") or SCHEMA["$defs"].get(part.get("$ref", "").rpartition("/")[2], {}).get("description")
        yield (*path, name), described_here
        yield from described(part, (*path, name))


def test_every_property_has_a_description():
    texts = [*described(SCHEMA), *described(PROMPT)]
    assert len(texts) > 50
    assert not [path for path, text in texts if not (text or "").endswith(".")]


def keywords(schema):
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key, value
            if key not in {"properties", "$defs"}:
                yield from keywords(value)
            else:
                for part in value.values():
                    yield from keywords(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from keywords(part)


SILENT = {"$schema", "$id", "$ref", "$defs", "title", "description", "examples", "contentMediaType", "properties", "items", "allOf"}


def test_every_keyword_of_the_schema_has_words():
    worded = {*validate._WORDS, "additionalProperties", "required", "propertyNames"}
    assert {key for schema in (SCHEMA, PROMPT) for key, _ in keywords(schema)} - SILENT == worded


def test_every_pattern_of_the_schema_has_words():
    assert {value for schema in (SCHEMA, PROMPT) for key, value in keywords(schema) if key == "pattern"} == set(validate._PATTERNS)
