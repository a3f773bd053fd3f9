"""Shards: a matrix divided into parts of about the same time, the same for every process that divides it.

A matrix has groups of cells. The arms of a group are its cells, a baseline and a control: cutting a group costs these two once more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.model.matrix import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.model.matrix import Cell, Matrix

__all__ = ["divide"]

_MOST_CUTS = 4
"""Further cuts that are tried, for each shard."""


def divide(matrix: Matrix, count: int, arm_s: Mapping[str, float]) -> tuple[Matrix, ...]:
    """Return ``count`` matrices that have every cell of ``matrix`` once, at least one each.

    ``arm_s`` are the seconds of one arm, by group. The cells of a group share a baseline, so that it is cut only where there are too few
    groups or where this makes the longest shard shorter. Raises ValueError if there are fewer cells than shards, or no shards.
    """
    if not 1 <= count <= len(matrix.cells):
        msg = f"{len(matrix.cells)} cells cannot be divided into {count} shards"
        raise ValueError(msg)
    shards = _split(matrix.groups, count, lambda group: group.arms * arm_s[group.name])
    return tuple(replace(matrix, groups=tuple(groups)) for groups in shards)


def _split(groups: Sequence[Group], count: int, seconds: Callable[[Group], float]) -> list[list[Group]]:
    """Return the groups of each shard, with few groups cut.

    ``seconds`` gives the time of a group. Of the groups in the longest shard, the one with the longest parts is cut into one part more.
    This is repeated as long as it makes the longest shard shorter, up to ``_MOST_CUTS`` times per shard.
    """
    part_counts, uncut = _count_least_parts(groups, count, seconds), {group.name: group for group in groups}
    shards = _assign(groups, part_counts, count, seconds)
    for _ in range(_MOST_CUTS * count):
        longest = max(shards, key=lambda shard: sum(map(seconds, shard)))
        cuttable = [part.name for part in longest if part_counts[part.name] < len(uncut[part.name].cells)]
        if not cuttable:
            break
        name = max(cuttable, key=lambda name: seconds(uncut[name]) / part_counts[name])
        cut_further = _assign(groups, {**part_counts, name: part_counts[name] + 1}, count, seconds)
        if _longest_s(cut_further, seconds) >= _longest_s(shards, seconds):
            break
        part_counts, shards = {**part_counts, name: part_counts[name] + 1}, cut_further
    return shards


def _longest_s(shards: Sequence[Sequence[Group]], seconds: Callable[[Group], float]) -> float:
    return max(sum(map(seconds, shard)) for shard in shards)


def _count_least_parts(groups: Sequence[Group], count: int, seconds: Callable[[Group], float]) -> dict[str, int]:
    """Return the least number of parts of each group, by its name.

    It is one, or more where the group takes longer than a shard's fair time, and at most the number of its cells. If there are fewer than
    ``count`` parts in all, the group with the longest parts gets one more, until there are enough. ``count`` must not exceed the number of
    all cells.
    """
    fair_s = sum(map(seconds, groups)) / count
    part_counts = {group.name: min(len(group.cells), math.ceil(seconds(group) / fair_s)) for group in groups}
    while sum(part_counts.values()) < count:
        cuttable = [group for group in groups if part_counts[group.name] < len(group.cells)]
        part_counts[max(cuttable, key=lambda group: seconds(group) / part_counts[group.name]).name] += 1
    return part_counts


def _assign(groups: Sequence[Group], part_counts: Mapping[str, int], count: int, seconds: Callable[[Group], float]) -> list[list[Group]]:
    """Return the groups of each shard, with each group cut into its number of parts.

    The longest part comes first, and each goes to the shard with the least time, of equal ones to that with the fewest parts. The longest
    shard takes at most 4/3 of the least possible time for these parts (Graham, SIAM J. Appl. Math. 17, 1969). Parts of one group that come
    into one shard are joined.
    """
    parts = [part for group in groups for part in _cut(group, part_counts[group.name])]
    totals_s = [0.0] * count
    part_indices: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(range(len(parts)), key=lambda index: -seconds(parts[index])):
        least = min(range(count), key=lambda shard: (totals_s[shard], len(part_indices[shard])))
        totals_s[least] += seconds(parts[index])
        part_indices[least].append(index)
    return [_join([parts[index] for index in sorted(indices)]) for indices in part_indices]


def _join(parts: Sequence[Group]) -> list[Group]:
    """Return the groups of a shard, each with the cells of all of its parts."""
    cells: dict[str, tuple[Cell, ...]] = {}
    for part in parts:
        cells[part.name] = (*cells.get(part.name, ()), *part.cells)
    return [Group(name=name, cells=group_cells) for name, group_cells in cells.items()]


def _cut(group: Group, number: int) -> list[Group]:
    """Return a group's cells in ``number`` groups of about as many cells, in their order."""
    size, extra = divmod(len(group.cells), number)
    ends = [size * index + min(index, extra) for index in range(number + 1)]
    return [replace(group, cells=group.cells[start:end]) for start, end in pairwise(ends)]
