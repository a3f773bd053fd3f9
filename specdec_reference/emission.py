"""An answer in progress, as the rules get it: its newest token, its text, a stop in it, its counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedToken:
    """One token of a window, as its answer takes it."""

    count: int
    """Tokens of the answer, this one included."""
    position: int
    """In the window, from 0."""
    window_tokens: int
    room: int
    """Tokens that the context still takes after it."""
    eos: bool
    """Whether it is an end of sequence."""
    stop_id: bool
    """Whether it is among the request's ``stop_token_ids``."""

    @property
    def last(self) -> bool:
        """True if it is the window's last token."""
        return self.position == self.window_tokens - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenText:
    """The text of an answer with its newest token."""

    text: str
    before_token: int
    """Characters that were there before the newest token."""
    before_window: int
    """Characters that were there before the newest token's window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """A stop string in a text."""

    stop: str
    at: int
    """Characters before it."""
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """The tokens of an answer, as usage reports them."""

    prompt: int
    completion: int
    total: int
