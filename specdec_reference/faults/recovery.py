"""Planted faults of the recovered token and the bonus token, for suites to detect.

Each wraps what its decorator names. In ``verify``, row i has ``counts[i]`` + 1 lines of p from ``starts[i]`` on, the bonus token's last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
from specdec_reference.rejection_sampler import VerifyWindows, residual
from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal

RECOVERED = "the token in place of a rejected draft token is not the target's"
BONUS = "the token after a fully accepted draft is not the target's"


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="resample from p|acceptance leak"),
)
def residual_not_clipped(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Recovers from the absolute value of p - q instead of max(p - q, 0)."""
    recovered = np.abs(p - q)
    empty_rows = ~recovered.any(axis=1)  # p = q: as in the right rule, p itself is left
    recovered[empty_rows] = p[empty_rows]
    return recovered


@fault(
    after="residual",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="residual not normalised|improbable tokens")
    | in_(Place.SIMULATION, sampling="residual not normalised"),
)
def residual_not_normalised(recovered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draws the recovered token from max(p - q, 0) without making it sum to one: what is missing falls on the last token."""
    recovered[:, -1] += np.maximum(1.0 - recovered.sum(axis=1), 0.0)
    return recovered


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="improbable tokens"),
    mirrors=("vllm-project/vllm#41834",),
)
def id_zero_on_rejection(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Emits the token with id 0 in place of a rejected draft token."""
    first = np.zeros_like(p)
    first[:, 0] = 1.0
    return first


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="residual|recovered token"),
)
def residual_of_first(windows: VerifyWindows, p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]) -> VerifyWindows:
    """Recovers after any rejection from the residual of the first draft position."""
    rejected = np.flatnonzero(windows.accepted < draft.counts)
    if not len(rejected):
        return windows
    q = draft.distribution(rejected, np.zeros(len(rejected), np.intp), p.shape[1])  # at position 0 of each row
    last = windows.last.copy()
    last[rejected] = pick(residual(p[draft.starts[rejected]].astype(np.float64), q), uniforms[rejected, -1])
    return replace(windows, last=last)


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=BONUS, parameters=BONUS, sampling="bonus")
    | in_(Place.SIMULATION, sampling="bonus from q"),
)
def bonus_from_q(windows: VerifyWindows, p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]) -> VerifyWindows:
    """Draws the bonus token from the draft's distribution."""
    fully_accepted = np.flatnonzero((windows.accepted == draft.counts) & (draft.counts > 0))
    last = windows.last.copy()
    if len(fully_accepted):
        # The draft has no distribution for the bonus token: that of its last position is taken.
        last[fully_accepted] = pick(
            draft.distribution(fully_accepted, draft.counts[fully_accepted] - 1, p.shape[1]), uniforms[fully_accepted, -1]
        )
    return replace(windows, last=last)


@fault(after="verify", expected=in_(Place.REFERENCE, Place.SIMULATION, sampling="greedy bonus"))
def greedy_bonus(windows: VerifyWindows, p: NDArray[np.float32], draft: DraftProposal) -> VerifyWindows:
    """Takes the target's most probable token for the bonus at any temperature."""
    fully_accepted = np.flatnonzero((windows.accepted == draft.counts) & (draft.counts > 0))
    last = windows.last.copy()
    last[fully_accepted] = p[draft.starts[fully_accepted] + draft.counts[fully_accepted]].argmax(axis=1)
    return replace(windows, last=last)
