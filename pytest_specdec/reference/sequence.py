"""A sequence: one choice of one request on its way through the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.reference.rules import end

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Several

    import numpy as np

    from pytest_specdec.reference.grammar import Grammar
    from pytest_specdec.reference.openai_request import EngineRequest
    from pytest_specdec.reference.openai_response import Entry
    from pytest_specdec.reference.reasoning import ReasoningSplit
    from pytest_specdec.reference.sampler import PenaltyState
    from pytest_specdec.reference.tokenizer import Text

__all__ = ["Delta", "RunningSequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The tokens and text that one step added to a sequence."""

    sequence: RunningSequence
    tokens: tuple[int, ...]
    text: str
    reasoning: str = ""
    """What came before the text, where the two are told apart."""
    entries: tuple[Entry, ...] = ()
    """One per token where the request wants log-probabilities, else empty."""
    first: bool = False
    """Whether nothing came before it."""
    finish_reason: str | None = None
    """Why it is the last one; the sequence itself may be steps ahead by the time this is read. ``abort`` when it was given up."""
    stop_reason: str | None = None


class RunningSequence:
    """One choice: its tokens, its state in text, grammar and penalties, its random generator."""

    def __init__(
        self,
        request: EngineRequest,
        *,
        index: int,
        random: np.random.Generator,
        text: Text,
        eos_ids: tuple[int, ...],
        end: Callable[[EngineRequest, int, bool], str | None] = end,
        grammar: Grammar | None = None,
        penalties: PenaltyState | None = None,
        reasoning: ReasoningSplit | None = None,
        tell: Callable[[Delta], None] = lambda _: None,
    ) -> None:
        self.request = request
        self.index = index
        self.random = random
        self.text = text
        self.grammar = grammar
        self.penalties = penalties
        self.reasoning = reasoning
        self.tell = tell
        self.tokens = list(request.prompt)
        """The prompt and everything emitted."""
        self.entries: list[Entry] = []
        self.prompt_entries: list[Entry] = []
        self.drafted: list[int] = []
        """Draft tokens by verify step."""
        self.accepted: list[int] = []
        """Accepted draft tokens by verify step, before a limit cuts the window."""
        self.cached_tokens = 0
        """Of the prompt, taken from the prefix cache when it first entered the batch."""
        self.keys: list[int] = []
        """Of its full blocks that the prefix cache was shown."""
        self.arrival = 0
        """Which sequence of the batch's it is, from 0."""
        self.preempted = 0
        """Times that it had to leave the batch before its end."""
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self._eos_ids = eos_ids
        self._end = end

    @property
    def emitted(self) -> list[int]:
        """The emitted tokens, an end-of-sequence token included."""
        return self.tokens[len(self.request.prompt) :]

    def give_up(self) -> Delta:
        """Return the delta that says no more will come."""
        return Delta(sequence=self, tokens=(), text="", finish_reason="abort")

    def take(self, window: Several[int], entries: Several[Entry] = ()) -> Delta:
        """Append a window, up to whatever ends the sequence."""
        taken = 0
        first = len(self.tokens) == len(self.request.prompt)
        for token in window:
            taken += 1
            self._append(token)
            if self.finish_reason is not None:
                break
        reported = tuple(entries[:taken])
        self.entries.extend(reported)
        text = self.text.release(ended=self.finish_reason is not None)
        reasoning, text = ("", text) if self.reasoning is None else self.reasoning.of_next(text)
        return Delta(
            sequence=self,
            tokens=tuple(window[:taken]),
            text=text,
            reasoning=reasoning,
            entries=reported,
            first=first,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        if self.grammar is not None:
            self.grammar.advance(token)
        if self.penalties is not None:
            self.penalties.advance(token)
        self.stop_reason = self.text.take(token)
        if self.reasoning is not None:
            self.reasoning.take(token, len(self.text.whole))
        if self.stop_reason is not None:
            self.finish_reason = "stop"
            return
        self.finish_reason = self._end(self.request, len(self.tokens) - len(self.request.prompt), token in self._eos_ids)
        if self.finish_reason is not None:
            self.text.end()
