"""A JSON prefix: whether a text could still become a JSON document, and where it went wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Scan", "scan"]

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
class Scan:
    """What a text is as JSON (RFC 8259)."""

    bad: int | None = None
    """Index of the first character that no JSON document can have there; None in a prefix."""
    wanted: str = ""
    """What could have stood there instead."""
    complete: bool = False
    """Whether the text is a whole document as it stands."""
    depth: int = 0
    """How deep containers were nested at most."""


def scan(text: str) -> Scan:
    """Read ``text`` once, without recursion: hostile nesting costs memory and nothing else."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.open: list[str] = []
        self.state = _VALUE
        self.depth = 0

    def read(self) -> Scan:
        while True:
            self.at = _end(_SPACE, self.text, self.at)
            done = self.state == _AFTER and not self.open
            if self.at >= len(self.text):
                return Scan(complete=done, depth=self.depth)
            wanted = "the end" if done else self._step(self.text[self.at])
            if wanted == _CUT:
                return Scan(complete=self.state == _AFTER and not self.open, depth=self.depth)
            if wanted:
                return Scan(bad=self.at, wanted=wanted, depth=self.depth)

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
