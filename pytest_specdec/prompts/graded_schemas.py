"""Graded schemas: JSON Schemas of our own from trivial to hard, each with a subject that a short answer covers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from pytest_specdec.prompts.schemas import enum_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["GRADED", "Grade", "GradedSchema"]


class Grade(StrEnum):
    """How much of JSON Schema a schema takes."""

    TRIVIAL = "trivial"
    """One value, or an object with one property."""
    EASY = "easy"
    """Flat objects and lists: types, enums, required and closed properties."""
    MEDIUM = "medium"
    """Nesting, optional properties, references, unions and bounds."""
    HARD = "hard"
    """Patterns, formats, recursion, tuples, and names that are no plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedSchema:
    """A schema with its grade."""

    name: str
    grade: Grade
    about: str
    """What an answer describes: ``a lamp``."""
    schema: Mapping[str, JSON]

    @property
    def bound(self) -> Mapping[str, JSON]:
        """The ``response_format`` for an answer constrained to this schema."""
        return {"type": "json_schema", "json_schema": {"name": self.name, "schema": self.schema, "strict": True}}


_BOOLEAN: dict[str, JSON] = {"type": "boolean"}
_NULL: dict[str, JSON] = {"type": "null"}
_WORD: dict[str, JSON] = {"type": "string", "maxLength": 8}
_SOME: dict[str, JSON] = {"type": "string", "minLength": 1, "maxLength": 12}
_COLOUR: dict[str, JSON] = {"type": "string", "enum": ["red", "green", "blue"]}
_DIGIT: dict[str, JSON] = {"type": "integer", "minimum": 0, "maximum": 9}
_SIZE: dict[str, JSON] = {"type": "string", "enum": ["S", "M", "L", "XL"]}
_DATE: dict[str, JSON] = {"type": "string", "format": "date"}


def _integer(low: int, high: int) -> dict[str, JSON]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _pattern(pattern: str) -> dict[str, JSON]:
    return {"type": "string", "pattern": pattern}


def _list(items: Mapping[str, JSON], low: int = 0, high: int = 3) -> dict[str, JSON]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def _object(properties: Mapping[str, JSON], *optional: str, **more: JSON) -> dict[str, JSON]:
    """Return the schema of an object without further properties.

    All but the ``optional`` ones are required. ``more`` are further keywords of the schema.
    """
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


_TREE = _object({"v": _DIGIT, "kids": _list({"$ref": "#/$defs/tree"}, 0, 2)}, "kids")
_CHAIN = _object({"n": _DIGIT, "next": {"anyOf": [_NULL, {"$ref": "#/$defs/chain"}]}})
_TERM: dict[str, JSON] = {"anyOf": [_DIGIT, _object({"op": enum_schema("+", "-"), "a": {"$ref": "#/$defs/term"}, "b": _DIGIT})]}
_POINT = _object({"x": _DIGIT, "y": _DIGIT})
_LONG = {f"p{number:02}": _BOOLEAN for number in range(1, 13)}

