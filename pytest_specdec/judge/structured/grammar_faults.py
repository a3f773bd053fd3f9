"""Names of grammar faults, by what most of an arm's invalid documents have in common."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_specdec.judge.structured.documents import Flaw
from pytest_specdec.judge.structured.json_documents import JsonFormat
from pytest_specdec.judge.structured.text_grammars import Choices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.judge.structured.documents import Document, OutputFormat

__all__ = ["BEHIND_REASONING", "OF_ANOTHER", "STUCK", "endless", "fault_name"]

BEHIND_REASONING = "the grammar is not enforced behind the reasoning"
OF_ANOTHER = "documents obey the grammar of another request"
STUCK = "the grammar is stuck in white space until the limit"

_WHITE = 24
"""Characters of white space at the end of a cut answer from which on it counts as endless."""
_ENOUGH = 3
"""Documents that must have something in common before a fault is named after it."""


def endless(documents: Iterable[Document]) -> list[Document]:
    """Return the cut documents that end in a long run of white space."""
    return [
        document
        for document in documents
        if not document.complete and not document.fault and len(document.text) - len(document.text.rstrip()) >= _WHITE
    ]


def fault_name(documents: Sequence[Document], formats: Sequence[OutputFormat]) -> str:
    """Return the name of the fault in an arm's documents.

    It is named after the reasoning if all faulty documents and not all sound ones have some, or after another request's grammar if most
    of the faulty ones obey such a grammar. Otherwise it is the commonest flaw.
    """
    faulty = [document for document in documents if document.fault]
    plain_sound = [document for document in documents if not document.fault and not document.reasoned]
    if min(len(faulty), len(plain_sound)) >= _ENOUGH and all(document.reasoned for document in faulty):
        return BEHIND_REASONING
    others = _select_closed(formats)
    if len(faulty) >= _ENOUGH and 2 * sum(_obeys_any(document, others) for document in faulty) > len(faulty):
        return OF_ANOTHER
    (flaw, _), *_ = Counter(document.reading.flaw or Flaw.FORM for document in faulty).most_common(1)
    return flaw.value


def _select_closed(formats: Sequence[OutputFormat]) -> list[OutputFormat]:
    """Return the formats that few texts satisfy, each once.

    They are choices, and schemas of objects with required properties and no additional ones. A document that obeys another of them does
    so hardly by accident.
    """
    by_kind = {(output_format.kind, repr(getattr(output_format, "texts", ""))): output_format for output_format in formats}
    return [
        output_format
        for output_format in by_kind.values()
        if isinstance(output_format, Choices) or (isinstance(output_format, JsonFormat) and _is_closed(output_format))
    ]


def _is_closed(wanted: JsonFormat) -> bool:
    schema = wanted.validator.schema if wanted.validator is not None else {}
    return isinstance(schema, dict) and bool(schema.get("required")) and schema.get("additionalProperties") is False


def _obeys_any(document: Document, others: Sequence[OutputFormat]) -> bool:
    return any(_obeys(document, other) for other in others)


def _obeys(document: Document, other: OutputFormat) -> bool:
    reading = other.read(document.text, cut=False)
    return reading.complete and not reading.fault
