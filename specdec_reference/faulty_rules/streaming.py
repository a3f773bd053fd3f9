"""Rules with a fault of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.emission import StreamState
    from specdec_reference.sequence import Delta

_THIRD: Final = 2


def said(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return what a chunk says, to be changed in place: the delta of a conversation, the choice itself of a completion."""
    choice: dict[str, Any] = chunk["choices"][0]
    delta: dict[str, Any] = choice.get("delta", choice)
    return delta


def silence(chunk: dict[str, Any]) -> dict[str, Any]:
    """Take all text out of a chunk and return it."""
    parts = said(chunk)
    names = ("content", "text", "reasoning", "tool_calls")
    return {name: parts.pop(name) for name in names if name in parts}


@instead_of("send")
def stream_tail_lost(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Send the last chunk with its finish_reason alone."""
    if delta.finish_reason is not None:
        silence(chunk)
    return [chunk]


@instead_of("send")
def stream_step_twice(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:
    """Send a chunk, and its text again without ids."""
    if state.chunks != _THIRD or delta.finish_reason is not None:
        return [chunk]
    again = {**chunk, "choices": [{name: value for name, value in chunk["choices"][0].items() if name not in {"token_ids", "logprobs"}}]}
    return [again, chunk]


@instead_of("send")
def stream_step_lost(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:
    """Send the ids of a chunk without the text."""
    if state.chunks == _THIRD and delta.finish_reason is None:
        silence(chunk)
    return [chunk]


@instead_of("show")
def stream_characters_lost(delta: Delta, pieces: Rows[bytes]) -> str:
    """Decode the bytes of one step as if nothing came before and behind."""
    return delta.text if delta.reasoning else b"".join(pieces[token] for token in delta.tokens).decode("utf-8", "ignore")


@instead_of("send")
def stream_out_of_order(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:
    """Keep the text of one chunk back for a chunk of its own behind the next."""
    if state.chunks == _THIRD and delta.finish_reason is None:
        state.memory["late"] = silence(chunk)
        return [chunk]
    late = state.memory.pop("late", None)
    if not isinstance(late, dict):
        return [chunk]
    parts, first = late, silence(chunk)
    for name, value in {**first, **parts}.items():
        said(chunk)[name] = first.get(name, value[:0]) + parts.get(name, value[:0])
    return [chunk]
