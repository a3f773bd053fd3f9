"""Planted faults of the end of the server's or drafter's context, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference import rules
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from specdec_reference.emission import EmittedToken
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sequence import Delta

_WINDOW: Final = 4  # tokens of a verify step with three draft tokens
LONG_PROMPT = {Family.LIVENESS: "One of its prompts is long."}


@fault(after="keep", expected=in_(Place.REFERENCE, context="tokens near the context limit are wrong"))
def context_clamped(cache_lengths: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Holds the cache length one window before the end of the context, so that the last positions come again."""
    return np.minimum(cache_lengths, most - 2 * _WINDOW)


@fault(around="batch.hand_out", expected=in_(Place.REFERENCE, context="tokens near the context limit are wrong"))
def context_last_token(
    hand_out: Callable[..., list[Delta]],
    draft: DraftProposal,
    windows: VerifyWindows,
    logits: NDArray[np.float32],
    engine: ReferenceEngine,
) -> list[Delta]:
    """Emits another token at the very last position of the context."""
    lengths_after = np.array([len(row.tokens) for row in engine.batch.rows]) + windows.accepted + 1  # prompt included
    other_tokens = (windows.last + 1) % logits.shape[1]  # for the last one of each window
    is_at_limit = lengths_after == engine.settings.max_model_len
    return hand_out(draft, replace(windows, last=np.where(is_at_limit, other_tokens, windows.last)), logits)


@fault(
    before="shrink",
    expected=in_(Place.REFERENCE, context="the server dies on"),
    alone=True,
    mirrors=("snowflakedb/ArcticInference#60",),
)
def context_deadly(room: NDArray[np.intp]) -> None:
    """Kills the server where a whole window no longer fits the context."""
    if (room < _WINDOW).any():
        msg = "no room for a window"
        raise RuntimeError(msg)


@fault(after="end", expected=in_(Place.REFERENCE, Place.VLLM, context="answers end before the context does"))
def context_ends_early(reason: str | None, token: EmittedToken) -> str | None:
    """Ends answers by length where a whole window no longer fits the context."""
    return reason or ("length" if token.room < _WINDOW else None)


@fault(instead_of="fits", expected=in_(Place.REFERENCE, context="sequences that fit the context are refused"))
def context_refused(prompt_tokens: int, max_tokens: int, context: int) -> bool:
    """Refuses requests that leave no room for a whole window behind their answer."""
    return rules.fits(prompt_tokens, max_tokens + _WINDOW, context)


@fault(
    instead_of="fits",
    expected=in_(
        Place.REFERENCE,
        may={Family.INVARIANTS: "Its usage counts a sequence longer than the context."},
        context="sequences beyond the context are answered",
    ),
)
def context_admitted(prompt_tokens: int, max_tokens: int, context: int) -> bool:
    """Admits requests one token longer than the context."""
    return rules.fits(prompt_tokens, max_tokens - 1, context)


@fault(
    before="shrink",
    expected=in_(Place.REFERENCE, may=LONG_PROMPT, context="the server dies on"),
    drafting={"max_model_len": 128},
    alone=True,
    mirrors=(
        *("vllm-project/vllm#24662", "vllm-project/vllm#48894", "NVIDIA/TensorRT-LLM#4879"),
        *("vllm-project/vllm#40756", "vllm-project/vllm#49230"),
    ),
)
def draft_context_deadly(drafter_room: NDArray[np.intp]) -> None:
    """Kills the server when a sequence is longer than the draft model's context."""
    if (drafter_room < 0).any():
        msg = "beyond the positions of the draft"
        raise RuntimeError(msg)


@fault(
    before="shrink",
    expected=in_(Place.REFERENCE, context="the server hangs on"),
    alone=True,
    mirrors=("vllm-project/vllm#44185", "vllm-project/vllm#49027"),
)
def context_hang(room: NDArray[np.intp]) -> None:
    """Never goes on where a whole window no longer fits the context."""
    if (room < _WINDOW).any():
        threading.Event().wait()
