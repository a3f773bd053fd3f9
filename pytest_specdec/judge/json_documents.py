"""JSON documents: whole ones held against their schema, cut ones as prefixes of a valid one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from pytest_specdec.judge.verdicts import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jsonschema.protocols import Validator

    from pytest_specdec.model.transcript import Answer, Choice
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["JsonDocument", "JsonScan", "OutputFormat", "documents", "grammars", "scan"]

_DEEPEST = 200
"""Containers nested deeper are not handed to recursive parsers; no schema of ours asks for it."""

_LONGEST_NUMBER = 4000
"""Digits; Python refuses to convert integers of 4,300 and more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputFormat:
    """The ``response_format`` of a request."""

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
class JsonDocument:
    """One choice of one answer."""

    request_id: str
    kind: str
    complete: bool
    """Whether it is whole, and judged by the whole schema; a document cut by a limit is judged as a prefix."""
    fault: str
    """The fault and its place; empty without one."""
    unreached: bool = False
    """Whether the answer was cut within its reasoning: there is no document to judge."""


def grammars(requests: tuple[Request, ...]) -> Mapping[str, OutputFormat]:
    """Return the grammar of each request that has one, by request id.

    Schemas are checked against their own meta-schema: raises ``jsonschema.SchemaError`` for a wrong one. Nothing remote is fetched.
    """
    found = {request.id: _grammar(request) for request in requests}
    return {id_: wanted for id_, wanted in found.items() if wanted is not None}


def documents(answer: Answer, wanted: OutputFormat) -> tuple[JsonDocument, ...]:
    """Return every choice of ``answer``, judged; an answer without 200 is one faulty document.

    Raises ``referencing.exceptions.Unresolvable`` when the request's schema refers to something outside itself.
    """
    if not answer.ok or not answer.choices:
        fault = f"HTTP {answer.status}: {quoted(answer.error or 'no choice', 100)}"
        return (JsonDocument(request_id=answer.request_id, kind=wanted.kind, complete=False, fault=fault),)
    return tuple(_document(answer.request_id, choice, wanted) for choice in answer.choices)


def _document(request_id: str, choice: Choice, wanted: OutputFormat) -> JsonDocument:
    if choice.cut_in_reasoning:
        return JsonDocument(request_id=request_id, kind=wanted.kind, complete=False, fault="", unreached=True)
    cut = choice.finish_reason == "length"
    seen = scan(choice.text)
    whole = not cut or seen.complete
    fault = _syntax(choice.text, seen, wanted, cut=cut) or (_content(choice.text, seen, wanted) if whole else "")
    return JsonDocument(request_id=request_id, kind=wanted.kind, complete=whole, fault=fault)


def _syntax(text: str, seen: JsonScan, wanted: OutputFormat, *, cut: bool) -> str:
    if seen.bad is not None:
        before = quoted(text[max(0, seen.bad - 20) : seen.bad])
        return f"character {seen.bad}: {quoted(text[seen.bad])} where JSON wants {seen.wanted}, after {before}"
    if not seen.complete and not cut:
        return f"ends at character {len(text)} in the middle of the document, after {quoted(text[-30:])}"
    first = text.lstrip(" \t\r\n")[:1]
    return f"begins with {quoted(first)}, not with {quoted(wanted.opens)}" if wanted.opens and first and first != wanted.opens else ""


def _content(text: str, seen: JsonScan, wanted: OutputFormat) -> str:
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


def _grammar(request: Request) -> OutputFormat | None:
    """Return what ``request`` asks for, None for a request without a JSON response format."""
    asked = request.body.get("response_format")
    kind = asked.get("type") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or kind not in {"json_object", "json_schema"}:
        return None
    if kind == "json_object":
        return OutputFormat(kind="json_object", feature="json_object", validator=None)
    wrapped: Any = asked.get("json_schema") or {}
    schema = wrapped.get("schema", True)
    maker = validator_for(schema, default=Draft202012Validator)
    maker.check_schema(schema)
    name = f"json_schema {wrapped.get('name', '')}".rstrip()
    return OutputFormat(kind=name, feature="json_schema", validator=maker(schema, registry=EMPTY_REGISTRY))


