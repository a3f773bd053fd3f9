"""Planted faults of the end of reasoning, and of its token budget, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TEXT_WRONG, Place, fault, in_
from specdec_reference.faults.streaming import spoken_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from specdec_reference.emission import TokenCounts
    from specdec_reference.faults.streaming import WriteChunk
    from specdec_reference.reasoning import ReasoningSplit
    from specdec_reference.sequence import Delta, RunningSequence
    from specdec_reference.tool_calls import ToolCallReader


@fault(
    after="response.chunk",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="the reasoning leaks into the answer"),
    reasons=True,
    mirrors=("vllm-project/vllm#46118", "local-inference-lab/vllm#22"),
)
def reasoning_leaks(chunk: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Streams a step in which the reasoning ends as text, all of it."""
    if delta.reasoning and delta.text:  # the end lies within the step
        parts = spoken_part(chunk)
        parts["content"] = parts.pop("reasoning") + (parts.get("content") or "")
    return chunk


@fault(
    around="response.chunk",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="a part of the text is lost|a tool call is delivered as text"),
    reasons=True,
    mirrors=("vllm-project/vllm#46118",),
)
def reasoning_end_swallows(chunk: WriteChunk, delta: Delta, reader: ToolCallReader | None) -> dict[str, Any]:
    """Loses the text that follows the end of the reasoning in the same step."""
    return chunk(replace(delta, text="") if delta.reasoning else delta, reader)


@fault(
    after=("response.whole", "response.closing"),  # run on their results: the body of an answer, and a stream's last chunk
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="the reasoning tokens are counted wrongly"),
    reasons=True,
    mirrors=("vllm-project/vllm#46118",),
)
def reasoning_miscounted(body: dict[str, Any]) -> dict[str, Any]:
    """Counts every token of a streamed answer as reasoning."""
    usage, is_last_chunk = body["usage"], not body["choices"]
    if is_last_chunk and "completion_tokens_details" in usage:
        usage["completion_tokens_details"]["reasoning_tokens"] = usage["completion_tokens"]
    return body


@fault(
    after="usage",
    expected=in_(
        Place.REFERENCE,
        may={**TEXT_WRONG, Family.SAMPLING: "It counts the tokens of its answers."},
        invariants="usage counts other tokens than were answered",
    ),
    reasons=True,
    mirrors=("sgl-project/sglang#39826", "sgl-project/sglang#37450"),
)
def reasoning_counts_discarded(counts: TokenCounts, sequences: Rows[RunningSequence]) -> TokenCounts:
    """Counts as reasoning also the accepted tokens that were discarded where the answer ends within its reasoning."""
    # The usage reads `split.tokens` afterwards; the first token is that of the prefill.
    for sequence in sequences:
        split = sequence.reasoning
        if split is not None and split.characters is None:  # the reasoning has not ended
            split.tokens = 1 + sum(accepted + 1 for accepted in sequence.accepted)
    return counts


@fault(
    around="response.chunk",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="the end of the text is lost|a part of the text is lost"),
    reasons=True,
    mirrors=("vllm-project/vllm#43221",),
)
def reasoning_end_lost(chunk: WriteChunk, delta: Delta, reader: ToolCallReader | None) -> dict[str, Any]:
    """Loses the end of the reasoning where text or a tool call follows it in the same step."""
    return chunk(replace(delta, reasoning="") if delta.text else delta, reader)


@fault(
    after="response.whole",
    expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="the end of the text is lost|a part of the text is lost"),
    reasons=True,
    mirrors=("vllm-project/vllm#42781",),
)
def reasoning_cut_short(body: dict[str, Any]) -> dict[str, Any]:
    """Gives the first half of the reasoning of whole answers."""
    for choice in body["choices"]:
        message = choice.get("message", {})
        if "reasoning" in message:
            message["reasoning"] = message["reasoning"][: len(message["reasoning"]) // 2]
    return body


@fault(
    after="force_end",
    expected=in_(Place.REFERENCE, parameters="thinking_token_budget is overrun"),
    reasons=True,
    mirrors=("vllm-project/vllm#39573", "vllm-project/vllm#54906", "jundot/omlx#2455"),
)
def thinking_budget_without_drafts(positions: list[int], drafted: Rows[int]) -> list[int]:
    """Forces the end of the reasoning in steps without a draft only."""
    return [] if drafted else positions


@fault(after="force_end", expected=in_(Place.REFERENCE, parameters="thinking_token_budget is overrun"), reasons=True)
def thinking_budget_by_step(positions: list[int]) -> list[int]:
    """Looks at the budget of the reasoning before a step, so that accepted drafts run over it."""
    return positions if positions[:1] == [0] else []  # position 0 is among them if the budget was spent before the step


@fault(around="force_end", expected=in_(Place.REFERENCE, parameters="thinking_token_budget ends the reasoning early"), reasons=True)
def thinking_budget_counts_drafts(
    force_end: Callable[[ReasoningSplit, Rows[int]], list[int]], split: ReasoningSplit, drafted: Rows[int]
) -> list[int]:
    """Counts the draft tokens of a step against the budget before they are verified."""
    spent = copy(split)
    spent.tokens += len(drafted)  # tokens of the reasoning so far
    return force_end(spent, drafted)
