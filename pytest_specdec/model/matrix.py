"""A matrix: many pairs of one config, by axes of settings; pairs with the same baseline form a group, which shares its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["GROUP", "VARIANT", "Cell", "Group", "Matrix"]

VARIANT = "variant"
"""The axis of the variants, beside those that a config names."""
GROUP = "group"
"""Stands for an axis where cells are selected by the group that they are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One pair of a matrix: a variant under one value of each axis."""

    name: str
    """The id of the pair, the same in every run: the variant, then the values, as in ``eagle3-k3--async-off--fp8``."""
    variant: str
    """The variant as the config names it."""
    choices: Mapping[str, str]
    """By axis, the name of its value; axes in the order of the config, and ``variant`` last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The cells whose baseline is the same: they are captured together, against one baseline and one control."""

    name: str
    """The values of the axes that a baseline depends on, as in ``async-off--fp8``; ``all`` where no axis has any such."""
    cells: tuple[Cell, ...]
    """At least one."""

    @property
    def cell_names(self) -> tuple[str, ...]:
        """The ids of its pairs."""
        return tuple(cell.name for cell in self.cells)

    @property
    def arms(self) -> int:
        """The number of its arms: the cells, the baseline and the control."""
        return len(self.cells) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All cells of a config, whatever part of them one session runs."""

    axes: Mapping[str, tuple[str, ...]]
    """By axis, the names of its values; ``variant`` is the last one."""
    groups: tuple[Group, ...]
    """At least one, in the order of the config's values."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all groups."""
        return tuple(cell for group in self.groups for cell in group.cells)