_SPACE = re.compile(r"[ \t\n\r]*")
_WORDS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_SO_FAR = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?\Z")
_CHARACTERS = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_ESCAPE_SO_FAR = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")

_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _AFTER = range(6)
_CUT = "cut"
_CLOSING = {"{": "}", "[": "]"}
_WANTED = ("a value", "a value or ]", "a key", "a key or }", "a colon", "a comma or the end of its container")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonScan:
    """A text read as JSON (RFC 8259)."""

    bad: int | None = None
    """Index of the first character that no JSON document can have there; None in a prefix."""
    wanted: str = ""
    """Expected there instead."""
    complete: bool = False
    """Whether the text is a whole document as it stands."""
    depth: int = 0
    """Deepest nesting of containers."""


def scan(text: str) -> JsonScan:
    """Read ``text`` once, without recursion: hostile nesting costs memory and nothing else."""
    return _JsonReader(text).read()


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.open: list[str] = []
        self.state = _VALUE
        self.depth = 0

    def read(self) -> JsonScan:
        while True:
            self.at = _end(_SPACE, self.text, self.at)
            done = self.state == _AFTER and not self.open
            if self.at >= len(self.text):
                return JsonScan(complete=done, depth=self.depth)
            wanted = "the end" if done else self._step(self.text[self.at])
            if wanted == _CUT:
                return JsonScan(complete=self.state == _AFTER and not self.open, depth=self.depth)
            if wanted:
                return JsonScan(bad=self.at, wanted=wanted, depth=self.depth)

    def _step(self, character: str) -> str:
        """Take one token; return what was wanted instead, the cut mark, or nothing."""
        if self.state == _AFTER:
            return self._separator(character)
        if self.state == _COLON:
            return self._move(_VALUE) if character == ":" else _WANTED[_COLON]
        if self._closes_empty(character):
            return self._close()
        if self.state in {_KEY, _FIRST_KEY}:
            return self._string(_COLON) if character == '"' else _WANTED[self.state]
        return self._value(character)

    def _separator(self, character: str) -> str:
        if character == _CLOSING[self.open[-1]]:
            return self._close()
        if character == ",":
            return self._move(_KEY if self.open[-1] == "{" else _VALUE)
        return _WANTED[_AFTER]

    def _closes_empty(self, character: str) -> bool:
        return (self.state, character) in {(_FIRST_KEY, "}"), (_FIRST_VALUE, "]")}

    def _close(self) -> str:
        self.open.pop()
        return self._move(_AFTER)

    def _move(self, state: int) -> str:
        self.at += 1
        self.state = state
        return ""

    def _value(self, character: str) -> str:
        if character in _CLOSING:
            self.open.append(character)
            self.depth = max(self.depth, len(self.open))
            return self._move(_FIRST_KEY if character == "{" else _FIRST_VALUE)
        if character == '"':
            return self._string(_AFTER)
        return self._number() if character in "-0123456789" else self._word()

    def _string(self, then: int) -> str:
        self.at = _end(_CHARACTERS, self.text, self.at + 1)
        if self.at >= len(self.text) or _ESCAPE_SO_FAR.match(self.text, self.at):
            return _CUT
        return self._move(then) if self.text[self.at] == '"' else "a character or escape that a string may hold"

    def _number(self) -> str:
        whole = _NUMBER.match(self.text, self.at)
        if whole and whole.end() == len(self.text):
            self.state = _AFTER
            return _CUT
        if _NUMBER_SO_FAR.match(self.text, self.at):
            return _CUT
        if whole is None:
            self.at += 1
            return "a digit"
        self.at, self.state = whole.end(), _AFTER
        return ""

    def _word(self) -> str:
        for word in _WORDS:
            if self.text.startswith(word, self.at):
                self.at, self.state = self.at + len(word), _AFTER
                return ""
            if word.startswith(self.text[self.at :]):
                return _CUT
        return _WANTED[self.state]


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
