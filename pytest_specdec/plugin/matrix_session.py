"""A session of a matrix: which cells it runs, and the state of an ordinary run for each group of them.

A matrix is a config with several values for some settings; each combination is a cell, a variant to judge against its baseline. The cells
with the same baseline are a group, captured as one run in a folder of the matrix's run directory. A shard is a part of the cells.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import shards
from pytest_specdec.config import matrix, matrix_expression, variables
from pytest_specdec.errors import ConfigError, RunError
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory, atomic_write
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.matrix_run import find_difference
from pytest_specdec.plugin import commands, handover, report_files, run_state
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.prompts.own import digest_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.matrix import MatrixConfig
    from pytest_specdec.model.matrix import Group
    from pytest_specdec.model.matrix_run import MatrixRun
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.plugin.options import Settings
    from pytest_specdec.plugin.run_state import RunState
    from pytest_specdec.report.matrix import MatrixReport
    from pytest_specdec.report.run import Run

_CONFIG = pytest.StashKey["MatrixConfig"]()


def states(config: pytest.Config, path: Path) -> Sequence[RunState]:
    """Return the state of a run for each group of the cells that the session runs.

    ``path`` is the matrix's config. The runs are in folders of the session's run directory, and have one session id. Each gets a part of
    the session's deadline, in proportion to its arms, the servers that it captures. A session that another one started for one group has
    that group's state alone, and may capture for the seconds that it was handed. Raises ConfigError for options that a matrix does not
    take, and RunError if the run to resume is none of a matrix.
    """
    settings, root = config.stash[SETTINGS], handover.root(config)
    _check_options(settings, path)
    matrix_config = config.stash[_CONFIG] = matrix.load_matrix(path)
    if settings.resume is not None:
        settings = _settings_to_resume(settings, settings.resume)
    groups = _select_groups(settings, matrix_config)
    group_states = []
    handed = handover.handed_over(config)
    only_group, capture_s = handed.get(handover.GROUP), handed.get(handover.CAPTURE_S)
    for group in groups:
        if only_group not in {None, group.name}:
            continue
        deadline_s = None if settings.deadline_s is None else settings.deadline_s * group.arms / sum(one.arms for one in groups)
        group_states.append(_state(config, replace(settings, deadline_s=deadline_s), matrix_config, root, group))
    for state in group_states:
        state.session = group_states[0].session
        state.capture_s = float(capture_s) if capture_s else state.capture_s
    return group_states


def replayed_config(config: pytest.Config, path: Path, plan: Plan) -> Config:
    """Return the config of a stored group, from a matrix's config at ``path``.

    The group's cells, those of ``plan``, are judged again by the settings there. Raises ConfigError if the matrix has none of the cells.
    """
    if _CONFIG not in config.stash:
        config.stash[_CONFIG] = matrix.load_matrix(path)
    whole, names = config.stash[_CONFIG], [pair.name for pair in plan.pairs]
    for group in whole.matrix.groups:
        if cells := tuple(cell for cell in group.cells if cell.name in names):
            return whole.config(replace(group, cells=cells))
    what, expected = "the matrix has no cell of the stored run", f"a config with {', '.join(names)}"
    raise ConfigError(what, where=str(path), expected=expected, remedy="leave out --specdec-config: the run has its own")


def replayed_states(config: pytest.Config, root: Path) -> Sequence[RunState]:
    """Return the states for judging the stored runs of a matrix again, one per group.

    ``root`` is the directory of the matrix's run. Groups that were not captured are left out. Raises RunError if none was.
    """
    settings, stored = config.stash[SETTINGS], matrix_run.read(root)
    group_states = []
    for name, folder in matrix_run.directories(root, stored).items():
        if not RunDirectory(folder).plan.is_file():
            continue  # not captured
        # --specdec-against names the run of a whole matrix: the group is compared with the group of it that has the most of its cells.
        predecessor = _find_predecessor(settings.against, stored.groups[name].cells)
        state = run_state.replayed_state(config, replace(settings, replay=folder, against=predecessor))
        # All cells of the matrix count, since the false-alarm budget was split over them.
        state.cells, state.matrix_name, state.matrix_root = len(stored.matrix.cells), stored.config, root
        group_states.append(state)
    if not group_states:
        what, expected = "the run of the matrix has no group that was captured", "a plan.json in one of its folders"
        raise RunError(what, where=str(root), found="none", expected=expected)
    return group_states


def write(states: Sequence[RunState], config: pytest.Config, workloads: Mapping[str, str]) -> None:
    """Write the matrix, and which of its cells the session captures, into the run directory.

    Reports need it, and ``merge`` joins shards by it. Every process of the session calls this; the first one makes the directory of a new
    run, or clears the run to resume of groups that were not begun. ``workloads`` are the digests of the selected tests' workloads, by name.
    Raises RunError if the directory of a new run holds anything, if it cannot be written, or if the run to resume is none of a matrix or
    was begun with another release, config, depth, selection or other prompts.
    """
    from pytest_specdec.plugin import capture  # noqa: PLC0415 - it imports this module

    first, root = states[0], states[0].matrix_root
    assert root is not None
    matrix_config = config.stash[_CONFIG]
    run = matrix_run.new_run(
        config=matrix_config.name,
        text=matrix_config.text,
        matrix=matrix_config.matrix,
        cells=[pair.name for state in states for pair in state.plan.pairs],
        depth=first.depth,
        workloads=workloads,
        prompts=digest_of(first.prompts),
    )
    with capture.claim_directory(root):
        directory = RunDirectory(root)
        is_first_process = run_documents.session(directory) != first.session  # each process writes the session's id below
        is_resumed = config.stash[SETTINGS].resume is not None
        if is_resumed:
            _check_unchanged(root, matrix_run.read(root), run)
        if is_first_process and is_resumed:
            # A group that was not begun has nothing to resume, and is captured into a new folder.
            _clear([state.root for state in states if state.settings.resume is None])
        elif is_first_process:
            RunDirectory.create(root)
        run_documents.write_session(directory, first.session)
        texts = (matrix_config.text, *(state.config.text for state in states))
        matrix_run.write(root, run, Secrets.union(map(variables.secrets_of, texts)))


def _clear(folders: Iterable[Path]) -> None:
    """Remove what an interrupted session left of groups of which it captured nothing."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _check_unchanged(root: Path, stored: MatrixRun, current: MatrixRun) -> None:
    """Raise RunError if the run to resume was begun otherwise than this session.

    Both must be of one config and release, with the same prompts, depth and selection of tests, and capture the same cells.
    """
    difference = _describe_difference(stored, current)
    if difference:
        what, remedy = "the run to resume was begun with something else", "repeat its command line, or begin a new run"
        expected = "the same config, prompts, depth, tests, --specdec-only and --specdec-shard"
        raise RunError(what, where=str(root), found=difference, expected=expected, remedy=remedy)


