"""Padding: layers that cost what layers cost and change nothing, so that a small model's step has a larger model's price."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.reference.model import Layer, Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["padded"]

_SEED: Final = 20231121
_SPREAD: Final = 0.02


def padded(model: Model, layers: int) -> Model:
    """Return the model with random layers added up to ``layers``; their output projections are zero, so its law is the same bit for bit."""
    random = np.random.Generator(np.random.SFC64(_SEED))
    return replace(model, layers=(*model.layers, *(_idle(model, random) for _ in range(layers - len(model.layers)))))


def _idle(model: Model, random: np.random.Generator) -> Layer:
    shape = model.shape

    def weights(out: int) -> NDArray[np.float32]:
        drawn = random.random((shape.hidden, out), dtype=np.float32)
        drawn -= np.float32(0.5)
        drawn *= np.float32(_SPREAD)
        return drawn

    def nothing(inner: int) -> NDArray[np.float32]:
        # Written, not np.zeros: pages that were never written are all one page, and would be read from the first-level cache.
        return np.full((inner, shape.hidden), 0.0, np.float32)

    heads = shape.heads + shape.kv_heads
    return Layer(
        qkv=weights((heads + shape.kv_heads) * shape.head_dim),
        head_scale=np.full((heads, shape.head_dim), shape.head_dim**-0.5, np.float32),
        out=nothing(shape.heads * shape.head_dim),
        gate_up=weights(2 * shape.intermediate),
        down=nothing(shape.intermediate),
    )
