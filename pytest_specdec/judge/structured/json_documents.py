"""JSON documents: whole ones checked by their schema, cut ones as prefixes of a valid one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from pytest_specdec.judge.structured.documents import Flaw, Reading
from pytest_specdec.judge.structured.json_beginnings import breaches, decimal_number, whole_number
from pytest_specdec.judge.verdicts import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    from pytest_specdec.model.workload import JSON

__all__ = ["ANY_OBJECT", "JsonFormat", "JsonScan", "is_rarely_enforced", "of_schema", "scan"]

_DEEPEST = 200
"""Containers nested deeper are not given to recursive parsers; no schema of the suites demands it."""


_ENFORCED = frozenset({"properties", "items", "additionalProperties", "required", "type", "enum", "const", "$ref", "$defs"})
"""Rules that every engine with JSON Schemas must enforce. Each other one is silently ignored by some engine."""
_NAMED = frozenset({"properties", "$defs"})
"""Rules that contain others under names chosen by the schema."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JsonFormat:
    """The format of a JSON document by a schema, or of any JSON object."""

    kind: str
    feature: str
    validator: Validator | None
    """None if any object is valid."""

    @property
    def opens(self) -> str:
        """The only first character of a document; empty if several may be."""
        schema = self.validator.schema if self.validator is not None else {"type": "object"}
        wanted = schema.get("type") if isinstance(schema, dict) else None
        return {"object": "{", "array": "["}.get(wanted, "") if isinstance(wanted, str) else ""

    @property
    def has_rare_rules(self) -> bool:
        """Whether the schema has a rule that some engines silently ignore.

        Not ``format``: nothing here checks it, so that no document breaks it.
        """
        return self.validator is not None and _has_rare_rules(
            self.validator.schema, self.validator.VALIDATORS.keys() - _ENFORCED - {"format"}
        )

    def read(self, text: str, *, cut: bool) -> Reading:
        """Return the result of checking a document by its schema.

        Syntax comes first, then the schema. A text cut by a limit (``cut``) is checked as a beginning, which is only wrong if no
        continuation can mend it. A cut text that is already a whole document is checked as such.
        """
        syntax = scan(text)
        whole = not cut or syntax.complete
        check_content = self._check_content if whole else self._check_beginning
        return self._check_syntax(text, syntax, whole=whole) or check_content(text, syntax) or Reading(complete=whole)

    def _check_syntax(self, text: str, syntax: JsonScan, *, whole: bool) -> Reading | None:
        """Return a reading with the wrong syntax or kind, else None.

        A wrong character comes first, then an end in the middle of a finished text, then another kind of value than asked for. ``whole`` is
        False for a text that a limit cut, unless it is a whole document already.
        """
        first = text.lstrip(" \t\r\n")[:1]
        if syntax.bad is not None:  # the index of a wrong character
            before = quote(text[max(0, syntax.bad - 20) : syntax.bad])
            fault = f"character {syntax.bad}: {quote(text[syntax.bad])} where JSON wants {syntax.wanted}, after {before}"
            return _faulty(fault, _syntax_flaw(text, syntax), whole=whole)
        if whole and not syntax.complete:
            fault = f"ends at character {len(text)} in the middle of the document, after {quote(text[-30:])}"
            return _faulty(fault, Flaw.CUT_OFF, whole=whole)
        if self.opens and first and first != self.opens:  # ``opens`` is the bracket of the kind asked for, if it is an object or array
            return _faulty(f"begins with {quote(first)}, not with {quote(self.opens)}", Flaw.KIND, whole=whole)
        return None

    def _check_content(self, text: str, syntax: JsonScan) -> Reading | None:
        """Return a reading with a whole document's breach of the schema, else None.

        A text nested too deep for recursive parsers is not read, and counts as faulty.
        """
        if self.validator is None:
            return None
        if syntax.depth > _DEEPEST:
            return _faulty(f"nested {syntax.depth} containers deep", Flaw.RULES, whole=True)
        return _breach(list(self.validator.iter_errors(json.loads(text, parse_int=whole_number, parse_float=decimal_number))), whole=True)

    def _check_beginning(self, text: str, syntax: JsonScan) -> Reading | None:
        """Return a reading with a beginning's final breach, else None.

        A breach is final if no continuation can mend it. None also for a text nested too deep for recursive parsers.
        """
        return None if self.validator is None or syntax.depth > _DEEPEST else _breach(breaches(self.validator, text), whole=False)


