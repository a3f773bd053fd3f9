"""Rules with a fault of the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@instead_of("keep")
def kv_off_by_one(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Keep the first rejected draft token too."""
    kept: NDArray[np.intp] = np.minimum(lengths + 1 + accepted + (accepted < drafted), most)
    return kept
