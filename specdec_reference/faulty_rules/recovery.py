"""Rules with a fault of the recovered token or the bonus token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rejection_sampler import VerifyWindows, residual
from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import RunningSequence


@instead_of("residual")
def residual_not_clipped(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Recover from |p - q|, without the maximum with 0."""
    rest = np.abs(p - q)
    nothing = ~rest.any(axis=1)
    rest[nothing] = p[nothing]
    return rest


@instead_of("residual")
def residual_not_normalised(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Let the mass that max(p - q, 0) lacks fall on the last token of the vocabulary."""
    rest = residual(p, q)
    rest[:, -1] += np.maximum(1.0 - rest.sum(axis=1), 0.0)
    return rest


@instead_of("residual")
def id_zero_on_rejection(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Recover the token whose id is 0."""
    first = np.zeros_like(p)
    first[:, 0] = 1.0
    return first


@instead_of("verify")
def residual_of_first(
    rows: Rows[RunningSequence], p: NDArray[np.float32], proposal: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Recover behind any rejection from the residual of the first draft position."""
    windows = rules.verify(rows, p, proposal, uniforms, given)
    rejected = np.flatnonzero(windows.accepted < proposal.counts)
    if not len(rejected):
        return windows
    q = proposal.distribution(rejected, np.zeros(len(rejected), np.intp), p.shape[1])
    last = windows.last.copy()
    last[rejected] = pick(residual(p[proposal.starts[rejected]].astype(np.float64), q), uniforms[rejected, -1])
    return replace(windows, last=last)


@instead_of("verify")
def bonus_from_q(
    rows: Rows[RunningSequence], p: NDArray[np.float32], proposal: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Draw the bonus token from the draft's distribution of the last draft token."""
    windows = rules.verify(rows, p, proposal, uniforms, given)
    full = np.flatnonzero((windows.accepted == proposal.counts) & (proposal.counts > 0))
    last = windows.last.copy()
    if len(full):
        last[full] = pick(proposal.distribution(full, proposal.counts[full] - 1, p.shape[1]), uniforms[full, -1])
    return replace(windows, last=last)


@instead_of("verify")
def greedy_bonus(
    rows: Rows[RunningSequence], p: NDArray[np.float32], proposal: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Take the target's best token for the bonus at any temperature."""
    windows = rules.verify(rows, p, proposal, uniforms, given)
    full = np.flatnonzero((windows.accepted == proposal.counts) & (proposal.counts > 0))
    last = windows.last.copy()
    last[full] = p[proposal.starts[full] + proposal.counts[full]].argmax(axis=1)
    return replace(windows, last=last)
