"""Faults of streams: text that is lost, doubled or moved between a step and its chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdec_reference.faults.planted import TEXT_WRONG, Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.emission import StreamState
    from specdec_reference.sequence import Delta

_THIRD: Final = 2


def spoken_part(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return what a chunk says, to be changed in place: the delta of a conversation, the choice itself of a completion."""
    choice: dict[str, Any] = chunk["choices"][0]
    delta: dict[str, Any] = choice.get("delta", choice)
    return delta


def silence(chunk: dict[str, Any]) -> dict[str, Any]:
    """Take all text out of a chunk and return it."""
    parts = spoken_part(chunk)
    names = ("content", "text", "reasoning", "tool_calls")
    return {name: parts.pop(name) for name in names if name in parts}


@fault(
    instead_of="send",
    expected=in_(Place.REFERENCE, Place.VLLM, may=TEXT_WRONG, tools="the end of the text is lost|tool arguments are lost"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_tail_lost(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:  # noqa: ARG001 - a rule's signature
    """Ends a stream without the text of its last step."""
    if delta.finish_reason is not None:
        silence(chunk)
    return [chunk]


@fault(
    instead_of="send",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="a part of the text comes twice|not valid JSON"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_step_twice(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:
    """Streams the text of the third step twice."""
    if state.chunks != _THIRD or delta.finish_reason is not None:
        return [chunk]
    copy = {**chunk, "choices": [{name: value for name, value in chunk["choices"][0].items() if name not in {"token_ids", "logprobs"}}]}
    return [copy, chunk]


@fault(
    instead_of="send",
    expected=in_(Place.REFERENCE, Place.VLLM, may=TEXT_WRONG, tools="a part of the text is lost|tool arguments are lost"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_step_lost(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:
    """Streams nothing of the text of the third step."""
    if state.chunks == _THIRD and delta.finish_reason is None:
        silence(chunk)
    return [chunk]


@fault(
    instead_of="show",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="characters that go over several tokens are lost"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_characters_lost(delta: Delta, pieces: Rows[bytes]) -> str:
    """Decodes the tokens of each step alone, and leaves out characters that go over two steps."""
    return delta.text if delta.reasoning else b"".join(pieces[token] for token in delta.tokens).decode("utf-8", "ignore")


@fault(
    instead_of="send",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="parts of the text are out of order|not valid JSON"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_out_of_order(chunk: dict[str, Any], delta: Delta, state: StreamState) -> list[dict[str, Any]]:
    """Streams the text of the third step behind that of the fourth."""
    if state.chunks == _THIRD and delta.finish_reason is None:
        state.memory["late"] = silence(chunk)
        return [chunk]
    late = state.memory.pop("late", None)
    if not isinstance(late, dict):
        return [chunk]
    late_text, current_text = late, silence(chunk)
    for name, value in {**current_text, **late_text}.items():
        spoken_part(chunk)[name] = current_text.get(name, value[:0]) + late_text.get(name, value[:0])
    return [chunk]
