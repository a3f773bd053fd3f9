"""The jobs of a matrix for a scheduler: one process, one exit code and one run directory each, and the job that joins their runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.matrix import Cell, Group, Matrix

__all__ = ["MERGED", "RUNS", "Job", "JobList", "Need", "Selection", "by_cell", "by_group", "by_shard"]

RUNS = "specdec-runs"
"""The folder with a run directory for each job."""
MERGED = "specdec-run"
"""The run directory that the last job writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job needs of a machine."""

    gpus: int = 0
    memory_gib: float | None = None
    """GiB of the machine's memory that servers take; None where that is unknown before they start."""
    minutes: int | None = None
    """Minutes that the same cells have taken; None where no run has measured them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process of pytest, over some cells of a matrix."""

    name: str
    """Of letters, digits and hyphens; unique among the jobs."""
    cells: tuple[str, ...]
    """The ids of its pairs."""
    argv: tuple[str, ...]
    """The command without its run directory."""
    need: Need

    def command(self, root: str = RUNS) -> str:
        """Return its command line, to be run by a shell.

        ``root`` is the folder with the run directories, in a shell's own words.
        """
        return f"{shlex.join(self.argv)} --specdec-run-dir={root}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """All jobs of a config."""

    matrix: Matrix
    jobs: tuple[Job, ...]
    """At least one."""

    def merge_command(self, root: str = RUNS, out: str = MERGED) -> str:
        """Return the command line that joins the runs of all jobs.

        It names every run, so that one which is missing is an error. ``root`` and ``out`` are in a shell's own words.
        """
        runs = " ".join(f"{root}/{job.name}" for job in self.jobs)
        return f"python -m pytest_specdec merge {runs} --out {out}"

    @property
    def most_gpus(self) -> int:
        """The largest number of GPUs that a job needs."""
        return max(job.need.gpus for job in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The cells that the jobs of a matrix cover."""

    matrix: Matrix
    cells: frozenset[str]
    """The ids of pairs; at least one."""
    expression: str = ""
    """By which they were selected; empty for all cells."""
    argv: tuple[str, ...]
    """The command of every job, without the selection of its cells."""
    needs: Mapping[str, Need]
    """By cell, what its group needs, but for minutes."""
    minutes: Mapping[frozenset[str], int]
    """By the cells of a stored run, the minutes that it took."""

    def job(self, name: str, cells: Iterable[str], selection: Sequence[str]) -> Job:
        """Return the job of some cells, selected by these words of its command."""
        names = tuple(cells)
        need = replace(_largest([self.needs[cell] for cell in names]), minutes=self.minutes.get(frozenset(names)))
        return Job(name=name, cells=names, argv=(*self.argv, *selection), need=need)


def _largest(needs: Sequence[Need]) -> Need:
    """Return what suffices for each of some needs; minutes are left out."""
    memory = [need.memory_gib for need in needs if need.memory_gib is not None]
    return Need(gpus=max(need.gpus for need in needs), memory_gib=max(memory) if len(memory) == len(needs) else None)


def by_group(selection: Selection) -> tuple[Job, ...]:
    """Return a job for each group, which captures its baseline once."""
    parts = [(group, [name for name in group.cell_names if name in selection.cells]) for group in selection.matrix.groups]
    return tuple(selection.job(group.name, cells, _group_options(selection, group, cells)) for group, cells in parts if cells)


def _group_options(selection: Selection, group: Group, cells: Sequence[str]) -> tuple[str, ...]:
    """Return the options that select ``cells``, all those of a group that the selection has; none if they are the whole matrix."""
    if len(selection.matrix.groups) == 1:
        return _selection_options(selection)
    is_whole = len(cells) == len(group.cells)
    return (f"--specdec-only=group={group.name}" + ("" if is_whole else f" and ({selection.expression})"),)


def _selection_options(selection: Selection) -> tuple[str, ...]:
    """Return the options that select all cells of a selection; none for a whole matrix."""
    return (f"--specdec-only={selection.expression}",) if selection.expression else ()


def by_cell(selection: Selection) -> tuple[Job, ...]:
    """Return a job for each cell; cells of one group then capture their baseline each."""
    cells = [cell for cell in selection.matrix.cells if cell.name in selection.cells]
    return tuple(selection.job(cell.name, [cell.name], (f"--specdec-only={_cell_expression(cell)}",)) for cell in cells)


def _cell_expression(cell: Cell) -> str:
    """Return the expression that selects one cell.

    Of a config without a matrix, a cell has the name of its variant, which may be a word of expressions, such as ``not``.
    """
    return cell.name if cell.name != cell.variant else f"variant={cell.variant}"


def by_shard(selection: Selection, shards: Sequence[Sequence[str]]) -> tuple[Job, ...]:
    """Return a job for each of ``shards``, given by the ids of its pairs."""
    count = len(shards)
    return tuple(
        selection.job(f"shard-{number}-of-{count}", cells, (*_selection_options(selection), f"--specdec-shard={number}/{count}"))
        for number, cells in enumerate(shards, start=1)
    )
