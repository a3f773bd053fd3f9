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

__all__ = ["BEHIND_REASONING", "OF_OTHER_REQUEST", "STUCK", "fault_name", "find_endless"]

BEHIND_REASONING = "the grammar is not enforced after the reasoning"
OF_OTHER_REQUEST = "documents obey the grammar of another request"
STUCK = "the grammar is stuck in white space until the limit"

_WHITE = 24
"""Characters of white space at the end of a cut answer from which on it counts as endless."""
_ENOUGH_DOCUMENTS = 3
"""Documents that must have something in common before a fault is named after it."""


def find_endless(documents: Iterable[Document]) -> list[Document]:
    """Return the cut documents, valid so far, that end in a long run of white space."""
    return [
        document
        for document in documents
        if not document.complete and not document.fault and len(document.text) - len(document.text.rstrip()) >= _WHITE
    ]


def fault_name(documents: Sequence[Document], formats: Sequence[OutputFormat]) -> str:
    """Return the name of the fault in an arm's documents.

    It is BEHIND_REASONING if all faulty documents follow reasoning and some sound ones have none, at least three of either sort. Otherwise
    it is OF_OTHER_REQUEST if there are three faulty ones, and most of them obey a strict format among ``formats``, those of all requests:
    they break their own, so that format is another request's. Otherwise it is the commonest flaw. Raises ValueError if no document has a
    fault.
    """
    faulty = [document for document in documents if document.fault]
    sound_without_reasoning = [document for document in documents if not document.fault and not document.reasoned]
    if min(len(faulty), len(sound_without_reasoning)) >= _ENOUGH_DOCUMENTS and all(document.reasoned for document in faulty):
        return BEHIND_REASONING
    strict_formats = _select_strict(formats)
    if len(faulty) >= _ENOUGH_DOCUMENTS and 2 * sum(_obeys_any(document, strict_formats) for document in faulty) > len(faulty):
        return OF_OTHER_REQUEST
    (flaw, _), *_ = Counter(document.reading.flaw or Flaw.NOT_ENFORCED for document in faulty).most_common(1)
    return flaw.value


def _select_strict(formats: Sequence[OutputFormat]) -> list[OutputFormat]:
    """Return the formats obeyed by few texts, each once.

    They are choices, and schemas of objects with required properties and no additional ones: a document hardly obeys such a format of
    another request by accident.
    """
    # All choices are of one kind, unlike schemas of different names: their texts tell them apart.
    by_kind = {(output_format.kind, repr(getattr(output_format, "texts", ""))): output_format for output_format in formats}
    return [
        output_format
        for output_format in by_kind.values()
        if isinstance(output_format, Choices) or (isinstance(output_format, JsonFormat) and _is_closed(output_format))
    ]


def _is_closed(wanted: JsonFormat) -> bool:
    """Return True for a schema of an object with required properties and no additional ones."""
    schema = wanted.validator.schema if wanted.validator is not None else {}
    # A schema may also be a mere True or False.
    return isinstance(schema, dict) and bool(schema.get("required")) and schema.get("additionalProperties") is False


def _obeys_any(document: Document, others: Sequence[OutputFormat]) -> bool:
    return any(_obeys(document, other) for other in others)


def _obeys(document: Document, other: OutputFormat) -> bool:
    """Return True if a document, read as a whole one, is valid in another format."""
    reading = other.read(document.text, cut=False)
    return reading.complete and not reading.fault
