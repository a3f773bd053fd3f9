"""Rules that take the server down."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.sequence import RunningSequence

_IN_COMPANY: Final = 4
"""Sequences of one step."""


@instead_of("admit")
def die_on_json(request: EngineRequest) -> None:
    """Kill the process when a request brings a grammar."""
    if request.grammar is not None:
        os.kill(os.getpid(), signal.SIGKILL)


@instead_of("deal")
def die_in_company(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kill the process when enough sequences are verified in one step."""
    if len(rows) >= _IN_COMPANY:
        os.kill(os.getpid(), signal.SIGKILL)
    return uniforms
