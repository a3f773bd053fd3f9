"""Beginnings of JSON documents: the rules of a schema that a cut document breaks whatever comes after it.

Rules that depend on what may still come are left open.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    from pytest_specdec.model.workload import JSON

__all__ = ["breaches"]

_LEXEME = re.compile(r'[ \t\n\r]*(?P<text>"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++)', re.DOTALL)
_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)\Z")
_CLOSING = {"{": "}", "[": "]"}
_WORDS = {"t": "true", "f": "false", "n": "null"}
_FINAL = frozenset({"type", "additionalProperties", "maxItems", "maxProperties", "maxLength", "items"})
"""Rules that a value which is still open breaks for good; every other one may be kept by what comes."""
_PREFIXED = frozenset({"enum", "const"})
"""Rules that an open string keeps while one of the allowed values begins with it."""
_CONDITIONS = frozenset({"if", "then", "else", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"})
"""Rules whose parts apply, or do not, by what may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A cut document, closed after the last value that is known."""

    value: JSON
    open: frozenset[tuple[str | int, ...]]
    """Paths of the values that may go on: the containers around the cut, and a string or number that it went through."""


def breaches(validator: Validator, text: str) -> list[ValidationError]:
    """Return the errors of a beginning that no continuation mends; ``text`` is a JSON prefix that is no whole document."""
    beginning = _beginning(text)
    if beginning is None:
        return []
    return [error for error in validator.iter_errors(beginning.value) if _is_final(error, beginning.open)]


def _is_final(error: ValidationError, still_open: frozenset[tuple[str | int, ...]]) -> bool:
    if not _CONDITIONS.isdisjoint(error.absolute_schema_path):
        return False
    if tuple(error.absolute_path) not in still_open:
        return True
    if error.validator in _PREFIXED and isinstance(error.instance, str):
        allowed: Any = error.validator_value if error.validator == "enum" else [error.validator_value]
        return not any(isinstance(value, str) and value.startswith(error.instance) for value in allowed)
    return not isinstance(error.validator, str) or error.validator in _FINAL


def _beginning(text: str) -> Beginning | None:
    """Return ``text`` as a value; None where nothing of one is known yet."""
    reader = _Reader(text)
    reader.read()
    leaf = reader.open_leaf()
    known = text[: reader.at] + leaf if leaf else text[: reader.known]
    containers = reader.containers if leaf else reader.known_containers
    if not known.strip():
        return None
    closed = known + "".join(_CLOSING[each] for each in reversed(containers))
    value = json.loads(closed, object_pairs_hook=_object, parse_int=_number)
    return Beginning(value=value, open=frozenset(_ends(value, len(containers) + bool(leaf))))


class _Reader:
    """Reads lexemes as far as they are whole; a number or word at the very end is not."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.containers: tuple[str, ...] = ()
        self.known = 0
        """End of the last whole value, or of the last bracket that opened one."""
        self.known_containers: tuple[str, ...] = ()
        self._last = ""

    def read(self) -> None:
        while (lexeme := _LEXEME.match(self.text, self.at)) is not None:
            text = lexeme["text"]
            if text[0] not in '{}[],:"' and lexeme.end() == len(self.text):
                return
            is_key = self._wants_key
            self.containers = (*self.containers, text) if text in _CLOSING else self.containers[: -1 if text in "}]" else None]
            self._last, self.at = text, lexeme.end()
            if (text not in {",", ":"} and not is_key) or text in "}]":
                self.known, self.known_containers = self.at, self.containers

    @property
    def _wants_key(self) -> bool:
        return bool(self.containers) and self.containers[-1] == "{" and self._last in {"{", ","}

    def open_leaf(self) -> str:
        """Return the value that the cut went through as a whole one: a string so far, any number, or a word; empty without one."""
        rest = self.text[self.at :].lstrip(" \t\n\r")
        if not rest or self._wants_key:
            return ""
        if rest[0] == '"':
            half = _HALF_ESCAPE.search(rest, 1)
            return (rest[: half.start(1)] if half else rest) + '"'
        return _WORDS.get(rest[0], "0")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose last key is the one written last, also where it was there before."""
    value: dict[str, Any] = {}
    for name, member in pairs:
        value.pop(name, None)
        value[name] = member
    return value


def _number(digits: str) -> float:
    return float("inf") if len(digits) > 300 else int(digits)  # noqa: PLR2004 - no schema tells longer ones apart


def _ends(value: JSON, depth: int) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths from the whole value to the last one in it, ``depth`` of them at most."""
    path: tuple[str | int, ...] = ()
    for _ in range(depth):
        yield path
        if not isinstance(value, dict | list) or not value:
            return
        last: str | int = next(reversed(value)) if isinstance(value, dict) else len(value) - 1
        path, value = (*path, last), value[last]  # type: ignore[index]
