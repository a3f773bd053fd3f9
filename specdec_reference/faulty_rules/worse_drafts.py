"""Rules with a fault of the drafts' quality."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rejection_sampler import VerifyWindows
from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import RunningSequence

_EVERY: Final = 3
"""Drafts."""


@instead_of("draft_lengths")
def draft_cache_stale(rows: Rows[RunningSequence]) -> list[int]:
    """Go on behind the prompt in every step."""
    return [len(row.request.prompt) + 1 for row in rows]


@instead_of("drafts")
def drafts_worse(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft certain other tokens in every third step of a sequence without a grammar."""
    other = np.array([row.grammar is None and len(row.drafted) % _EVERY == 0 for row in rows])
    if proposal.q is None:
        return replace(proposal, tokens=np.where(other[:, None], 0, proposal.tokens))
    width = proposal.q.shape[2]
    tokens = np.where(other[:, None], width - 1 - proposal.tokens, proposal.tokens)
    certain = (tokens[..., None] == np.arange(width)).astype(np.float32)
    return replace(proposal, tokens=tokens, q=np.where(other[:, None, None], certain, proposal.q))


@instead_of("verify")
def dead_drafts_grammar(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Accept nothing where a grammar binds, and draw the token in its place from the target's own distribution."""
    windows = rules.verify(rows, p, draft, uniforms, given)
    bound = np.array([row.grammar is not None for row in rows])
    alone = pick(p[draft.starts], uniforms[:, -1])
    return VerifyWindows(accepted=np.where(bound, 0, windows.accepted), last=np.where(bound, alone, windows.last))