def _breach(errors: Sequence[ValidationError], *, whole: bool) -> Reading | None:
    """Return a reading with the most relevant error; None without errors.

    Errors of rules that every engine must enforce come first: only without any is the reading ``rare``, a breach that proves nothing of an
    engine. ``whole`` says that the text is a whole document.
    """
    certain = [error for error in errors if not is_rarely_enforced(error.relative_schema_path)]
    error = best_match(certain or errors)
    if error is None:
        return None
    fault = f"{quote(error.json_path, 80)[1:-1]}: {quote(error.message, 120)} ({_rule(error.validator)})"
    return Reading(complete=whole, fault=fault, flaw=Flaw.RULES, rare=not certain)


def _faulty(fault: str, flaw: Flaw, *, whole: bool) -> Reading:
    return Reading(complete=whole, fault=fault, flaw=flaw)


def _syntax_flaw(text: str, syntax: JsonScan) -> Flaw:
    """Return the flaw of a wrong character: after the document, before it, or within it."""
    if syntax.wanted == _THE_END:
        return Flaw.BEHIND
    return Flaw.NOT_ENFORCED if text[: syntax.bad].strip() else Flaw.BEFORE


def is_rarely_enforced(path: Iterable[object]) -> bool:
    """Return True if some engines silently ignore the rule at ``path``.

    They may ignore the rule itself or one that contains it. ``path`` leads to it through the schema, by names of rules and, after
    ``properties`` and ``$defs``, names chosen by the schema, which are skipped.
    """
    steps = iter(path)
    for step in steps:
        if isinstance(step, str) and step not in _ENFORCED:
            return True
        if step in _NAMED:
            next(steps, None)  # the name of a property or definition
    return False


def _has_rare_rules(schema: object, rare: Collection[str]) -> bool:
    """Return True if a schema, or one within it, has any of the ``rare`` rules."""
    if not isinstance(schema, dict):
        return False
    if not schema.keys().isdisjoint(rare):
        return True
    # Schemas within it are values of _NAMED, under names of the schema's choice, and of ``definitions``, the older ``$defs``.
    inner = [part for name in (*_NAMED, "definitions") if isinstance(schema.get(name), dict) for part in schema[name].values()]
    # Or they are one of these. All other rules that contain schemas are rare ones.
    inner += [schema.get(name) for name in ("items", "additionalProperties")]
    return any(_has_rare_rules(part, rare) for part in inner)


def _rule(name: object) -> str:
    return f"rule {name}" if isinstance(name, str) else "the schema allows nothing here"


def of_schema(schema: JSON, name: str = "") -> JsonFormat:
    """Return the format of a schema, checked by its meta-schema.

    ``name`` follows ``json_schema`` in its kind. Nothing remote is fetched. Raises ``jsonschema.SchemaError`` for a wrong schema.
    """
    given: Any = schema
    maker = validator_for(given, default=Draft202012Validator)
    maker.check_schema(given)
    kind = f"json_schema {name}".rstrip()
    return JsonFormat(kind=kind, feature="json_schema", validator=maker(given, registry=EMPTY_REGISTRY))


ANY_OBJECT = JsonFormat(kind="json_object", feature="json_object", validator=None)

_SPACE = re.compile(r"[ \t\n\r]*")
_WORDS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_SO_FAR = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?\Z")
_CHARACTERS = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_ESCAPE_SO_FAR = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


class _State(StrEnum):
    """What may come next, in words."""

    VALUE = "a value"
    FIRST_VALUE = "a value or ]"
    KEY = "a key"
    FIRST_KEY = "a key or }"
    COLON = "a colon"
    AFTER = "a comma or the end of its container"
    """After a value; after the whole document if no container is open."""


_CUT = "cut"
"""In place of what was expected, if the text ends within a lexeme."""
_THE_END = "the end"
_CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonScan:
    """The result of reading a text as JSON (RFC 8259)."""

    bad: int | None = None
    """Index of the first character that no JSON document can have there; None for a document or a prefix of one."""
    wanted: str = ""
    """What is expected there instead, in words."""
    complete: bool = False
    """Whether the text is a whole document."""
    depth: int = 0
    """Deepest nesting of containers."""


def scan(text: str) -> JsonScan:
    """Read ``text`` as JSON, without recursion that deep nesting could exhaust."""
    return _JsonReader(text).read()


