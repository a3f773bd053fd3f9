"""Tool calls: the calls in an answer's text, separated from its content as the text comes, in pieces of any size.

A tag and its call may end in the middle of a piece, or go over several. What only looks like a call stays content.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
_NAME = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_NAME})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """What some text adds to one call."""

    index: int
    name: str = ""
    """Empty but for the first piece."""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReading:
    """What some text adds to an answer: content, and pieces of calls, at most one per call."""

    content: str
    pieces: tuple[CallPiece, ...] = ()


class _Place(Enum):
    """A reader's place in an answer."""

    CONTENT = auto()
    HEAD = auto()
    """After an opening tag."""
    ARGUMENTS = auto()
    TAIL = auto()
    """After the arguments, up to the closing tag."""


class ToolCallReader:
    """Reads the text of one answer, part by part.

    Text waits until it can be read. The place says what comes next: content, a call's head (its name), its arguments, or the rest
    up to the closing tag.
    """

    def __init__(self, *, parallel: bool = True) -> None:
        self._parallel = parallel
        self._place = _Place.CONTENT
        self._waiting = ""  # text not read yet
        self._braces = _Braces()
        self._content: list[str] = []  # of the part being read, as are the pieces of calls
        self._pieces: dict[int, CallPiece] = {}
        self._written = False
        """Whether content has come since the last call."""
        self.calls = 0
        """Calls that have begun."""

    def take(self, text: str, *, ended: bool = False) -> ToolReading:
        """Read the next part of the text.

        A part that may still become a tag waits unless the answer has ``ended``.
        """
        self._waiting += text
        self._content, self._pieces = [], {}
        while self._read_place(ended):
            pass
        return ToolReading(content="".join(self._content), pieces=tuple(self._pieces.values()))

    def _read_place(self, ended: bool) -> bool:  # noqa: FBT001 - passed on
        """Read the waiting text as far as the place reaches.

        Returns True if the next place has begun, False if more text is needed.
        """
        if self._place is _Place.CONTENT:
            return self._read_content(ended)
        if self._place is _Place.HEAD:
            return self._read_head(ended)
        return self._read_arguments() if self._place is _Place.ARGUMENTS else self._read_tail()

    def _read_content(self, ended: bool) -> bool:  # noqa: FBT001 - passed on
        """Read up to an opening tag; True if one came."""
        tag_start = self._waiting.find(OPENING)
        if tag_start >= 0:
            self._add_content(self._waiting[:tag_start])
            self._waiting = self._waiting[tag_start + len(OPENING) :]
            self._place = _Place.HEAD
            return True
        until = len(self._waiting) - (0 if ended else _partial_tag_length(self._waiting))
        self._add_content(self._waiting[:until])
        self._waiting = self._waiting[until:]
        return False

    def _add_content(self, content: str) -> None:
        """Add content, without the white space right after a call."""
        if self.calls and not self._written:
            content = content.lstrip()
        self._written = self._written or bool(content)
        self._content.append(content)

    def _read_head(self, ended: bool) -> bool:  # noqa: FBT001 - passed on
        """Read a call up to its arguments; False while more text is needed.

        What is no call becomes content, up to a closing tag or the answer's end.
        """
        head = _HEAD.match(self._waiting)
        if head is not None:
            self._add_piece(CallPiece(index=self.calls, name=json.loads(head[1])))
            self.calls += 1
            self._waiting = self._waiting[head.end() :]
            self._braces, self._written, self._place = _Braces(), False, _Place.ARGUMENTS
            return True
        tag_start = self._waiting.find(CLOSING)
        if tag_start < 0 and not ended:
            return False
        until = len(self._waiting) if tag_start < 0 else tag_start + len(CLOSING)
        self._add_content(OPENING + self._waiting[:until])
        self._waiting = self._waiting[until:]
        self._place = _Place.CONTENT
        return True

    def _read_arguments(self) -> bool:
        """Read the call's arguments; True at their end."""
        until = self._braces.end(self._waiting)
        if self._waiting[:until]:
            self._add_piece(CallPiece(index=self.calls - 1, arguments=self._waiting[:until]))
        self._waiting = self._waiting[until:]
        if not self._braces.closed:
            return False
        self._place = _Place.TAIL
        return True

    def _read_tail(self) -> bool:
        """Skip to the closing tag; True if it came."""
        tag_start = self._waiting.find(CLOSING)
        if tag_start < 0:
            return False
        self._waiting = self._waiting[tag_start + len(CLOSING) :]
        self._place = _Place.CONTENT
        return True

    def _add_piece(self, piece: CallPiece) -> None:
        """Join ``piece`` to earlier pieces of its call in this part of the text.

        Pieces of calls after the first are dropped where calls are not parallel.
        """
        if piece.index and not self._parallel:
            return
        piece_so_far = self._pieces.get(piece.index, CallPiece(index=piece.index))
        self._pieces[piece.index] = replace(
            piece_so_far, name=piece_so_far.name + piece.name, arguments=piece_so_far.arguments + piece.arguments
        )


class _Braces:
    """Where a JSON object ends, brace by brace."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self.closed = False

    def end(self, text: str) -> int:
        """Return the length of the object's part of the next text.

        In characters of ``text``: up to the object's end, or all of them if it goes on.
        """
        for index, character in enumerate(text):
            self._count_character(character)
            if self.closed:
                return index + 1
        return len(text)

    def _count_character(self, character: str) -> None:
        """Count one character; braces in strings do not count."""
        if self._quoted:
            self._quoted = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._quoted = True
        elif character in "{}":
            self._depth += 1 if character == "{" else -1
            self.closed = self._depth == 0


def _partial_tag_length(text: str) -> int:
    """Return how many last characters of ``text`` may begin an opening tag; 0 for none."""
    return next((length for length in range(len(OPENING) - 1, 0, -1) if text.endswith(OPENING[:length])), 0)