_TRIVIAL: Mapping[str, tuple[str, dict[str, JSON]]] = {
    "flag": ("whether water is wet", _object({"yes": _BOOLEAN})),
    "empty": ("nothing at all", _object({})),
    "one-word": ("a short word", _object({"word": _WORD})),
    "one-digit": ("the number of legs of a cat", _object({"legs": _DIGIT})),
    "one-colour": ("the colour of grass", _object({"colour": _COLOUR})),
    "always-seven": ("the number seven", _object({"n": {"const": 7}})),
    "always-ok": ("the state of a server that is well", _object({"state": {"const": "ok"}})),
    "nothing-known": ("a middle name that is not known", _object({"middle": _NULL})),
    "bare-boolean": ("whether two is even", _BOOLEAN),
    "bare-enum": ("a primary colour", _COLOUR),
    "bare-list": ("two digits", _list(_DIGIT, 1, 3)),
    "no-items": ("an empty basket", _object({"items": _list(_WORD, 0, 0)})),
    "bare-null": ("the value of a missing field", _NULL),
    "one-choice": ("the only answer", _object({"answer": enum_schema("42")})),
}
_EASY: Mapping[str, tuple[str, dict[str, JSON]]] = {
    "lamp": ("a lamp", _object({"on": _BOOLEAN, "colour": enum_schema("warm", "cold")})),
    "shirt": ("a shirt", _object({"size": _SIZE, "colour": _COLOUR})),
    "vote": ("a vote", _object({"for": _DIGIT, "against": _DIGIT, "carried": _BOOLEAN})),
    "task": ("a task", _object({"title": _SOME, "done": _BOOLEAN, "priority": enum_schema("low", "high")})),
    "colours": ("two colours", _object({"colours": _list(_COLOUR, 1, 3)})),
    "switches": ("three switches", _object({"a": _BOOLEAN, "b": _BOOLEAN, "c": _BOOLEAN})),
    "dice": ("two dice", _object({"dice": _list(_integer(1, 6), 2, 2)})),
    "weekday": ("a day of the week", _object({"day": enum_schema("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"), "off": _BOOLEAN})),
    "mixed-enum": ("a level", _object({"level": {"enum": ["none", 1, 2, None, True]}})),
    "maybe-name": ("a person who may have a nickname", _object({"nick": {"type": ["string", "null"], "maxLength": 8}, "age": _DIGIT})),
    "list-of-flags": ("three answers to yes-or-no questions", _object({"answers": _list(_BOOLEAN, 3, 3)})),
    "constants": ("a message's envelope", _object({"version": {"const": 1}, "kind": {"const": "ping"}, "urgent": _BOOLEAN})),
    "open-object": ("a box", {"type": "object", "properties": {"full": _BOOLEAN}, "required": ["full"], "maxProperties": 1}),
    "score": ("a match", _object({"home": _DIGIT, "away": _DIGIT, "winner": enum_schema("home", "away", "none")})),
    "seat": ("a seat in a train", _object({"car": _integer(1, 9), "side": enum_schema("aisle", "window")})),
    "traffic-light": ("a traffic light", _object({"light": enum_schema("red", "amber", "green"), "blinks": _BOOLEAN})),
}
_MEDIUM: Mapping[str, tuple[str, dict[str, JSON]]] = {
    "room": ("a room with a lamp", _object({"lamp": _object({"on": _BOOLEAN}), "floor": _integer(0, 3)})),
    "optional-note": ("an order that may have a note", _object({"id": _DIGIT, "note": _WORD}, "note")),
    "all-optional": (
        "whatever is known of a cat",
        _object({"age": _DIGIT, "black": _BOOLEAN, "tail": enum_schema("long", "short")}, "age", "black", "tail"),
    ),
    "basket": ("a basket of fruit", _object({"fruit": _list(_object({"kind": enum_schema("apple", "pear"), "n": _DIGIT}), 1, 2)})),
    "any-of-two": ("either a digit or a colour", _object({"value": {"anyOf": [_DIGIT, _COLOUR]}})),
    "one-of-two": ("a flag or a short word", _object({"value": {"oneOf": [_BOOLEAN, _WORD]}})),
    "shapes": (
        "a circle or a square",
        _object(
            {"shape": {"anyOf": [_object({"kind": {"const": "circle"}, "r": _DIGIT}), _object({"kind": {"const": "square"}, "a": _DIGIT})]}}
        ),
    ),
    "line": (
        "a line between two points",
        {**_object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}), "$defs": {"point": _POINT}},
    ),
    "bounded": ("a temperature", _object({"degrees": _integer(-40, 50), "scale": enum_schema("C", "F")})),
    "percent": ("a share", _object({"share": {"type": "number", "minimum": 0, "maximum": 1}})),
    "positive": ("a length in metres", _object({"metres": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100}})),
    "short-text": ("a name of three to six letters", _object({"name": {"type": "string", "minLength": 3, "maxLength": 6}})),
    "grid": ("a grid of two by two flags", _object({"rows": _list(_list(_BOOLEAN, 2, 2), 2, 2)})),
    "deep-three": ("a box in a box in a box", _object({"a": _object({"b": _object({"c": _BOOLEAN})})})),
    "deep-six": (
        "six boxes, one in the other",
        _object({"a": _object({"b": _object({"c": _object({"d": _object({"e": _object({"f": _DIGIT})})})})})}),
    ),
    "twelve-flags": ("twelve switches", _object(_LONG)),
    "counts-by-name": (
        "how often a letter occurs",
        {"type": "object", "additionalProperties": _DIGIT, "minProperties": 1, "maxProperties": 2},
    ),
    "ranked": ("a podium", _object({"podium": _list(enum_schema("Ann", "Ben", "Cem"), 3, 3)})),
    "nullable-object": ("a house that may have a garden", _object({"garden": {"anyOf": [_NULL, _object({"trees": _DIGIT})]}})),
    "number-or-null": ("a reading that may be missing", _object({"reading": {"type": ["integer", "null"], "minimum": 0, "maximum": 99}})),
}
_HARD: Mapping[str, tuple[str, dict[str, JSON]]] = {
    "plate": ("a number plate", _object({"plate": _pattern("^[A-Z]{2}-[0-9]{3}$")})),
    "hex-colour": ("a colour in hexadecimal", _object({"hex": _pattern("^#[0-9a-f]{6}$")})),
    "clock": ("a time of day", _object({"time": _pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$")})),
    "version": ("a release of a program", _object({"version": _pattern("^[0-9]\\.[0-9]{1,2}\\.[0-9]$"), "stable": _BOOLEAN})),
    "birthday": ("a birthday", _object({"born": _DATE})),
    "identifier": ("a random identifier", _object({"id": {"type": "string", "format": "uuid"}})),
    "address": ("a server in a private network", _object({"ip": {"type": "string", "format": "ipv4"}})),
    "tree": ("a small tree of digits", {"$ref": "#/$defs/tree", "$defs": {"tree": _TREE}}),
    "chain": ("a chain of digits", {"$ref": "#/$defs/chain", "$defs": {"chain": _CHAIN}}),
    "sum": (
        "a sum",
        {
            "type": "object",
            "properties": {"sum": {"$ref": "#/$defs/term"}},
            "required": ["sum"],
            "additionalProperties": False,
            "$defs": {"term": _TERM},
        },
    ),
    "pair": ("a colour with its rank", {"type": "array", "prefixItems": [_COLOUR, _DIGIT], "items": False, "minItems": 2, "maxItems": 2}),
    "triple": ("a name, a flag and nothing", {"type": "array", "prefixItems": [_WORD, _BOOLEAN, _NULL], "minItems": 3, "maxItems": 3}),
    "unicode-keys": ("die Größe und die Farbe", _object({"größe": _SIZE, "färbung": _COLOUR})),
    "emoji-key": ("a mood", _object({"🙂": _BOOLEAN, "日": _DIGIT})),
    "quoted-key": ("names with quotation marks", _object({'a "b"': _BOOLEAN, "c\\d": _DIGIT, "": _NULL})),
    "unicode-enum": ("a city", _object({"city": enum_schema("Zürich", "Kraków", "東京")})),
    "half-steps": ("a shoe size", _object({"size": {"type": "number", "enum": [36, 36.5, 37, 37.5]}})),
    "tagged-union": (
        "a payment",
        {
            "anyOf": [
                _object({"by": {"const": "card"}, "last": _pattern("^[0-9]{4}$")}),
                _object({"by": {"const": "cash"}, "change": _DIGIT}),
                _object({"by": {"const": "none"}}),
            ]
        },
    ),
    "all-of": (
        "a small even digit",
        _object({"n": {"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 8}]}}),
    ),
    "list-of-unions": ("a list of flags and colours", _object({"list": _list({"anyOf": [_BOOLEAN, _COLOUR, _NULL]}, 2, 3)})),
}


def _grade_schemas(grade: Grade, cases: Mapping[str, tuple[str, dict[str, JSON]]]) -> list[GradedSchema]:
    return [GradedSchema(name=name, grade=grade, about=about, schema=schema) for name, (about, schema) in cases.items()]


_BY_GRADE = (
    _grade_schemas(Grade.TRIVIAL, _TRIVIAL),
    _grade_schemas(Grade.EASY, _EASY),
    _grade_schemas(Grade.MEDIUM, _MEDIUM),
    _grade_schemas(Grade.HARD, _HARD),
)
GRADED: tuple[GradedSchema, ...] = tuple(schema for schema in chain.from_iterable(zip_longest(*_BY_GRADE)) if schema is not None)
"""One of each grade in turn, so that the first few are of all grades."""
