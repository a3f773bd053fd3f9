"""Fitted: a law of the drafter's kind, read off the baseline's side, for a drafter whose own law cannot be had.

A draft head is a smaller model of the same texts and errs as such: towards what usually follows the last few tokens. So does a model of the
last two tokens that backs off to one and to none (a hierarchical Dirichlet prior: MacKay and Peto 1995, *Natural Language Engineering* 1),
fitted to the laws that the baseline scored, each of whose atoms counts by its probability. Somewhere between it and the baseline lies the
drafter. Any law is a valid view as long as it is settled before the token: what is fitted at an answer is told by answers to earlier
requests only, of any arm, so that neither the answer itself nor another arm's to the same seed has a say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.stats.laws import Floats, Ints

__all__ = ["SHARES", "Scored", "between", "law"]

SHARES = (0.15, 0.4)
"""How far from the baseline towards the fitted law the drafter is taken to be: exponents of the fitted law."""
FEWEST = 500
"""Scored tokens below which the fitted law is the baseline's own: no view at all."""
BACKED = 4.0
"""Tokens behind the same one or two tokens that count for as much as the law that knows one token less."""
EVENLY = 1.0
"""Tokens that count for as much as the even law."""
LEAST = 1e-6
"""Smallest mass of an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """N scored tokens of one arm."""

    ids: Ints
    """[N, K], the atoms' token ids; below 0 where there are fewer."""
    p: Floats
    """[N, K+1], the baseline's raw law on atoms and tail."""
    before: Ints
    """[N, 2], the id of the token before and of the one before that; NOBODY (stats/observed.py) at a text's beginning."""
    turn: Ints
    """[N], the place of the answered request in the order of judgement."""


def between(p: Floats, fitted: Floats, share: float) -> Floats:
    """Return a draft law [N, K+1] on the way from ``p`` to the ``fitted`` law: ``p^(1-s) fitted^s``, normalised; nothing where p is 0."""
    found = p ** (1.0 - share) * np.where(p > 0.0, np.maximum(fitted, LEAST), 0.0) ** share
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def law(judged: Scored, told: Sequence[Scored], vocabulary: int) -> Floats:
    """Return the fitted raw law at the tokens of ``judged``, [N, K+1], from the tokens of all arms ``told`` at earlier turns.

    ``judged`` comes by rising turn. Without FEWEST such tokens it is the baseline's own.
    """
    words = np.unique(judged.ids)
    levels = [_Level.of(judged, told, words, known) for known in range(3)]
    rows = [np.argsort(one.turn, kind="stable") for one in told]
    ends = [np.searchsorted(np.sort(one.turn), np.arange(judged.turn.max(initial=-1) + 2)) for one in told]
    found, read = judged.p.copy(), 0
    turns, starts = np.unique(judged.turn, return_index=True)
    done = [0] * len(told)
    for turn, here in zip(turns.tolist(), np.split(np.arange(len(judged.turn)), starts[1:]), strict=True):
        for arm, order in enumerate(rows):
            earlier = order[done[arm] : ends[arm][turn]]
            done[arm] = int(ends[arm][turn])
            read += len(earlier)
            for level in levels:
                level.learn(arm, earlier)
        if read >= FEWEST:
            found[here] = _backed_off(levels, here, vocabulary)
    return found


def _backed_off(levels: Sequence[_Level], here: Ints, vocabulary: int) -> Floats:
    atoms = np.full(levels[0].cells[here].shape, 1.0 / vocabulary)
    for level, backed in zip(levels, (EVENLY, BACKED, BACKED), strict=True):
        atoms = level.at(here, backed, atoms)
    tail = np.maximum(1.0 - atoms.sum(axis=1), LEAST)
    both = np.column_stack([atoms, tail])
    return np.asarray(both / both.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Told:
    """The M tokens of one arm."""

    cells: Ints
    """[M, K], -1 of atoms that nobody asks for."""
    mass: Floats
    """[M, K]."""
    groups: Ints
    """[M]."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Level:
    """The mean law behind the same last tokens, of those atoms that are judged."""

    cells: Ints
    """[N, K], of the judged tokens: a group of last tokens and an atom."""
    groups: Ints
    """[N]."""
    told: list[_Told]
    """By arm."""
    mass: Floats
    """By cell."""
    tokens: Floats
    """By group."""

    @classmethod
    def of(cls, judged: Scored, told: Sequence[Scored], words: Ints, known: int) -> _Level:
        arms = (judged, *told)
        kinds = np.unique(np.concatenate([one.before[:, :known] for one in arms]), axis=0, return_inverse=True)[1].reshape(-1)
        groups = np.split(kinds.astype(np.int64), np.cumsum([len(one.turn) for one in arms])[:-1])
        asked, cells = np.unique(_keys(judged, groups[0], words), return_inverse=True)
        found = []
        for one, group in zip(told, groups[1:], strict=True):
            keys = _keys(one, group, words)
            at = np.searchsorted(asked, keys).clip(0, len(asked) - 1)
            found.append(_Told(cells=np.where((asked[at] == keys) & (keys >= 0), at, -1), mass=one.p[:, :-1], groups=group))
        cells = cells.reshape(judged.ids.shape)
        return cls(cells=cells, groups=groups[0], told=found, mass=np.zeros(len(asked)), tokens=np.zeros(int(kinds.max(initial=0)) + 1))

    def learn(self, arm: int, rows: Ints) -> None:
        told = self.told[arm]
        cells = told.cells[rows]
        asked = cells >= 0
        np.add.at(self.mass, cells[asked], told.mass[rows][asked])
        np.add.at(self.tokens, told.groups[rows], 1.0)

    def at(self, here: Ints, backed: float, prior: Floats) -> Floats:
        """Return the mean law, with ``prior`` [M, K] for as much as ``backed`` tokens."""
        return np.asarray((self.mass[self.cells[here]] + backed * prior) / (self.tokens[self.groups[here]][:, None] + backed))


def _keys(one: Scored, groups: Ints, words: Ints) -> Ints:
    """Return a number for every pair of a group [N] and an atom [N, K]; -1 of atoms that nobody asks for."""
    at = np.searchsorted(words, one.ids).clip(0, len(words) - 1)
    known = (words[at] == one.ids) & (one.ids >= 0)
    return np.where(known, groups[:, None] * len(words) + at, -1)
