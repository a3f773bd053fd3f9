"""Rules that cost time and change no token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import RunningSequence

_LATE_S: Final = 0.05
"""Several plain steps: the fault is time that a step takes too long, so it sleeps."""


@instead_of("verify")
def slow_verify(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Verify as it should be, and late."""
    time.sleep(_LATE_S)
    return rules.verify(rows, p, draft, uniforms, given)
