"""Documents: answers constrained by a grammar, each read by the format that its request asks for.

Reading gives the fault, if there is one, or says that the text is whole and valid, or valid up to the limit that cut it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.judge.verdicts import quote

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Answer, Choice

__all__ = ["Document", "Flaw", "OutputFormat", "Reading", "documents"]


class Flaw(StrEnum):
    """Faults of an answer to a request with a grammar."""

    NOT_ENFORCED = "the grammar is not enforced on speculated tokens"
    BEFORE = "text stands in front of the document"
    BEHIND = "text goes on after the document"
    CUT_OFF = "a document ends in the middle and is called finished"
    KIND = "another JSON value than asked for is answered"
    RULES = "a document breaks its schema"
    REGEX = "an answer does not match its regular expression"
    CHOICE = "an answer is none of the choices"
    GRAMMAR = "an answer is not of its grammar"
    REFUSED = "requests with a grammar are refused now and then"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of reading a text by its format."""

    complete: bool
    """Whether the text is whole and was judged by all rules; a text cut by a limit is judged as a beginning."""
    fault: str = ""
    """The fault and its place; empty without one."""
    flaw: Flaw | None = None
    unread: bool = False
    """Whether the text is a beginning that cannot be read here, and so no evidence."""
    rare: bool = False
    """Whether some engines are known not to enforce the broken rule, so that one such fault proves nothing."""


class OutputFormat(Protocol):
    """The format of the answer to a request."""

    @property
    def kind(self) -> str:
        """``json_object``, ``regex``, or ``json_schema`` and the schema's name."""

    @property
    def feature(self) -> str:
        """The capability it needs: ``json_object``, ``json_schema``, ``regex``, ``choice`` or ``grammar``."""

    def read(self, text: str, *, cut: bool) -> Reading:
        """Read an answer; ``cut`` if a limit cut its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One choice of one answer, read by the format of its request."""

    request_id: str
    kind: str
    feature: str
    text: str = ""
    reading: Reading
    unreached: bool = False
    """Whether the answer was cut within its reasoning: there is no document to judge."""
    reasoned: bool = False
    """Whether the answer has reasoning before the document."""

    @property
    def fault(self) -> str:
        """The fault and its place; empty without one."""
        return self.reading.fault

    @property
    def complete(self) -> bool:
        """True if the document is whole and was judged by all rules."""
        return self.reading.complete

    @property
    def prefix(self) -> bool:
        """True if the document is cut off, not empty, and valid up to the cut."""
        return not (self.complete or self.fault or self.reading.unread) and bool(self.text.strip())


def documents(answer: Answer, wanted: OutputFormat) -> tuple[Document, ...]:
    """Return every choice of ``answer`` as a document.

    Each is read by the format ``wanted``. An answer without status 200, or without choices, is one faulty document. Raises
    ``referencing.exceptions.Unresolvable`` if the request's schema refers to something outside itself.
    """
    if not answer.ok or not answer.choices:
        fault = f"HTTP {answer.status}: {quote(answer.error or 'no choice', 100)}"
        reading = Reading(complete=False, fault=fault, flaw=Flaw.REFUSED)
        return (Document(request_id=answer.request_id, kind=wanted.kind, feature=wanted.feature, reading=reading),)
    return tuple(_read_choice(answer.request_id, choice, wanted) for choice in answer.choices)


def _read_choice(request_id: str, choice: Choice, wanted: OutputFormat) -> Document:
    """Return one choice as a document, read by its wanted format.

    If the token limit cut it within its reasoning, there is no document: ``unreached`` is set and its text is not read.
    """
    unreached = choice.cut_in_reasoning
    return Document(
        request_id=request_id,
        kind=wanted.kind,
        feature=wanted.feature,
        text=choice.text,
        reading=Reading(complete=False) if unreached else wanted.read(choice.text, cut=choice.finish_reason == "length"),
        unreached=unreached,
        reasoned=bool(choice.reasoning),
    )
