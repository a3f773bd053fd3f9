"""Rules with a fault of reported log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_specdec.reference.rejection_sampler import DraftProposal

_NO_MASS: Final = 1e-30
"""Stands for a probability of 0, of which JSON has no logarithm."""


@instead_of("report")
def report_draft_logprobs(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:
    """Report the draft's log-probabilities for accepted tokens."""
    accepted = np.arange(len(logits) - 1)
    reported = logits.copy()
    reported[accepted] = np.log(np.maximum(draft.distribution(np.full(len(accepted), row), accepted, logits.shape[1]), _NO_MASS))
    return reported
