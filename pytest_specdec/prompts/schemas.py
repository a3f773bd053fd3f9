"""JSON Schemas of our own for structured answers: closed sets, nested objects, bounded lists, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["ANY_OBJECT", "DRAWN", "SCHEMAS", "bound", "in_turn"]

ANY_OBJECT: Mapping[str, JSON] = {"type": "json_object"}


def _object(**properties: JSON) -> dict[str, JSON]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _enum(*members: str) -> dict[str, JSON]:
    return {"type": "string", "enum": list(members)}


_TEXT: dict[str, JSON] = {"type": "string", "maxLength": 40}
_COUNT: dict[str, JSON] = {"type": "integer", "minimum": 0, "maximum": 999}

SCHEMAS: Mapping[str, Mapping[str, JSON]] = {
    "weather": _object(
        city=_TEXT,
        sky=_enum("clear", "cloudy", "rain", "snow"),
        degrees={"type": "number", "minimum": -60, "maximum": 60},
        windy={"type": "boolean"},
    ),
    "ticket": _object(
        priority=_enum("low", "normal", "high", "urgent"),
        team=_enum("billing", "network", "hardware", "accounts"),
        answered={"type": "boolean"},
    ),
    "person": _object(
        name=_TEXT,
        age={"type": "integer", "minimum": 0, "maximum": 120},
        address=_object(street=_TEXT, town=_TEXT, country=_enum("DE", "FR", "IT", "PL", "SE")),
        email={"type": ["string", "null"], "maxLength": 40},
    ),
    "order": _object(
        id=_COUNT,
        items={
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": _object(product=_enum("apples", "bread", "coffee", "milk"), amount={"type": "integer", "minimum": 1, "maximum": 12}),
        },
        paid={"type": "boolean"},
    ),
    "palette": _object(
        colours={"type": "array", "minItems": 2, "maxItems": 5, "items": _enum("red", "green", "blue", "yellow", "black", "white")}
    ),
    "reading": _object(
        sensor=_enum("a1", "a2", "b1", "b2"), values={"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}}
    ),
}
"""By name; an answer to each fits into some 100 tokens."""

_LAMP = _object(on={"type": "boolean"}, colour=_enum("warm", "cold"))


def bound(schema: str | Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the ``response_format`` for an answer bound to ``schema``.

    ``schema`` is one of ours by its name, or any other one as it stands.
    """
    name, body = (schema, SCHEMAS[schema]) if isinstance(schema, str) else ("answer", schema)
    return {"type": "json_schema", "json_schema": {"name": name, "schema": body, "strict": True}}


DRAWN: Mapping[str, Mapping[str, JSON]] = {
    "ticket": bound("ticket"),
    "object": ANY_OBJECT,
    "palette": bound("palette"),
    "lamps": bound(_object(kitchen=_LAMP, hall=_LAMP)),
}
"""What drawn answers are bound to, by name: short, and of rules that every engine's grammar knows, so that chance breaks none."""


def in_turn(index: int) -> str:
    """Return the name of one of our schemas, by ``index``.

    Each of a few successive indices has another one.
    """
    return list(SCHEMAS)[index % len(SCHEMAS)]
