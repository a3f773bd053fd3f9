"""Prompt lookup: the draft of an n-gram speculator, computed from nothing but the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Lookup"]


class Lookup:
    """A growing context and the draft that prompt lookup proposes for it.

    The longest suffix of ``shortest`` to ``longest`` tokens that occurred before decides; of its occurrences the earliest; what followed
    there is the draft, shorter than asked where the context ends first. As vLLM does (``v1/spec_decode/ngram_proposer.py``).
    """

    def __init__(self, tokens: Iterable[int], *, shortest: int, longest: int) -> None:
        self._tokens: list[int] = []
        self._sizes = range(longest, shortest - 1, -1)
        self._first: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Let the context grow by one emitted token."""
        self._tokens.append(token)
        end = len(self._tokens)
        for size in self._sizes:
            if size <= end:
                self._first.setdefault(tuple(self._tokens[end - size :]), end)

    def propose(self, k: int) -> tuple[int, ...]:
        """Return at most ``k`` draft tokens, none without a match."""
        end = len(self._tokens)
        for size in self._sizes:
            followed = self._first.get(tuple(self._tokens[end - size :]), end) if size <= end else end
            if followed < end:
                return tuple(self._tokens[followed : followed + k])
        return ()
