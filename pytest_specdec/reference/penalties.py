"""Penalties: what a request adds to the logits for the tokens that its answer already holds, and for those that it names.

Source: the presence and frequency penalty and the logit bias of the OpenAI API reference, as vLLM has them: the prompt does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytest_specdec.reference.request import Request

__all__ = ["Penalties"]


class Penalties:
    """What one sequence's emitted tokens add to the logits of the next one."""

    def __init__(self, request: Request, vocabulary: int) -> None:
        self._presence = request.presence_penalty
        self._frequency = request.frequency_penalty
        self._bias = np.zeros(vocabulary)
        for token, bias in request.logit_bias:
            self._bias[token] = bias
        self._counts = np.zeros(vocabulary, np.intp)

    def advance(self, token: int) -> None:
        """Take one token that was emitted."""
        self._counts[token] += 1

    def walk(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return what is added at each of ``tokens`` and behind the last, (len(tokens) + 1, vocabulary); stays where it is.

        Those of ``tokens`` that come before a position count there as if they were emitted.
        """
        counts = np.tile(self._counts, (len(tokens) + 1, 1))
        for position, token in enumerate(tokens, start=1):
            counts[position:, token] += 1
        added: NDArray[np.float32] = (self._bias - self._frequency * counts - self._presence * (counts > 0)).astype(np.float32)
        return added
