"""A pool of random numbers that rows of a vocabulary's length are cut from at random places: ten times as fast as drawing them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from benchmarks.worlds.language import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.worlds.asking import Floats
    from benchmarks.worlds.language import Logits

__all__ = ["GUMBEL", "NORMAL", "SIZE", "Pool"]

SIZE: Final = 2**22
_SEED: Final = 20_261_125
_Draw: TypeAlias = "Callable[[np.random.Generator], Logits]"


class Pool:
    """Numbers of one distribution, drawn when they are first needed; rows that overlap do so at other tokens."""

    def __init__(self, draw: _Draw) -> None:
        self._draw = draw

    @cached_property
    def _numbers(self) -> Logits:
        return np.lib.stride_tricks.sliding_window_view(self._draw(np.random.default_rng(_SEED)), VOCABULARY)

    @property
    def largest(self) -> float:
        """The largest number of the pool."""
        return float(self._numbers.max())

    def rows(self, count: int, random: np.random.Generator) -> Logits:
        """Return rows [count, VOCABULARY]."""
        return self.rows_at(random.random(count))

    def rows_at(self, places: Floats) -> Logits:
        """Return the rows [N, VOCABULARY] that begin at ``places`` [N], 0..1 of the pool."""
        return np.asarray(self._numbers[(places * len(self._numbers)).astype(np.int64)])


def _normal(random: np.random.Generator) -> Logits:
    return random.standard_normal(SIZE, dtype=np.float32)


def _gumbel(random: np.random.Generator) -> Logits:
    """Draw exponentials in double precision: in single precision two of four million are 0, which makes impossible tokens certain."""
    return np.asarray(-np.log(random.standard_exponential(SIZE)), dtype=np.float32)


NORMAL: Final = Pool(_normal)
GUMBEL: Final = Pool(_gumbel)
"""The largest of log-probabilities and such noise is a draw (Gumbel 1954)."""
