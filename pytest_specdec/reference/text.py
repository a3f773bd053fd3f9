"""Text: token ids to characters as they come, and where a stop string ends them."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Text"]


class Text:
    """The text of one sequence; bytes of an unfinished character wait, and so does what might begin a stop string."""

    def __init__(self, pieces: Sequence[bytes], stops: tuple[str, ...]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = stops
        self._held = max(map(len, stops), default=1) - 1
        self._released = 0
        self.whole = ""

    def take(self, token: int) -> str | None:
        """Append a token; return the stop string that it completed, with the text cut in front of it, or None."""
        before = len(self.whole)
        self.whole += self._decode(self._pieces[token])
        found = [(at, stop) for stop in self._stops if (at := self.whole.find(stop, max(0, before - self._held))) != -1]
        if not found:
            return None
        at, stop = min(found)
        self.whole = self.whole[:at]
        return stop

    def end(self) -> None:
        """Say that no more tokens come, without a stop string: what was waiting is text now."""
        self.whole += self._decode(b"", True)  # noqa: FBT003 - the codec's own signature

    def release(self, *, ended: bool) -> str:
        """Return the characters that are certain and were not returned yet."""
        until = len(self.whole) if ended else max(self._released, len(self.whole) - self._held)
        fresh = self.whole[self._released : until]
        self._released = until
        return fresh
