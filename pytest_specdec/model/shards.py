"""Shards: a matrix divided into parts of about the same work, the same for every process that divides it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.matrix import Cell, Matrix

__all__ = ["divide"]

_BASELINE = 2
"""Work of a group in cells, beside its cells: its baseline is captured, and again as the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Cells of one group that stay together, so that their baseline is captured once."""

    group: int
    cells: tuple[Cell, ...]

    @property
    def work(self) -> int:
        """Its work in cells."""
        return _BASELINE + len(self.cells)

    def halves(self) -> tuple[_Part, _Part]:
        """Return its cells in two parts, the first of which is at most one cell larger."""
        middle = (len(self.cells) + 1) // 2
        return replace(self, cells=self.cells[:middle]), replace(self, cells=self.cells[middle:])


def divide(matrix: Matrix, count: int) -> tuple[Matrix, ...]:
    """Return ``count`` matrices that have every cell of ``matrix`` once, at least one each.

    Groups stay whole if there are as many of them; otherwise the largest are halved, and each part captures its baseline. The largest part
    goes first, to the shard with the least work (longest processing time first: Graham, SIAM J. Appl. Math. 17, 1969). Cells and groups
    keep their order, and the axes stay whole. Raises ValueError if there are fewer cells than shards, or no shards.
    """
    if not 1 <= count <= len(matrix.cells):
        msg = f"{len(matrix.cells)} cells cannot be divided into {count} shards"
        raise ValueError(msg)
    shards: list[list[_Part]] = [[] for _ in range(count)]
    for part in sorted(_split(matrix, count), key=lambda part: -part.work):
        min(shards, key=lambda parts: sum(part.work for part in parts)).append(part)
    return tuple(_join(matrix, parts) for parts in shards)


def _split(matrix: Matrix, count: int) -> list[_Part]:
    """Return at least ``count`` parts of groups, halved only as far as needed."""
    parts = [_Part(group=index, cells=group.cells) for index, group in enumerate(matrix.groups)]
    while len(parts) < count:
        largest = max(range(len(parts)), key=lambda index: parts[index].work)
        parts[largest : largest + 1] = parts[largest].halves()
    return parts


def _join(matrix: Matrix, parts: Sequence[_Part]) -> Matrix:
    """Return the matrix of some parts, those of one group together again."""
    groups = []
    for index, group in enumerate(matrix.groups):
        names = {cell.name for part in parts if part.group == index for cell in part.cells}
        if names:
            groups.append(replace(group, cells=tuple(cell for cell in group.cells if cell.name in names)))
    return replace(matrix, groups=tuple(groups))
