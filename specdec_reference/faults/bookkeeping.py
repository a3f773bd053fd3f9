"""Planted faults of usage, finish reason, text, ids and counters, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.tokenizer import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdec_reference.emission import TokenCounts
    from specdec_reference.sequence import RunningSequence

_MAY: dict[Family, str] = {
    family: "every judge looks at how answers end and at their text" for family in Family if family is not Family.INVARIANTS
}
_COUNTED = "usage counts other tokens than were answered"


@fault(after="usage", expected=in_(Place.REFERENCE, may=_MAY, invariants=_COUNTED))
def usage_counts_rejected(counts: TokenCounts, sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Counts rejected draft tokens among the completion tokens of its usage."""
    rejected = sum(sum(sequence.drafted) - sum(sequence.accepted) for sequence in sequences)
    return replace(counts, completion=counts.completion + rejected, total=counts.total + rejected)


@fault(after="usage", expected=in_(Place.REFERENCE, may=_MAY, invariants=_COUNTED))
def usage_drops_last_window(counts: TokenCounts, sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Leaves the last verify step out of the completion tokens of its usage."""
    # The first token is the prefill's. An entry of ``accepted`` is a verify step, which emits its accepted draft tokens and one more.
    last_step_tokens = sum(
        len(sequence.emitted) - 1 - sum(accepted_tokens + 1 for accepted_tokens in sequence.accepted[:-1])
        for sequence in sequences
        if sequence.accepted
    )
    return replace(counts, completion=counts.completion - last_step_tokens, total=counts.total - last_step_tokens)


@fault(after="usage", expected=in_(Place.REFERENCE, may=_MAY, invariants="usage counts another prompt"))
def usage_forgets_prompt(counts: TokenCounts) -> TokenCounts:
    """Reports 0 prompt tokens."""
    return replace(counts, prompt=0, total=counts.completion)


@fault(after="usage", expected=in_(Place.REFERENCE, may=_MAY, invariants="usage does not add up"))
def usage_total_with_drafts(counts: TokenCounts, sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Counts all draft tokens in the total of its usage."""
    return replace(counts, total=counts.total + sum(sum(sequence.drafted) for sequence in sequences))


@fault(after="end", expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the finish_reason is wrong"))
def stop_at_limit(reason: str | None) -> str | None:
    """Gives answers that reach max_tokens the finish_reason stop."""
    return "stop" if reason else None


@fault(after="finish", expected=in_(Place.REFERENCE, may=_MAY, invariants="the finish_reason is wrong"))
def finish_missing(reason: str | None, *, stream: bool) -> str | None:
    """Gives whole answers no finish_reason."""
    return reason if stream else None


class _Named(Text):
    """A text with the name of an end of sequence at its end."""

    def end(self) -> None:
        super().end()
        self.whole += "<|im_end|>"


@fault(instead_of="text", expected=in_(Place.REFERENCE, may=_MAY, invariants="special tokens stand in the text"))
def special_token_leaks(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Writes the name of an end of sequence after every text."""
    return _Named(pieces, stops)


class _AtEdges(Text):
    """A text with an error at the end of each step.

    Subclasses say which one.
    """

    def release(self, *, ended: bool) -> str:
        """Go wrong before the step's text is released."""
        self._end_step()
        return super().release(ended=ended)

    def _end_step(self) -> None:
        """Do what is wrong."""


class _Doubled(_AtEdges):
    """A text with the last character of each step twice."""

    def _end_step(self) -> None:
        self.whole += self.whole[-1:]


class _Broken(_AtEdges):
    """A text with a replacement character after each step."""

    def _end_step(self) -> None:
        self.whole += "\ufffd"


class _Dropped(_AtEdges):
    """A text without the first character of each step of several tokens."""

    def __init__(self, pieces: Sequence[bytes], stops: tuple[str, ...]) -> None:
        super().__init__(pieces, stops)
        self._begun = 0  # characters before the step
        self._tokens = 0  # of the step

    def take(self, token: int) -> None:
        self._tokens += 1
        super().take(token)

    def _end_step(self) -> None:
        if self._tokens > 1:
            self.whole = self.whole[: self._begun] + self.whole[self._begun + 1 :]
        self._begun, self._tokens = len(self.whole), 0


@fault(instead_of="text", expected=in_(Place.REFERENCE, may=_MAY, invariants="the same tokens are given as another text"))
def window_edge_doubled(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Gives the last character of a verify step twice."""
    return _Doubled(pieces, stops)


@fault(instead_of="text", expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the same tokens are given as another text"))
def window_edge_dropped(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Drops the first character of every verify step of two tokens or more."""
    return _Dropped(pieces, stops)


@fault(instead_of="text", expected=in_(Place.REFERENCE, may=_MAY, invariants="the text has broken characters"))
def window_edge_broken(pieces: Sequence[bytes], stops: tuple[str, ...]) -> Text:
    """Ends a character at the end of every verify step, finished or not, and writes U+FFFD for it."""
    return _Broken(pieces, stops)


@fault(after=("response.chunk", "response.whole"), expected=in_(Place.REFERENCE, may=_MAY, invariants="token ids and text disagree"))
def ids_swapped(body: dict[str, Any]) -> dict[str, Any]:
    """Reports the second and third token of an answer in each other's place; the text is right."""
    for choice in body["choices"]:
        if "token_ids" in choice:
            choice["token_ids"][1:3] = choice["token_ids"][1:3][::-1]
    return body


@fault(
    around="counters.count_step", expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the speculation counters do not add up")
)
def counters_accept_more(count: Callable[[int, int], None], drafted: int, accepted: int) -> None:
    """Counts one draft token for each verify step, however many were drafted, and all accepted ones."""
    count(min(drafted, 1), accepted)


@fault(
    instead_of="counters.count_step", expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the speculation counters stand still")
)
def counters_frozen() -> None:
    """Counts no draft at all in its metrics."""
