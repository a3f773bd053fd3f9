"""Grammars of texts that are no JSON: regular expressions, choices, and grammars in Lark's syntax or GBNF.

Beginnings, and answers to a grammar, are read by llguidance. If it is not installed, only empty answers to a grammar count as wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pytest_specdec.judge.structured.documents import Flaw, Reading
from pytest_specdec.judge.verdicts import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Choices", "GrammarText", "Regex", "recognises"]


def recognises() -> bool:
    """Return True if answers to a grammar can be read here."""
    return find_spec("llguidance") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The extent to which a text obeys a grammar."""

    bytes: int
    """Bytes before the first one that the grammar forbids."""
    whole: bool
    """Whether the text obeys it and may end after its last byte."""


@lru_cache(maxsize=4096)
def _read(kind: str, specification: str, text: str) -> _Read | None:
    """Return the extent to which ``text`` obeys a grammar.

    ``kind`` is ``regex`` or ``grammar``, and ``specification`` the expression or grammar itself. None if llguidance is not installed or
    does not accept the grammar.
    """
    if not recognises():
        return None
    from llguidance import LLMatcher, LLTokenizer, grammar_from  # noqa: PLC0415 - an extra, and slow to load

    tokenizer = LLTokenizer("byte")  # a token for each byte, so that the break is known to the byte
    try:
        grammar = grammar_from(kind, specification)  # type: ignore[arg-type]
    except ValueError:
        return None
    if LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)[0]:  # an error
        return None
    matcher, data = LLMatcher(tokenizer, grammar), list(text.encode("utf-8", "surrogatepass"))
    taken = matcher.validate_tokens(data)
    return _Read(bytes=taken, whole=taken == len(data) and matcher.consume_tokens(data) and matcher.is_accepting())


def _describe_break(text: str, taken: int) -> str:
    """Return the place at which a text breaks its grammar, after ``taken`` bytes, in words."""
    before = text.encode("utf-8", "surrogatepass")[:taken].decode("utf-8", "replace")
    return f"character {len(before)}: {quote(text[len(before) :], 20)} may not follow {quote(before[-20:], 24)}"


def _read_beginning(kind: str, specification: str, text: str, flaw: Flaw) -> Reading:
    """Read a cut text as a beginning: valid so far, faulty, or unread.

    ``kind`` is ``regex`` or ``grammar``, ``specification`` the expression or grammar itself, and ``flaw`` the kind of a fault. Unread means
    that llguidance cannot read the grammar: the text is then no evidence.
    """
    read = _read(kind, specification, text)
    if read is None:
        return Reading(complete=False, unread=True)
    if read.bytes >= len(text.encode("utf-8", "surrogatepass")):
        return Reading(complete=False)
    return Reading(complete=False, fault=_describe_break(text, read.bytes), flaw=flaw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """A regular expression that the whole answer must match."""

    pattern: str
    kind: str = "regex"
    feature: str = "regex"

    def read(self, text: str, *, cut: bool) -> Reading:
        """Match the whole text, or read a cut one as a beginning.

        A cut text that matches already counts as whole. If a whole text goes on after a part that matches, the rest is named as the fault.
        """
        if re.fullmatch(self.pattern, text):
            return Reading(complete=True)
        if cut:
            return _read_beginning("regex", self.pattern, text, Flaw.REGEX)
        end = next((end for end in range(len(text), 0, -1) if re.fullmatch(self.pattern, text[:end])), 0)
        if end:
            return Reading(complete=True, fault=f"{quote(text[end:], 30)} after {quote(text[:end], 30)}, which matches", flaw=Flaw.BEHIND)
        return Reading(complete=True, fault=f"{quote(text)} does not match {quote(self.pattern, 60)}", flaw=Flaw.REGEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A list of texts, one of which the answer must be."""

    texts: Sequence[str]
    kind: str = "choice"
    feature: str = "choice"

    def read(self, text: str, *, cut: bool) -> Reading:
        """Look for the text among the choices.

        A cut text is valid so far if a choice begins with it. If the text begins with a choice, the rest is named as the fault.
        """
        if text in self.texts:
            return Reading(complete=True)
        if cut and any(choice.startswith(text) for choice in self.texts):
            return Reading(complete=False)
        begun = max((choice for choice in self.texts if text.startswith(choice)), key=len, default="")
        if begun:
            return Reading(complete=not cut, fault=f"{quote(text[len(begun) :], 30)} after {quote(begun)}", flaw=Flaw.BEHIND)
        among = quote(", ".join(self.texts), 60)
        return Reading(complete=not cut, fault=f"{quote(text)} is none of the choices {among}", flaw=Flaw.CHOICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarText:
    """A grammar in Lark's syntax or GBNF."""

    grammar: str
    kind: str = "grammar"
    feature: str = "grammar"

    def read(self, text: str, *, cut: bool) -> Reading:
        """Read the text by the grammar, a cut one as a beginning.

        A whole text that obeys the grammar but may not end there counts as cut off. If llguidance cannot read the grammar, a whole text
        counts as valid unless it is empty, and a cut one as unread.
        """
        if cut:
            return _read_beginning("grammar", self.grammar, text, Flaw.GRAMMAR)
        read = _read("grammar", self.grammar, text)
        is_valid = bool(text) if read is None else read.whole
        if is_valid:
            return Reading(complete=True)
        if read is None or not text:
            return Reading(complete=True, fault="no text", flaw=Flaw.CUT_OFF)
        if read.bytes == len(text.encode("utf-8", "surrogatepass")):
            return Reading(
                complete=True, fault=f"ends at character {len(text)} in the middle, after {quote(text[-30:])}", flaw=Flaw.CUT_OFF
            )
        return Reading(complete=True, fault=_describe_break(text, read.bytes), flaw=Flaw.GRAMMAR)
