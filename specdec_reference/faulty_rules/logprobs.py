"""Rules with a fault of reported log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.openai_response import Entry
    from specdec_reference.rejection_sampler import DraftProposal

_NO_MASS: Final = 1e-30
"""Stands for a probability of 0, of which JSON has no logarithm."""
_WARM: Final = 0.8


@instead_of("report")
def report_draft_logprobs(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:
    """Report the draft's log-probabilities for accepted tokens."""
    accepted = np.arange(len(logits) - 1)
    reported = logits.copy()
    reported[accepted] = np.log(np.maximum(draft.distribution(np.full(len(accepted), row), accepted, logits.shape[1]), _NO_MASS))
    return reported


@instead_of("report")
def report_warm_logprobs(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Report log-probabilities after a temperature."""
    return logits / np.float32(_WARM)


@instead_of("list_entries")
def logprobs_zero(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Report a probability of 1."""
    return [replace(entry, logprob=0.0) for entry in entries]


@instead_of("list_entries")
def logprobs_first_only(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Report a probability of 1 behind the first token."""
    return [*entries[:1], *(replace(entry, logprob=0.0) for entry in entries[1:])]


@instead_of("list_entries")
def logprobs_constant(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Report one value for every token."""
    return [replace(entry, logprob=-1.0) for entry in entries]


@instead_of("list_entries")
def logprobs_none_accepted(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Report null for accepted draft tokens."""
    return [*(replace(entry, logprob=None) for entry in entries[:-1]), *entries[-1:]]  # type: ignore[arg-type]


@instead_of("list_entries")
def logprobs_last_only(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Report one entry a step."""
    return entries[-1:]


@instead_of("list_entries")
def logprobs_shifted(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Give each token the value of the one before it in the window."""
    return [replace(entry, logprob=before.logprob) for entry, before in zip(entries, [*entries[-1:], *entries[:-1]], strict=True)]


@instead_of("list_entries")
def logprobs_not_streamed(request: EngineRequest, entries: list[Entry]) -> list[Entry]:
    """Report nothing in streams."""
    return [] if request.stream else entries


@instead_of("list_entries")
def top_logprobs_fewer(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """List one most probable token fewer than asked."""
    return [replace(entry, top=entry.top[:-1]) for entry in entries]


@instead_of("list_entries")
def top_logprobs_unsorted(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """List the most probable tokens backwards."""
    return [replace(entry, top=entry.top[::-1]) for entry in entries]


@instead_of("list_entries")
def top_logprobs_of_next(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """List the most probable tokens of the position behind."""
    return [replace(entry, top=after.top) for entry, after in zip(entries, [*entries[1:], *entries[-1:]], strict=True)]


@instead_of("report_prompt")
def prompt_logprobs_shifted(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Report each prompt token under the distribution one position early."""
    return np.concatenate([logits[:1], logits[:-1]])


_BLOCK: Final = 16


@instead_of("report_prompt")
def prompt_logprobs_blocks(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Report noise for the last block of prompts that fill their blocks exactly."""
    if (len(logits) + 1) % _BLOCK:
        return logits
    return np.concatenate([logits[:-_BLOCK], -logits[-_BLOCK:]])


def _echo(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the choice of a completions answer that begins with its prompt; the first token has no log-probability."""
    choice = body["choices"][0] if body["choices"] else {}
    lists = choice.get("logprobs") or {}
    return choice if (lists.get("token_logprobs") or [0.0])[0] is None else None


@instead_of("reply")
def echo_torn(body: dict[str, Any]) -> dict[str, Any]:
    """Begin an echo with its second character."""
    if (choice := _echo(body)) is not None:
        choice["text"] = choice["text"][1:]
    return body


@instead_of("reply")
def echo_lists_short(body: dict[str, Any]) -> dict[str, Any]:
    """Leave the last token of the prompt out of its lists."""
    if (choice := _echo(body)) is not None:
        for listed in choice["logprobs"].values():
            del listed[body["usage"]["prompt_tokens"] - 1]
    return body


@instead_of("reply")
def echo_logprobs_shifted(body: dict[str, Any]) -> dict[str, Any]:
    """Give each token of the prompt the value of the one before it."""
    if (choice := _echo(body)) is not None:
        values, count = choice["logprobs"]["token_logprobs"], body["usage"]["prompt_tokens"]
        values[2:count] = values[1 : count - 1]
    return body


@instead_of("admit")
def logprobs_fail(request: EngineRequest) -> None:
    """Fail with an exception on a request for log-probabilities."""
    if request.logprobs is not None:
        msg = "unsupported operand type(s) for +: 'NoneType' and 'float'"
        raise TypeError(msg)
