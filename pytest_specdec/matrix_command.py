"""The command ``matrix CONFIG``: the cells of a config as jobs, in the format of a CI system or of a cluster's scheduler.

A cell is a variant under one value of each axis of the config's matrix, judged against a baseline: a pair of servers. A group is the cells
with one baseline. A job is one process of pytest: for a group, a cell, or a shard, which is a part of about the same work as the others.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import estimate
from pytest_specdec.capture.placement import attached_arms
from pytest_specdec.capture.shards import arm_s
from pytest_specdec.config import load, matrix, shipped, variables
from pytest_specdec.config.matrix_cells import ALL, SEPARATOR
from pytest_specdec.config.matrix_expression import select
from pytest_specdec.engines import stack
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.matrix import VARIANT, Cell, Group, Matrix
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth
from pytest_specdec.report import ci_formats
from pytest_specdec.report.ci_jobs import JobList, Need, Selection, by_cell, by_group, by_shard
from pytest_specdec.report_command import refuse

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterator, Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Footprint
    from pytest_specdec.report.ci_jobs import Job

_ABOUT = (
    "Print the cells of a config with `matrix` as jobs, one process of pytest each, and the command that joins their runs. A job is a "
    "group of cells with one baseline, unless --by or --shards says otherwise. Nothing is booted and nothing submitted. Exits with 2 if "
    "the config, an option or a stored run cannot be used."
)
_SECONDS_PER_MINUTE = 60.0


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command ``matrix`` and its options."""
    parser = commands.add_parser(
        "matrix", help="print the cells of a config as jobs of a scheduler", description=_ABOUT, allow_abbrev=False
    )
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one here, in suites/configs or in the package")
    parser.add_argument("--only", metavar="EXPR", default="", help="cells: async=on and not eagle3-*, as --specdec-only")
    parser.add_argument("--depth", choices=[depth.value for depth in Depth], help="as --specdec-depth")
    parser.add_argument("--by", choices=["group", "cell"], default="group", help="the cells of one job (default: group)")
    parser.add_argument("--shards", metavar="N", type=int, help="N jobs of about the same work instead, by --specdec-shard")
    parser.add_argument("--gpus", metavar="N", type=int, help="of every job (default: as the arguments of the engine ask for)")
    parser.add_argument("--accelerator", metavar="NAME", default="", help="the GPU that tasks of SkyPilot ask for, such as H100")
    minutes = "a stored run of the same config: jobs whose cells it has at this depth have the minutes that these took, and a time limit"
    parser.add_argument("--minutes-from", metavar="RUN", type=Path, help=minutes)
    parser.add_argument("--format", choices=ci_formats.FORMATS, default="text", help="(default: text)")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the jobs and return the exit code.

    The code is 0, or 2 if the config, an option or the stored run cannot be used.
    """
    try:
        _check_options(arguments)
        path = load.find(arguments.config, Path.cwd())
        selection = _select_cells(arguments, path) if matrix.is_matrix(path) else _select_pairs(arguments, path)
        jobs = JobList(matrix=selection.part, jobs=_divide(arguments, selection), expression=selection.expression)
        sys.stdout.write(ci_formats.render(arguments.format, jobs, arguments.accelerator))
    except SpecdecError as error:
        return refuse(error)
    return 0


def _check_options(arguments: Namespace) -> None:
    """Raise SpecdecError for a number out of range, and for two ways to divide the cells."""
    if arguments.shards is not None and arguments.by == "cell":
        what = "a job is a cell or a shard"
        raise SpecdecError(what, where="--by", found="--by cell and --shards", expected="one of them", remedy="leave out --by or --shards")
    for option, value, least in (("--shards", arguments.shards, 1), ("--gpus", arguments.gpus, 0)):
        if value is not None and value < least:
            what = f"{option} is out of range"
            raise SpecdecError(what, where=option, found=str(value), expected=f"{least} or more")


def _select_cells(arguments: Namespace, path: Path) -> Selection:
    """Return the cells of a matrix that the options name.

    Raises SpecdecError if the config or the expression cannot be used.
    """
    config = matrix.load_matrix(path)
    part = select(config.matrix, arguments.only, option="--only") if arguments.only else config.matrix
    return _selection(arguments, config.matrix, part, {group.name: config.config(group) for group in part.groups})


def _select_pairs(arguments: Namespace, path: Path) -> Selection:
    """Return the pairs of a config without a matrix, as cells of one group.

    They make one job. Raises SpecdecError if the config cannot be used, or for options that divide it: without a matrix runs of parts
    could not be joined.
    """
    stated = {"--only": arguments.only, "--by": arguments.by == "cell", "--shards": arguments.shards}
    if option := next((name for name, value in stated.items() if value), ""):
        what, remedy = "the config has no matrix, so that it is one job", f"write its axes under `matrix`, or leave out {option}"
        raise SpecdecError(what, where=str(path), found=option, expected="a config with `matrix`", remedy=remedy)
    config = load.load(path)
    names = tuple(variant.name for variant in config.variants)
    cells = tuple(Cell(name=name, variant=name, choices={VARIANT: name}) for name in names)
    pairs = Matrix(axes={VARIANT: names}, groups=(Group(name=ALL, cells=cells),))
    return _selection(arguments, pairs, pairs, {ALL: config})


def _selection(arguments: Namespace, whole: Matrix, part: Matrix, configs: Mapping[str, Config]) -> Selection:
    """Return the cells of ``part`` with the needs of their jobs.

    ``whole`` is the matrix, ``part`` the selected cells of it, ``configs`` the config of each group in ``part``. The jobs' minutes come
    from a stored run if the options name one. Shards are balanced by ``arm_s``, the expected seconds of one server's run. Raises RunError
    if the stored run has no minutes, and EngineError for arguments that an engine cannot read.
    """
    depth_option = (f"--specdec-depth={arguments.depth}",) if arguments.depth else ()
    config_name, at_depth = next(iter(configs.values())).path.stem, Depth(arguments.depth or Depth.STANDARD)  # all are of one file
    minutes = _read_minutes(arguments.minutes_from, config_name, at_depth) if arguments.minutes_from else {}
    return Selection(
        whole=whole,
        part=part,
        expression=arguments.only,
        argv=(
            "pytest",
            *shlex.split(shipped.arguments(Path.cwd())),
            f"--specdec-config={arguments.config}",
            *depth_option,
            "--specdec-exit-codes",
        ),
        needs={name: _need(config, arguments.gpus) for name, config in configs.items()},
        minutes=minutes,
        arm_s={name: arm_s(config) for name, config in configs.items()},
    )


def _divide(arguments: Namespace, selection: Selection) -> tuple[Job, ...]:
    """Divide the selected cells into jobs, by the options.

    A job is a group, a cell or a shard. Raises SpecdecError if there are fewer cells than shards.
    """
    if arguments.shards is None:
        return by_cell(selection) if arguments.by == "cell" else by_group(selection)
    count = len(selection.part.cells)
    if arguments.shards > count:
        what, remedy = "there are more shards than cells", f"ask for {count} or fewer"
        raise SpecdecError(what, where="--shards", found=f"{arguments.shards} for {count} cells", expected="a cell for each", remedy=remedy)
    return by_shard(selection, arguments.shards)


def _need(config: Config, gpus: int | None) -> Need:
    """Return the GPUs and memory needed by a config's servers.

    ``gpus`` is the number of GPUs that an option states; None for as many as the largest server takes, since servers side by side share
    them. A footprint is the part of a machine that one server takes, with a ``device_share`` only if it runs on GPUs. Memory is that of
    the largest server, times ``limits.servers`` if the config places servers side by side; ``auto`` counts as one server at a time. It is
    None if the memory of any server is unknown, as of servers on GPUs. Raises EngineError for arguments that an engine cannot read.
    """
    # A variable that is not set here, such as a key, may be set where the job runs.
    config = variables.fill(config, {name: f"${{{name}}}" for name in variables.names(config.text)} | os.environ)
    footprints = [_footprint(build) for build in _served_configs(config)]
    if gpus is None:
        gpus = max((footprint.devices for footprint in footprints if footprint.device_share is not None), default=0)
    sizes = [footprint.memory_gib for footprint in footprints]
    known_sizes = [size for size in sizes if size is not None]
    at_once = config.limits.servers if config.placement is Placement.SIDE_BY_SIDE else 1
    return Need(gpus=gpus, memory_gib=at_once * max(known_sizes) if known_sizes and len(known_sizes) == len(sizes) else None)


def _served_configs(config: Config) -> Iterator[Config]:
    """Yield the config of each engine with a server to start.

    The engine of the scorer, a server that scores the answers, is included. Attached servers run already: an engine is left out if all of
    its arms, baseline and variants, are attached, and the scorer if it has an address.
    """
    for build in config.builds.values():
        if not attached_arms(build) >= {BASELINE, *(variant.name for variant in build.variants)}:
            yield build
    if config.scorer is not None and not config.scorer.url:
        yield config.scorer_config()


def _footprint(config: Config) -> Footprint:
    """Return the part of a machine that one server takes.

    It is estimated for a machine with accelerators. If the server takes none there (``device_share`` is None), it is estimated for a
    machine without any.
    """
    engine = engine_of(config.engine.kind)
    footprint = stack.footprint(config, engine, accelerated=True)
    return footprint if footprint.device_share is not None else stack.footprint(config, engine, accelerated=False)


def _read_minutes(run: Path, config: str, depth: Depth) -> dict[frozenset[str], int]:
    """Return the minutes of a stored run's complete captures, by their pairs.

    The keys are the names of a capture's pairs. The minutes are measured for the capture, which sends the requests, and estimated for
    judging. Captures at another depth than ``depth`` are left out. ``run`` is an ordinary run, or one of a matrix, which has such a run for
    each group. Raises RunError if it is of another config than the one named ``config``, or holds no such capture.
    """
    folders = [path.parent for path in sorted((*run.glob("plan.json"), *run.glob("groups/*/plan.json")))]
    plans = {directory: run_documents.read_plan(directory) for directory in map(RunDirectory, folders)}
    # The plan of a group's run names the config and, after a separator, the group.
    names = dict.fromkeys(plan.config for plan in plans.values())
    if others := [name for name in names if name != config and not name.startswith(f"{config}{SEPARATOR}")]:
        what, remedy = "the minutes are of another config", "name a run of this config, or leave out --minutes-from"
        raise RunError(what, where=str(run), found=", ".join(others), expected=f"a run of {config}", remedy=remedy)
    minutes = {}
    for directory, plan in plans.items():
        status = run_documents.read_status(directory)
        if plan.depth is depth and status.state is State.COMPLETE:
            pair_names = frozenset(pair.name for pair in plan.pairs)
            run_s = status.wall_s + estimate.judging_s(len(plan.judgements))
            minutes[pair_names] = math.ceil(run_s / _SECONDS_PER_MINUTE)
    if not minutes:
        what, incomplete = "no complete run to take minutes from", f"{len(folders)} runs, none of them complete at depth {depth.value}"
        remedy = "name a run of this config at the same depth, or leave out --minutes-from"
        raise RunError(what, where=str(run), found=incomplete, expected="a run directory, or that of a matrix", remedy=remedy)
    return minutes
