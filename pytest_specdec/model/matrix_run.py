"""A run of a matrix: which of its cells were captured, group by group, and what runs must share to be parts of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_specdec.model.matrix import Matrix
from pytest_specdec.model.workload import Depth

__all__ = ["GroupRun", "MatrixRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """The run directory of a group, or of some of its cells where shards divide it."""

    group: str
    """Its name in the matrix."""
    cells: tuple[str, ...]
    """Names of the cells captured there; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRun:
    """What a run of a matrix is a run of, and which part of it."""

    config: str
    """The name of the config."""
    config_text: str
    """The config as written, with its secrets masked."""
    config_digest: str
    """Of the config as written, 16 hexadecimal digits."""
    matrix: Matrix
    """All of it, whatever part was captured."""
    depth: Depth
    version: str
    """The version of this package."""
    workloads: Mapping[str, str]
    """Digests of the workloads of the selected tests, by name."""
    groups: Mapping[str, GroupRun]
    """By the name of the directory: the group's own name, or ``NAME.2`` where another shard captured further cells of the group."""

    @property
    def captured(self) -> tuple[str, ...]:
        """The names of the cells that the run has, in the order of the matrix."""
        present = {cell for group in self.groups.values() for cell in group.cells}
        return tuple(cell.name for cell in self.matrix.cells if cell.name in present)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the cells that the run does not have."""
        captured = frozenset(self.captured)
        return tuple(cell.name for cell in self.matrix.cells if cell.name not in captured)
