"""A run of a matrix: which of its cells were captured, group by group, and what runs must share to be parts of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from pytest_specdec.model.matrix import Matrix
from pytest_specdec.model.workload import Depth

__all__ = ["Difference", "GroupRun", "MatrixRun", "find_difference"]

_SHOWN = 60
"""Characters of a line of a config that a difference shows."""


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
    """Digests of the workloads of the selected tests, by name, without the config's own prompts."""
    groups: Mapping[str, GroupRun]
    """By the name of the directory: the group's own name, or ``NAME.2`` where another shard captured further cells of the group."""
    prompts: str = ""
    """A digest of the config's own prompts, 16 hexadecimal digits; empty without any."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What keeps two runs from being parts of one."""

    what: str
    """A clause: ``the runs are of different depths``."""
    here: str
    there: str


def find_difference(run: MatrixRun, other: MatrixRun) -> Difference | None:
    """Return the first thing that parts of one run must share and these do not; None if they share everything."""
    return next(_find_differences(run, other), None)


def _find_differences(run: MatrixRun, other: MatrixRun) -> Iterator[Difference]:
    """Yield the differences of two runs: release, matrix, depth, config, own prompts, workloads."""
    if run.version != other.version:
        yield Difference(what="the runs are of different releases of pytest-specdec", here=run.version, there=other.version)
    if run.matrix != other.matrix:
        here, there = next(_compare_matrices(run.matrix, other.matrix))
        yield Difference(what="the runs are of different matrices", here=here, there=there)
    if run.depth is not other.depth:
        yield Difference(what="the runs are of different depths", here=run.depth.value, there=other.depth.value)
    if run.config_digest != other.config_digest:
        here, there = _differing_line(run.config_text, other.config_text)
        yield Difference(what="the runs are of different configs", here=here, there=there)
    if run.prompts != other.prompts:
        here, there = run.prompts or "none", other.prompts or "none"
        yield Difference(what="the runs have different prompts of their own", here=here, there=there)
    for name in sorted(run.workloads.keys() | other.workloads.keys()):
        here, there = (of.workloads.get(name, "not sent") for of in (run, other))
        if here != there:
            yield Difference(what="the runs are of different tests", here=f"{name}: {here}", there=there)


def _compare_matrices(matrix: Matrix, other: Matrix) -> Iterator[tuple[str, str]]:
    """Yield the differences of two unequal matrices, as texts of the first and the second.

    Axes come first, then cells. The last text, on groups and order, always comes: unequal matrices may have no other difference.
    """
    for axis in sorted(matrix.axes.keys() | other.axes.keys()):
        here, there = (", ".join(of.axes.get(axis, ())) or "no such axis" for of in (matrix, other))
        if here != there:
            yield f"{axis}: {here}", there
    cells, other_cells = ({cell.name for cell in of.cells} for of in (matrix, other))
    yield from ((f"the cell {cell}", "no such cell") for cell in sorted(cells - other_cells))
    yield from ((f"no cell {cell}", "that cell") for cell in sorted(other_cells - cells))
    yield "other groups, or another order", "the same ones"


def _differing_line(text: str, other_text: str) -> tuple[str, str]:
    """Return the first line in which two configs differ, from each.

    The configs are known to differ, but these are their texts with secrets masked. If no line differs, the configs differ in a secret or a
    line end, and the result says so.
    """
    lines = zip_longest(text.splitlines(), other_text.splitlines(), fillvalue="")
    for number, (line, other_line) in enumerate(lines, start=1):
        if line != other_line:
            return f"line {number}: {line.strip()[:_SHOWN] or 'nothing'}", other_line.strip()[:_SHOWN] or "nothing"
    return "another masked value or line end", "the same text"