def _describe_difference(stored: MatrixRun, current: MatrixRun) -> str:
    """Return the first difference between the run to resume and this session's.

    Compared are release, matrix, depth, config, prompts and workloads, then the cells to capture. Empty without a difference.
    """
    difference = find_difference(current, stored)
    if difference is not None:
        return f"{difference.what}: {difference.here}, and the run has {difference.there}"  # here: in this session
    selected, begun = set(current.captured), set(stored.captured)
    if selected != begun:
        return f"{len(begun - selected)} cells of the run are not selected, and {len(selected - begun)} others are"
    return ""


def report(root: Path, run: MatrixRun, runs: Mapping[Path, Run], config: pytest.Config) -> MatrixReport:
    """Return the report of a matrix's run, made of its groups' reports.

    ``run`` is the run of the matrix in ``root``, and ``runs`` has the report of each judged group by its directory.
    """
    from pytest_specdec.report import matrix as matrix_report  # noqa: PLC0415 - only a session that judges pays for it

    by_name = {name: runs.get(folder) for name, folder in matrix_run.directories(root, run).items()}
    # A refusal is the reason for not judging a group. Under xdist the controller makes states of its own, which know of none.
    session_runs = run_state.runs_or_error(config)
    refusals = {} if isinstance(session_runs, str) else {state.root.name: state.refusal for state in session_runs.states if state.refusal}
    return matrix_report.make(run, by_name, directory=commands.as_typed(root, config), refusals=refusals)


