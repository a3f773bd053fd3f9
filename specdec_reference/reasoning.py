"""Reasoning: the part of a chat answer up to one token, its limit, and a grammar that begins after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from specdec_reference.request_fields import Fields, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdec_reference.grammar import Grammar


NAMES: Final = ("chat_template_kwargs", "thinking_token_budget")
"""Fields of a chat request about its reasoning, as vLLM has them."""


def parse_thinking(fields: Fields) -> bool:
    """Return True unless the request turns the reasoning off.

    Raises Refusal for another chat_template_kwargs than ``enable_thinking``.
    """
    arguments = Fields(fields.object("chat_template_kwargs") or {})
    try:
        arguments.refuse_unknown({"enable_thinking"}, {})
        return arguments.flag("enable_thinking", default=True)
    except Refusal as refusal:
        raise Refusal(message=f"chat_template_kwargs: {refusal.message}", param="chat_template_kwargs") from refusal


def parse_budget(fields: Fields, *, reasons: bool) -> int | None:
    """Return the most tokens of reasoning, None for any number.

    Raises Refusal for a budget on a server without reasoning, as vLLM does (``InputProcessor`` of v1/engine/input_processor.py).
    """
    budget = fields.integer("thinking_token_budget", low=-1)
    if budget is None or budget == -1:
        return None
    if not reasons:
        raise Refusal(message="thinking_token_budget is set but reasoning_config is not configured.", param="thinking_token_budget")
    return budget


class SplitText(NamedTuple):
    """A text, divided at the end of its reasoning."""

    reasoning: str
    text: str


class ReasoningSplit:
    """The extent of one sequence's reasoning, in tokens and characters.

    A sequence's text begins with its reasoning, the end token included. A stream releases the text part by part.
    """

    def __init__(self, end: int, budget: int | None = None) -> None:
        """Take the token at the end, and the most tokens before it; None for any number."""
        self.end = end
        self.budget = budget
        self._released = 0
        """Characters of the text that :meth:`split_next` has divided so far."""
        self.characters: int | None = None
        """Characters of the text that are reasoning, the end token's included; None while the reasoning goes on."""
        self.tokens = 0
        """Tokens of the reasoning so far, the end token included."""

    def take(self, token: int, characters: int) -> None:
        """Note a token, and how long the text is with it."""
        if self.characters is None:
            self.tokens += 1
            self.characters = characters if token == self.end else None

    @property
    def limited(self) -> bool:
        """True if its end may have to be forced."""
        return self.budget is not None and self.characters is None

    def split_whole(self, text: str) -> SplitText:
        """Split the whole text so far."""
        return SplitText(text, "") if self.characters is None else SplitText(text[: self.characters], text[self.characters :])

    def split_next(self, text: str) -> SplitText:
        """Split ``text``, the part of the sequence's text released next."""
        cut = len(text) if self.characters is None else max(0, self.characters - self._released)
        self._released += len(text)
        return SplitText(text[:cut], text[cut:])


class GrammarAfterReasoning:
    """A grammar that begins after a token; before it anything may come but the end of the sequence.

    Tokens are counted from the start of the answer, so that a draft beyond the end of the reasoning can be taken back.
    """

    def __init__(self, grammar: Grammar, end: int, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._grammar = grammar
        self._end = end
        self._open = np.ones(vocabulary, np.bool_)  # the mask before the token
        self._open[list(eos_ids)] = False
        self._taken = 0
        self._began: int | None = None
        """Tokens taken when the grammar began; None before that."""

    def mask(self) -> NDArray[np.bool_]:
        """Return the mask of permitted next tokens, (vocabulary,)."""
        return self._open if self._began is None else self._grammar.mask()

    def advance(self, token: int) -> None:
        """Take one token."""
        self._taken += 1
        if self._began is not None:
            self._grammar.advance(token)
        elif token == self._end:
            self._began = self._taken

    def retreat(self, count: int) -> None:
        """Take back the last ``count`` tokens."""
        if self._began is not None:
            self._grammar.retreat(min(count, self._taken - self._began))
        self._taken -= count
        if self._began is not None and self._taken < self._began:
            self._began = None

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the longest permitted prefix of ``tokens``.

        Up to the end of the reasoning every token but an end of sequence is permitted; the grammar decides on the rest.
        """
        if self._began is not None:
            return self._grammar.allowed_prefix(tokens)
        open_length = next((position for position, token in enumerate(tokens) if token == self._end or not self._open[token]), len(tokens))
        if tokens[open_length : open_length + 1] != (self._end,):  # an end of sequence, or nothing
            return tokens[:open_length]
        return (*tokens[: open_length + 1], *self._grammar.allowed_prefix(tokens[open_length + 1 :]))
