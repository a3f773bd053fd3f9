"""Planted faults of rows that come, go and change slots in a batch, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.prefix_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.prefix_cache import Block
    from specdec_reference.sequence import RunningSequence

_slots: WeakKeyDictionary[RunningSequence, int] = WeakKeyDictionary()
"""By sequence: its slot in the step before."""
UNDER_CONCURRENCY = "answers go wrong only under concurrency|answers go wrong beside"
EVERY_BATCH = dict.fromkeys(set(Family) - {Family.CONCURRENCY}, "Their requests come and go together too.")


@fault(
    before="batch.place",
    expected=in_(Place.REFERENCE, may=EVERY_BATCH, concurrency=UNDER_CONCURRENCY),
    mirrors=("vllm-project/vllm#45100",),
)
def moved_row_loses_state(rows: Rows[RunningSequence], engine: ReferenceEngine) -> None:
    """Restores a row that was moved to another slot from a cache block too early."""
    for slot, row in enumerate(rows):
        if _slots.get(row, slot) != slot and row.grammar is None:  # a grammar would refuse wrong tokens and end the server
            engine.batch.lengths[slot] = max(engine.batch.lengths[slot] - BLOCK_TOKENS, 1)  # tokens that the slot's KV cache holds
        _slots[row] = slot


@fault(
    before="batch.reuse_prefix",
    expected=in_(Place.REFERENCE, may=EVERY_BATCH, concurrency=UNDER_CONCURRENCY),
    mirrors=("weicj/vLLM-2080Ti-Definitive#41",),
)
def joining_prompt_shifts_rows(engine: ReferenceEngine) -> None:
    """Loses an entry of the cache of every running row when a prompt joins them."""
    for slot, row in enumerate(engine.batch.rows):
        if row.grammar is None:
            engine.batch.lengths[slot] -= 1


@fault(
    after="batch.reuse_prefix",
    expected=in_(Place.REFERENCE, may=EVERY_BATCH, concurrency=UNDER_CONCURRENCY),
    mirrors=("LMCache/LMCache#3388",),
)
def reuse_fails_in_company(reused: int, sequence: RunningSequence, engine: ReferenceEngine) -> int:
    """Takes a whole prompt for loaded from the prefix cache, whatever stands in the slot, while other rows run."""
    return len(sequence.tokens) - 1 if engine.batch.rows and sequence.grammar is None else reused


@fault(
    around="batch.copy_block",
    expected=in_(
        Place.REFERENCE,
        may=dict.fromkeys(set(Family) - {Family.LOGPROBS}, "Prompts asked again, or that begin alike, are answered from the cache."),
        logprobs="reported log-probabilities are not the baseline's|reported log-probabilities or verifier numerics",
    ),
    mirrors=("vllm-project/vllm#53919",),
)
def cached_from_neighbour(copy_block: Callable[[int, int], Block], slot: int, index: int, engine: ReferenceEngine) -> Block:
    """Writes the blocks of the row behind into the prefix cache."""
    return copy_block((slot + 1) % len(engine.batch.rows), index)
