"""Structured fields in the words of other engines as TensorRT-LLM's ``response_format``, in the types that every release takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_specdec.model.grammar import GrammarKind

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

_NEW_FIELD = "structured_outputs"
_OLD_PREFIX = "guided_"
FIELDS = frozenset({_NEW_FIELD, *(f"{_OLD_PREFIX}{kind}" for kind in GrammarKind)})
_SPECIAL = re.compile(r"([\\.^$|?*+()\[\]{}])")


def translate(body: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``body`` with its structured field as ``response_format``.

    The field says which answers are allowed, in vLLM's form: ``structured_outputs``, or an older ``guided_json`` and its like. If the body
    has a ``response_format`` already, that counts alone: its JSON Schema gets the form that every release takes. A field that has no
    translation stays, so that the server refuses it.
    """
    response_format = body.get("response_format")
    if isinstance(response_format, Mapping):
        return {**body, "response_format": _rewrite_schema(response_format)}
    for name in FIELDS & body.keys():
        value = body[name]
        # `guided_json: X` is `structured_outputs: {json: X}`.
        structured_field = value if name == _NEW_FIELD else {name.removeprefix(_OLD_PREFIX): value}
        translation = _translate_field(structured_field) if isinstance(structured_field, Mapping) else None
        if translation is not None:
            return {**{key: field_value for key, field_value in body.items() if key != name}, "response_format": translation}
    return dict(body)


def _rewrite_schema(response_format: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return a ``response_format`` with its JSON Schema under ``schema``.

    OpenAI's type ``json_schema`` becomes ``json``, since releases up to 1.1 know that one only. Any other format is
    returned unchanged.
    """
    wrapped = response_format.get("json_schema")
    if response_format.get("type") == "json_schema" and isinstance(wrapped, Mapping) and "schema" in wrapped:
        return {"type": "json", "schema": wrapped["schema"]}
    return response_format


def _translate_field(structured_field: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return the ``response_format`` of one structured field.

    It has one setting, such as ``{"json": SCHEMA}``; a ``response_format`` holds no more. A choice becomes a regular expression of its
    options. Returns None for several settings at once, and for one without a counterpart.
    """
    if len(structured_field) != 1:
        return None
    (kind, value), *_ = structured_field.items()
    if kind == "choice" and isinstance(value, Sequence) and not isinstance(value, str):
        return {"type": "regex", "regex": "|".join(f"({_escape(str(choice))})" for choice in value)}
    formats: Mapping[str, Mapping[str, JSON]] = {
        "json": {"type": "json", "schema": value},
        "json_object": {"type": "json_object"},
        "regex": {"type": "regex", "regex": value},
        "grammar": {"type": "ebnf", "ebnf": value},
    }
    return formats.get(kind)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
