"""The jobs of a matrix: a group, a cell or a shard each, with the command that runs it and what it needs."""

from __future__ import annotations

import shlex

from pytest_specdec.model.matrix import Cell, Group, Matrix
from pytest_specdec.report.ci_jobs import Job, JobList, Need, Selection, by_cell, by_group, by_shard

ARGV = ("pytest", "suites/", "--specdec-config=two")


def cell(variant: str, kernel: str) -> Cell:
    return Cell(name=f"{variant}--{kernel}", variant=variant, choices={"kernel": kernel, "variant": variant})


def matrix(*kernels: str, variants=("eagle3-k3", "ngram-k4")) -> Matrix:
    groups = tuple(Group(name=kernel, cells=tuple(cell(variant, kernel) for variant in variants)) for kernel in kernels)
    return Matrix(axes={"kernel": kernels, "variant": tuple(variants)}, groups=groups)


def selection(matrix: Matrix, *cells: str, expression="", needs=None, minutes=None) -> Selection:
    names = cells or tuple(cell.name for cell in matrix.cells)
    return Selection(
        matrix=matrix,
        cells=frozenset(names),
        expression=expression,
        argv=ARGV,
        needs={name: Need() for name in names} | (needs or {}),
        minutes=minutes or {},
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


def test_a_variant_called_as_a_word_of_expressions_is_still_selected():
    names = ("not", "or")
    cells = tuple(Cell(name=name, variant=name, choices={"variant": name}) for name in names)
    plain = Matrix(axes={"variant": names}, groups=(Group(name="all", cells=cells),))
    assert [job.argv[-1] for job in by_cell(selection(plain))] == ["--specdec-only=variant=not", "--specdec-only=variant=or"]


def test_shards_are_counted_from_one_and_keep_the_expression():
    shards = (("eagle3-k3--flash",), ("ngram-k4--flash", "eagle3-k3--triton"))
    assert [(job.name, job.cells, job.argv[len(ARGV) :]) for job in by_shard(selection(TWO, expression="*"), shards)] == [
        ("shard-1-of-2", shards[0], ("--specdec-only=*", "--specdec-shard=1/2")),
        ("shard-2-of-2", shards[1], ("--specdec-only=*", "--specdec-shard=2/2")),
    ]


def test_a_job_needs_what_its_largest_cell_does_and_an_unknown_memory_stays_unknown():
    needs = {"eagle3-k3--flash": Need(gpus=2, memory_gib=3.0), "ngram-k4--flash": Need(gpus=4, memory_gib=1.0)}
    assert by_group(selection(TWO, needs=needs))[0].need == Need(gpus=4, memory_gib=3.0)
    unknown = needs | {"ngram-k4--flash": Need()}
    assert by_group(selection(TWO, needs=unknown))[0].need == Need(gpus=2)


def test_minutes_are_those_of_a_run_of_the_very_same_cells():
    minutes = {frozenset(TWO.groups[0].cell_names): 7, frozenset({"eagle3-k3--triton"}): 3}
    assert [job.need.minutes for job in by_group(selection(TWO, minutes=minutes))] == [7, None]
    assert [job.need.minutes for job in by_cell(selection(TWO, minutes=minutes))] == [None, None, 3, None]


def test_a_command_quotes_what_it_is_given_and_ends_with_a_run_directory_of_its_own():
    job = Job(name="flash", cells=("a",), argv=("pytest", "--specdec-config=a b'; touch x; $(id)"), need=Need())
    assert shlex.split(job.command()) == [*job.argv, "--specdec-run-dir=specdec-runs/flash"]
    assert job.command('"$runs"').endswith(' --specdec-run-dir="$runs"/flash')


def test_the_last_job_names_every_run():
    jobs = JobList(matrix=TWO, jobs=by_group(selection(TWO)))
    assert jobs.merge_command() == "python -m pytest_specdec merge specdec-runs/flash specdec-runs/triton --out specdec-run"
