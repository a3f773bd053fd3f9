"""Output formats: what each request's fields say that its answer may be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_specdec.judge.json_documents import ANY_OBJECT, of_schema
from pytest_specdec.judge.text_grammars import Choices, GrammarText, Regex

if TYPE_CHECKING:
    from pytest_specdec.judge.documents import OutputFormat
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["formats"]

_WHOLE = "structured_outputs"
_FORMERLY = "guided_"
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


def formats(requests: Sequence[Request]) -> Mapping[str, OutputFormat]:
    """Return the format of each request that has one, by request id.

    Raises ``jsonschema.SchemaError`` for a wrong schema. A regular expression that Python cannot compile binds nothing here.
    """
    found = {request.id: _of(request.body) for request in requests}
    return {id_: wanted for id_, wanted in found.items() if wanted is not None}


def _of(body: Mapping[str, JSON]) -> OutputFormat | None:
    asked = body.get("response_format")
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    if isinstance(asked, Mapping) and kind == "json_schema":
        wrapped = asked.get("json_schema")
        described = wrapped if isinstance(wrapped, Mapping) else {}
        return of_schema(described.get("schema", True), str(described.get("name", "")))
    if kind == "json_object":
        return ANY_OBJECT
    whole = body.get(_WHOLE)
    given = whole if isinstance(whole, Mapping) else {}
    for name in _KINDS:
        value = given.get(name) or body.get(f"{_FORMERLY}{name}")
        if value:
            return _structured(name, value)
    return None


def _structured(kind: str, value: JSON) -> OutputFormat | None:
    if kind == "json":
        return of_schema(json.loads(value) if isinstance(value, str) else value)
    if kind == "json_object":
        return ANY_OBJECT
    if kind == "choice":
        given = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
        return Choices(texts=tuple(str(each) for each in given)) if given else None
    if not isinstance(value, str):
        return None
    return GrammarText(grammar=value) if kind == "grammar" else _regex(value)


def _regex(pattern: str) -> Regex | None:
    try:
        re.compile(pattern)
    except re.error:
        return None
    return Regex(pattern=pattern)
