"""A made-up model: a table of next-token logits, a draft of it, and a hash that makes every prefix a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import TypeAlias

    Logits: TypeAlias = npt.NDArray[np.float32]
    Ids: TypeAlias = npt.NDArray[np.int64]
    Hashes: TypeAlias = npt.NDArray[np.uint64]

__all__ = ["CONTEXTS", "END", "VOCABULARY", "Language", "follow", "language", "log_mass", "log_softmax", "ranked", "row_of"]

VOCABULARY, CONTEXTS, LIKELY = 600, 3000, 48
END: Final = 1
"""The end of a sequence: the best token of a few contexts, by far, and impossible elsewhere."""
_ENDS = 0.007
_DRAFT_NOISE = 0.9
_SEED = 20_261_124


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """Next-token logits of the target and the draft model, [CONTEXTS, VOCABULARY] each."""

    target: Logits
    draft: Logits
    level: Logits
    """[CONTEXTS, 1], what is added so that the best logit lies where those of real models do, between 20 and 29."""

    @cached_property
    def likely(self) -> Ids:
        """[CONTEXTS, LIKELY], the target's best tokens, by id."""
        return _likely(self.target)

    @cached_property
    def likely_drafts(self) -> Ids:
        """The same of the draft model."""
        return _likely(self.draft)


def _likely(logits: Logits) -> Ids:
    return np.sort(np.argsort(-logits, axis=1)[:, :LIKELY], axis=1)


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
    return np.asarray(logits - log_mass(logits))


def log_mass(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return log sum exp [N, 1] of ``logits`` [N, V]."""
    best = logits.max(axis=1, keepdims=True)
    mass = np.einsum("ij->i", np.exp(logits - best), dtype=np.float64)
    return np.asarray(best + np.log(mass)[:, None])


def ranked(logits: Logits, count: int, likely: Ids) -> Ids:
    """Return the ``count`` best tokens [N, count] of ``logits`` [N, V], ties by id.

    Noise hardly ever lifts a token that is not ``likely`` [N, M] among them; where one is, all are ranked.
    """
    best = _ranked(np.take_along_axis(logits, likely, axis=1), likely)[:, :count]
    others = logits.copy()
    np.put_along_axis(others, likely, -np.inf, axis=1)
    lifted = np.flatnonzero(others.max(axis=1) >= logits[np.arange(len(logits)), best[:, -1]])
    best[lifted] = _ranked(logits[lifted], np.broadcast_to(np.arange(VOCABULARY), (len(lifted), VOCABULARY)))[:, :count]
    return best


def _ranked(logits: Logits, tokens: Ids) -> Ids:
    order = np.argsort(-logits, axis=1, kind="stable")
    return np.asarray(np.take_along_axis(tokens, order, axis=1))
