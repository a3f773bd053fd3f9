"""Planted faults of streams, for suites to detect: text lost, doubled or moved between a step and its chunk.

Each wraps the method named by its decorator. A delta has the tokens and text of one step of a sequence; the engine writes it as one chunk.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from specdec_reference.faults.planted import TEXT_WRONG, Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.sequence import Delta, RunningSequence
    from specdec_reference.tool_calls import ToolCallReader

WriteChunk: TypeAlias = "Callable[[Delta, ToolCallReader | None], dict[str, Any]]"
_THIRD: Final = 2
_QUOTATION: Final = re.compile("[\"'\u2018\u2019\u201c\u201d]")
_MEMORY: WeakKeyDictionary[RunningSequence, dict[str, Any]] = WeakKeyDictionary()
"""By sequence: what a fault knows of its stream so far."""


def memory_of(sequence: RunningSequence) -> dict[str, Any]:
    """Return the memory of one sequence's stream."""
    return _MEMORY.setdefault(sequence, {})


def _count_chunks(sequence: RunningSequence) -> int:
    """Count a chunk of a stream; return the number of those before it."""
    memory = memory_of(sequence)
    memory["chunks"] = memory.get("chunks", 0) + 1
    return int(memory["chunks"]) - 1


def spoken_part(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a chunk that holds its text, to be changed in place.

    It is the delta of a conversation, and the choice itself of a completion.
    """
    choice: dict[str, Any] = chunk["choices"][0]
    delta: dict[str, Any] = choice.get("delta", choice)
    return delta


def silence(chunk: dict[str, Any]) -> dict[str, Any]:
    """Take all text out of a chunk and return it."""
    parts = spoken_part(chunk)
    names = ("content", "text", "reasoning", "tool_calls")
    return {name: parts.pop(name) for name in names if name in parts}


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, Place.VLLM, may=TEXT_WRONG, tools="the end of the text is lost|tool arguments are lost"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_tail_lost(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Ends a stream without the text of its last step."""
    if delta.finish_reason is not None:
        silence(chunk)
    return chunk


@fault(
    after="response.chunks",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="a part of the text comes twice|not valid JSON"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_step_twice(chunks: list[dict[str, Any]], deltas: Rows[Delta]) -> list[dict[str, Any]]:
    """Streams the text of the third step twice."""
    sent = []
    for chunk, delta in zip(chunks, deltas, strict=True):
        if _count_chunks(delta.sequence) == _THIRD and delta.finish_reason is None:
            (choice,) = chunk["choices"]
            # The text alone comes twice, not its tokens.
            sent.append({**chunk, "choices": [{name: choice[name] for name in choice if name not in {"token_ids", "logprobs"}}]})
        sent.append(chunk)
    return sent


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, Place.VLLM, may=TEXT_WRONG, tools="a part of the text is lost|tool arguments are lost"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_step_lost(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams nothing of the text of the third step."""
    if _count_chunks(delta.sequence) == _THIRD and delta.finish_reason is None:
        silence(chunk)
    return chunk


@fault(
    around="response.chunk",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="characters that go over several tokens are lost"),
    mirrors=("vllm-project/vllm#39253", "vllm-project/vllm#52469"),
)
def stream_characters_lost(chunk: WriteChunk, delta: Delta, reader: ToolCallReader | None, engine: ReferenceEngine) -> dict[str, Any]:
    """Decodes the tokens of each step alone, and leaves out characters that go over two steps."""
    step_bytes = b"".join(engine.tokenizer.pieces[token] for token in delta.tokens)
    return chunk(delta if delta.reasoning else replace(delta, text=step_bytes.decode("utf-8", "ignore")), reader)


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="parts of the text are out of order|not valid JSON"),
    mirrors=("vllm-project/vllm#39253",),
)
def stream_out_of_order(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams the text of the third step after that of the fourth."""
    memory = memory_of(delta.sequence)
    if _count_chunks(delta.sequence) == _THIRD and delta.finish_reason is None:
        memory["late"] = silence(chunk)
        return chunk
    late = memory.pop("late", None)
    if not isinstance(late, dict):  # no text was held back by the chunk before
        return chunk
    late_text, current_text = late, silence(chunk)
    for name, value in {**current_text, **late_text}.items():  # value[:0] is nothing of the same type
        spoken_part(chunk)[name] = current_text.get(name, value[:0]) + late_text.get(name, value[:0])
    return chunk


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="a part of the text is lost|the end of the text is lost"),
    mirrors=("vllm-project/vllm#52469",),
)
def stream_quotes_lost(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams of a step of several tokens what comes before a quotation mark in it, and loses the rest."""
    parts = spoken_part(chunk)
    for name in ("content", "text"):
        if len(delta.tokens) > 1 and parts.get(name):
            parts[name] = _QUOTATION.split(parts[name], maxsplit=1)[0]
    return chunk
