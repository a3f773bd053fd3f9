"""JSON Schemas of our own for structured answers: closed sets, nested objects, bounded lists, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["ANY_OBJECT", "DRAWN", "SCHEMAS", "bound", "enum_schema", "in_turn", "object_schema"]

ANY_OBJECT: Mapping[str, JSON] = {"type": "json_object"}


def object_schema(**properties: JSON) -> dict[str, JSON]:
    """Return the schema of an object with exactly these properties, all required."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def enum_schema(*members: str) -> dict[str, JSON]:
    """Return the schema of a string out of ``members``."""
    return {"type": "string", "enum": list(members)}


_TEXT: dict[str, JSON] = {"type": "string", "maxLength": 40}
_COUNT: dict[str, JSON] = {"type": "integer", "minimum": 0, "maximum": 999}

SCHEMAS: Mapping[str, Mapping[str, JSON]] = {
    "weather": object_schema(
        city=_TEXT,
        sky=enum_schema("clear", "cloudy", "rain", "snow"),
        degrees={"type": "number", "minimum": -60, "maximum": 60},
        windy={"type": "boolean"},
    ),
    "ticket": object_schema(
        priority=enum_schema("low", "normal", "high", "urgent"),
        team=enum_schema("billing", "network", "hardware", "accounts"),
        answered={"type": "boolean"},
    ),
    "person": object_schema(
        name=_TEXT,
        age={"type": "integer", "minimum": 0, "maximum": 120},
        address=object_schema(street=_TEXT, town=_TEXT, country=enum_schema("DE", "FR", "IT", "PL", "SE")),
        email={"type": ["string", "null"], "maxLength": 40},
    ),
    "order": object_schema(
        id=_COUNT,
        items={
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": object_schema(
                product=enum_schema("apples", "bread", "coffee", "milk"), amount={"type": "integer", "minimum": 1, "maximum": 12}
            ),
        },
        paid={"type": "boolean"},
    ),
    "palette": object_schema(
        colours={"type": "array", "minItems": 2, "maxItems": 5, "items": enum_schema("red", "green", "blue", "yellow", "black", "white")}
    ),
    "reading": object_schema(
        sensor=enum_schema("a1", "a2", "b1", "b2"), values={"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}}
    ),
}
"""By name; an answer to each fits into some 100 tokens."""

_LAMP = object_schema(on={"type": "boolean"}, colour=enum_schema("warm", "cold"))


def bound(schema: str | Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the ``response_format`` for an answer constrained to ``schema``.

    ``schema`` is the name of one of :data:`SCHEMAS`, or a JSON Schema.
    """
    name, body = (schema, SCHEMAS[schema]) if isinstance(schema, str) else ("answer", schema)
    return {"type": "json_schema", "json_schema": {"name": name, "schema": body, "strict": True}}


DRAWN: Mapping[str, Mapping[str, JSON]] = {
    "ticket": bound("ticket"),
    "object": ANY_OBJECT,
    "palette": bound("palette"),
    "lamps": bound(object_schema(kitchen=_LAMP, hall=_LAMP)),
}
"""What drawn answers are bound to, by name: short, and of rules that every engine's grammar knows, so that chance breaks none."""


def in_turn(index: int) -> str:
    """Return the name of one of :data:`SCHEMAS` by ``index``.

    The indices go through them again and again.
    """
    return list(SCHEMAS)[index % len(SCHEMAS)]
