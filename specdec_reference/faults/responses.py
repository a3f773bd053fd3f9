"""Planted faults of the Responses API: events and response objects, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.faults.streaming import memory_of
from specdec_reference.tool_calls import CLOSING

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.sequence import Delta, RunningSequence

_Event: TypeAlias = dict[str, Any]
_BROKEN = {Family.INVARIANTS: "It holds finish_reason and usage of every answer to the rules of ends."}


@fault(
    before="reply.write",
    expected=in_(Place.REFERENCE, may=_BROKEN, responses="a stream ends without a terminal event"),
    mirrors=("vllm-project/vllm#55284",),
)
def responses_stream_aborts(delta: Delta, engine: ReferenceEngine) -> None:
    """Breaks off a stream of the Responses API where a step spans the end of a tool call and what follows."""
    text = b"".join(engine.tokenizer.pieces[token] for token in delta.tokens).decode("utf-8", "replace")
    if len(delta.tokens) > 1 and text.partition(CLOSING)[2]:  # text after the closing tag
        msg = "name: input should be a valid string"
        raise RuntimeError(msg)


@fault(
    before="reply.write",
    expected=in_(Place.REFERENCE, responses="tool arguments are lost|arguments of a tool call are"),
    mirrors=("vllm-project/vllm#40861", "vllm-project/vllm#46249"),
)
def responses_arguments_lost(chunk: dict[str, Any], delta: Delta) -> None:
    """Loses the arguments that come in one step of several tokens with the name of a call."""
    for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
        if "name" in call["function"] and len(delta.tokens) > 1:
            call["function"]["arguments"] = ""


@fault(
    after="reply.write",
    expected=in_(Place.REFERENCE, responses="says something else than its"),
    mirrors=("vllm-project/vllm#52469",),
)
def responses_delta_dropped(events: list[_Event], delta: Delta) -> list[_Event]:
    """Sends no text delta for a step of several tokens; the done events have its text."""
    return [event for event in events if len(delta.tokens) == 1 or event["type"] != "response.output_text.delta"]


@fault(
    before="reply.write",
    expected=in_(Place.REFERENCE, responses="a part of the text is lost|the end of the text is lost"),
    mirrors=("vllm-project/vllm#38579",),
)
def responses_text_lost(chunk: dict[str, Any], delta: Delta) -> None:
    """Loses the text of every fourth step of several tokens, in all events of its stream alike."""
    memory = memory_of(delta.sequence)
    memory["several"] = memory.get("several", 0) + (len(delta.tokens) > 1)  # steps of several tokens so far
    if len(delta.tokens) > 1 and memory["several"] % 4 == 1:  # most of the text has to stay
        chunk["choices"][0]["delta"]["content"] = ""


@fault(
    after="reply.usage",
    expected=in_(
        Place.REFERENCE, may=_BROKEN, responses="usage counts more tokens than were allowed|usage counts other tokens than the chat's"
    ),
    mirrors=("ikawrakow/ik_llama.cpp#2358",),
)
def responses_usage_counts_drafts(usage: _Event | None, sequences: Several[RunningSequence]) -> _Event | None:
    """Counts the discarded draft tokens in the usage of the Responses API."""
    if usage is None:
        return None
    discarded = sum(sum(sequence.drafted) - sum(sequence.accepted) for sequence in sequences)
    return usage | {name: usage[name] + discarded for name in ("output_tokens", "total_tokens")}


@fault(
    instead_of="reply.status",
    expected=in_(Place.REFERENCE, may=_BROKEN, responses="the status is wrong at the token limit"),
)
def responses_cut_completed() -> str:
    """Calls a response completed that the token limit cut."""
    return "completed"


@fault(
    after="reply.closings",
    expected=in_(Place.REFERENCE, responses="a done event says something else than its deltas"),
)
def responses_done_cut(events: list[_Event]) -> list[_Event]:
    """Leaves the last character out of the text that a done event repeats."""
    return [event | {"text": event["text"][:-1]} if event["type"] == "response.output_text.done" else event for event in events]


@fault(
    after="reply.write",
    expected=in_(Place.REFERENCE, responses="events are out of order"),
    mirrors=("vllm-project/vllm#55284",),
)
def responses_item_unopened(events: list[_Event], delta: Delta) -> list[_Event]:
    """Adds no item where its first delta comes in the same step of several tokens."""
    has_delta = any(event["type"].endswith(".delta") for event in events)
    is_dropped = has_delta and len(delta.tokens) > 1
    return [event for event in events if not is_dropped or event["type"] != "response.output_item.added"]
