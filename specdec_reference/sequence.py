"""A sequence: one choice of one request on its way through the batch.

A step emits a window of tokens: accepted draft tokens and one more. A delta is what stays of it, up to whatever ends the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_reference.emission import EmittedToken, WrittenText
from specdec_reference.rules import EngineRules

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Several

    import numpy as np

    from specdec_reference.grammar import Grammar
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.reasoning import ReasoningSplit
    from specdec_reference.sampler import Entry, PenaltyState
    from specdec_reference.tokenizer import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The tokens and text that one step added to a sequence."""

    sequence: RunningSequence
    tokens: tuple[int, ...]
    text: str
    reasoning: str = ""
    """The reasoning before the text, where the two are separated."""
    entries: tuple[Entry, ...] = ()
    """One per token where the request wants log-probabilities, else empty."""
    first: bool = False
    """Whether nothing came before it."""
    finish_reason: str | None = None
    """Why it is the last one; the sequence itself may be steps ahead by the time this is read. ``abort`` when it was given up."""
    stop_reason: str | int | None = None


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
        context: int,
        rules: EngineRules = EngineRules(),  # noqa: B008 - a frozen value
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
        """Keys of its first full blocks, those that the prefix cache had or was offered."""
        self.arrival = 0
        """Its number in the batch's order of arrival, from 0."""
        self.preempted = 0
        """Times that it had to leave the batch before its end."""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        """The stop string or the stop token id that ended it."""
        self.end_ids = tuple(dict.fromkeys((*eos_ids, *request.stop_ids)))
        """Token ids that min_tokens keeps away."""
        self._steps = 0  # windows taken
        self._eos_ids = eos_ids
        self._context = context
        self._rules = rules

    @property
    def emitted(self) -> list[int]:
        """The emitted tokens, an end-of-sequence token included."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def completion_tokens(self) -> int:
        """Emitted tokens as the usage counts them."""
        return len(self.emitted)

    @property
    def held_back(self) -> int:
        """Tokens still to come before the sequence may end.

        Until then only a limit may end it.
        """
        return self._rules.held_back(self.request, len(self.emitted), self._steps)

    @property
    def limited_reasoning(self) -> ReasoningSplit | None:
        """Its reasoning while a budget may still force its end, else None."""
        return self.reasoning if self.reasoning is not None and self.reasoning.limited else None

    def give_up(self) -> Delta:
        """Return the closing delta of an abandoned sequence.

        Its finish_reason is ``abort``; no more deltas come.
        """
        return Delta(sequence=self, tokens=(), text="", finish_reason="abort")

    def take(self, window: Several[int], entries: Several[Entry] = ()) -> Delta:
        """Append a window, up to whatever ends the sequence, and return the delta.

        ``entries`` has the log-probabilities of the window's tokens, if they are requested.
        """
        kept_tokens = 0
        first = len(self.tokens) == len(self.request.prompt)
        written = len(self.text.whole)
        for position, token in enumerate(window):
            kept_tokens += 1
            self._append_token(token, position, len(window), written)
            if self.finish_reason is not None:
                break
        self._steps += 1
        reported = tuple(entries[:kept_tokens])
        self.entries.extend(reported)
        text = self.text.release(ended=self.finish_reason is not None)
        reasoning, text = ("", text) if self.reasoning is None else self.reasoning.split_next(text)
        return Delta(
            sequence=self,
            tokens=tuple(window[:kept_tokens]),
            text=text,
            reasoning=reasoning,
            entries=reported,
            first=first,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _append_token(self, token: int, position: int, window_tokens: int, written: int) -> None:
        """Append one token and decide whether it ends the sequence.

        ``position`` is its place in a window of ``window_tokens``; ``written`` characters of text came before the window.
        """
        held_back = self.held_back  # tokens that min_tokens still needs, before this one
        self.tokens.append(token)
        if self.grammar is not None:
            self.grammar.advance(token)
        if self.penalties is not None:
            self.penalties.advance(token)
        emitted = EmittedToken(
            count=len(self.emitted),
            position=position,
            window_tokens=window_tokens,
            room=self._context - len(self.tokens),
            eos=token in self._eos_ids,
            stop_id=token in self.request.stop_ids,
        )
        self.finish_reason = self._rules.end(self.request, emitted)
        self._write_text(token, emitted, None if held_back else written)
        if self.reasoning is not None:
            self.reasoning.take(token, len(self.text.whole))

    def _write_text(self, token: int, emitted: EmittedToken, written: int | None) -> None:
        """Append the token's text and cut at a stop string.

        ``finish_reason`` already says whether the token's id ends the sequence. The text of such a token is left out unless the request
        includes it. ``written`` is the number of characters before the step's window, None where min_tokens lets nothing stop yet.
        """
        length_before, ended = len(self.text.whole), self.finish_reason == "stop" and (emitted.eos or emitted.stop_id)
        if ended and emitted.stop_id and (self.request.ignore_eos or not emitted.eos):  # as in vLLM, an end of sequence is no stop_reason
            self.stop_reason = token
        if not ended or self.request.include_stop:
            self.text.take(token)
        text = WrittenText(text=self.text.whole, before_token=length_before, before_window=written or 0)
        stop_match = None if written is None else self._rules.match(self.request, text, emitted)
        if stop_match is not None:
            self.finish_reason, self.stop_reason = stop_match.finish_reason, stop_match.stop
            self.text.cut(self._rules.cut(self.request, stop_match))
        elif self.finish_reason is not None:
            self.text.end()
