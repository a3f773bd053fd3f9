"""Log-probabilities: what the raw law, before penalties, temperature, truncation and grammar, says of given tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Entry", "entries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One position: the token that is there and the most probable ones."""

    token: int
    logprob: float
    rank: int
    """From 1: how many tokens are at least as probable, itself included."""
    top: tuple[tuple[int, float], ...]
    """(token, logprob) of the most probable tokens, best first."""


def entries(logits: NDArray[np.float32], tokens: Sequence[int], top: int) -> list[Entry]:
    """Return an entry for each row of raw ``logits`` (rows, vocabulary) and its token."""
    rows = np.arange(len(logits))
    best = logits.max(axis=1, keepdims=True)
    norm = best[:, 0] + np.log(np.exp(logits - best).sum(axis=1, dtype=np.float64))
    chosen = logits[rows, list(tokens)]
    ranks = 1 + (logits > chosen[:, None]).sum(axis=1)
    ids = _top(logits, top)
    values = np.take_along_axis(logits, ids, axis=1) - norm[:, None]
    return [
        Entry(token=token, logprob=logprob, rank=rank, top=tuple(zip(best_ids, best_values, strict=True)))
        for token, logprob, rank, best_ids, best_values in zip(
            tokens, (chosen - norm).tolist(), ranks.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]


def _top(logits: NDArray[np.float32], top: int) -> NDArray[np.intp]:
    width = logits.shape[1]
    ids = (
        np.argpartition(logits, width - top, axis=1)[:, width - top :] if 0 < top < width else np.argsort(logits, axis=1)[:, width - top :]
    )
    order = np.argsort(-np.take_along_axis(logits, ids, axis=1), axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1)
