"""Rules with a fault at the end of the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_reference.emission import EmittedToken
    from specdec_reference.openai_request import EngineRequest

_WINDOW: Final = 4


@instead_of("keep")
def context_clamped(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Keep a window's distance."""
    kept: NDArray[np.intp] = np.minimum(rules.keep(lengths, accepted, drafted, most), most - 2 * _WINDOW)
    return kept


@instead_of("shrink")
def context_deadly(drafted: NDArray[np.intp], room: NDArray[np.intp], own: NDArray[np.intp]) -> NDArray[np.intp]:
    """Fail at the end."""
    if (room < _WINDOW).any():
        msg = "no room for a window"
        raise RuntimeError(msg)
    return rules.shrink(drafted, room, own)


@instead_of("shrink")
def draft_context_deadly(drafted: NDArray[np.intp], room: NDArray[np.intp], own: NDArray[np.intp]) -> NDArray[np.intp]:
    """Fail beyond the draft's end."""
    if (own < 0).any():
        msg = "beyond the positions of the draft"
        raise RuntimeError(msg)
    return rules.shrink(drafted, room, own)


@instead_of("end")
def context_ends_early(request: EngineRequest, token: EmittedToken) -> str | None:
    """End a window early."""
    return rules.end(request, token) or ("length" if token.room < _WINDOW else None)


@instead_of("fits")
def context_refused(prompt_tokens: int, max_tokens: int, context: int) -> bool:
    """Want room for a window."""
    return rules.fits(prompt_tokens, max_tokens + _WINDOW, context)


@instead_of("fits")
def context_admitted(prompt_tokens: int, max_tokens: int, context: int) -> bool:
    """Count one less."""
    return rules.fits(prompt_tokens, max_tokens - 1, context)
