"""The grammar that a request asks its answer to follow, as its body states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["Grammar", "GrammarKind", "read_grammar"]


class GrammarKind(StrEnum):
    """A kind of structured output, by vLLM's name."""

    JSON = "json"
    """A JSON Schema."""
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    """In the syntax of Rust's regex crate; it holds for the whole answer."""
    CHOICE = "choice"
    """A list of texts."""
    GRAMMAR = "grammar"
    """In Lark's syntax or GBNF."""


_BINDING = ("response_format", "structured_outputs", *(f"guided_{kind}" for kind in GrammarKind), "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The grammar that a request asks for."""

    kind: GrammarKind | None = None
    """None for tools, and for a form that is not read here."""
    text: JSON = None
    """The schema, expression, texts or grammar, as the request has it."""
    name: str | None = None
    """Of a schema in ``response_format``, empty where it has none; None elsewhere."""


def read_grammar(body: Mapping[str, JSON], response_format: JSON) -> Grammar | None:
    """Return the grammar of a request's body; None without one.

    ``response_format`` is the format asked for, in the form of the chat route. A constraint of another form, such as tools, gives a
    grammar without kind and text.
    """
    unread_form = Grammar() if any(map(_binds_answer, (response_format, *map(body.get, _BINDING)))) else None
    return _read_response_format(response_format) or _read_structured_fields(body) or unread_form


def _read_response_format(value: JSON) -> Grammar | None:
    """Return the JSON grammar of a ``response_format``; None for another.

    ``value`` is the field of the request's body. A missing schema stands for any JSON.
    """
    response_format = value if isinstance(value, Mapping) else {}
    if response_format.get("type") == "json_object":
        return Grammar(kind=GrammarKind.JSON_OBJECT, text=True, name="")
    if response_format.get("type") != "json_schema":
        return None
    wrapped = response_format.get("json_schema")
    schema = wrapped if isinstance(wrapped, Mapping) else {}
    return Grammar(kind=GrammarKind.JSON, text=schema.get("schema", True), name=str(schema.get("name", "")))


def _read_structured_fields(body: Mapping[str, JSON]) -> Grammar | None:
    """Return the grammar of vLLM's own fields of a body; None without one.

    They are ``structured_outputs`` and, before vLLM 0.12, ``guided_json`` and the like. The first stated kind counts.
    """
    value = body.get("structured_outputs")
    structured = value if isinstance(value, Mapping) else {}
    candidates = ((kind, text) for kind in GrammarKind for text in (structured.get(kind), body.get(f"guided_{kind}")))
    return next((Grammar(kind=kind, text=text) for kind, text in candidates if _is_stated(kind, text)), None)


def _is_stated(kind: GrammarKind, text: JSON) -> bool:
    """Return True unless ``text`` is empty.

    An empty schema counts as stated, since it stands for any JSON.
    """
    return bool(text) or (kind is GrammarKind.JSON and isinstance(text, Mapping))


def _binds_answer(value: JSON) -> bool:
    """Return True if a field's value constrains the answer.

    An empty value does not, nor does the response format ``text``.
    """
    return bool(value) and not (isinstance(value, Mapping) and value.get("type") == "text")
