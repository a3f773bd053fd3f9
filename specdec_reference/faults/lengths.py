"""Planted faults of stops, ends and limits within a verify window, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pytest_specdec.model.workload import Family
from specdec_reference import rules
from specdec_reference.emission import StopMatch
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.emission import EmittedToken, TokenCounts, WrittenText
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.sampler import Entry
    from specdec_reference.sequence import Delta, RunningSequence

OTHERS = [family for family in Family if family not in {Family.LENGTHS, Family.SPEED}]
EVERYWHERE: dict[Family, str] = dict.fromkeys(OTHERS, "Every family sees how its own answers end.")
LIVE: dict[Family, str] = dict.fromkeys(
    (Family.LIVENESS, Family.INVARIANTS, Family.PARAMETERS), "Some of its requests have a stop string, or ignore the end of sequence."
)


@fault(
    after="match",
    expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="a stop string inside a window is missed"),
    mirrors=("sgl-project/sglang#23802", "openvinotoolkit/openvino.genai#1719"),
)
def stop_missed_mid_window(stop_match: StopMatch | None, token: EmittedToken) -> StopMatch | None:
    """Looks for a stop string at the last token of a window only."""
    return stop_match if token.last else None


@fault(after="match", expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="a stop string over two windows is missed"))
def stop_split_missed(stop_match: StopMatch | None, written: WrittenText) -> StopMatch | None:
    """Looks for a stop string in each window alone, so that one over two windows is missed."""
    return stop_match if stop_match is not None and stop_match.at >= written.before_window else None


@fault(
    after="match",
    expected=in_(Place.REFERENCE, may=LIVE, lengths="the limit goes before a stop in the same window"),
    mirrors=("sgl-project/sglang#31599",),
)
def limit_before_stop(stop_match: StopMatch | None, request: EngineRequest, token: EmittedToken) -> StopMatch | None:
    """Looks for no stop string in a window that reaches max_tokens."""
    further_tokens = token.window_tokens - 1 - token.position
    return None if token.count + further_tokens >= request.max_tokens else stop_match


@fault(instead_of="cut", expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="the stop string stays in the text"))
def stop_not_cut(stop_match: StopMatch) -> int:
    """Leaves the stop string at the end of the text."""
    return stop_match.at + len(stop_match.stop)


@fault(after="cut", expected=in_(Place.REFERENCE, may=LIVE, lengths="the stop string is cut from the wrong place"))
def stop_cut_early(length: int) -> int:
    """Cuts the text one character before the stop string."""
    return max(0, length - 1)


@fault(
    instead_of="match",
    expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="what stands after the stop is delivered too"),
    mirrors=("openvinotoolkit/openvino.genai#1951",),
)
def text_behind_stop(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:
    """Delivers the whole window in which a stop string ends, and stops after it."""
    window = replace(written, before_token=written.before_window)
    stop_match = rules.match(request, window, token) if token.last else None
    return stop_match and StopMatch(stop=stop_match.stop, at=len(written.text))


@fault(instead_of="cut", expected=in_(Place.REFERENCE, may=LIVE, lengths="include_stop_str_in_output is ignored"))
def include_stop_ignored(stop_match: StopMatch) -> int:
    """Cuts the stop string off also where include_stop_str_in_output asks for it."""
    return stop_match.at


@fault(after="match", expected=in_(Place.REFERENCE, may=LIVE, lengths="finish_reason says length for a stop"))
def stop_said_length(stop_match: StopMatch | None) -> StopMatch | None:
    """Gives the finish_reason length to an answer that a stop string ended."""
    return stop_match and replace(stop_match, finish_reason="length")


@fault(instead_of="end", expected=in_(Place.REFERENCE, Place.VLLM, lengths="a stop token inside a window is ignored"))
def stop_ids_at_last_only(request: EngineRequest, token: EmittedToken) -> str | None:
    """Looks for stop_token_ids at the last token of a window only."""
    return rules.end(request, replace(token, stop_id=token.stop_id and token.last))


@fault(instead_of="end", expected=in_(Place.REFERENCE, lengths="a stop token inside a window is ignored"))
def stop_ids_ignored(request: EngineRequest, token: EmittedToken) -> str | None:
    """Stops at none of the stop_token_ids."""
    return rules.end(request, replace(token, stop_id=False))


@fault(
    instead_of="end",
    expected=in_(Place.REFERENCE, Place.VLLM, may=EVERYWHERE, lengths="an end of sequence inside a window is ignored"),
    mirrors=("huggingface/transformers#31301", "huggingface/transformers#47912"),
)
def end_missed_mid_window(request: EngineRequest, token: EmittedToken) -> str | None:
    """Looks for an end of sequence at the last token of a window only."""
    return rules.end(request, replace(token, eos=token.eos and token.last))


@fault(instead_of="end", expected=in_(Place.REFERENCE, may=LIVE, lengths="an end of sequence ends an answer despite ignore_eos"))
def ignore_eos_dropped(request: EngineRequest, token: EmittedToken) -> str | None:
    """Ends an answer at an accepted draft token that is an end of sequence, whatever ignore_eos says."""
    return "stop" if token.eos and not token.last else rules.end(request, token)


@fault(instead_of="held_back", expected=in_(Place.REFERENCE, lengths="min_tokens is counted in steps"))
def min_tokens_in_steps(request: EngineRequest, steps: int) -> int:
    """Counts min_tokens in verify steps."""
    return max(0, request.min_tokens - steps)


@fault(
    instead_of="forbid",
    expected=in_(
        Place.REFERENCE,
        Place.VLLM,
        may={Family.INVARIANTS: "It knows the limits that requests ask for."},
        lengths="min_tokens is not reached",
    ),
)
def min_tokens_at_bonus(logits: NDArray[np.float32], ids: Sequence[int], held: int) -> None:
    """Keeps ends of sequence from the last position of a window only until min_tokens is reached."""
    if held >= len(logits):
        rules.forbid(logits[-1:], ids, 1)


@fault(
    after="sequence.take", expected=in_(Place.REFERENCE, Place.VLLM, may=EVERYWHERE, lengths="max_tokens is overrun by part of a window")
)
def limit_overrun(delta: Delta, window: Sequence[int], entries: Sequence[Entry]) -> Delta:
    """Hands out the whole window in which max_tokens is reached."""
    sequence, emitted_count = delta.sequence, len(delta.tokens)
    if delta.finish_reason != "length" or emitted_count == len(window):  # the limit cut nothing
        return delta
    for token in window[emitted_count:]:
        sequence.tokens.append(token)
        sequence.text.take(token)
    sequence.entries.extend(entries[emitted_count:])
    text = sequence.text.release(ended=True)
    reasoning, text = ("", text) if sequence.reasoning is None else sequence.reasoning.split_next(text)  # as sequence.take does
    return replace(delta, tokens=tuple(window), text=delta.text + text, reasoning=delta.reasoning + reasoning, entries=tuple(entries))


@fault(after="end", expected=in_(Place.REFERENCE, Place.VLLM, may=EVERYWHERE, lengths="max_tokens is undershot by part of a window"))
def limit_undershot(reason: str | None, request: EngineRequest, token: EmittedToken) -> str | None:
    """Ends an answer by length where another window as long as the last no longer fits."""
    is_full = token.last and token.count + token.window_tokens > request.max_tokens
    return reason or ("length" if is_full else None)


@fault(after="response.chunk", expected=in_(Place.REFERENCE, lengths="stop_reason is missing"))
def stop_reason_lost(chunk: dict[str, JSON], delta: Delta) -> dict[str, JSON]:
    """Names no stop_reason in the stream of an answer that ends within a window."""
    is_lost = len(delta.tokens) > 1 and delta.stop_reason is not None
    return _replace_stop_reason(chunk, None) if is_lost else chunk


@fault(after="response.chunk", expected=in_(Place.REFERENCE, lengths="stop_reason names another stop than the one that ended the answer"))
def stop_reason_first_id(chunk: dict[str, JSON], delta: Delta) -> dict[str, JSON]:
    """Names the lowest of the stop_token_ids as the stop_reason of a stream, whichever ended the answer."""
    is_by_id = isinstance(delta.stop_reason, int)
    return _replace_stop_reason(chunk, min(delta.sequence.request.stop_ids)) if is_by_id else chunk


def _replace_stop_reason(chunk: dict[str, JSON], stop: int | None) -> dict[str, JSON]:
    (choice,) = cast("list[dict[str, JSON]]", chunk["choices"])
    return chunk | {"choices": [choice | {"stop_reason": stop}]}


@fault(
    after="usage",
    expected=in_(Place.REFERENCE, may=EVERYWHERE, lengths="usage counts tokens that were not answered"),
    mirrors=("ikawrakow/ik_llama.cpp#2358",),
)
def usage_counts_discarded(counts: TokenCounts, sequences: Sequence[RunningSequence]) -> TokenCounts:
    """Counts in the usage the accepted tokens that the end of the answer discarded."""
    # The prefill's token, and for each verify step the accepted draft tokens and one more.
    completion = sum(1 + sum(accepted_tokens + 1 for accepted_tokens in sequence.accepted) for sequence in sequences)
    return replace(counts, completion=completion, total=counts.prompt + completion)
