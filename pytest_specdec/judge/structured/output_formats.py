"""Output formats: the formats that requests demand of their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_specdec.judge.structured.json_documents import ANY_OBJECT, of_schema
from pytest_specdec.judge.structured.text_grammars import Choices, GrammarText, Regex
from pytest_specdec.model.grammar import GrammarKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.judge.structured.documents import OutputFormat
    from pytest_specdec.model.grammar import Grammar
    from pytest_specdec.model.workload import Request

__all__ = ["formats"]


def formats(requests: Sequence[Request]) -> Mapping[str, OutputFormat]:
    """Return the format of each request with a grammar, by request id.

    Grammars that cannot be checked give no format: regular expressions that Python cannot compile, empty choices, and unknown kinds. Raises
    ``jsonschema.SchemaError`` for a wrong schema, and ``json.JSONDecodeError`` for a schema given as a text that is no JSON.
    """
    by_request = {request.id: _output_format(request.grammar) for request in requests}
    return {id_: wanted for id_, wanted in by_request.items() if wanted is not None}


def _output_format(grammar: Grammar | None) -> OutputFormat | None:
    """Return the format of a grammar that can be checked, else None.

    None also without a grammar. ``grammar.text`` is the schema, expression, grammar or list of choices, as the request has it. Raises
    ``jsonschema.SchemaError`` for a wrong schema, and ``json.JSONDecodeError`` for a schema given as a text that is no JSON.
    """
    if grammar is None:
        return None
    text = grammar.text
    if grammar.kind is GrammarKind.JSON:
        # Only the fields of structured outputs, whose schemas have no name, may give one as a text.
        schema = json.loads(text) if grammar.name is None and isinstance(text, str) else text
        return of_schema(schema, grammar.name or "")
    if grammar.kind is GrammarKind.JSON_OBJECT:
        return ANY_OBJECT
    if grammar.kind is GrammarKind.CHOICE:
        texts = text if isinstance(text, Sequence) and not isinstance(text, str) else ()
        return Choices(texts=tuple(map(str, texts))) if texts else None
    if grammar.kind is None or not isinstance(text, str):
        return None
    return GrammarText(grammar=text) if grammar.kind is GrammarKind.GRAMMAR else _regex(text)


def _regex(pattern: str) -> Regex | None:
    try:
        re.compile(pattern)
    except re.error:
        return None
    return Regex(pattern=pattern)
