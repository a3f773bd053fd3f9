"""Rules with a fault of the draft: tokens that nothing accepts, or another q than they were drawn from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence


def _one_hot(tokens: NDArray[np.intp], vocabulary: int) -> NDArray[np.float32]:
    certain: NDArray[np.float32] = (tokens[..., None] == np.arange(vocabulary)).astype(np.float32)
    return certain


def _dead(proposal: DraftProposal, rows: NDArray[np.bool_]) -> DraftProposal:
    """Propose other tokens, certain of them: the target accepts next to none, and answers stay right."""
    q = proposal.q
    if q is None:
        return replace(proposal, tokens=np.where(rows[:, None], 0, proposal.tokens))
    tokens = np.where(rows[:, None], q.shape[2] - 1 - proposal.tokens, proposal.tokens)
    return replace(proposal, tokens=tokens, q=np.where(rows[:, None, None], _one_hot(tokens, q.shape[2]), q))


@instead_of("drafts")
def dead_drafts(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft tokens that the target does not take."""
    return _dead(proposal, np.ones(len(rows), np.bool_))


@instead_of("drafts")
def drafts_dead_when_sampling(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft such tokens above temperature 0."""
    return _dead(proposal, np.array([row.request.temperature > 0 for row in rows]))


@instead_of("drafts")
def no_drafts_when_sampling(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft nothing above temperature 0."""
    counts = np.where([row.request.temperature > 0 for row in rows], 0, proposal.counts)
    width = int(counts.max(initial=0))
    q = None if proposal.q is None else proposal.q[:, :width]
    return replace(proposal, tokens=proposal.tokens[:, :width], counts=counts, q=q)


@instead_of("drafts")
def q_one_early(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:  # noqa: ARG001 - a rule's signature
    """Verify each draft token by the q of the one before it."""
    q = proposal.q
    return proposal if q is None else replace(proposal, q=q[:, np.maximum(np.arange(q.shape[1]) - 1, 0)])
