"""Rules with a fault of stops, ends and limits inside a window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from specdec_reference import rules
from specdec_reference.emission import StopMatch
from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.emission import EmittedToken, StreamState, WrittenText
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.sequence import Delta


@instead_of("match")
def stop_missed_mid_window(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:
    """Look at the last token alone."""
    return rules.match(request, written, token) if token.last else None


@instead_of("match")
def stop_split_missed(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:
    """Look at the window's text alone."""
    found = rules.match(request, written, token)
    return found if found is not None and found.at >= written.before_window else None


@instead_of("match")
def limit_before_stop(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:
    """Look at no window that reaches the limit."""
    behind = token.of - 1 - token.at
    return None if token.count + behind >= request.max_tokens else rules.match(request, written, token)


@instead_of("match")
def text_behind_stop(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:
    """Look at the whole window at its end, and stop there."""
    window = replace(written, before_token=written.before_window)
    found = rules.match(request, window, token) if token.last else None
    return found and StopMatch(stop=found.stop, at=len(written.text))


@instead_of("match")
def stop_said_length(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:
    """Give another reason."""
    found = rules.match(request, written, token)
    return found and replace(found, finish_reason="length")


@instead_of("cut")
def stop_not_cut(request: EngineRequest, found: StopMatch) -> int:  # noqa: ARG001 - a rule's signature
    """Keep the stop string."""
    return found.at + len(found.stop)


@instead_of("cut")
def stop_cut_early(request: EngineRequest, found: StopMatch) -> int:
    """Take one character more."""
    return max(0, rules.cut(request, found) - 1)


@instead_of("cut")
def include_stop_ignored(request: EngineRequest, found: StopMatch) -> int:  # noqa: ARG001 - a rule's signature
    """Keep nothing."""
    return found.at


@instead_of("end")
def stop_ids_at_last_only(request: EngineRequest, token: EmittedToken) -> str | None:
    """See stop ids at the last token."""
    return rules.end(request, replace(token, stop_id=token.stop_id and token.last))


@instead_of("end")
def stop_ids_ignored(request: EngineRequest, token: EmittedToken) -> str | None:
    """See no stop ids."""
    return rules.end(request, replace(token, stop_id=False))


@instead_of("end")
def end_missed_mid_window(request: EngineRequest, token: EmittedToken) -> str | None:
    """See an end of sequence at the last token."""
    return rules.end(request, replace(token, eos=token.eos and token.last))


@instead_of("end")
def ignore_eos_dropped(request: EngineRequest, token: EmittedToken) -> str | None:
    """End at a draft token."""
    return "stop" if token.eos and not token.last else rules.end(request, token)


@instead_of("end")
def limit_undershot(request: EngineRequest, token: EmittedToken) -> str | None:
    """End where the next window might not fit."""
    full = token.last and token.count + token.of > request.max_tokens
    return rules.end(request, token) or ("length" if full else None)


@instead_of("behind")
def limit_overrun(finish_reason: str | None, left: int) -> int:
    """Keep what stands behind a limit."""
    return left if finish_reason == "length" else 0


@instead_of("held_back")
def min_tokens_in_steps(request: EngineRequest, emitted: int, steps: int) -> int:  # noqa: ARG001 - a rule's signature
    """Count steps."""
    return max(0, request.min_tokens - steps)


@instead_of("forbid")
def min_tokens_at_bonus(logits: NDArray[np.float32], ids: Sequence[int], held: int) -> None:
    """Forbid at the last position."""
    if held >= len(logits):
        rules.forbid(logits[-1:], ids, 1)


@instead_of("send")
def stop_reason_lost(chunk: dict[str, JSON], delta: Delta, state: StreamState) -> list[dict[str, JSON]]:
    """Name none where the last step brought several tokens."""
    lost = len(delta.tokens) > 1 and delta.stop_reason is not None
    return rules.send(_stopped_by(chunk, None) if lost else chunk, delta, state)


@instead_of("send")
def stop_reason_first_id(chunk: dict[str, JSON], delta: Delta, state: StreamState) -> list[dict[str, JSON]]:
    """Name the lowest id."""
    by_id = isinstance(delta.stop_reason, int)
    return rules.send(_stopped_by(chunk, min(delta.sequence.request.stop_ids)) if by_id else chunk, delta, state)


def _stopped_by(chunk: dict[str, JSON], stop: int | None) -> dict[str, JSON]:
    (choice,) = cast("list[dict[str, JSON]]", chunk["choices"])
    return chunk | {"choices": [choice | {"stop_reason": stop}]}


@instead_of("completion_tokens")
def usage_counts_discarded(emitted: int, discarded: int) -> int:
    """Count the whole window."""
    return emitted + discarded
