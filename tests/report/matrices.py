"""A fixed run of a matrix: two groups of three cells, one finding that goes with one value of an axis."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.matrix import Cell, Group, Matrix
from pytest_specdec.model.matrix_run import GroupRun, MatrixRun
from pytest_specdec.model.pair import Pair
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth
from pytest_specdec.report import matrix
from pytest_specdec.report.plan_summary import summarise
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import FAILED, GREEDY, PLAN, SPEED, judgement, run_of, sampled

__all__ = ["MATRIX", "MATRIX_REPORT", "STORED", "VARIANTS", "group_run", "matrix_of", "plan_of", "report_of", "stored"]

VARIANTS = ("eagle3-k3", "draft-k3", "ngram-k4")


def matrix_of(**axes):
    """Return the matrix of all combinations of ``axes``, a group for each, with all of :data:`VARIANTS`."""
    combinations = [{}]
    for axis, values in axes.items():
        combinations = [{**choices, axis: value} for choices in combinations for value in values]
    groups = []
    for choices in combinations:
        values = "--".join(f"{axis}-{value}" for axis, value in choices.items())
        cells = tuple(
            Cell(name=f"{name}--{values}", variant=name, choices={**choices, "variant": name}) for name in VARIANTS
        )  # fmt: skip
        groups.append(Group(name=values, cells=cells))
    return Matrix(axes={**axes, "variant": VARIANTS}, groups=tuple(groups))


def stored(whole, *cells):
    """Return the run of a matrix with these cells, of all groups."""
    parts = {group.name: tuple(name for name in group.cell_names if name in cells or not cells) for group in whole.groups}
    return MatrixRun(
        config="fleet",
        config_text="engine: reference\n",
        config_digest="0123456789abcdef",
        matrix=whole,
        depth=Depth.SMOKE,
        version="0.1.0",
        workloads={"chat": "ab" * 8},
        groups={name: GroupRun(group=name, cells=part) for name, part in parts.items() if part},
    )


MATRIX = matrix_of(**{"async": ("on", "off")})
STORED = stored(MATRIX)


def plan_of(cells):
    pair = PLAN.pairs[0]
    pairs = tuple(Pair(config="fleet", engine="reference", model="target", variant=replace(pair.variant, name=cell)) for cell in cells)
    return replace(PLAN, config="fleet", depth=Depth.SMOKE, pairs=pairs, judgements=())


def group_run(cells, red=(), **fields):
    """Return the run of a group; in the ``red`` cells greedy fails by a named fault, and sampling with it."""
    judgements = []
    for cell in cells:
        nodeid = f"suites/greedy/test_greedy.py::test_every_token[{cell}]"
        wrong = replace(FAILED, pair=cell)
        judgements.append(judgement(wrong, PytestOutcome.FAILED, nodeid=nodeid) if cell in red else judgement(replace(GREEDY, pair=cell)))
        alarm = {"outcome": Outcome.FAIL, "names": FAILED.names, "headline": "sampled tokens do not follow the baseline's distribution"}
        verdict = sampled(cell, 300.0, 254.0, **alarm) if cell in red else sampled(cell, 2937.0, 0.3)
        judgements.append(
            judgement(verdict, PytestOutcome.FAILED if cell in red else PytestOutcome.PASSED, nodeid=f"suites/sampling::{cell}")
        )
        judgements.append(judgement(replace(SPEED, pair=cell)))
    return run_of(*judgements, plan=summarise(plan_of(cells)), **fields)


def report_of(run, runs=None, red=(), **options):
    """Return the report of a run of a matrix; ``red`` cells fail, and ``runs`` are the groups' own where they are given."""
    groups = [
        matrix.summarise(name, part, (runs or {}).get(name, group_run(part.cells, red)), "no run.json") for name, part in run.groups.items()
    ]
    return matrix.build(run, groups, directory=".specdec/fleet", **options)


MATRIX_REPORT = report_of(STORED, red=MATRIX.groups[0].cell_names)
"""Red wherever scheduling is asynchronous."""
