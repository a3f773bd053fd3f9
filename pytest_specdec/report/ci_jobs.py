"""The jobs of a matrix for a scheduler: one process, one exit code and one run directory each, and the job that joins their runs.

A matrix is the variants of a config under all values of its axes, such as dtype. A cell is one variant under one value of each axis. The
cells of a group have the same baseline, the server without speculation: each process captures its answers once for all of its cells.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.model.shards import divide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.matrix import Matrix

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
    """Minutes that the same cells have taken, group by group; None where no run has measured all of them."""


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

        ``root`` is the folder with the run directories, already quoted for a shell.
        """
        return f"{shlex.join(self.argv)} --specdec-run-dir={root}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """All jobs of a config."""

    matrix: Matrix
    jobs: tuple[Job, ...]
    """At least one."""
    expression: str = ""
    """By which their cells were selected; empty for all of the config's."""

    @property
    def is_merged(self) -> bool:
        """True if there are several runs to join."""
        return len(self.jobs) > 1

    def merge_command(self, root: str = RUNS, out: str = MERGED) -> str:
        """Return the command line that joins the runs of several jobs.

        Its exit code is that of the class of the joined run, such as clean or finding. A missing run does not stop it: its cells are
        reported as missing. ``root``, the folder of runs, and ``out``, the joined run, are inserted as they are, quoted for a shell before.
        """
        only = f" --only={shlex.quote(self.expression)}" if self.expression else ""
        return f"python -m pytest_specdec merge {root}/* --out {out}{only} --exit-codes"

    @property
    def most_gpus(self) -> int:
        """The largest number of GPUs that a job needs."""
        return max(job.need.gpus for job in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The cells of a matrix that the jobs cover."""

    whole: Matrix
    part: Matrix
    """That of the cells that were selected."""
    expression: str = ""
    """By which they were selected; empty for all of them."""
    argv: tuple[str, ...]
    """The command of every job, without the selection of its cells."""
    needs: Mapping[str, Need]
    """By group, what its servers need; without minutes."""
    minutes: Mapping[frozenset[str], int]
    """By the ids of the cells that a stored run has of a group, the minutes that these took."""
    arm_s: Mapping[str, float]
    """By group, the seconds of one arm that shards are divided by: of any machine, so only their ratios count."""

    def job(self, name: str, part: Matrix, options: Sequence[str]) -> Job:
        """Return the job of a part of the matrix; ``options`` select its cells.

        Its minutes are those of its groups added up: None unless the stored run that measured them has each group with the same cells.
        """
        # 0 stands for a group that was not measured with these cells.
        minutes = [self.minutes.get(frozenset(group.cell_names), 0) for group in part.groups]
        need = replace(_largest_need([self.needs[group.name] for group in part.groups]), minutes=sum(minutes) if all(minutes) else None)
        return Job(name=name, cells=tuple(cell.name for cell in part.cells), argv=(*self.argv, *options), need=need)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of pytest that select all its cells; none for a whole matrix."""
        return (f"--specdec-only={self.expression}",) if self.expression else ()


def _largest_need(needs: Sequence[Need]) -> Need:
    """Return a need that suffices for all of ``needs``: memory None if any is, and no minutes."""
    memory = [need.memory_gib for need in needs if need.memory_gib is not None]
    return Need(gpus=max(need.gpus for need in needs), memory_gib=max(memory) if len(memory) == len(needs) else None)


def by_group(selection: Selection) -> tuple[Job, ...]:
    """Return a job for each group, to capture its baseline once.

    A job selects its cells by the name of the group. If the selection has only some cells of the group, its expression is added. A config
    of one group needs no name.
    """
    whole_sizes = {group.name: len(group.cells) for group in selection.whole.groups}
    jobs = []
    for group in selection.part.groups:
        only = f"group={group.name}" if len(group.cells) == whole_sizes[group.name] else f"group={group.name} and ({selection.expression})"
        options = (f"--specdec-only={only}",) if len(whole_sizes) > 1 else selection.options
        jobs.append(selection.job(group.name, replace(selection.part, groups=(group,)), options))
    return tuple(jobs)


def by_cell(selection: Selection) -> tuple[Job, ...]:
    """Return a job for each cell, over the matrix cut down to it; each captures a baseline."""
    return tuple(
        selection.job(cell.name, replace(selection.part, groups=(replace(group, cells=(cell,)),)), (f"--specdec-only={cell.name}",))
        for group in selection.part.groups
        for cell in group.cells
    )


def by_shard(selection: Selection, count: int) -> tuple[Job, ...]:
    """Return a job for each of ``count`` shards, parts of about the same time.

    Divided are the selected cells, ``selection.part``, by the seconds of one server of each group, ``selection.arm_s``. Every process
    divides them alike, so that a shard's number selects its cells. Raises ValueError for fewer cells than shards.
    """
    jobs = []
    for number, shard in enumerate(divide(selection.part, count, selection.arm_s), start=1):
        options = (*selection.options, f"--specdec-shard={number}/{count}")
        jobs.append(selection.job(f"shard-{number}-of-{count}", shard, options))
    return tuple(jobs)
