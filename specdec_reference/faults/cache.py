"""Planted faults of the KV cache after a rejection, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, fault, in_, plant

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNLIKELY = "tokens that the grammar allows and the baseline would not choose"
STALE_CACHE = "the KV cache is not rolled back"
BY_TIMING = "A wrong token breaks a grammar or not by the timing of the batch."


@fault(
    instead_of="keep",
    expected=in_(
        Place.REFERENCE,
        may=TOKENS_WRONG,
        greedy=STALE_CACHE,
        parameters=STALE_CACHE,
        sampling=f"{STALE_CACHE}|KV cache not rolled back",
        logprobs="reported log-probabilities or verifier numerics",
        structured=UNLIKELY,
    ),
)
def kv_off_by_one(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Keeps one entry too many in the KV cache after a rejection: the rejected token stays, and positions shift by one."""
    cache_lengths: NDArray[np.intp] = np.minimum(lengths + 1 + accepted + (accepted < drafted), most)
    return cache_lengths


plant(
    PlantedFault(
        id="kv-stale",
        topic="cache",
        does="Keeps a rejected draft token's key and value: the token in its place never writes its own.",
        expected=in_(
            Place.VLLM,
            may=TOKENS_WRONG | {Family.STRUCTURED: BY_TIMING},
            greedy=STALE_CACHE,
            parameters=STALE_CACHE,
            sampling=f"{STALE_CACHE}|KV cache not rolled back",
        ),
    )
)