def write_report(config: pytest.Config, folder: Path | None, report: MatrixReport, secrets: Secrets) -> tuple[str, ...]:
    """Write the report of a matrix; return the lines to print on it.

    Nothing but GitHub's step summary is written without a ``folder``. ``secrets`` are those of the groups; they are masked, and those of
    the matrix's config too.
    """
    if _CONFIG in config.stash:
        secrets = Secrets.union((secrets, variables.secrets_of(config.stash[_CONFIG].text)))
    from pytest_specdec.report import matrix_documents, matrix_markdown  # noqa: PLC0415 - only a session that judges pays for it

    report_files.append_step_summary(partial(matrix_markdown.render, report), secrets)
    if folder is None:
        return ()
    texts = matrix_documents.documents(report, config.stash[SETTINGS].reports)
    for name, text in texts.items():
        atomic_write(folder / name, report_files.mask_report(secrets, name, text))
    return tuple(f"{Path(name).stem}: {commands.as_typed(folder / name, config)}" for name in texts)


def _settings_to_resume(settings: Settings, root: Path) -> Settings:
    """Return the settings for resuming the run of a matrix.

    Depth and boots are the run's own, also for groups that it has not begun, unless the command line gives them.
    """
    stored = matrix_run.read(root)
    folders = [RunDirectory(folder) for folder in matrix_run.directories(root, stored).values()]
    boots = next((run_documents.read_plan(folder).speed_boots for folder in folders if folder.plan.is_file()), None)
    depth = settings.depth if settings.depth_given else stored.depth.value
    # As if given on the command line: the state of a group not begun has no stored plan to take the depth from.
    return replace(settings, depth=depth, depth_given=True, boots=settings.boots or boots)


def _check_options(settings: Settings, path: Path) -> None:
    """Raise ConfigError for an option that a matrix does not take.

    Such options name one run to continue, where a matrix has several, or one engine to judge.
    """
    named = {"--specdec-continue": settings.continued, "--specdec-engine": settings.engine}
    option = next((option for option, value in named.items() if value), None)
    if option:
        what, expected = "a matrix has a run for each group of its cells", "no such option, or a config without `matrix`"
        remedy = "leave the option out; --specdec-only=CELL captures one cell anew, under its share of the whole matrix"
        raise ConfigError(what, where=str(path), found=f"{option}={named[option]}", expected=expected, remedy=remedy)


def _find_predecessor(earlier: Path | None, cells: Collection[str]) -> Path | None:
    """Return the run to compare a group with.

    Of the earlier matrix's groups that were captured, it is the run of the one with the most of the ``cells``. None without an earlier run,
    or if no such group has any of them. Raises RunError if ``earlier`` is the run of no matrix, or cannot be read.
    """
    if earlier is None:
        return None
    groups = matrix_run.read(earlier).groups
    shared = {name: len(set(cells).intersection(part.cells)) for name, part in groups.items()}
    folders = [matrix_run.group_directory(earlier, name) for name in sorted(shared, key=lambda name: -shared[name]) if shared[name]]
    predecessor = next((folder for folder in folders if RunDirectory(folder).plan.is_file()), None)
    if predecessor is not None:
        run_state.check_earlier(predecessor)
    return predecessor


def _select_groups(settings: Settings, config: MatrixConfig) -> Sequence[Group]:
    """Return the groups of the selected cells in this session's shard."""
    selected = matrix_expression.select(config.matrix, settings.only) if settings.only else config.matrix
    return selected.groups if settings.shard is None else shards.part(config, selected, *settings.shard)


def _state(config: pytest.Config, settings: Settings, matrix_config: MatrixConfig, root: Path, group: Group) -> RunState:
    """Return the state of a group's run.

    If the session resumes the matrix's run, the group's is resumed too; one that was not begun is captured from the start. The state has
    the number of all cells of the matrix, over which the false-alarm budget is split.
    """
    folder = matrix_run.group_directory(root, group.name)
    is_resumed = settings.resume is not None and RunDirectory(folder).plan.is_file() and run_documents.has_begun(RunDirectory(folder))
    against = _find_predecessor(settings.against, group.cell_names)
    own_settings = replace(settings, resume=folder if is_resumed else None, run_dir=None if is_resumed else folder, against=against)
    state = run_state.new_state(config, own_settings, matrix_config.config(group), folder)
    state.cells, state.matrix_name, state.matrix_root = len(matrix_config.matrix.cells), matrix_config.name, root
    return state
