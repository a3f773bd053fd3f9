"""Structured fields: ``response_format`` and vLLM's own ways to ask for a grammar, of which a request has one at most."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_specdec.model.grammar import GrammarKind
from specdec_reference.request_fields import Fields, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.model.workload import JSON

_WHOLE: Final = "structured_outputs"
"""An object with one of the kinds, vLLM 0.11 and later."""
_FORMERLY: Final = {f"guided_{kind}": kind for kind in GrammarKind}
"""Fields of their own, vLLM before 0.12."""
NAMES: Final = frozenset({_WHOLE, *_FORMERLY})


class _Constraint(NamedTuple):
    """A grammar that a request asks for."""

    field: str
    """The request's field."""
    kind: GrammarKind
    specification: JSON


def grammar(fields: Fields, compile_grammar: Callable[[GrammarKind, JSON], str]) -> str | None:
    """Return the compiled grammar of a request; None without one.

    Raises Refusal for several, for a wrong one, and for one that cannot be compiled.
    """
    constraints = [*_read_response_format(fields), *_read_structured_outputs(fields), *_read_guided_fields(fields)]
    if not constraints:
        return None
    if len(constraints) > 1:
        names = ", ".join(constraint.field for constraint in constraints)
        raise Refusal(message=f"You can only use one kind of structured outputs constraint; found {names}", param=constraints[1].field)
    (constraint,) = constraints
    try:
        return compile_grammar(constraint.kind, constraint.specification)
    except ValueError as error:
        raise Refusal(message=f"the grammar cannot be compiled: {error}", param=constraint.field) from error


def _read_response_format(fields: Fields) -> list[_Constraint]:
    """Return the constraint of ``response_format``, a list of one; empty for plain text.

    Raises Refusal for any other format.
    """
    name = "response_format"
    response_format = fields.object(name)
    kind = None if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return []
    if kind == "json_object":
        return [_Constraint(name, GrammarKind.JSON_OBJECT, specification=True)]
    if kind != "json_schema":
        raise Refusal(message="response_format.type must be text, json_object or json_schema", param=name)
    json_schema = response_format.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
    if not isinstance(schema, dict):
        raise Refusal(message="response_format.json_schema.schema must be an object", param=name)
    return [_Constraint(name, GrammarKind.JSON, schema)]


def _read_structured_outputs(fields: Fields) -> list[_Constraint]:
    """Return the constraint of each ``structured_outputs`` option.

    Raises Refusal for unknown options, and for a value of the wrong type.
    """
    options: Mapping[str, JSON] = fields.object(_WHOLE) or {}
    try:
        Fields(options).refuse_unknown(set(GrammarKind), {})
    except Refusal as refusal:
        raise Refusal(message=f"{_WHOLE}: {refusal.message}", param=_WHOLE) from refusal
    return [_Constraint(_WHOLE, kind, _check_specification(_WHOLE, kind, options[kind])) for kind in GrammarKind if options.get(kind)]


def _read_guided_fields(fields: Fields) -> list[_Constraint]:
    """Return the constraint of each ``guided_`` field."""
    return [
        _Constraint(name, kind, _check_specification(name, kind, value))
        for name, kind in _FORMERLY.items()
        if (value := fields.value(name))
    ]


def _check_specification(name: str, kind: GrammarKind, value: JSON) -> JSON:
    """Return the value of field ``name``, if its type is right for ``kind``.

    A schema that comes as text is parsed. Raises Refusal for a wrong type.
    """
    if kind is GrammarKind.JSON and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Refusal(message=f"{name} holds no JSON: {error}", param=name) from error
    choices = isinstance(value, list) and all(isinstance(choice, str) and choice for choice in value)
    fits = {
        GrammarKind.JSON: isinstance(value, dict),
        GrammarKind.JSON_OBJECT: value is True,
        GrammarKind.CHOICE: choices,
        GrammarKind.REGEX: isinstance(value, str),
        GrammarKind.GRAMMAR: isinstance(value, str),
    }
    if not fits[kind]:
        raise Refusal(message=f"{name} has no {kind} of a type that it can be", param=name)
    return value
