"""Planted faults of seeds and random streams, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.rules import randomness

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONSTANT: Final = 42
_GOLDEN: Final = 0.6180339887
"""The fraction of a turn that spreads rows most evenly."""
_AGAIN = {Family.SAMPLING: "Answers that are given again are no independent draws.", Family.STRUCTURED: "The same."}


@fault(instead_of="randomness", expected=in_(Place.REFERENCE, Place.VLLM, seeds="the seed is not honoured"))
def seed_ignored(fallback_seed: int, index: int) -> np.random.Generator:
    """Draws a request with a seed like one without."""
    return randomness(None, fallback_seed, index)


@fault(instead_of="randomness", expected=in_(Place.REFERENCE, may=_AGAIN, seeds="different seeds give the same answer"))
def constant_stream(fallback_seed: int, index: int) -> np.random.Generator:
    """Starts the random stream of every request at the same place."""
    return randomness(_CONSTANT, fallback_seed, index)


@fault(
    instead_of="randomness",
    expected=in_(Place.REFERENCE, may=_AGAIN, seeds="requests without a seed give the same answer again"),
    mirrors=("NVIDIA/TensorRT-LLM#19487",),
)
def unseeded_alike(seed: int | None, fallback_seed: int, index: int) -> np.random.Generator:
    """Draws every request without a seed from one and the same stream."""
    return randomness(_CONSTANT if seed is None else seed, fallback_seed, index)


@fault(instead_of="randomness", expected=in_(Place.REFERENCE, seeds="n choices are copies"))
def choices_alike(seed: int | None, fallback_seed: int) -> np.random.Generator:
    """Draws all choices of a request from one stream."""
    return randomness(seed, fallback_seed, 0)


@fault(
    after="draw",
    expected=in_(
        Place.REFERENCE, Place.VLLM, may=_AGAIN, seeds="requests share one random stream|a seeded answer depends on its neighbours"
    ),
)
def stream_of_first_row(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gives every row of a batch the random numbers of the first."""
    return np.repeat(uniforms[:1], len(uniforms), axis=0)


@fault(after="draw", expected=in_(Place.REFERENCE, seeds="a seeded answer depends on its neighbours"))
def seed_by_row(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turns a request's random numbers by its row in the batch."""
    turned: NDArray[np.float64] = (uniforms + _GOLDEN * np.arange(len(uniforms))[:, None]) % 1.0
    return turned


@fault(after="draw", expected=in_(Place.REFERENCE, sampling="reused random numbers"))
def one_number_a_window(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accepts the draft tokens of a window and draws the token after them by one random number."""
    k = uniforms.shape[1] // 2
    return np.concatenate([uniforms[:, :k], np.repeat(uniforms[:, -1:], k + 1, axis=1)], axis=1)
