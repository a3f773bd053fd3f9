"""Faults of speed alone: the tokens and the drafts are right, and a verify step takes longer than it could."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Family
from specdec_reference import rules
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import RunningSequence

_LATE_S: Final = 0.05
"""Several plain steps: the fault is time that a step takes too long, so it sleeps."""
_MAY: dict[Family, str] = {Family.LIVENESS: "a request may outlast its deadline, which follows what the baseline needed"}


@fault(
    instead_of="verify",
    expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, speed="the step is too dear"),
    alone=True,
    timed=True,
    mirrors=("vllm-project/vllm#36165",),
)
def slow_verify(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Takes several plain steps longer for every verify step, as one that runs outside its captured graph."""
    time.sleep(_LATE_S)
    return rules.verify(rows, p, draft, uniforms, given)
