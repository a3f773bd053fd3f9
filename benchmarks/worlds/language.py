"""A made-up model: a table of next-token logits, a draft of it, and a hash that makes every prefix a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import TypeAlias

    Logits: TypeAlias = npt.NDArray[np.float32]
    Ids: TypeAlias = npt.NDArray[np.int64]
    Hashes: TypeAlias = npt.NDArray[np.uint64]

__all__ = ["CONTEXTS", "END", "VOCABULARY", "Language", "follow", "language", "log_softmax", "ranked", "row_of"]

VOCABULARY, CONTEXTS = 600, 3000
END: Final = 1
"""The end of a sequence: the best token of a few contexts, by far, and impossible elsewhere."""
_ENDS = 0.007
_DRAFT_NOISE = 0.9
_SEED = 20_261_124


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Language:
    """Next-token logits of the target and the draft model, [CONTEXTS, VOCABULARY] each."""

    target: Logits
    draft: Logits
    level: Logits
    """[CONTEXTS, 1], what is added so that the best logit lies where those of real models do, between 20 and 29."""


@cache
def language() -> Language:
    """Return the model: half of its contexts all but certain, the others Zipf-like."""
    random = np.random.default_rng(_SEED)
    steepness = random.uniform(0.9, 1.8, size=(CONTEXTS, 1))
    logits = -steepness * np.log(np.arange(1, VOCABULARY + 1)) + random.normal(size=(CONTEXTS, VOCABULARY)) * 0.5
    sure = random.random(CONTEXTS) < 0.5
    rest = np.log(np.exp(logits[:, 1:]).sum(axis=1))
    logits[sure, 0] = rest[sure] + random.uniform(2.25, 8.0, size=int(sure.sum()))
    draft = logits + _DRAFT_NOISE * random.normal(size=logits.shape)
    places = random.permuted(np.tile(np.arange(VOCABULARY), (CONTEXTS, 1)), axis=1)
    target, draft = (np.take_along_axis(each, places, axis=1) for each in (logits, draft))
    ends = random.random(CONTEXTS) < _ENDS
    for each in (target, draft):
        each[:, END] = np.where(ends, each.max(axis=1) + 8.0, each.min(axis=1) - 15.0)
    level = random.uniform(20.0, 29.0, size=(CONTEXTS, 1)) - target.max(axis=1, keepdims=True)
    return Language(target=target.astype(np.float32), draft=draft.astype(np.float32), level=level.astype(np.float32))


def row_of(prefixes: Hashes) -> Ids:
    """Return the contexts that prefixes fall into."""
    return np.asarray((prefixes % np.uint64(CONTEXTS)).astype(np.int64))


def follow(prefixes: Hashes, tokens: Ids) -> Hashes:
    """Return the prefixes one token on (the finaliser of MurmurHash3)."""
    number = prefixes * np.uint64(0x9E3779B97F4A7C15) + tokens.astype(np.uint64) + np.uint64(1)
    number = (number ^ (number >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    number = (number ^ (number >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return np.asarray(number ^ (number >> np.uint64(33)))


def log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return natural-log probabilities [N, V] of ``logits`` [N, V]."""
    best = logits.max(axis=1, keepdims=True)
    shifted = (logits - best).astype(np.float64)
    mass = np.exp(logits - best).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(shifted - np.log(mass))


def ranked(logits: Logits, count: int) -> Ids:
    """Return the ``count`` best tokens [N, count] of ``logits`` [N, V], ties by id."""
    best = np.sort(np.argpartition(-logits, count, axis=1)[:, :count], axis=1)
    order = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(best, order, axis=1))
