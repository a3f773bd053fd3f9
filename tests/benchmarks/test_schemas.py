"""A dataclass becomes the schema of what the codec writes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import pytest
from jsonschema import Draft202012Validator

from benchmarks.schemas import Definitions
from pytest_specdec.files import codec


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Circle:
    kind: Literal["circle"] = "circle"
    radius: float


@dataclass(frozen=True, kw_only=True)
class Square:
    kind: Literal["square"] = "square"
    side: float


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place.

    More that no schema needs.
    """

    at: tuple[int, float]
    """As ``column`` and :class:`Row`; None where unknown."""
    colour: Colour | None = None
    notes: Mapping[Colour, str] = field(default_factory=dict)
    shape: Circle | Square | None = None


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board of spots."""

    spots: tuple[Spot, ...]


@pytest.fixture
def schema():
    made = Definitions()
    return {**made.schema_of(Board), "$defs": made.by_name}


@pytest.mark.parametrize(
    "board",
    [
        Board(spots=()),
        Board(spots=(Spot(at=(1, 2.0)), Spot(at=(1, float("inf")), colour=Colour.RED, notes={Colour.BLUE: "deep"}))),
        Board(spots=(Spot(at=(1, 2.0), shape=Circle(radius=1.0)), Spot(at=(1, 2.0), shape=Square(side=1.0)))),
    ],
)
def test_what_the_codec_writes_is_valid(schema, board):
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(codec.encode(board))


@pytest.mark.parametrize(
    "spot",
    [
        {"at": [1]},
        {"at": [1, "much"]},
        {"colour": "green"},
        {"notes": {"green": "x"}},
        {"notes": {"red": 1}},
        {"size": 1},
        {"shape": {"kind": "circle", "side": 1.0}},
    ],
    ids=str,
)
def test_anything_else_is_not(schema, spot):
    assert not Draft202012Validator(schema).is_valid({"spots": [{**codec.encode(Spot(at=(1, 2.0))), **spot}]})


def test_a_field_that_is_missing_is_missed(schema):
    assert not Draft202012Validator(schema).is_valid({"spots": [{"at": [1, 2.0], "colour": None}]})


def test_docstrings_describe_it_in_words_of_json(schema):
    spot = schema["$defs"]["Spot"]
    assert spot["description"] == "A place."
    assert spot["properties"]["at"]["description"] == "As column and Row; null where unknown."
    assert "description" not in spot["properties"]["colour"]
