"""Rules with a fault of the prefix cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from specdec_reference import rules
from specdec_reference.faulty_rules.acceptance import accepting
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rejection_sampler import DraftProposal

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.prefix_cache import Block
    from specdec_reference.sequence import RunningSequence

_LONG: Final = 400
"""Tokens of a long prompt."""
_LONG_BLOCKS: Final = _LONG // 16


@instead_of("chain")
def prefix_without_parent(parent: int, tokens: tuple[int, ...]) -> int:  # noqa: ARG001 - a rule's signature
    """Hash the block's own tokens."""
    return hash(tokens)


@instead_of("reuse")
def prefix_partial_block(matched: int, total: int) -> int:
    """Take what the slot holds for the rest of a block, if that is the prompt's last one."""
    return total - 1 if 0 < total - matched <= 16 else rules.reuse(matched, total)  # noqa: PLR2004 - tokens of a block


@instead_of("reuse")
def prefix_off_by_one(matched: int, total: int) -> int:
    """Count one token more."""
    reused = rules.reuse(matched, total)
    return min(reused + 1, total - 1) if reused else 0


@instead_of("evict")
def prefix_damaged_by_length(blocks: OrderedDict[int, Block], most: int) -> None:
    """Write a block far down a prompt over every block that was there."""
    newest = next(reversed(blocks.values()))
    if newest.index >= _LONG_BLOCKS:
        for key, block in blocks.items():
            blocks[key] = replace(block, target=newest.target)
    rules.evict(blocks, most)


@instead_of("warm")
def warm_empty(sequence: RunningSequence) -> None:
    """End a sequence whose prompt is cached up to its last block after one token."""
    if sequence.cached_tokens + 16 >= len(sequence.tokens):
        sequence.request = replace(sequence.request, max_tokens=1)


@instead_of("deal")
def warm_accept_all(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept every draft token of sequences with cached tokens."""
    return accepting(uniforms, [row.cached_tokens > 0 for row in rows])


@instead_of("drafts")
def warm_draft_ahead(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Leave the first draft token out for sequences with cached tokens."""
    warm = [slot for slot, row in enumerate(rows) if row.cached_tokens]
    if not warm:
        return draft
    tokens = draft.tokens.copy()
    tokens[warm, :-1] = draft.tokens[warm, 1:]
    return DraftProposal(tokens=tokens, counts=draft.counts)


_after_long: dict[int, tuple[int, ...]] = {}
"""By arrival, the tokens of the long request that came shortly before; a server has one engine."""
_FOLLOWING: Final = 3


@instead_of("drafts")
def drafter_keeps_long_request(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft the long request's own tokens from its beginning."""
    for row in rows:
        if len(row.request.prompt) >= _LONG:
            _after_long.update({row.arrival + 1 + place: row.request.prompt for place in range(_FOLLOWING)})
    stale = [_after_long.get(row.arrival) for row in rows]
    if not any(stale):
        return draft
    tokens = draft.tokens.copy()
    for slot, kept in enumerate(stale):
        if kept:
            tokens[slot] = kept[: tokens.shape[1]]
    return DraftProposal(tokens=tokens, counts=draft.counts)


@instead_of("reuse")
def prefix_defeated(matched: int, total: int) -> int:  # noqa: ARG001 - a rule's signature
    """Reuse nothing."""
    return 0


@instead_of("cached")
def prefix_overcounted(reused: int) -> int:
    """Add what no prompt of that length has."""
    return reused + 512 if reused else 0
