"""Beginnings of JSON documents: the rules of a schema that a cut document breaks, however it would go on.

The beginning is closed to a whole JSON value and checked by the schema. Of the errors, those remain that no continuation can mend: an open
value, one that may go on after the cut, may still satisfy a rule.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    from pytest_specdec.model.workload import JSON

__all__ = ["breaches", "decimal_number", "whole_number"]

_LEXEME = re.compile(r'[ \t\n\r]*(?P<text>"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++)', re.DOTALL)
"""White space, then a bracket, comma, colon, whole string, number or word."""
_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)\Z")
"""An escape in a string, cut by the end of the text."""
_CLOSING = {"{": "}", "[": "]"}
_WORDS = {"t": "true", "f": "false", "n": "null"}
"""By their first letter."""
_FINAL = frozenset({"type", "additionalProperties", "maxItems", "maxProperties", "maxLength", "items"})
"""Rules that an open value breaks for good; a continuation may still satisfy every other one."""
_PREFIXED = frozenset({"enum", "const"})
"""Rules that an open string may still satisfy if one of the allowed values begins with it."""
_CONDITIONS = frozenset({"if", "then", "else", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"})
"""Rules whose subschemas apply or not depending on the continuation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A cut document as a value, closed at the cut or at the last place before it that allows that."""

    value: JSON
    open: frozenset[tuple[str | int, ...]]
    """Paths of the values that may go on: the containers around the cut, and a string, number or word cut by it."""


def breaches(validator: Validator, text: str) -> list[ValidationError]:
    """Return the schema errors beyond mending by any continuation of ``text``.

    ``text`` is a prefix of a JSON document, not a whole one. Empty if no value has begun.
    """
    beginning = _close_beginning(text)
    if beginning is None:
        return []
    return [error for error in validator.iter_errors(beginning.value) if _is_final(error, beginning.open)]


def _is_final(error: ValidationError, still_open: frozenset[tuple[str | int, ...]]) -> bool:
    """Return True if no continuation can mend an error.

    ``still_open`` has the paths of the values that may go on. An error under a condition, as ``if``, is never final, since the continuation
    may lift the condition. Otherwise an error of a closed value is final. That of an open value is final only for rules such as
    ``maxItems`` (_FINAL), that more text cannot satisfy. An open string breaks ``enum`` and ``const`` if no allowed value begins with it.
    """
    if not _CONDITIONS.isdisjoint(error.absolute_schema_path):
        return False
    if tuple(error.absolute_path) not in still_open:
        return True
    if error.validator in _PREFIXED and isinstance(error.instance, str):
        allowed: Any = error.validator_value if error.validator == "enum" else [error.validator_value]
        return not any(isinstance(value, str) and value.startswith(error.instance) for value in allowed)
    # A schema that is just ``false`` has no rule's name, and no value satisfies it.
    return not isinstance(error.validator, str) or error.validator in _FINAL


def _close_beginning(text: str) -> Beginning | None:
    """Return the value begun by ``text``, with its containers closed.

    ``text`` is a prefix of a JSON document. A string or word that the cut went through is completed, a cut number becomes 0, and a key
    without its value is dropped. Returns None if no value has begun.
    """
    reader = _Reader(text)
    reader.read()
    scalar = reader.complete_scalar()  # the string, word or number that the cut went through; empty without one
    if scalar:
        begun, brackets = text[: reader.read_end] + scalar, reader.open_brackets
    else:
        # A comma or a lone key after the last closable place has to go.
        begun, brackets = text[: reader.closable_end], reader.closable_brackets
    if not begun.strip():
        return None
    document = begun + "".join(_CLOSING[bracket] for bracket in reversed(brackets))
    value = json.loads(document, object_pairs_hook=_object, parse_int=whole_number, parse_float=decimal_number)
    # The containers around the cut may go on, and so may the scalar: each is the last member of the one before it.
    open_values = len(brackets) + (1 if scalar else 0)
    return Beginning(value=value, open=frozenset(_last_paths(value, open_values)))


class _Reader:
    """Reader of whole lexemes: each a bracket, comma, colon, string, number or word.

    It notes the last closable place, at which closing brackets would make a JSON value of the text before it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.read_end = 0
        """Index after the last lexeme read."""
        self.open_brackets: tuple[str, ...] = ()
        """Those of the containers still open there, outermost first."""
        self.closable_end = 0
        """Index of the last closable place."""
        self.closable_brackets: tuple[str, ...] = ()
        """Those of the containers still open at that place."""
        self._last_lexeme = ""

    def read(self) -> None:
        """Read lexemes up to the last whole one, noting the last closable place."""
        while (lexeme := _LEXEME.match(self.text, self.read_end)) is not None:
            text = lexeme["text"]
            if text[0] not in '{}[],:"' and lexeme.end() == len(self.text):
                return  # a number or word at the very end may go on, so that it is not whole
            is_key = self._wants_key and text not in {"}", "]"}
            if text in _CLOSING:
                self.open_brackets = (*self.open_brackets, text)
            elif text in {"}", "]"}:
                self.open_brackets = self.open_brackets[:-1]
            self._last_lexeme, self.read_end = text, lexeme.end()
            # A container cannot be closed after a key, a comma or a colon.
            if text not in {",", ":"} and not is_key:
                self.closable_end, self.closable_brackets = self.read_end, self.open_brackets

    @property
    def _wants_key(self) -> bool:
        return self.open_brackets[-1:] == ("{",) and self._last_lexeme in {"{", ","}

    def complete_scalar(self) -> str:
        """Return the scalar cut by the text's end, completed; empty without one.

        A string is closed without its half escape, a word is completed, and a cut number becomes 0. A cut key does not count, since it has
        no value yet.
        """
        rest = self.text[self.read_end :].lstrip(" \t\n\r")
        if not rest or self._wants_key:
            return ""
        if rest[0] == '"':
            half = _HALF_ESCAPE.search(rest, 1)
            return (rest[: half.start(1)] if half else rest) + '"'
        return _WORDS.get(rest[0], "0")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object with keys in order of last occurrence.

    It is json's ``object_pairs_hook``. A repeated key moves to the end, so that the last key is the one before the cut.
    """
    value: dict[str, Any] = {}
    for name, member in pairs:
        value.pop(name, None)
        value[name] = member
    return value


def whole_number(digits: str) -> int:
    """Return an integer, one of more than 300 digits as a power of ten."""
    huge = -(10**300) if digits.startswith("-") else 10**300
    return huge if len(digits) > 300 else int(digits)  # noqa: PLR2004 - no schema tells longer ones apart


class _Fraction(float):
    """A number beyond the float range with a fraction, which its clamped float lacks."""

    def is_integer(self) -> bool:
        return False


def decimal_number(digits: str) -> float:
    """Return a JSON number as a float, clamped to the float range.

    This is json's ``parse_float``. A schema may demand a whole number, and a clamped float counts as whole. So a number beyond the range
    with a fraction becomes a ``_Fraction``, which does not.
    """
    number = float(digits)
    clamped = max(-sys.float_info.max, min(number, sys.float_info.max))
    if number == clamped:
        return clamped
    if "e" in digits.lower():  # it counts as whole, as the clamped float does
        return clamped
    whole, _, fraction = digits.partition(".")
    return _Fraction(clamped) if fraction.strip("0") else whole_number(whole)


def _last_paths(value: JSON, depth: int) -> Iterator[tuple[str | int, ...]]:
    """Yield at most ``depth`` paths, from the whole value inwards.

    Each leads to the last member of the value before it: after a cut these are the values that may go on.
    """
    path: tuple[str | int, ...] = ()
    for _ in range(depth):
        yield path
        if not isinstance(value, dict | list) or not value:
            return
        last: str | int = next(reversed(value)) if isinstance(value, dict) else len(value) - 1
        path, value = (*path, last), value[last]  # type: ignore[index]
