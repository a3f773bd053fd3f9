"""A document: one answer to a structured request, held against the grammar that the request asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from pytest_specdec.judge.prefix import scan
from pytest_specdec.judge.quotation import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jsonschema.protocols import Validator

    from pytest_specdec.judge.prefix import Scan
    from pytest_specdec.model.answer import Answer, Choice
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["Document", "Grammar", "documents", "grammars"]

_DEEPEST = 200
"""Containers nested deeper are not handed to recursive parsers; no schema of ours asks for it."""

_LONGEST_NUMBER = 4000
"""Digits; Python refuses to convert integers of 4,300 and more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grammar:
    """What a request's ``response_format`` asks of every answer."""

    kind: str
    """``json_object``, or ``json_schema`` and the schema's name."""
    feature: str
    """``json_object`` or ``json_schema``: the capability it needs."""
    validator: Validator | None
    """None where any object will do."""

    @property
    def opens(self) -> str:
        """The only character a document may begin with, empty where that is open."""
        schema = self.validator.schema if self.validator is not None else {"type": "object"}
        asked = schema.get("type") if isinstance(schema, dict) else None
        return {"object": "{", "array": "["}.get(asked, "") if isinstance(asked, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One choice of one answer."""

    request_id: str
    kind: str
    complete: bool
    """Whether it came to its end, so that the whole schema was asked; a document cut by a limit is judged as a prefix."""
    fault: str
    """What is wrong with it and where, empty when nothing is."""


def grammars(requests: tuple[Request, ...]) -> Mapping[str, Grammar]:
    """Return the grammar of each request that has one, by request id.

    Schemas are checked against their own meta-schema: raises ``jsonschema.SchemaError`` for a wrong one. Nothing remote is fetched.
    """
    found = {request.id: _grammar(request) for request in requests}
    return {id_: wanted for id_, wanted in found.items() if wanted is not None}


def documents(answer: Answer, wanted: Grammar) -> tuple[Document, ...]:
    """Return every choice of ``answer``, judged; an answer without 200 is one faulty document.

    Raises ``referencing.exceptions.Unresolvable`` when the request's schema refers to something outside itself.
    """
    if not answer.ok or not answer.choices:
        fault = f"HTTP {answer.status}: {quoted(answer.error or 'no choice', 100)}"
        return (Document(request_id=answer.request_id, kind=wanted.kind, complete=False, fault=fault),)
    return tuple(_document(answer.request_id, choice, wanted) for choice in answer.choices)


def _document(request_id: str, choice: Choice, wanted: Grammar) -> Document:
    cut = choice.finish_reason == "length"
    seen = scan(choice.text)
    whole = not cut or seen.complete
    fault = _syntax(choice.text, seen, wanted, cut=cut) or (_content(choice.text, seen, wanted) if whole else "")
    return Document(request_id=request_id, kind=wanted.kind, complete=whole, fault=fault)


def _syntax(text: str, seen: Scan, wanted: Grammar, *, cut: bool) -> str:
    if seen.bad is not None:
        before = quoted(text[max(0, seen.bad - 20) : seen.bad])
        return f"character {seen.bad}: {quoted(text[seen.bad])} where JSON wants {seen.wanted}, after {before}"
    if not seen.complete and not cut:
        return f"ends at character {len(text)} in the middle of the document, after {quoted(text[-30:])}"
    first = text.lstrip(" \t\r\n")[:1]
    return f"begins with {quoted(first)}, not with {quoted(wanted.opens)}" if wanted.opens and first and first != wanted.opens else ""


def _content(text: str, seen: Scan, wanted: Grammar) -> str:
    if wanted.validator is None:
        return ""
    if seen.depth > _DEEPEST:
        return f"nested {seen.depth} containers deep"
    value: JSON = json.loads(text, parse_int=_whole)
    error = best_match(wanted.validator.iter_errors(value))
    return "" if error is None else f"{quoted(error.json_path, 80)[1:-1]}: {quoted(error.message, 120)} ({_rule(error.validator)})"


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else float("inf")


def _rule(name: object) -> str:
    return f"rule {name}" if isinstance(name, str) else "the schema allows nothing here"


def _grammar(request: Request) -> Grammar | None:
    """Return what ``request`` asks for, None for a request without a JSON response format."""
    asked = request.body.get("response_format")
    kind = asked.get("type") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or kind not in {"json_object", "json_schema"}:
        return None
    if kind == "json_object":
        return Grammar(kind="json_object", feature="json_object", validator=None)
    wrapped: Any = asked.get("json_schema") or {}
    schema = wrapped.get("schema", True)
    maker = validator_for(schema, default=Draft202012Validator)
    maker.check_schema(schema)
    name = f"json_schema {wrapped.get('name', '')}".rstrip()
    return Grammar(kind=name, feature="json_schema", validator=maker(schema, registry=EMPTY_REGISTRY))
