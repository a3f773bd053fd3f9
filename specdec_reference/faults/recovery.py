"""Faults of the recovered token and the bonus token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference import rules
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
from specdec_reference.rejection_sampler import VerifyWindows, residual
from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import RunningSequence

RECOVERED = "the token in place of a rejected draft token is not the target's"
BONUS = "the token behind a fully accepted draft is not the target's"


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="resample from p|acceptance leak"),
)
def residual_not_clipped(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Recovers from the absolute value of p - q instead of max(p - q, 0)."""
    recovered = np.abs(p - q)
    empty_rows = ~recovered.any(axis=1)
    recovered[empty_rows] = p[empty_rows]
    return recovered


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="residual not normalised|improbable tokens")
    | in_(Place.SIMULATION, sampling="residual not normalised"),
)
def residual_not_normalised(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draws the recovered token from max(p - q, 0) without making it sum to one: what is missing falls on the last token."""
    recovered = residual(p, q)
    recovered[:, -1] += np.maximum(1.0 - recovered.sum(axis=1), 0.0)
    return recovered


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="improbable tokens"),
    mirrors=("vllm-project/vllm#41834",),
)
def id_zero_on_rejection(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Emits the token with id 0 in place of a rejected draft token."""
    first = np.zeros_like(p)
    first[:, 0] = 1.0
    return first


@fault(
    instead_of="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="residual|recovered token"),
)
def residual_of_first(
    rows: Rows[RunningSequence], p: NDArray[np.float32], proposal: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Recovers behind any rejection from the residual of the first draft position."""
    windows = rules.verify(rows, p, proposal, uniforms, given)
    rejected = np.flatnonzero(windows.accepted < proposal.counts)
    if not len(rejected):
        return windows
    q = proposal.distribution(rejected, np.zeros(len(rejected), np.intp), p.shape[1])
    last = windows.last.copy()
    last[rejected] = pick(residual(p[proposal.starts[rejected]].astype(np.float64), q), uniforms[rejected, -1])
    return replace(windows, last=last)


@fault(
    instead_of="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=BONUS, parameters=BONUS, sampling="bonus")
    | in_(Place.SIMULATION, sampling="bonus from q"),
)
def bonus_from_q(
    rows: Rows[RunningSequence], p: NDArray[np.float32], proposal: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Draws the bonus token from the draft's distribution."""
    windows = rules.verify(rows, p, proposal, uniforms, given)
    fully_accepted = np.flatnonzero((windows.accepted == proposal.counts) & (proposal.counts > 0))
    last = windows.last.copy()
    if len(fully_accepted):
        last[fully_accepted] = pick(
            proposal.distribution(fully_accepted, proposal.counts[fully_accepted] - 1, p.shape[1]), uniforms[fully_accepted, -1]
        )
    return replace(windows, last=last)


@fault(instead_of="verify", expected=in_(Place.REFERENCE, Place.SIMULATION, sampling="greedy bonus"))
def greedy_bonus(
    rows: Rows[RunningSequence], p: NDArray[np.float32], proposal: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Takes the target's most probable token for the bonus at any temperature."""
    windows = rules.verify(rows, p, proposal, uniforms, given)
    fully_accepted = np.flatnonzero((windows.accepted == proposal.counts) & (proposal.counts > 0))
    last = windows.last.copy()
    last[fully_accepted] = p[proposal.starts[fully_accepted] + proposal.counts[fully_accepted]].argmax(axis=1)
    return replace(windows, last=last)
