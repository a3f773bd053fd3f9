"""Rules with a fault of sampling parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@instead_of("penalise")
def penalties_ignored(logits: NDArray[np.float32], added: NDArray[np.float32]) -> NDArray[np.float32]:
    """Penalise the last position only: the bonus, or the next token where nothing was drafted."""
    penalised = logits.copy()
    penalised[-1] += added[-1]
    return penalised
