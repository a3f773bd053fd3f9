"""Rules with a fault of reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.faulty_rules.streaming import said

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.emission import StreamState, TokenCounts
    from specdec_reference.sequence import Delta, RunningSequence


@instead_of("send")
def reasoning_leaks(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send the reasoning of a step that has both as text."""
    if delta.reasoning and delta.text:
        parts = said(chunk)
        parts["content"] = parts.pop("reasoning") + (parts.get("content") or "")
    return [chunk]


@instead_of("show")
def reasoning_end_swallows(delta: Delta, pieces: Rows[bytes]) -> str:  # noqa: ARG001 - a rule's signature
    """Show no text in a step that has reasoning too."""
    return "" if delta.reasoning else delta.text


@instead_of("reply")
def reasoning_miscounted(body: dict[str, Any]) -> dict[str, Any]:
    """Count all tokens as reasoning in a closing chunk."""
    usage = body["usage"]
    if not body["choices"] and "completion_tokens_details" in usage:
        usage["completion_tokens_details"]["reasoning_tokens"] = usage["completion_tokens"]
    return body


@instead_of("usage")
def reasoning_counts_discarded(sequences: Rows[RunningSequence]) -> TokenCounts:
    """Take the tokens that the end of an answer discarded for reasoning, where it had not ended."""
    for sequence in sequences:
        split = sequence.reasoning
        if split is not None and split.characters is None:
            split.tokens = 1 + sum(kept + 1 for kept in sequence.accepted)
    return rules.usage(sequences)
