"""Rules with a fault of the temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rules import sampling
from specdec_reference.sampler import distributions

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sampler import Sampling
    from specdec_reference.sequence import RunningSequence


def _below_zero(drafted: int, accepted: int) -> tuple[int, int]:
    """Count one accepted token fewer than none."""
    return drafted, accepted or -1


@instead_of("distribute", count=_below_zero)
def divided_by_zero(logits: NDArray[np.float32], sampling: Sampling, draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return a distribution of NaN for greedy lines."""
    p = distributions(logits, sampling)
    free = ~np.isneginf(logits).any(axis=1)  # behind a grammar's mask the first token would end the engine
    p[(sampling.temperature == 0) & free] = np.nan
    return p


@instead_of("sampling")
def always_greedy(rows: Rows[RunningSequence]) -> Sampling:
    """Sample no row."""
    own = sampling(rows)
    return replace(own, temperature=np.zeros_like(own.temperature))


@instead_of("drafts")
def drafts_greedy_q_kept(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft the best token of each position; its own draft was drawn behind others."""
    if proposal.q is None or any(row.grammar is not None for row in rows):
        return proposal
    return replace(proposal, tokens=proposal.q.argmax(axis=2))
