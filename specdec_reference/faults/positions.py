"""Planted faults of the verify step's forward, for suites to detect: what a position sees, where it stands, what is kept of it.

Each wraps the rule or method named by its decorator. A span has n rows of up to t positions. ``live`` has the indices of real ones, None if
all are; ``turns`` are their RoPE rotations, and ``mask`` has the columns from ``shortest`` on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.model import Span
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_LATE: Final = 256
"""Tokens of an answer before a late fault sets in: no sampled answer of the suites is longer."""
_BLOCK: Final = 16
"""Positions of a cache block."""
AFTER_FULL = "state after a fully accepted draft"
WRONG_CONTEXT = TOKENS_WRONG | dict.fromkeys(
    (Family.PARAMETERS, Family.SAMPLING), "Tokens follow from another context than the answer's; temperature 0 shows where it begins."
)


@fault(instead_of="keep", expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy=AFTER_FULL), mirrors=("vllm-project/vllm#39273",))
def kv_short_after_full(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp]) -> NDArray[np.intp]:
    """Keeps one entry too few in the KV cache where the whole draft was accepted."""
    cache_lengths: NDArray[np.intp] = lengths + 1 + accepted - ((accepted == drafted) & (drafted > 0))
    return cache_lengths


@fault(
    after="batch.place",
    expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="draft positions are verified wrongly"),
    mirrors=("vllm-project/vllm-ascend#15329", "vllm-project/vllm#50851"),
)
def drafts_see_ahead(span: Span) -> Span:
    """Lets each draft position see the token after it in the verify step."""
    live_counts = np.full(span.n, span.t) if span.live is None else np.bincount(span.live // span.t, minlength=span.n)
    last_visible = np.minimum(span.positions + 1, (span.positions[:, 0] + live_counts - 1)[:, None])  # at most the row's last
    columns = np.arange(span.shortest, span.longest)
    return replace(span, mask=np.where(columns > last_visible[..., None], np.float32(-np.inf), np.float32(0.0)))


@fault(
    after="batch.place", expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy=AFTER_FULL), mirrors=("huggingface/transformers#30413",)
)
def positions_behind_after_full(span: Span, rows: Rows[RunningSequence], rotations: NDArray[np.complex64]) -> Span:
    """Places tokens one position early for each fully accepted draft before them."""
    row_steps = (zip(row.drafted, row.accepted, strict=True) for row in rows)  # draft tokens by verify step
    full_drafts = np.array([sum(drafted == accepted > 0 for drafted, accepted in steps) for steps in row_steps])
    positions = np.maximum(span.positions - full_drafts[:, None], 0).ravel()
    return replace(span, turns=rotations[positions if span.live is None else positions[span.live]][:, None])


@fault(
    after="batch.place",
    expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="tokens wrong", logprobs="reported log-probabilities or verifier numerics"),
)
def positions_behind_late(span: Span, rows: Rows[RunningSequence], rotations: NDArray[np.complex64]) -> Span:
    """Places tokens a cache block early from the 257th token of an answer on."""
    shifts = np.array([_BLOCK * (len(row.emitted) >= _LATE) for row in rows])
    positions = np.maximum(span.positions - shifts[:, None], 0).ravel()
    return replace(span, turns=rotations[positions if span.live is None else positions[span.live]][:, None])


@fault(
    after="batch.reuse_prefix",
    expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="answers to prompts of exactly one verify window are wrong"),
    mirrors=("vllm-project/vllm#53051",),
)
def prompt_taken_for_window(reused: int, sequence: RunningSequence, engine: ReferenceEngine) -> int:
    """Takes a prompt of exactly one verify window for a decode step, and computes nothing of it but its last token."""
    window = engine.batch.drafter.tokens + 1
    return window - 1 if len(sequence.tokens) == window else reused


@fault(
    before="batch.place",
    expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="state where drafts stop"),
    drafting={"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    mirrors=("vllm-project/vllm#52942",),
)
def stale_where_drafts_stop(rows: Rows[RunningSequence], draft: DraftProposal, engine: ReferenceEngine) -> None:
    """Goes on from the state before the last step's accepted draft tokens where a step has no draft."""
    lost = [row.accepted[-1] if row.accepted and not count else 0 for row, count in zip(rows, draft.counts.tolist(), strict=True)]
    engine.batch.lengths[: len(rows)] -= lost


@fault(
    instead_of="keep",
    expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="the KV cache is not rolled back|nearly every token is wrong"),
    mirrors=("vllm-project/vllm#38419", "vllm-project/vllm-ascend#17149"),
)
def optimistic_lengths(lengths: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Keeps every draft token in the KV cache as if all had been accepted, and goes on after the rejected ones."""
    cache_lengths: NDArray[np.intp] = np.minimum(lengths + 1 + drafted, most)
    return cache_lengths
