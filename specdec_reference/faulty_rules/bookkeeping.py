"""Rules with a fault of what is said about an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.tokenizer import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_reference.emission import EmittedToken, TokenCounts
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.sequence import RunningSequence


@instead_of("usage")
def usage_counts_rejected(sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Add what was drafted and not accepted."""
    counts = rules.usage(sequences)
    rejected = sum(sum(sequence.drafted) - sum(sequence.accepted) for sequence in sequences)
    return replace(counts, completion=counts.completion + rejected, total=counts.total + rejected)


@instead_of("usage")
def usage_drops_last_window(sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Leave out the tokens of the last step of each choice."""
    counts = rules.usage(sequences)
    last = sum(len(sequence.emitted) - 1 - sum(kept + 1 for kept in sequence.accepted[:-1]) for sequence in sequences if sequence.accepted)
    return replace(counts, completion=counts.completion - last, total=counts.total - last)


@instead_of("usage")
def usage_forgets_prompt(sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Count no prompt."""
    counts = rules.usage(sequences)
    return replace(counts, prompt=0, total=counts.completion)


@instead_of("usage")
def usage_total_with_drafts(sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Add every draft token to the total."""
    counts = rules.usage(sequences)
    return replace(counts, total=counts.total + sum(sum(sequence.drafted) for sequence in sequences))


@instead_of("end")
def stop_at_limit(request: EngineRequest, token: EmittedToken) -> str | None:
    """Report every end as a stop."""
    return "stop" if rules.end(request, token) else None


@instead_of("finish")
def finish_missing(reason: str | None, calls: int, *, stream: bool) -> str | None:
    """Report none for a whole answer."""
    return rules.finish(reason, calls, stream=stream) if stream else None


class _Named(Text):
    """A text with the name of an end of sequence at its end."""

    def end(self) -> None:
        super().end()
        self.whole += "<|im_end|>"


@instead_of("text")
def special_token_leaks(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Write the name of the end."""
    return _Named(pieces, stops)


class _AtEdges(Text):
    """A text that does something else where a verify step begins and ends."""

    def release(self, *, ended: bool) -> str:
        """Take the end of a step first."""
        self._end_step()
        return super().release(ended=ended)

    def _end_step(self) -> None:
        """Do what is wrong."""


class _Doubled(_AtEdges):
    def _end_step(self) -> None:
        self.whole += self.whole[-1:]


class _Broken(_AtEdges):
    def _end_step(self) -> None:
        self.whole += "\ufffd"


class _Dropped(_AtEdges):
    def __init__(self, pieces: Sequence[bytes], stops: tuple[str, ...]) -> None:
        super().__init__(pieces, stops)
        self._begun = 0
        self._tokens = 0

    def take(self, token: int) -> None:
        self._tokens += 1
        super().take(token)

    def _end_step(self) -> None:
        if self._tokens > 1:
            self.whole = self.whole[: self._begun] + self.whole[self._begun + 1 :]
        self._begun, self._tokens = len(self.whole), 0


@instead_of("text")
def window_edge_doubled(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Repeat the last character of a step."""
    return _Doubled(pieces, stops)


@instead_of("text")
def window_edge_dropped(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Leave out the first character of a step of several tokens."""
    return _Dropped(pieces, stops)


@instead_of("text")
def window_edge_broken(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Write a replacement character behind a step."""
    return _Broken(pieces, stops)


@instead_of("identify")
def ids_swapped(token_ids: list[int]) -> list[int]:
    """Exchange the second and the third."""
    return [*token_ids[:1], *token_ids[1:3][::-1], *token_ids[3:]]


@instead_of("count")
def counters_accept_more(drafted: int, accepted: int) -> tuple[int, int]:
    """Count a draft as one token."""
    return min(drafted, 1), accepted


@instead_of("count")
def counters_frozen(drafted: int, accepted: int) -> tuple[int, int]:  # noqa: ARG001 - a rule's signature
    """Count nothing."""
    return 0, 0
