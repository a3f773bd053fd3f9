"""The jobs of a matrix: a group, a cell or a shard each, with the command that runs it and what it needs."""

from __future__ import annotations

import shlex
from dataclasses import replace

from pytest_specdec.model.matrix import Cell, Group, Matrix
from pytest_specdec.report.ci_jobs import Job, JobList, Need, Selection, by_cell, by_group, by_shard

ARGV = ("pytest", "suites/", "--specdec-config=two")


def cell(variant: str, kernel: str) -> Cell:
    return Cell(name=f"{variant}--{kernel}", variant=variant, choices={"kernel": kernel, "variant": variant})


def matrix(*kernels: str, variants=("eagle3-k3", "ngram-k4")) -> Matrix:
    groups = tuple(Group(name=kernel, cells=tuple(cell(variant, kernel) for variant in variants)) for kernel in kernels)
    return Matrix(axes={"kernel": kernels, "variant": tuple(variants)}, groups=groups)


def selection(whole: Matrix, *cells: str, expression="", needs=None, minutes=None) -> Selection:
    """Return a selection of some cells by name, by default all of them."""
    groups = (replace(group, cells=tuple(cell for cell in group.cells if not cells or cell.name in cells)) for group in whole.groups)
    return Selection(
        whole=whole,
        part=replace(whole, groups=tuple(group for group in groups if group.cells)),
        expression=expression,
        argv=ARGV,
        needs={group.name: Need() for group in whole.groups} | (needs or {}),
        minutes=minutes or {},
        arm_s={group.name: 1.0 for group in whole.groups},
    )


TWO = matrix("flash", "triton")


def test_a_job_is_a_group_so_that_its_baseline_is_captured_once():
    jobs = by_group(selection(TWO))
    assert [(job.name, job.cells) for job in jobs] == [(group.name, group.cell_names) for group in TWO.groups]
    assert jobs[0].argv == (*ARGV, "--specdec-only=group=flash")


def test_a_part_of_a_group_is_selected_by_group_and_expression():
    jobs = by_group(
        selection(TWO, "ngram-k4--flash", "eagle3-k3--triton", "ngram-k4--triton", expression="variant=ngram-k4 or kernel=triton")
    )
    assert [job.argv[-1] for job in jobs] == [
        "--specdec-only=group=flash and (variant=ngram-k4 or kernel=triton)",
        "--specdec-only=group=triton",
    ]
    (job,) = by_group(selection(TWO, "ngram-k4--flash", expression="ngram*"))
    assert job.cells == ("ngram-k4--flash",)


def test_the_only_group_is_selected_by_the_expression_alone():
    one = matrix("all")
    assert [job.argv for job in by_group(selection(one))] == [ARGV]
    assert by_group(selection(one, "ngram-k4--all", expression="ngram*"))[0].argv == (*ARGV, "--specdec-only=ngram*")


def test_a_cell_alone_is_selected_by_its_name():
    assert [(job.name, job.argv[-1]) for job in by_cell(selection(TWO, "eagle3-k3--flash", "ngram-k4--triton"))] == [
        ("eagle3-k3--flash", "--specdec-only=eagle3-k3--flash"),
        ("ngram-k4--triton", "--specdec-only=ngram-k4--triton"),
    ]


def test_shards_are_counted_from_one_and_keep_the_expression():
    jobs = by_shard(selection(TWO, expression="*"), 3)
    assert [(job.name, job.cells, job.argv[len(ARGV) :]) for job in jobs] == [
        (f"shard-{number}-of-3", cells, ("--specdec-only=*", f"--specdec-shard={number}/3"))
        for number, cells in enumerate([("eagle3-k3--flash", "ngram-k4--triton"), ("ngram-k4--flash",), ("eagle3-k3--triton",)], start=1)
    ]


def test_a_shard_needs_what_its_largest_group_does_and_an_unknown_memory_stays_unknown():
    needs = {"flash": Need(gpus=2, memory_gib=3.0), "triton": Need(gpus=4, memory_gib=1.0)}
    (job,) = by_shard(selection(TWO, needs=needs), 1)
    assert job.need == Need(gpus=4, memory_gib=3.0)
    (job,) = by_shard(selection(TWO, needs=needs | {"triton": Need()}), 1)
    assert job.need == Need(gpus=2)
    assert [job.need.gpus for job in by_cell(selection(TWO, needs=needs))] == [2, 2, 4, 4]


def test_minutes_are_those_of_a_run_of_the_very_same_cells():
    minutes = {frozenset(TWO.groups[0].cell_names): 7, frozenset({"eagle3-k3--triton"}): 3}
    assert [job.need.minutes for job in by_group(selection(TWO, minutes=minutes))] == [7, None]
    assert [job.need.minutes for job in by_cell(selection(TWO, minutes=minutes))] == [None, None, 3, None]


def test_minutes_of_a_shard_add_up_where_all_of_its_groups_were_measured():
    minutes = {frozenset(group.cell_names): 7 for group in TWO.groups}
    assert [job.need.minutes for job in by_shard(selection(TWO, minutes=minutes), 1)] == [14]
    del minutes[frozenset(TWO.groups[1].cell_names)]
    assert [job.need.minutes for job in by_shard(selection(TWO, minutes=minutes), 1)] == [None]


def test_a_command_quotes_what_it_is_given_and_ends_with_a_run_directory_of_its_own():
    job = Job(name="flash", cells=("a",), argv=("pytest", "--specdec-config=a b'; touch x; $(id)"), need=Need())
    assert shlex.split(job.command()) == [*job.argv, "--specdec-run-dir=specdec-runs/flash"]
    assert job.command('"$runs"').endswith(' --specdec-run-dir="$runs"/flash')


def test_the_last_job_joins_the_runs_that_are_there():
    jobs = JobList(matrix=TWO, jobs=by_group(selection(TWO)))
    assert jobs.is_merged
    assert jobs.merge_command() == "python -m pytest_specdec merge specdec-runs/* --out specdec-run --exit-codes"


def test_the_run_of_a_single_job_is_joined_with_none():
    assert not JobList(matrix=TWO, jobs=by_group(selection(TWO, "ngram-k4--flash", expression="ngram-k4--flash"))).is_merged