class _JsonReader:
    """Reader of one text as JSON, lexeme by lexeme: a bracket, comma, colon, string, number or word.

    A method that reads a lexeme returns an empty text if it may stand here, and goes on after it. Else it returns an expectation: what was
    wanted at ``at``, in words, or _CUT if the text ends within the lexeme.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        """Index of the next character."""
        self.open: list[str] = []
        """Opening brackets of the containers around the next lexeme, the innermost last."""
        self.state: _State = _State.VALUE
        """What may come next."""
        self.depth = 0
        """The most containers that were open at once."""

    @property
    def _is_done(self) -> bool:
        """True after a whole document."""
        return self.state == _State.AFTER and not self.open

    def read(self) -> JsonScan:
        """Read lexemes up to the first error, or the end of a whole document or of a prefix of one."""
        while True:
            self.at = _end(_SPACE, self.text, self.at)
            if self.at >= len(self.text):
                return JsonScan(complete=self._is_done, depth=self.depth)
            wanted = _THE_END if self._is_done else self._step(self.text[self.at])
            if wanted == _CUT:  # a number may be whole all the same
                return JsonScan(complete=self._is_done, depth=self.depth)
            if wanted:
                return JsonScan(bad=self.at, wanted=wanted, depth=self.depth)

    def _step(self, character: str) -> str:
        """Read one lexeme, which begins with ``character``; return an expectation or nothing."""
        if self.state == _State.AFTER:
            return self._separator(character)
        if self.state == _State.COLON:
            return self._move(_State.VALUE) if character == ":" else _State.COLON.value
        if self._closes_empty(character):
            return self._close()
        if self.state in {_State.KEY, _State.FIRST_KEY}:
            return self._string(_State.COLON) if character == '"' else self.state.value
        return self._value(character)

    def _separator(self, character: str) -> str:
        """Read a comma or bracket after a value in a container; return "" or the expectation of one."""
        if character == _CLOSING[self.open[-1]]:
            return self._close()
        if character == ",":
            return self._move(_State.KEY if self.open[-1] == "{" else _State.VALUE)
        return _State.AFTER.value

    def _closes_empty(self, character: str) -> bool:
        return (self.state, character) in {(_State.FIRST_KEY, "}"), (_State.FIRST_VALUE, "]")}

    def _close(self) -> str:
        self.open.pop()
        return self._move(_State.AFTER)

    def _move(self, state: _State) -> str:
        """Go on after a lexeme's last character, with what may come next."""
        self.at += 1
        self.state = state
        return ""

    def _value(self, character: str) -> str:
        """Read a scalar or an opening bracket; return "" or the expectation if it is wrong or cut."""
        if character in _CLOSING:
            self.open.append(character)
            self.depth = max(self.depth, len(self.open))
            return self._move(_State.FIRST_KEY if character == "{" else _State.FIRST_VALUE)
        if character == '"':
            return self._string(_State.AFTER)
        return self._number() if character in "-0123456789" else self._word()

    def _string(self, then: _State) -> str:
        """Read a string, with ``then`` as the next state; return "" or the expectation if it is wrong or cut."""
        self.at = _end(_CHARACTERS, self.text, self.at + 1)
        # The text ends in the string, or in an escape sequence of it.
        if self.at >= len(self.text) or _ESCAPE_SO_FAR.match(self.text, self.at):
            return _CUT
        return self._move(then) if self.text[self.at] == '"' else "a character or escape that a string may hold"

    def _number(self) -> str:
        """Read a number; return "", _CUT for one at the very end, or the expectation of a digit."""
        whole = _NUMBER.match(self.text, self.at)
        if whole and whole.end() == len(self.text):
            self.state = _State.AFTER  # it is a number already, though more digits might follow
            return _CUT
        if _NUMBER_SO_FAR.match(self.text, self.at):  # the text ends within it, as in ``1.`` or ``2e``
            return _CUT
        if whole is None:
            self.at += 1  # a lone minus: the wrong character comes after it
            return "a digit"
        self.at, self.state = whole.end(), _State.AFTER
        return ""

    def _word(self) -> str:
        """Read true, false or null; return "", _CUT at the text's end, or the expectation of a value."""
        for word in _WORDS:
            if self.text.startswith(word, self.at):
                self.at, self.state = self.at + len(word), _State.AFTER
                return ""
            if word.startswith(self.text[self.at :]):
                return _CUT
        return self.state.value


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start
