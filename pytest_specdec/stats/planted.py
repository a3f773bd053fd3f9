"""Planted: what a test of two samples would have seen, from the very answers that it was given.

Servers are permuted within blocks, which makes the answers those of equal servers, and a fault is planted in the first server's: a share
of the units is drawn from a law that looks at less than the server's own. The classifier alone is asked, at its level. A server with such
a fault would go on from the wrong token; here the rest of the answer stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, inf, log
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from pytest_specdec.stats.two_sample import classifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.stats.laws import Ints
    from pytest_specdec.stats.two_sample import Blocks

__all__ = ["CONFIDENCE", "SHARES", "Draft", "Shown", "planted", "shown", "smallest"]

CONFIDENCE = 0.99
SHARES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares tried."""
RUNS = 16
"""Servers simulated for a share."""
BARRIERS = 4
"""The first of them whose permutations are asked for the barrier: it hardly varies."""


class Draft(StrEnum):
    """Where planted units come from."""

    FOLLOWER = "the commonest follower of the token before"
    """As of a drafter that looks one token back, whose drafts are accepted unseen."""
    ANY = "any token of these answers, whatever stands before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How far above the level's barrier the classifier came, over simulated servers; in spreads of its permutations."""

    mean: float
    """Of the statistic."""
    deviation: float
    barrier: float

    @property
    def chance(self) -> float:
        """The chance of an alarm, by a normal law for the statistic, 0..1."""
        if not self.deviation:
            return float(self.mean >= self.barrier)
        return float(ndtr((self.mean - self.barrier) / self.deviation))

    @property
    def length(self) -> float:
        """How many times the blocks bring the chance to CONFIDENCE, the mean growing like their number; inf where nothing shows."""
        return (self.barrier + float(ndtri(CONFIDENCE)) * self.deviation) / self.mean if self.mean > self.deviation else inf


def shown(blocks: Blocks, level: float, draft: Draft, share: float, *, seed: int) -> Shown:
    """Return how a fault in ``share`` of the units would have shown at ``level``, from RUNS simulated servers."""
    random = np.random.default_rng([seed, *draft.encode(), ceil(1000 * share)])
    values, barriers = [], []
    for run in range(RUNS):
        pairing = classifier(planted(blocks, draft, share, random))
        scale = pairing.spread or 1.0
        values.append(pairing.observed / scale)
        if run < BARRIERS:
            barriers.append(pairing.barrier(level) / scale)
    return Shown(mean=float(np.mean(values)), deviation=float(np.std(values, ddof=1)), barrier=float(np.mean(barriers)))


def smallest(blocks: Blocks, level: float, draft: Draft, *, seed: int) -> tuple[float | None, Mapping[float, Shown]]:
    """Return the smallest of SHARES that would have shown with CONFIDENCE and what bisection tried; None where not even 1 would."""
    tried = {1.0: shown(blocks, level, draft, 1.0, seed=seed)}
    if tried[1.0].chance < CONFIDENCE:
        return None, tried
    low, high = -1, len(SHARES) - 1
    while high - low > 1:
        middle = (low + high) // 2
        share = SHARES[middle]
        tried[share] = shown(blocks, level, draft, share, seed=seed)
        low, high = (low, middle) if tried[share].chance >= CONFIDENCE else (middle, high)
    return SHARES[high], tried


def planted(blocks: Blocks, draft: Draft, share: float, random: np.random.Generator) -> Blocks:
    """Return ``blocks`` with the servers permuted within each, and a fault in ``share`` of the first server's units."""
    order = random.permuted(np.tile(np.arange(blocks.arms), (len(blocks), 1)), axis=1)
    units = np.take_along_axis(blocks.units, order[:, :, None], axis=1)
    first = units[:, 0].copy()
    hit = (random.random(first.shape) < share) & (first >= 0)
    if draft is Draft.ANY:
        said = blocks.units[blocks.units >= 0]
        first[hit] = said[random.integers(len(said), size=int(hit.sum()))]
    else:
        follower = followers(blocks.units)
        for place in range(1, first.shape[1]):
            here = hit[:, place]
            first[here, place] = follower[first[here, place - 1]]
    units[:, 0] = first
    return replace(blocks, units=units)


def followers(units: Ints) -> Ints:
    """Return the commonest follower of every unit, the least of equals; the commonest unit of all where none follows."""
    before, after = units[..., :-1].ravel(), units[..., 1:].ravel()
    before, after = before[after >= 0], after[after >= 0]
    every = np.bincount(units[units >= 0])
    found = np.full(len(every), every.argmax())
    names, counts = np.unique(before * len(every) + after, return_counts=True)
    best = np.lexsort((-names, counts))
    found[names[best] // len(every)] = names[best] % len(every)
    return found


def blocks_needed(level: float, arms: int) -> int:
    """Return the fewest blocks whose permutations are enough for ``level``: of ``arms^N`` one is the answers as they are.

    For two arms the statistic is the same when all are exchanged.
    """
    return 1 + ceil(log(1.0 / level) / log(arms))
