"""Draws: how a simulated server turns random numbers into tokens, each number used once, or one of them twice.

A token is drawn by inverse CDF in the order of token ids, or as the largest of log-probabilities with Gumbel noise. A number that serves
twice ties decisions that have to be independent (facts/statistics.md section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Bools, Floats, Ints

__all__ = ["Drawn", "Reuse", "draw", "id_order"]


class Reuse(StrEnum):
    """Which random number serves twice, in words."""

    NONE = ""
    RECOVERY = "the number that rejected the draft draws the recovered token"
    DRAFT = "the number that drew the draft decides on its acceptance"
    WINDOW = "one number decides on the acceptance of all drafts of a window"
    GUMBEL = "the Gumbel noise that drew the draft draws the recovered token"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """One token of M servers."""

    token: Ints
    """[M], of the split outcomes."""
    accepted: Bools
    """[M], whether it is the draft token."""


def id_order(ids: Ints) -> Ints:
    """Return the split outcomes [B, K+2] in the order of token ids, the tail's two last, for atoms ``ids`` [B, K]."""
    tail = np.tile(np.arange(ids.shape[1], ids.shape[1] + 2), (len(ids), 1))
    return np.concatenate([np.argsort(ids, axis=1, kind="stable"), tail], axis=1)


def draw(
    random: np.random.Generator, reuse: Reuse, *, q: Floats, accept: Floats, otherwise: Floats, verify: Bools, order: Ints, shared: Floats
) -> Drawn:
    """Return a token of each server: the draft from ``q`` where it is accepted, else one from ``otherwise``; laws are [M, K+2].

    ``verify`` [M] marks who has a draft, ``order`` [M, K+2] is that of token ids. ``shared`` [M] are the numbers that a window has in
    common, used for WINDOW only.
    """
    first, second, third = random.random((3, len(q)))
    if reuse is Reuse.GUMBEL:
        noise, fresh = random.gumbel(size=(2, *q.shape))
        draft = _largest(q, noise)
        other = _largest(otherwise, np.where(verify[:, None], noise, fresh))
    else:
        draft = _inverse(q, order, first)
        other = _inverse(otherwise, order, np.where(verify, second, third) if reuse is Reuse.RECOVERY else third)
    decides = {Reuse.DRAFT: first, Reuse.WINDOW: shared}.get(reuse, second)
    accepted = verify & (decides < np.take_along_axis(accept, draft[:, None], axis=1)[:, 0])
    return Drawn(token=np.where(accepted, draft, other), accepted=accepted)


def _inverse(law: Floats, order: Ints, uniform: Floats) -> Ints:
    mass = np.take_along_axis(law, order, axis=1).cumsum(axis=1)
    place = (mass > uniform[:, None] * mass[:, -1:]).argmax(axis=1)
    return np.asarray(np.take_along_axis(order, place[:, None], axis=1)[:, 0], dtype=np.int64)


def _largest(law: Floats, noise: Floats) -> Ints:
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(law) + noise).argmax(axis=1), dtype=np.int64)
