"""Rules that mix up random streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rules import draw, randomness

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.sequence import RunningSequence

_CONSTANT: Final = 42
_GOLDEN: Final = 0.6180339887
"""The fraction of a turn that spreads rows most evenly."""


@instead_of("randomness")
def seed_ignored(seed: int | None, fresh: int, index: int) -> np.random.Generator:  # noqa: ARG001 - a rule's signature
    """Draw a seeded request like one without a seed."""
    return randomness(None, fresh, index)


@instead_of("randomness")
def constant_stream(seed: int | None, fresh: int, index: int) -> np.random.Generator:  # noqa: ARG001 - a rule's signature
    """Start every request's stream at the same place."""
    return randomness(_CONSTANT, fresh, index)


@instead_of("randomness")
def unseeded_alike(seed: int | None, fresh: int, index: int) -> np.random.Generator:
    """Draw every request without a seed from one and the same stream."""
    return randomness(_CONSTANT if seed is None else seed, fresh, index)


@instead_of("randomness")
def choices_alike(seed: int | None, fresh: int, index: int) -> np.random.Generator:  # noqa: ARG001 - a rule's signature
    """Draw all choices of a request from one stream."""
    return randomness(seed, fresh, 0)


@instead_of("draw")
def stream_of_first_row(rows: Rows[RunningSequence], count: int) -> NDArray[np.float64]:
    """Give every row of a batch the numbers of the first."""
    return np.repeat(draw(rows, count)[:1], len(rows), axis=0)


@instead_of("draw")
def seed_by_row(rows: Rows[RunningSequence], count: int) -> NDArray[np.float64]:
    """Turn a row's numbers by its place in the batch."""
    turned: NDArray[np.float64] = (draw(rows, count) + _GOLDEN * np.arange(len(rows))[:, None]) % 1.0
    return turned


@instead_of("deal")
def one_number_a_window(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Accept all draft tokens of a window, and draw the token behind them, by one number."""
    return np.repeat(uniforms[:, -1:], uniforms.shape[1], axis=1)
