"""Rules that never answer, while the server says that it is well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.sequence import RunningSequence

_IN_COMPANY: Final = 6
"""Sequences of one step."""


@instead_of("deal")
def hang_on_logprobs(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stop the engine's thread for ever at the first request for log-probabilities."""
    if any(row.request.logprobs is not None for row in rows):
        threading.Event().wait()
    return uniforms


@instead_of("deal")
def hang_in_company(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stop the engine's thread for ever once enough sequences are verified in one step."""
    if len(rows) >= _IN_COMPANY:
        threading.Event().wait()
    return uniforms
