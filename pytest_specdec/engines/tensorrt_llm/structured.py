"""Structured fields in the words of other engines as TensorRT-LLM's ``response_format``, in the types that every release takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

_WHOLE = "structured_outputs"
_FORMERLY = "guided_"
_KINDS = ("json", "json_object", "regex", "choice", "grammar")
FIELDS = frozenset({_WHOLE, *(f"{_FORMERLY}{kind}" for kind in _KINDS)})
_SPECIAL = re.compile(r"([\\.^$|?*+()\[\]{}])")


def translate(body: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``body`` with its structured field as ``response_format``.

    A field that has no translation stays, so that the server refuses it.
    """
    own = body.get("response_format")
    if isinstance(own, Mapping):
        return {**body, "response_format": _format(own)}
    for name in FIELDS & body.keys():
        value = body[name]
        asked = value if name == _WHOLE else {name.removeprefix(_FORMERLY): value}
        wanted = _wanted_format(asked) if isinstance(asked, Mapping) else None
        if wanted is not None:
            return {**{key: kept for key, kept in body.items() if key != name}, "response_format": wanted}
    return dict(body)


def _format(given: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return a format with its schema under ``schema``.

    Every release looks for it there: ``json_schema`` came after 1.1.
    """
    wrapped = given.get("json_schema")
    if given.get("type") == "json_schema" and isinstance(wrapped, Mapping) and "schema" in wrapped:
        return {"type": "json", "schema": wrapped["schema"]}
    return given


def _wanted_format(asked: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    if len(asked) != 1:
        return None
    (kind, value), *_ = asked.items()
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
